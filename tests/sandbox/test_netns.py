from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator

import pytest

from agent_env.sandbox.netns import NamespaceSockets, can_enter_namespaces, open_namespace

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not can_enter_namespaces(), reason="entering network namespaces needs root on Linux"),
]

_SERVER = """
import socket, subprocess
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
server = socket.create_server(("127.0.0.1", 18765))
print("up", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b"inside")
    connection.close()
"""


@pytest.fixture
def namespace() -> Iterator[int]:
    """A descriptor of a network namespace in which a server listens on 127.0.0.1:18765."""
    command = ["unshare", "--net", "python3", "-c", _SERVER]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    descriptor = os.open(f"/proc/{process.pid}/ns/net", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)
    process.kill()
    process.communicate()


async def test_a_socket_is_connected_inside_and_we_stay_outside(namespace: int) -> None:
    sockets = NamespaceSockets()
    before = os.stat("/proc/self/ns/net").st_ino
    with await sockets.connect(namespace, 18765) as connection:
        connection.setblocking(True)
        assert connection.recv(100) == b"inside"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 18765), timeout=2)
    assert os.stat("/proc/self/ns/net").st_ino == before
    sockets.close()


async def test_nobody_listening_is_a_refused_connection(namespace: int) -> None:
    sockets = NamespaceSockets()
    with pytest.raises(ConnectionRefusedError):
        await sockets.connect(namespace, 1)
    sockets.close()


def test_a_process_of_another_container_is_not_entered() -> None:
    assert open_namespace(os.getpid(), "0" * 64) is None
    assert open_namespace(2**22 + 1, "0" * 64) is None
