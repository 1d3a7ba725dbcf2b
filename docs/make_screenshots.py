"""Take the pictures in docs/report: python docs/make_screenshots.py [--chromium PATH]

The pictures show the page that `reasoning-gym-env report` writes for a small run, docs/sample_run.tar.xz: a demo with
ten tasks, the held-out answers before and after it, and every third group of its dumps. A headless Chromium opens the
page, with light and dark colours. The script uses only the debugging port of the browser, and no test needs the
browser. With `--look PAGE ...` the script takes pictures of other pages, 420, 900 and 1200 pixels wide. It exits with
1 and a list if an element is wider than the window.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp

from reasoning_gym_environment.report.main import main as report

PICTURES = Path(__file__).with_name("report")
SAMPLE = Path(__file__).with_name("sample_run.tar.xz")
WIDTH, HEIGHT = 900, 1300
"""Size of the pictures in the docs, in pixels."""
WIDTHS = (420, 1400, 2200)
"""Widths of the pictures of `--look`, in pixels."""
SCHEMES = ("light", "dark")
NAMES = ("chromium", "chromium-browser", "google-chrome")
STARTS_WITHIN_S = 60.0

TOO_WIDE = """JSON.stringify([...document.querySelectorAll("body *")]
  .filter((node) => !node.closest(".scroll, nav, .sr") && node.getBoundingClientRect().right > innerWidth + 1)
  .map((node) => `${node.tagName}.${node.className}`).slice(0, 5))"""
"""JavaScript that lists elements beyond the right edge, except elements that scroll."""


class Browser:
    """One page of a browser, controlled through its debugging port."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._last = 0

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a command of the DevTools protocol. Raises RuntimeError if the browser refuses it."""
        self._last += 1
        await self._socket.send_json({"id": self._last, "method": method, "params": params})
        while True:
            reply = json.loads((await self._socket.receive()).data)
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
        ready = "document.readyState === 'complete' && location.href !== 'about:blank'"
        for _ in range(600):
            if await self.value(ready):
                return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"{url} did not load within a minute.")

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
                    yield Browser(socket)
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


async def look(program: str, pages: list[Path], folder: Path) -> list[str]:
    """Write pictures of every page at every width, light and dark; return a line for each page that is too wide."""
    faults = []
    async with browser(program) as page:
        for file, width, scheme in product(pages, WIDTHS, SCHEMES):
            await page.open(file.resolve().as_uri(), width=width, scheme=scheme)
            Path(folder, f"{file.stem}-{width}-{scheme}.png").write_bytes(await page.picture(width=width))
            if wide := json.loads(await page.value(TOO_WIDE)):
                faults.append(f"{file.name} at {width}, {scheme}: {wide}")
    return faults


async def show(program: str, file: Path, folder: Path) -> list[str]:
    """Write the pictures of the docs: light from the top of the page, dark from the section about training."""
    faults = []
    async with browser(program) as page:
        for scheme in SCHEMES:
            await page.open(file.resolve().as_uri(), width=WIDTH, scheme=scheme)
            top = 0
            if scheme == "dark":
                top = int(await page.value("document.getElementById('training').offsetTop")) - 20
            picture = await page.picture(width=WIDTH, height=HEIGHT, top=top)
            Path(folder, f"{WIDTH}-{scheme}.png").write_bytes(picture)
            if wide := json.loads(await page.value(TOO_WIDE)):
                faults.append(f"{scheme}: {wide}")
    return faults


def page_of_sample(folder: Path) -> Path:
    """Unpack the sample run in `folder`, and return its page."""
    with tarfile.open(SAMPLE) as archive:
        archive.extractall(folder, filter="data")
    run, page = folder / "sample_run", folder / "report.html"
    if report(["--compare", f"{run}/before", f"{run}/after", f"{run}/data_dumps", "-o", str(page)]) != 0:
        raise RuntimeError("The sample run has no page.")
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default=next(filter(None, map(shutil.which, NAMES)), None), metavar="PATH")
    parser.add_argument("--look", nargs="+", type=Path, metavar="PAGE", help="take pictures of these pages instead")
    parser.add_argument(
        "--to", type=Path, default=PICTURES, metavar="DIR", help="where to write (default: docs/report)"
    )
    options = parser.parse_args()
    if options.chromium is None:
        print(f"make_screenshots needs a browser: one of {', '.join(NAMES)}, or --chromium PATH.", file=sys.stderr)
        return 2
    options.to.mkdir(parents=True, exist_ok=True)
    if options.look:
        faults = asyncio.run(look(options.chromium, options.look, options.to))
    else:
        with tempfile.TemporaryDirectory() as folder:
            faults = asyncio.run(show(options.chromium, page_of_sample(Path(folder)), options.to))
    print("\n".join(faults) or f"Pictures: {options.to}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
