"""HTTP over the daemon's socket file for the SDK's client.

The SDK's own adapter (docker 7.2) opens a connection for every distinct URL, and leaks the socket of a connection that
is refused. This one keeps a single pool, so that calls share kept-alive connections, and closes what did not connect.
"""

from __future__ import annotations

import socket
from typing import Any

from docker.transport import UnixHTTPAdapter
from docker.transport.unixconn import UnixHTTPConnection, UnixHTTPConnectionPool


class _Connection(UnixHTTPConnection):
    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(self.unix_socket)
        except BaseException:
            sock.close()
            raise
        self.sock = sock


class _Pool(UnixHTTPConnectionPool):
    def _new_conn(self) -> Any:
        return _Connection(self.base_url, self.socket_path)


class SocketFileAdapter(UnixHTTPAdapter):
    """To be mounted on a client for `http+docker://`."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__(f"http+unix://{path}", timeout=int(timeout))
        self._pool = _Pool("http+docker://localhost", path, int(timeout))

    def get_connection(self, url: Any, proxies: Any = None) -> _Pool:
        return self._pool

    def close(self) -> None:
        super().close()
        self._pool.close()
