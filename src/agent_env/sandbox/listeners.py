"""Which TCP sockets of this network namespace listen, and whose they are. Standard library only.

Asked from the kernel over netlink (sock_diag(7)), which looks at listening sockets alone and takes microseconds. Where
that is not to be had, /proc/net/tcp says the same, but walks through every connection of the machine to do so:
milliseconds on a quiet machine, and many on a busy one.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import NamedTuple

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_DUMP = 0x301
_LISTEN = 10
_DONE, _ERROR = 3, 2
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_ANSWER = struct.Struct("=BBBB HH16s16sI8s IIIII")
_LOOPBACK = frozenset({bytes([127, 0, 0, 1]), bytes(4), bytes(16), bytes(10) + b"\xff\xff\x7f\0\0\1"})
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class Listening(NamedTuple):
    """A socket that listens. `local`: it would take a connection to 127.0.0.1."""

    port: int
    uid: int
    inode: int
    local: bool


def listening() -> list[Listening]:
    """Every listening TCP socket of this network namespace."""
    try:
        return [found for family in _FAMILIES for found in _asked(family)]
    except OSError:
        return [found for table in ("tcp", "tcp6") for found in _read(table)]


def _asked(family: int) -> list[Listening]:
    found: list[Listening] = []
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 1 << _LISTEN)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1)
        kernel.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + body)
        while True:
            data = kernel.recv(1 << 16)
            at = 0
            while at < len(data):
                length, kind, *_ = _HEADER.unpack_from(data, at)
                if kind == _DONE:
                    return found
                if kind == _ERROR:
                    number = -struct.unpack_from("=i", data, at + _HEADER.size)[0]
                    raise OSError(number, os.strerror(number))
                found.append(_listening(family, data, at + _HEADER.size))
                at += (length + 3) & ~3


def _listening(family: int, data: bytes, at: int) -> Listening:
    fields = _ANSWER.unpack_from(data, at)
    port = socket.ntohs(fields[4])
    address = fields[6][: 4 if family == socket.AF_INET else 16]
    return Listening(port, uid=fields[13], inode=fields[14], local=address in _LOOPBACK)


def _read(table: str) -> list[Listening]:
    """From /proc, where words of an address are in the machine's own order."""
    try:
        with open(f"/proc/net/{table}") as file:
            lines = file.read().splitlines()[1:]
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        fields = line.split(None, 10)
        address, _, port = fields[1].rpartition(":")
        if int(fields[3], 16) == _LISTEN:
            words = [int(address[n : n + 8], 16).to_bytes(4, sys.byteorder) for n in range(0, len(address), 8)]
            found.append(Listening(int(port, 16), int(fields[7]), int(fields[9]), b"".join(words) in _LOOPBACK))
    return found
