"""What a fork server looks at and leaves clean around its forks: users, files, listening sockets, shared memory.

Runs in the env's own interpreter: standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import grp
import os
import pwd
import stat

SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")


def image_user(name: str | None) -> tuple[int, int, list[int]]:
    """uid, gid and further groups of a user as images name them."""
    user, _, group = (name or "0").partition(":")
    try:
        entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
        uid, gid, groups = entry.pw_uid, entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid)
    except KeyError:
        uid, gid, groups = (int(user) if user.isdigit() else 0), 0, []
    if group:
        gid = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
        groups = []
    return uid, gid, groups


def inside(root: str, path: str) -> str:
    """Where a path of the fork's lies: absolute ones are meant from `root`, others from its working folder."""
    root = os.path.realpath(root)
    given = os.path.relpath(path, root) if path == root or path.startswith(root + "/") else path.lstrip("/")
    target = os.path.realpath(os.path.join(root, given if path.startswith("/") else os.path.join("app", path)))
    if target != root and not target.startswith(root + "/"):
        raise OSError(errno.EXDEV, "leads out of the sandbox")
    return target


def open_inside(root: str, path: str, mode: int | None) -> int:
    target = inside(root, path)
    if mode is None:
        fd = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        kind = os.fstat(fd).st_mode
        if not stat.S_ISREG(kind):
            raise OSError(errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL, "not a regular file")
        return fd
    os.makedirs(os.path.dirname(target), exist_ok=True)
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    os.fchmod(fd, mode)
    return fd


def left_behind(uid: int) -> list[str]:
    """Paths of a user's where every user may leave something."""
    found: list[str] = []
    for folder in SHARED_FOLDERS:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        found += [path for name in names if _is_of(uid, path := os.path.join(folder, name))]
    return found


def _is_of(uid: int, path: str) -> bool:
    try:
        return os.lstat(path).st_uid == uid
    except OSError:
        return False  # another fork's, gone meanwhile


def remove_objects(uid: int) -> None:
    """Remove a user's System V shared memory, semaphores and queues."""
    libc = ctypes.CDLL(None)
    for number in _objects("shm", "shmid", uid):
        libc.shmctl(number, 0, None)
    for number in _objects("sem", "semid", uid):
        libc.semctl(number, 0, 0)
    for number in _objects("msg", "msqid", uid):
        libc.msgctl(number, 0, None)


def _objects(kind: str, column: str, uid: int) -> list[int]:
    """Ids of a user's System V objects."""
    try:
        with open(f"/proc/sysvipc/{kind}") as file:
            head, *rows = [line.split() for line in file]
    except OSError:
        return []
    number, user = head.index(column), head.index("uid")
    return [int(row[number]) for row in rows if int(row[user]) == uid]


def is_within(folder: str, most: int | None) -> bool:
    """Whether a folder's files have at most so many bytes together."""
    if most is None:
        return True
    if folder == "/":
        return False
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size + 512
            except OSError:
                continue
            if total > most:
                return False
    return True


def is_absent(path: str) -> bool:
    """Not there at all, rather than out of reach."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def rss() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
