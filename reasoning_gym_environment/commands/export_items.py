"""`export --items`: write items with their recipes, in the format of a trainer.

    --items N      training items, each question once ──┐
    --items eval   the questions of `evaluate` ─────────┴──> rows with recipes ──> FOLDER: one file and a card

A folder has either training items or held-out questions, never both. The options of the held-out questions have the
defaults of `evaluate`, so the manifest in the card is the manifest of its results.
"""

from __future__ import annotations

import argparse
import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..api import HeldOut, PromptedProblem, Tasks, training_items
from ..errors import EnvironmentSetupError
from ..integrations.item_formats import ITEM_FORMATS, ExportedItem, Row, Split, write_rows
from ..integrations.recipe import Recipe
from ..scoring.extraction import write_answer
from ..settings.components import EvaluationSettings
from ..tasks import reasoning_gym_source as library
from ..utils.terminal import Progress, positive, share, whole
from ..verification.entries import right_answer
from .dataset_folder import write_card
from .options import task_settings

CARD_TEMPLATE = "items_card.md.j2"
EVAL = "eval"
DEFAULT_ITEM_FORMAT = "hf"

MAX_REPEATS = 500
"""The command gives up after this many training items in a row whose questions have rows already."""

TRAINING_DEFAULTS: Mapping[str, Any] = {"complexity": "random", "seed": 42}


EVAL_OPTIONS: Mapping[str, str] = {
    "eval_tasks": "eval_tasks",
    "per_task": "num_eval_samples_per_task",
    "eval_seed": "eval_seed",
    "eval_complexity": "eval_complexity",
}
"""The options of the held-out questions, with their settings."""


# --- options


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `export --items`. Options without a value are missing in the result of the parser."""
    group = parser.add_argument_group("items with their recipes, for other trainers")
    add = group.add_argument
    add(
        "--items",
        type=_items,
        metavar="ITEMS",
        help="instead of completions, write this number of training items, or (eval) the held-out questions of "
        "`evaluate`",
    )
    add(
        "--eval-tasks",
        default=argparse.SUPPRESS,
        metavar="TASKS",
        help="held-out questions: a number of tasks, all, or names (default: 20)",
    )
    add(
        "--per-task",
        type=positive,
        default=argparse.SUPPRESS,
        metavar="N",
        help="held-out questions of each task (default: 5)",
    )
    add(
        "--eval-seed",
        type=whole,
        default=argparse.SUPPRESS,
        metavar="SEED",
        help="seed of the held-out questions (default: 123)",
    )
    add(
        "--eval-complexity",
        type=fixed_complexity,
        default=argparse.SUPPRESS,
        metavar="NUMBER",
        help="difficulty of the held-out questions: none (reasoning-gym's default configs), or 0 (easiest level) to 1 "
        "(default: none)",
    )


def _items(text: str) -> int | str:
    """The value of --items: a number of training items, or "eval"."""
    return text if text == EVAL else positive(text)


def fixed_complexity(text: str) -> float | None:
    """A number from 0 to 1, or None for "none"."""
    return None if text == "none" else share(text)


def any_complexity(text: str) -> float | str | None:
    """A number from 0 to 1, "random", or None for "none"."""
    return text if text == "random" else fixed_complexity(text)


def check_item_options(options: argparse.Namespace) -> None:
    """Raise EnvironmentSetupError for options that contradict each other, and ModuleNotFoundError without pyarrow."""
    if options.paths or options.cold_start:
        raise EnvironmentSetupError("--items takes neither PATH nor --cold-start: write each to a separate folder.")
    if options.format not in ITEM_FORMATS:
        raise EnvironmentSetupError(f"--items: expected --format {', '.join(ITEM_FORMATS)}, got {options.format}.")
    form = ITEM_FORMATS[options.format]
    if form.is_parquet:
        importlib.import_module("pyarrow")


def items_file(options: argparse.Namespace) -> str:
    """The name of the file of rows in the folder."""
    split: Split = "eval" if options.items == EVAL else "train"
    return ITEM_FORMATS[options.format].files[split]


# --- items


@dataclass(frozen=True)
class _Items:
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

    def rows(self, row_of: Callable[[ExportedItem], Row]) -> list[Row]:
        """The rows, in order."""
        rows = []
        for index, problem in enumerate(self.problems):
            answer = right_answer(problem.task, problem.entry)
            recipe = Recipe.of(problem).as_row()
            rows.append(row_of(ExportedItem(problem, self.split, index, answer, recipe)))
        return rows


def _training(options: argparse.Namespace) -> _Items:
    given = {name: value for name, value in vars(options).items() if name in TRAINING_DEFAULTS}
    settings = {**TRAINING_DEFAULTS, **given}
    with Tasks(complexity_mode=settings["complexity"], **task_settings(options)) as tasks:
        drawn = training_items(tasks, settings["seed"])
        problems = _different(drawn, options.items)
        return _Items("train", problems, tasks.version, settings)


def _held_out(options: argparse.Namespace) -> _Items:
    given = vars(options)
    settings = {}
    for name, setting in EVAL_OPTIONS.items():
        default = EvaluationSettings.model_fields[setting].default
        settings[setting] = given.get(name, default)
    with Tasks(**task_settings(options)) as tasks:
        held_out = HeldOut(tasks, **settings, show_progress=True)
        return _Items("eval", held_out.problems, tasks.version, settings, held_out.manifest)


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
                    f"--items: expected {count} different questions, but these tasks and levels give hardly more than "
                    f"{len(found)}. Lower the number, or choose more tasks or levels."
                )
            if key not in found:
                found[key] = problem
                bar.update()
            if len(found) == count:
                break
    return list(found.values())


# --- the folder


def write_items(options: argparse.Namespace, folder: Path) -> str:
    """Write the items that the options name, and their card; returns a sentence about them.

    Raises EnvironmentSetupError if there are none.
    """
    # reasoning-gym prints to standard output.
    with library.stdout_to_stderr():
        items = _held_out(options) if options.items == EVAL else _training(options)
    form = ITEM_FORMATS[options.format]
    rows = items.rows(form.row)
    file = items_file(options)
    write_rows(folder / file, form, rows)
    write_card(
        folder,
        CARD_TEMPLATE,
        file=file,
        form=form,
        items=items,
        options=options,
        choice={"include_tasks": "all", **task_settings(options), **items.settings},
        task_settings=task_settings(options),
        completion=write_answer("42", items.problems[0].answer_format),
        version=__version__,
    )
    kind = f"held-out questions (manifest {items.manifest})" if items.manifest else "training items"
    return f"{len(rows)} {kind} of {len(items.tasks)} tasks in {options.to / file}"
