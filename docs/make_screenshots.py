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
import json
import sys
import tarfile
import tempfile
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reasoning_gym_environment.report.main import main as report
from testing.browser import NAMES, TOO_WIDE, browser, find_browser

PICTURES = Path(__file__).with_name("report")
SAMPLE = Path(__file__).with_name("sample_run.tar.xz")
WIDTH, HEIGHT = 900, 1300
"""Size of the pictures in the docs, in pixels."""
WIDTHS = (420, 1400, 2200)
"""Widths of the pictures of `--look`, in pixels."""
SCHEMES = ("light", "dark")


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
    parser.add_argument("--chromium", default=find_browser(), metavar="PATH")
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
