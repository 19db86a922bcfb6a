from __future__ import annotations

import os
import socket

import pytest

from agent_env.sandbox import listeners
from agent_env.sandbox.listeners import Listening, listening

ADDRESSES = {"127.0.0.1": True, "0.0.0.0": True, "::": True, "::ffff:127.0.0.1": True, "127.0.0.2": False, "::1": False}


def _of(port: int) -> list[Listening]:
    return [found for found in listening() if found.port == port]


@pytest.mark.parametrize("way", ["netlink", "proc"])
@pytest.mark.parametrize("address", list(ADDRESSES))
def test_a_listening_socket_is_known_by_port_user_and_inode(
    way: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "proc":
        monkeypatch.setattr(listeners, "_asked", _refused)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.bind((address, 0))
        port = sock.getsockname()[1]
        assert _of(port) == []
        sock.listen()
        assert _of(port) == [Listening(port, os.geteuid(), os.fstat(sock.fileno()).st_ino, ADDRESSES[address])]
    assert _of(port) == []


def _refused(family: int) -> list[Listening]:
    raise OSError("no such thing here")
