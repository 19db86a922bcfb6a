from __future__ import annotations

import asyncio
import textwrap
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path

import pytest

from agent_env.grading.pool import GraderPool


@pytest.fixture
async def pool() -> AsyncIterator[GraderPool]:
    """One process of a venv without packages."""
    pool = GraderPool(requirements=(), workers=1)
    yield pool
    await pool.aclose()


class Phone:
    """Lets a grader tell the test its process id and that of a child it started."""

    def __init__(self) -> None:
        self._calls: asyncio.Queue[list[int]] = asyncio.Queue()
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._calls.put_nowait([int(pid) for pid in (await reader.readline()).split()])
        writer.close()

    async def call(self) -> list[int]:
        return await asyncio.wait_for(self._calls.get(), 30)

    @property
    def caller(self) -> str:
        """A grader that starts a child in a session of its own, calls and then hangs."""
        return f"""
            import asyncio, os, socket, subprocess

            async def verify(mcp_url):
                child = subprocess.Popen(["sleep", "600"], start_new_session=True)
                with socket.create_connection(("127.0.0.1", {self.port})) as line:
                    line.sendall(f"{{os.getpid()}} {{child.pid}}\\n".encode())
                await asyncio.sleep(600)
        """


@pytest.fixture
async def phone() -> AsyncIterator[Phone]:
    phone = Phone()
    async with await asyncio.start_server(phone.answer, "127.0.0.1", 0) as server:
        phone.port = server.sockets[0].getsockname()[1]
        yield phone


@pytest.fixture
def grader(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a `verify.py`."""
    numbers = count()

    def write(source: str) -> Path:
        file = tmp_path / str(next(numbers)) / "verify.py"
        file.parent.mkdir()
        file.write_text(textwrap.dedent(source))
        return file

    return write
