"""A headless Chromium for pictures of pages and for tests in a real browser, controlled through its debugging port.

async with browser(find_browser()) as page:
    await page.open("file:///tmp/report.html", width=1400)
    title = await page.value("document.title")
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
STARTS_WITHIN_S = 60.0
WAITS_S = 60.0

TOO_WIDE = """JSON.stringify([...document.querySelectorAll("body *")]
  .filter((node) => !node.closest(".scroll, nav, .sr") && node.getBoundingClientRect().right > innerWidth + 1)
  .map((node) => `${node.tagName}.${node.className}`).slice(0, 5))"""
"""JavaScript that lists elements beyond the right edge, except elements that scroll."""


def find_browser() -> str | None:
    """The path of an installed browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser, controlled through its debugging port."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._last = 0
        self.mistakes: list[str] = []
        """Exceptions and errors of the pages since the start, such as scripts that a policy refused."""

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a command of the DevTools protocol. Raises RuntimeError if the browser refuses it."""
        self._last += 1
        await self._socket.send_json({"id": self._last, "method": method, "params": params})
        while True:
            reply = json.loads((await self._socket.receive()).data)
            if reply.get("method") == "Runtime.exceptionThrown":
                self.mistakes.append(reply["params"]["exceptionDetails"]["exception"]["description"])
            if reply.get("method") == "Log.entryAdded" and reply["params"]["entry"]["level"] == "error":
                self.mistakes.append(reply["params"]["entry"]["text"])
            if reply.get("id") == self._last:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                return dict(reply["result"])

    async def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        found = await self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return found["result"].get("value")

    async def open(self, url: str, *, width: int, scheme: str = "light", height: int = 900) -> None:
        """Load a page in a window of this width, and wait until it is complete."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        await self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        await self.send("Page.navigate", url="about:blank")
        await self.send("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true. Raises RuntimeError if it is not within a minute."""
        for _ in range(int(WAITS_S / 0.1)):
            if await self.value(condition):
                return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"Not true within {WAITS_S:g} s: {condition}")

    async def picture(self, *, width: int, height: int | None = None, top: int = 0) -> bytes:
        """Return a PNG of the page, from `top` for `height` pixels, or to the end of the page."""
        whole = int(await self.value("Math.ceil(document.documentElement.scrollHeight)"))
        clip = {"x": 0, "y": top, "width": width, "height": min(height or whole, whole - top), "scale": 1}
        shot = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(shot["data"])


@contextlib.asynccontextmanager
async def browser(program: str) -> AsyncIterator[Browser]:
    """Start a headless Chromium with one empty page, and end it after the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0")
        process = await asyncio.create_subprocess_exec(
            *(program, *flags, f"--user-data-dir={profile}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _written(Path(profile, "DevToolsActivePort"))
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as response:
                    targets = await response.json(content_type=None)
                [page] = [target for target in targets if target["type"] == "page"]
                async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page_of_browser = Browser(socket)
                    await page_of_browser.send("Runtime.enable")
                    await page_of_browser.send("Log.enable")
                    yield page_of_browser
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _written(file: Path) -> str:
    """Wait for a file, and return its first line."""
    for _ in range(int(STARTS_WITHIN_S / 0.1)):
        with contextlib.suppress(OSError):
            line, end, _ = (await asyncio.to_thread(file.read_text)).partition("\n")
            if end:
                return line
        await asyncio.sleep(0.1)
    raise RuntimeError(f"The browser opened no debugging port in {STARTS_WITHIN_S:g} s.")
