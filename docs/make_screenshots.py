"""Take the pictures in docs/report: python docs/make_screenshots.py [--chromium PATH]

The pictures show the page that `reasoning-gym-env report` writes for a small run, docs/sample_run.tar.xz: a demo with
six tasks, its dumps, three evaluations during its training, and those before and after it (step-0 and step-147). One
picture is of the top of the page with light colours, the other of the samples with dark colours. With `--look PAGE ...`
the script takes pictures of other pages, 420, 1400 and 2200 pixels wide. It exits with 1 and a list if an element is
wider than the window.
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

from reasoning_gym_environment.html_report.main import main as report
from testing.browser import NAMES, TOO_WIDE, browser, find_browser

PICTURES = Path(__file__).with_name("report")
SAMPLE = Path(__file__).with_name("sample_run.tar.xz")
WIDTH, HEIGHT = 1400, 1000
"""Size of the pictures in the docs, in pixels."""
PICTURES_OF_DOCS = (
    ("run", "light", ""),
    ("samples", "dark", "#samples?source=step-0&against=step-147&relation=won&open=3"),
)
"""Name of each picture, its colours, and the place in the page."""
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
    """Write the pictures of the docs, and return a line for each that is too wide."""
    faults = []
    async with browser(program) as page:
        for name, scheme, anchor in PICTURES_OF_DOCS:
            await page.open(f"{file.resolve().as_uri()}{anchor}", width=WIDTH, height=HEIGHT, scheme=scheme)
            await page.until("document.querySelector('#rows .question') !== null")
            top = int(await page.value("Math.round(scrollY)"))
            picture = await page.picture(width=WIDTH, height=HEIGHT, top=top)
            Path(folder, f"{name}-{WIDTH}-{scheme}.png").write_bytes(picture)
            if wide := json.loads(await page.value(TOO_WIDE)):
                faults.append(f"{name}: {wide}")
    return faults


def page_of_sample(folder: Path) -> Path:
    """Unpack the sample run in `folder`, and return its page."""
    with tarfile.open(SAMPLE) as archive:
        archive.extractall(folder, filter="data")
    run, page = folder / "sample_run", folder / "report.html"
    if report([str(run), "-o", str(page), "--title", "a demo"]) != 0:
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
