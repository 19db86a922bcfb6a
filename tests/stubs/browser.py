"""A real browser for the tests of our page: Chromium without a window, driven over its DevTools socket."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import websockets
from requirements import absent

Json = Any
PHONE = (390, 844)
DESK = (1200, 800)
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """Its path. Skips the test where there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    return found or absent("chromium", "no Chromium is installed (Debian: apt-get install chromium)")


class Tab:
    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    async def ask(self, method: str, **params: Json) -> Json:
        number = next(self._numbers)
        await self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(await self._socket.recv())
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    async def open(self, url: str, size: tuple[int, int], headers: dict[str, str] | None = None) -> None:
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        await self.ask("Emulation.setDeviceMetricsOverride", **metrics)
        await self.ask("Network.enable")
        await self.ask("Network.setExtraHTTPHeaders", headers=headers or {})
        await self.ask("Page.enable")
        await self.ask("Page.navigate", url=url)
        while json.loads(await self._socket.recv()).get("method") != "Page.loadEventFired":
            pass

    async def value(self, script: str) -> Json:
        result = await self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        return result["result"].get("value")

    async def screenshot(self, path: Path, *, whole: bool = True) -> None:
        shot = await self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Tab]:
    """One tab; the browser's own files are in `folder`."""
    command = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += ["--hide-scrollbars", "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, start_new_session=True)
    try:
        async with asyncio.timeout(60):
            port = await _port(folder / "DevToolsActivePort")
            async with httpx.AsyncClient(trust_env=False) as http:
                pages = (await http.get(f"http://127.0.0.1:{port}/json")).json()
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        async with asyncio.timeout(60), websockets.connect(address, max_size=None, proxy=None) as socket:
            yield Tab(socket)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _port(file: Path) -> str:
    while not (lines := await asyncio.to_thread(_lines, file)):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return lines[0]


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
