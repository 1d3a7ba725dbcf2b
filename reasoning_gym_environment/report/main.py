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

MAX_ROLLOUTS = 1000


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
        "paths",
        nargs="*",
        metavar="PATH",
        help="results, dumps and groups of process: files, or folders with all below them",
    )
    parser.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="two evaluations of the same questions; differences are B less A"
    )
    parser.add_argument("--published", action="store_true", help="nine published models beside yours (easy and hard)")
    parser.add_argument("-o", "--output", default="report.html", metavar="FILE", help="default: report.html")
    parser.add_argument("--title", default="reasoning-gym report")
    parser.add_argument(
        "--max-rollouts", default=str(MAX_ROLLOUTS), metavar="N", help=f"to browse (default: {MAX_ROLLOUTS}; 0: none)"
    )
    return parser


def _paths(options: argparse.Namespace) -> list[Path]:
    return [Path(path) for path in (*(options.compare or ()), *options.paths)]


def _inputs(options: argparse.Namespace) -> list[Path]:
    """Every file that may be read: those named or below a folder that is, and what describes them."""
    paths = _paths(options)
    files = [file for path in paths if path.exists() for file in (path, *files_of(path))]
    return [*files, *(file.with_name("metrics.json") for file in files)]


def _max_rollouts(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise EnvironmentSetupError(f"--max-rollouts: expected a whole number of at least 0, got {text!r:.40}.")
    return int(text)


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
        max_rollouts=_max_rollouts(options.max_rollouts),
        comparison=comparison,
        published=published,
    )


def _pair(sources: Sources, paths: Sequence[str]) -> tuple[Evaluation, Evaluation]:
    """The two evaluations to compare, one from each path."""
    files = [{file.resolve() for file in files_of(Path(path))} for path in paths]
    sides = [[one for one in sources.evaluations if one.file in side] for side in files]
    counts = [len(side) for side in sides]
    if counts != [1, 1]:
        raise EnvironmentSetupError(f"--compare needs one evaluation in each PATH, got {counts[0]} and {counts[1]}.")
    if sides[0] == sides[1]:
        raise EnvironmentSetupError(f"--compare needs two evaluations: {paths[0]} and {paths[1]} are the same one.")
    return sides[0][0], sides[1][0]
