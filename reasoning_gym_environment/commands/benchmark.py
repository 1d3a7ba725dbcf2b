"""The command `benchmark`: check that this machine makes the held-out questions of a folder again.

FOLDER of `export --items eval` ── recipes ──> the items again ──> equal questions and manifest, or exit code 1
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ..api import PromptedProblem, Tasks
from ..errors import EnvironmentSetupError, GenerationError, UnknownNameError
from ..evaluation.questions import EvalSet
from ..integrations.item_formats import DATA_FILES
from ..integrations.recipe import Recipe
from ..records import Problem
from ..sampling.seeds import question_digest
from ..tasks import reasoning_gym_source as library
from ..utils.terminal import Progress, path_name, printable
from .dataset_folder import CARD

QUESTIONS = Path(DATA_FILES["eval"])
ITEM_S = 30.0
"""Processor time to make an item again, in seconds. A slow machine must not count as a difference."""
AT_ONCE = 32
"""Number of items that a check makes at the same time."""
SHOWN = 5
"""Number of differences that a check prints."""


def main(arguments: Sequence[str]) -> int:
    """Check a folder; returns the exit code: 1 if the check finds a difference.

    Raises EnvironmentSetupError or OSError if the folder has no held-out questions, or if files cannot be read.
    """
    options = _parser().parse_args(arguments)
    with library.stdout_to_stderr():
        summary, differences = _check(options.check)
    print(summary)
    for difference in differences[:SHOWN]:
        print(printable(difference, 400), file=sys.stderr)
    return 1 if differences else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env benchmark",
        description="Check that this machine makes the same held-out questions as the machine that exported them.",
    )
    parser.add_argument(
        "--check",
        required=True,
        type=path_name,
        metavar="FOLDER",
        help="a folder of `export --items eval`, in the format hf: make its questions again, and exit with 1 if "
        "one of them differs",
    )
    return parser


def _check(folder: Path) -> tuple[str, list[str]]:
    """A sentence about the result, and the differences.

    Raises EnvironmentSetupError or OSError if the folder has no held-out questions.
    """
    rows = _rows(folder / QUESTIONS)
    card = (folder / CARD).read_text(encoding="utf-8")
    differences = []
    for row in rows:
        if question_digest(row.question) != row.recipe.question_digest:
            differences.append(f"{row.recipe.task}, seed {row.recipe.seed}: the prompt and the digest do not match.")
    with Tasks(item_timeout_s=ITEM_S, num_generation_workers=None) as tasks:
        recipes = [row.recipe for row in rows]
        problems, failures = asyncio.run(_make_again(recipes, tasks))
        differences += failures
        manifest = EvalSet(problems, version=tasks.version).manifest
    if manifest not in card and not differences:
        differences.append(f"The set has the manifest {manifest} here, but a different manifest in {folder / CARD}.")
    if differences:
        return (
            f"{len(differences)} differences. This machine has reasoning-gym {tasks.version}, Python "
            f"{platform.python_version()}. {folder / CARD} has the versions that made the folder.",
            differences,
        )
    return f"All {len(rows)} questions are the same here: manifest {manifest}.", []


class _Row(NamedTuple):
    """A row of the folder: its recipe, and the question in its prompt."""

    recipe: Recipe
    question: str


def _rows(path: Path) -> list[_Row]:
    """Raises EnvironmentSetupError if the file cannot be read."""
    # pyarrow is an optional extra.
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
        rows = []
        for row in table.to_pylist():
            question = row["prompt"][-1]["content"]
            rows.append(_Row(Recipe.from_row(row), str(question)))
    except (OSError, LookupError, TypeError, ValueError, pyarrow.ArrowException) as error:
        raise EnvironmentSetupError(
            f"{path}: expected held-out questions of `export --items eval` in the format hf, but they cannot be "
            f"read ({error!r})."
        ) from error
    return rows


async def _make_again(recipes: Sequence[Recipe], tasks: Tasks) -> tuple[list[Problem], list[str]]:
    """The items of the recipes, and a sentence for each recipe that gives no item or another question."""
    problems: list[Problem] = []
    failures: list[str] = []
    remaining: Iterator[Recipe] = iter(recipes)
    with Progress(total=len(recipes), desc="check", unit="item") as bar:
        while batch := list(islice(remaining, AT_ONCE)):
            work = [_outcome(recipe, tasks) for recipe in batch]
            for outcome in await asyncio.gather(*work):
                if isinstance(outcome, str):
                    failures.append(outcome)
                else:
                    problems.append(outcome)
            bar.update(len(batch))
    return problems, failures


async def _outcome(recipe: Recipe, tasks: Tasks) -> PromptedProblem | str:
    """The item, or the reason why there is none."""
    try:
        return await recipe.make(tasks)
    except (GenerationError, UnknownNameError) as error:
        return str(error)
