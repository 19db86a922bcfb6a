"""A lock between processes: held by an open file, so that it ends with its holder."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def file_lock(path: Path) -> AsyncIterator[None]:
    """Hold an exclusive lock on `path`, waiting for it in a thread of its own. The file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    waiter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lock")
    acquired = waiter.submit(fcntl.flock, descriptor, fcntl.LOCK_EX)
    # Closing the file gives the lock up; a cancelled caller leaves that to the thread, once it got the lock.
    try:
        await asyncio.wrap_future(acquired)
        yield
    finally:
        waiter.submit(os.close, descriptor)
        waiter.shutdown(wait=False)
