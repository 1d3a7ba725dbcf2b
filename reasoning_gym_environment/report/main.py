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
from .load import Evaluation, Sources, load
from .page import render

MAX_ROLLOUTS = 1000
DATA = (".json", ".jsonl", ".part")
"""What results and dumps are kept in."""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 for files that cannot be shown as asked."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    options = _parser().parse_args(arguments)
    try:
        check_file("--output", options.output, inputs=_inputs(options))
        page = _page(options)
        _write(page, Path(options.output))
    except EnvironmentSetupError as error:
        print(f"reasoning-gym-env report: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"reasoning-gym-env report: cannot write {options.output}: {error}", file=sys.stderr)
        return 2
    print(f"{options.output} ({len(page) / 1e6:.1f} MB)")
    return 0


def write_page(paths: Sequence[Path], output: Path) -> Path:
    """Write the page of these files with every rollout that has room in it, titled with their names; returns its path.

    Raises EnvironmentSetupError if there is nothing to show in them, and OSError.
    """
    page = render(load(paths), title=", ".join(path.name for path in paths), max_rollouts=sys.maxsize)
    _write(page, output)
    return output


def _write(page: str, output: Path) -> None:
    # A completion may hold half of a character, which no encoding can write.
    output.write_bytes(page.encode("utf-8", "replace"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env report",
        description="Write evaluation results and dumps as one HTML page that needs no network.",
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="folders of results, samples.jsonl, dumps, groups of process"
    )
    parser.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="two evaluations of the same questions; differences are B less A"
    )
    parser.add_argument("--published", action="store_true", help="nine published models beside yours (easy and hard)")
    parser.add_argument("-o", "--output", default="report.html", metavar="FILE", help="default: report.html")
    parser.add_argument("--title", default="reasoning-gym report")
    parser.add_argument(
        "--max-rollouts", type=int, default=MAX_ROLLOUTS, metavar="N", help=f"to browse (default: {MAX_ROLLOUTS})"
    )
    return parser


def _paths(options: argparse.Namespace) -> list[Path]:
    return [Path(path) for path in (*(options.compare or ()), *options.paths)]


def _inputs(options: argparse.Namespace) -> list[Path]:
    """Every file that may be read: those named, and the data in the folders named or beside a file."""
    paths = _paths(options)
    folders = {path if path.is_dir() else path.parent for path in paths}
    beside = [file for folder in folders if folder.is_dir() for file in folder.iterdir() if file.suffix in DATA]
    return [*paths, *beside]


def _page(options: argparse.Namespace) -> str:
    paths = _paths(options)
    if not paths:
        raise EnvironmentSetupError("name at least one PATH, or two with --compare.")
    sources = load(paths)
    comparison = published = None
    if options.compare:
        comparison = compare(*_pair(sources, options.compare))
    if options.published:
        if not sources.evaluations:
            raise EnvironmentSetupError("--published needs results of `evaluate`; there are only dumps.")
        published = [beside_published(evaluation) for evaluation in sources.evaluations]
    return render(
        sources,
        title=options.title,
        max_rollouts=max(0, options.max_rollouts),
        comparison=comparison,
        published=published,
    )


def _pair(sources: Sources, paths: Sequence[str]) -> tuple[Evaluation, Evaluation]:
    """The two evaluations to compare: they were read first, one from each path."""
    counts = [len(load([Path(path)]).evaluations) for path in paths]
    if counts != [1, 1]:
        raise EnvironmentSetupError(f"--compare needs one evaluation in each PATH, got {counts[0]} and {counts[1]}.")
    return sources.evaluations[0], sources.evaluations[1]
