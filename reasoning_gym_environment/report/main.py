"""The command: read the files, compare if asked to, write the page."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import EnvironmentSetupError
from ..utils.terminal import check_file
from .comparison import beside_published, compare
from .load import Evaluation, Sources, files_of, load
from .page import render


def main(arguments: Sequence[str]) -> int:
    """Exit code 0. Raises EnvironmentSetupError or OSError for files that cannot be shown as asked."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    options = _parser().parse_args(arguments)
    paths = [*(options.compare or ()), *options.paths]
    if not paths:
        raise EnvironmentSetupError("name at least one PATH, or two with --compare.")
    files = [file for path in paths if path.exists() for file in (path, *files_of(path))]
    check_file("--output", options.output, inputs=[*files, *(file.with_name("metrics.json") for file in files)])
    sources = load(paths)
    if options.published and not sources.evaluations:
        raise EnvironmentSetupError("--published needs results of `evaluate`; there are only dumps.")
    page = render(
        sources,
        title=options.title,
        max_rollouts=options.max_rollouts,
        comparison=compare(*_pair(sources, options.compare)) if options.compare else None,
        published=[beside_published(one) for one in sources.evaluations] if options.published else (),
    )
    print(f"{options.output} ({_write(page, options.output) / 1e6:.1f} MB)")
    return 0


def write_page(paths: Sequence[Path], output: Path) -> Path:
    """Write the page of these files with every rollout that has room in it, titled with their names; returns its path.

    Raises EnvironmentSetupError if there is nothing to show in them, and OSError.
    """
    _write(render(load(paths), title=", ".join(path.name for path in paths), max_rollouts=sys.maxsize), output)
    return output


def _write(page: str, output: Path) -> int:
    # A completion may hold half of a character, which no encoding can write.
    return output.write_bytes(page.encode("utf-8", "replace"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env report",
        description="Write evaluation results, dumps and groups of process as one HTML page that needs no network.",
    )
    add = parser.add_argument
    add("paths", nargs="*", type=Path, metavar="PATH", help="files, or folders with all below them")
    compared = "two evaluations of the same questions; differences are B minus A"
    add("--compare", nargs=2, type=Path, metavar=("A", "B"), help=compared)
    add("--published", action="store_true", help="nine published models beside yours (easy and hard)")
    add("-o", "--output", default="report.html", type=Path, metavar="FILE", help="default: report.html")
    add("--title", default="reasoning-gym report")
    add("--max-rollouts", default=1000, type=int, metavar="N", help="to browse (default: 1000)")
    return parser


def _pair(sources: Sources, paths: Sequence[Path]) -> tuple[Evaluation, Evaluation]:
    """The two evaluations to compare, one from each path."""
    files = [{file.resolve() for file in files_of(path)} for path in paths]
    sides = [[one for one in sources.evaluations if one.file in side] for side in files]
    counts = [len(side) for side in sides]
    if counts != [1, 1]:
        raise EnvironmentSetupError(f"--compare needs one evaluation in each PATH, got {counts[0]} and {counts[1]}.")
    return sides[0][0], sides[1][0]
