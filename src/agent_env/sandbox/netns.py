"""Sockets inside a container's network namespace, made from outside.

A thread may enter another network namespace (`setns(2)`, root on Linux) without moving the rest of the process, and a
socket belongs for ever to the namespace it was made in. So one thread enters, makes a socket and comes back; the
socket is then connected and used as any other. This way a container needs no network at all to be reached.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

_CLONE_NEWNET = 0x40000000


def can_enter_namespaces() -> bool:
    """May this process enter other network namespaces? Tried for real, in a thread that ends."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(_try_own).result()


def open_namespace(pid: int, container: str) -> int | None:
    """A file descriptor of the network namespace of a container's first process, or None when it can't be had.

    The daemon tells the pid as the daemon sees it. Ours may differ (we run in a container, the daemon elsewhere), so
    the process must be in that container's control group, both before and after it was opened.
    """
    if not _in_container(pid, container):
        return None
    try:
        descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    if _in_container(pid, container) and not _is_ours(descriptor):
        return descriptor
    os.close(descriptor)
    return None


class NamespaceSockets:
    """Makes sockets in other namespaces, with one thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="netns")

    async def connect(self, namespace: int, port: int) -> socket.socket:
        """A non-blocking stream socket connected to 127.0.0.1:port inside the namespace. Raises OSError."""
        # A descriptor of its own: the sandbox may be stopped, and its descriptor closed, meanwhile.
        made = self._thread.submit(_socket_inside, os.dup(namespace))
        try:
            sock = await asyncio.wrap_future(made)
        except asyncio.CancelledError:
            made.add_done_callback(lambda done: None if done.cancelled() or done.exception() else done.result().close())
            raise
        return await connected(sock, ("127.0.0.1", port))

    def close(self) -> None:
        self._thread.shutdown(wait=False)


async def connected(sock: socket.socket, address: tuple[str, int]) -> socket.socket:
    """Connect a non-blocking socket; it is closed when that fails."""
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


def _socket_inside(namespace: int) -> socket.socket:
    try:
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(namespace)
            try:
                return socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            finally:
                _enter(home)
        finally:
            os.close(home)
    finally:
        os.close(namespace)


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"entering a network namespace: {os.strerror(number)}")


def _try_own() -> bool:
    try:
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        _enter(home)
    except OSError:
        return False
    finally:
        os.close(home)
    return True


def _in_container(pid: int, container: str) -> bool:
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            return container in file.read()
    except OSError:
        return False


def _is_ours(namespace: int) -> bool:
    ours = os.stat("/proc/self/ns/net")
    theirs = os.fstat(namespace)
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)
