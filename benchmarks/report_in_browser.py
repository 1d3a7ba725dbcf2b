"""Open reports in a real headless browser, with attacks in them: does it render, and run nothing of a model's?

    python benchmarks/report_in_browser.py [--chromium PATH] [--keep FOLDER]

Not a test of the suite, because it needs a browser. Prints what it found, exits with 1 if anything is wrong, and leaves
the pages in FOLDER to be looked at.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reasoning_gym_environment.report.main import main as report
from testing.report_samples import ATTACKS, MARK, Page, write_dump, write_results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome") or "chromium")
    parser.add_argument("--keep", type=Path, default=None, help="folder for the pages")
    options = parser.parse_args()
    if shutil.which(options.chromium) is None:
        parser.error(f"No browser at {options.chromium!r}: install Chromium, or name one with --chromium PATH.")
    folder = options.keep or Path(tempfile.mkdtemp(prefix="report-"))
    pages = write_pages(folder)
    faults = [fault for page in pages for fault in check_page(options.chromium, page)]
    faults += check_policy(options.chromium, folder)
    sys.stdout.write("\n".join(faults) or f"{len(pages)} pages render and run nothing of a model's.")
    sys.stdout.write(f"\nPages: {folder} (pictures: python docs/make_screenshots.py --look {folder}/*.html)\n")
    return 1 if faults else 0


def write_pages(folder: Path) -> list[Path]:
    """A page of everything, a comparison, one beside the published models."""
    first = write_results(folder / "before")
    second = write_results(folder / "after", gain=0.08, seed=9)
    dump = write_dump(folder / "dumps", attack=ATTACKS[0])
    pages = [folder / name for name in ("everything.html", "compare.html", "published.html")]
    assert report([str(first), str(dump), "-o", str(pages[0])]) == 0
    assert report(["--compare", str(first), str(second), "-o", str(pages[1])]) == 0
    assert report([str(first), "--published", "-o", str(pages[2])]) == 0
    return pages


def browse(chromium: str, page: Path, anchor: str, *flags: str) -> str:
    """What the browser writes to standard output; the page may take ten virtual seconds."""
    fixed = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=10000"]
    with tempfile.TemporaryDirectory() as profile:
        command = [chromium, *fixed, f"--user-data-dir={profile}", *flags, f"{page.resolve().as_uri()}{anchor}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def opened(chromium: str, page: Path, anchor: str) -> Page:
    """The page as our script and the attacks have left it."""
    return Page(browse(chromium, page, anchor, "--dump-dom"))


def check_page(chromium: str, page: Path) -> list[str]:
    seen = opened(chromium, page, "#rollouts?open=40")
    faults = [f"{page.name}: <{tag} {names}>" for tag, names in seen.elements if is_of_an_attack(tag, names)]
    if MARK in seen.texts["title"]:
        faults.append(f"{page.name}: a completion ran")
    if not any("rollout" in (names.get("class") or "").split() for _, names in seen.elements):
        faults.append(f"{page.name}: our own script did not run")
    return faults


def is_of_an_attack(tag: str, names: dict[str, str | None]) -> bool:
    active = tag in ("img", "iframe", "object", "embed") or any(name.startswith("on") for name in names)
    return active or (names.get("href") or "").startswith("javascript:")


def check_policy(chromium: str, folder: Path) -> list[str]:
    """Even where escaping had failed, the policy lets nothing but our script run; without the policy it would."""
    page = (folder / "everything.html").read_text(encoding="utf-8")
    attack = "".join(f"<body>{attack}" for attack in ATTACKS[:6])
    broken, open_page = folder / "unescaped.html", folder / "unescaped_without_policy.html"
    start, end = page.index("<meta http-equiv"), page.index("<meta name=")
    broken.write_text(page.replace("</main>", f"</main>{attack}", 1), encoding="utf-8")
    without = page[:start] + page[end:]
    open_page.write_text(without.replace("</main>", f"</main>{attack}", 1), encoding="utf-8")
    faults = []
    if MARK in opened(chromium, broken, "").texts["title"]:
        faults.append("the policy let an attack run")
    if MARK not in opened(chromium, open_page, "").texts["title"]:
        faults.append("the attacks are none: they do nothing without the policy either")
    return faults


if __name__ == "__main__":
    sys.exit(main())
