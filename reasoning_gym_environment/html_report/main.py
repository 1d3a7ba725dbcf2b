"""The command `report`: reads the files, compares on request, and writes the page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..errors import EnvironmentSetupError
from ..storage.files import write_atomically
from ..storage.lines import files_of
from ..utils.terminal import check_file, not_negative, path_name
from .comparison import compare
from .load import Evaluation, Sources, load
from .page import render

MOST_SAMPLES = 10_000
"""A page has at most this many samples, unless the user wants more."""


def main(arguments: Sequence[str]) -> int:
    """Run the command and return exit code 0. Raises EnvironmentSetupError or OSError if it cannot show the files."""
    options = _parser().parse_args(arguments)
    paths = list(options.compare or ()) + options.paths
    if not paths:
        raise EnvironmentSetupError("name at least one PATH, or two with --compare.")
    if options.output.suffix != ".html":
        # The output is therefore never one of the files that the command reads.
        raise EnvironmentSetupError(f"--output: expected the name of a file that ends in .html, got {options.output}.")
    check_file("--output", options.output)
    sources = load(paths)
    comparison = None
    if options.compare:
        first, second = [_evaluation_in(sources, path) for path in options.compare]
        comparison = compare(first, second)
    page = render(sources, title=options.title, max_rollouts=options.max_rollouts, comparison=comparison)
    size = _write(page, options.output)
    print(f"{options.output} ({size / 1e3:,.0f} kB)")
    return 0


def write_page(paths: Sequence[Path], output: Path) -> Path:
    """Write a page of these files, and return its path. The file names are its title.

    Raises EnvironmentSetupError if the files have nothing to show, and OSError.
    """
    title = ", ".join(path.name for path in paths)
    page = render(load(paths), title=title, max_rollouts=MOST_SAMPLES)
    _write(page, output)
    return output


def _write(page: str, output: Path) -> int:
    # A completion may contain half of a surrogate pair, which cannot be encoded.
    data = page.encode("utf-8", "replace")
    write_atomically(output, data)
    return len(data)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env report",
        description="Write evaluation results, dumps and groups of process as one HTML page that needs no network.",
    )
    add = parser.add_argument
    add(
        "paths",
        nargs="*",
        type=path_name,
        metavar="PATH",
        help="files, or folders with all below them",
    )
    compared = "compare two evaluations of the same questions; differences are B minus A"
    add("--compare", nargs=2, type=path_name, metavar=("A", "B"), help=compared)
    add(
        "-o",
        "--output",
        default="report.html",
        type=path_name,
        metavar="FILE",
        help="default: report.html",
    )
    add("--title", default="", help="default: the name of the run")
    add(
        "--max-rollouts",
        default=MOST_SAMPLES,
        type=not_negative,
        metavar="N",
        help="samples to browse, at most (default: 10000)",
    )
    return parser


def _evaluation_in(sources: Sources, path: Path) -> Evaluation:
    """The only evaluation in a path."""
    files = {file.resolve() for file in files_of(path)}
    found = [evaluation for evaluation in sources.evaluations if evaluation.file in files]
    if len(found) != 1:
        raise EnvironmentSetupError(f"--compare needs one evaluation in each path, but {path} has {len(found)}.")
    return found[0]
