"""`export items` and `export held-out`: write items with their recipes, in the format of a trainer.

    training items, each question once ──┐
    the questions of `evaluate` ─────────┴──> rows with recipes ──> FOLDER: one file and a card

A folder has either training items or held-out questions, never both.
"""

from __future__ import annotations

import argparse
import importlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..api import HeldOut, PromptedProblem, Recipe, Row, Tasks, training_items
from ..errors import EnvironmentSetupError
from ..integrations.item_formats import ITEM_FORMATS, Split, write_rows
from ..scoring.extraction import write_answer
from ..utils.terminal import Progress
from .dataset_folder import new_folder, write_card
from .options import task_settings

CARD_TEMPLATE = "items_card.md.j2"

MAX_REPEATS = 500
"""The command gives up after this many training items in a row whose questions have rows already."""


@dataclass(frozen=True)
class Items:
    """The items of an export, and what the card says about their choice."""

    split: Split
    problems: Sequence[PromptedProblem]
    library_version: str
    settings: Mapping[str, Any]
    manifest: str = ""
    """Of held-out questions, as in the results of `evaluate`."""

    @property
    def tasks(self) -> Counter[str]:
        """The number of items of each task."""
        return Counter(problem.task for problem in self.problems)

    def levels_of(self, task: str) -> str:
        """The levels of a task's items, with their numbers of items."""
        counts: Counter[int] = Counter()
        for problem in self.problems:
            if problem.task == task and problem.level is not None:
                counts[problem.level] += 1
        return ", ".join(f"{level} ({counts[level]})" for level in sorted(counts)) or "default config"


def write_items(options: argparse.Namespace) -> str:
    """Write training items; returns a sentence about them. Raises EnvironmentSetupError if there are too few."""
    _check_libraries(options)
    with new_folder(options.to) as folder:
        items = _training(options)
        _write(items, options, folder)
    return f"{len(items.problems)} training items of {len(items.tasks)} tasks in {options.to}."


def write_held_out(options: argparse.Namespace) -> str:
    """Write held-out questions; returns a sentence with their manifest. Raises EnvironmentSetupError without any."""
    _check_libraries(options)
    with new_folder(options.to) as folder:
        items = _held_out(options)
        _write(items, options, folder)
    return (
        f"{len(items.problems)} held-out questions (manifest {items.manifest}) of {len(items.tasks)} tasks in "
        f"{options.to}."
    )


def _check_libraries(options: argparse.Namespace) -> None:
    """Raise ModuleNotFoundError if the format needs pyarrow, and it is missing."""
    if ITEM_FORMATS[options.format].is_parquet:
        importlib.import_module("pyarrow")


def _training(options: argparse.Namespace) -> Items:
    settings = {"complexity": options.complexity, "seed": options.seed}
    with Tasks(complexity_mode=options.complexity, **task_settings(options)) as tasks:
        problems = _different(training_items(tasks, options.seed), options.count)
        return Items("train", problems, tasks.version, settings)


def _held_out(options: argparse.Namespace) -> Items:
    settings = {
        "eval_tasks": options.eval_tasks,
        "num_eval_samples_per_task": options.per_task,
        "eval_seed": options.eval_seed,
        "eval_complexity": options.eval_complexity,
    }
    with Tasks(**task_settings(options)) as tasks:
        held_out = HeldOut(tasks, **settings)
        return Items("eval", held_out.problems, tasks.version, settings, held_out.manifest)


def _different(drawn: Iterator[PromptedProblem], count: int) -> list[PromptedProblem]:
    """The first `count` problems with different questions. Raises EnvironmentSetupError if there are hardly more."""
    found: dict[tuple[str, str], PromptedProblem] = {}
    repeats = 0
    with Progress(total=count, desc="export", unit="item") as bar:
        for problem in drawn:
            key = (problem.task, problem.question)
            repeats = repeats + 1 if key in found else 0
            if repeats == MAX_REPEATS:
                raise EnvironmentSetupError(
                    f"--count: expected {count} different questions, but these tasks and levels give hardly more than "
                    f"{len(found)}. Lower the number, or choose more tasks or levels."
                )
            if key not in found:
                found[key] = problem
                bar.update()
            if len(found) == count:
                break
    return list(found.values())


def _write(items: Items, options: argparse.Namespace, folder: Path) -> None:
    """Write the rows and their card."""
    form = ITEM_FORMATS[options.format]
    rows = []
    for index, problem in enumerate(items.problems):
        rows.append(form.row(Row(index, problem, Recipe.of(problem), items.split)))
    file = form.files[items.split]
    write_rows(folder / file, form, rows)
    settings = task_settings(options)
    write_card(
        folder,
        CARD_TEMPLATE,
        file=file,
        form=form,
        format=options.format,
        items=items,
        choice={"include_tasks": "all", **settings, **items.settings},
        task_settings=settings,
        completion=write_answer("42", items.problems[0].answer_format),
        version=__version__,
    )
