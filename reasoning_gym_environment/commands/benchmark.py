"""The command `benchmark`: check that this machine makes the held-out questions of a folder again.

FOLDER of `export --items eval` ── recipes ──> the items again ──> equal questions and manifest, or exit code 1
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from ..api import PromptedProblem, Tasks
from ..errors import EnvironmentSetupError, GenerationError, UnknownNameError
from ..evaluation.questions import EvalSet
from ..integrations.item_formats import DATA_FILES
from ..integrations.recipe import Recipe
from ..records import Problem
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
    recipes = _recipes(folder / QUESTIONS)
    card = (folder / CARD).read_text(encoding="utf-8")
    with Tasks(item_timeout_s=ITEM_S, num_generation_workers=None) as tasks:
        outcomes = asyncio.run(_make_again(recipes, tasks))
        differences = [outcome for outcome in outcomes if isinstance(outcome, str)]
        problems: list[Problem] = [outcome for outcome in outcomes if isinstance(outcome, Problem)]
        manifest = EvalSet(problems, version=tasks.version).manifest
    if manifest not in card and not differences:
        differences.append(f"The set has the manifest {manifest} here, but a different manifest in {folder / CARD}.")
    if differences:
        return (
            f"{len(differences)} differences. This machine has reasoning-gym {tasks.version}, Python "
            f"{platform.python_version()}. {folder / CARD} has the versions that made the folder.",
            differences,
        )
    return f"All {len(recipes)} questions are the same here: manifest {manifest}.", []


def _recipes(path: Path) -> list[Recipe]:
    """The recipes of the folder's rows. Raises EnvironmentSetupError if the file cannot be read."""
    # pyarrow is an optional extra.
    import pyarrow.parquet

    try:
        return [Recipe.from_row(row) for row in pyarrow.parquet.read_table(path).to_pylist()]
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise EnvironmentSetupError(
            f"{path}: expected held-out questions of `export --items eval` in the format hf, but they cannot be "
            f"read ({error!r})."
        ) from error


async def _make_again(recipes: Sequence[Recipe], tasks: Tasks) -> list[PromptedProblem | str]:
    """For each recipe, the item, or a sentence if it gives no item or another question."""
    outcomes: list[PromptedProblem | str] = []
    remaining = iter(recipes)
    with Progress(total=len(recipes), desc="check", unit="item") as bar:
        while batch := list(islice(remaining, AT_ONCE)):
            outcomes += await asyncio.gather(*[_outcome(recipe, tasks) for recipe in batch])
            bar.update(len(batch))
    return outcomes


async def _outcome(recipe: Recipe, tasks: Tasks) -> PromptedProblem | str:
    """The item, or the reason why there is none."""
    try:
        return await recipe.make(tasks)
    except (GenerationError, UnknownNameError) as error:
        return str(error)
