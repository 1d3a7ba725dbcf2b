"""The command `export KIND`: write a folder of rows that trainers read.

    items        training items with their recipes                       ─┐  export_items.py
    held-out     the questions of `evaluate`, with their recipes         ─┴─> FOLDER: a file in the format of a trainer
    sft          good completions of dumps and of `process`              ─┐
    dpo          pairs of a good and a bad completion                     ├─> FOLDER/data/train.jsonl
    cold-start   training items with expected answers in the form that   ─┘  export_completions.py
                 the prompt asks for

Each folder has a card, `README.md`, which describes the rows. Hugging Face's `datasets.load_dataset(FOLDER)` reads all
formats except `nemo-gym`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from ..integrations.item_formats import ITEM_FORMATS
from ..settings.components import EvaluationSettings
from ..tasks import reasoning_gym_source as library
from ..utils.terminal import path_name, positive, share, whole
from .export_completions import write_cold_start, write_completions
from .export_items import write_held_out, write_items
from .options import ITEM_OPTIONS, SEED, add_settings


def main(arguments: Sequence[str]) -> int:
    """Export what the arguments name; returns the exit code 0.

    Raises EnvironmentSetupError or OSError if there is nothing to export, or if files cannot be read or written.
    """
    options = _parser().parse_args(arguments)
    # reasoning-gym prints to standard output.
    with library.stdout_to_stderr():
        summary = options.write(options)
    print(summary)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env export",
        description="Write a folder of rows for a trainer: items without completions for reinforcement learning, or "
        "completions for fine-tuning. `export KIND --help` lists the options of a kind.",
    )
    kinds = parser.add_subparsers(title="kinds", dest="kind", metavar="KIND", required=True)
    _add_items(kinds)
    _add_held_out(kinds)
    _add_completions(
        kinds,
        "sft",
        "good completions of dumps and groups",
        "Write the good completions of dumps and groups in the format `messages`, which TRL and Axolotl read for "
        "supervised fine-tuning. Questions that are held out for evaluation are skipped.",
    )
    _add_completions(
        kinds,
        "dpo",
        "pairs of a good and a bad completion",
        "Write pairs of a good completion and the worst completion of its group, with `prompt`, `chosen` and "
        "`rejected`, as TRL and Axolotl read them for preference training. Questions that are held out for evaluation "
        "are skipped.",
    )
    _add_cold_start(kinds)
    return parser


def _add_items(kinds: Any) -> None:
    parser = _add_kind(
        kinds,
        "items",
        write_items,
        "training items without completions",
        "Write training items with different questions and their recipes, for trainers that sample the completions "
        "themselves. None of the items is a held-out question.",
    )
    _add_count(parser)
    _add_format(parser)
    _add_draw(parser, complexity="random")
    add_settings(parser, ITEM_OPTIONS, verb="export")


def _add_held_out(kinds: Any) -> None:
    parser = _add_kind(
        kinds,
        "held-out",
        write_held_out,
        "the held-out questions of `evaluate`, to evaluate in another trainer or to publish",
        "Write the held-out questions of `evaluate` and their recipes. With the same options, `evaluate` prints the "
        "same manifest, which identifies the set of questions. Do not train on them.",
    )
    _add_format(parser)
    # With the same defaults, the export has the questions of `evaluate`.
    defaults = {name: field.default for name, field in EvaluationSettings.model_fields.items()}
    add = parser.add_argument
    add(
        "--tasks",
        dest="eval_tasks",
        default=",".join(defaults["eval_tasks"]),
        metavar="VALUE",
        help="Tasks to export: a number of tasks, as in evaluate, or names, patterns and categories, or all "
        "(default: %(default)s)",
    )
    add(
        "--per-task",
        type=positive,
        default=defaults["num_eval_samples_per_task"],
        metavar="N",
        help="questions of each task (default: %(default)s)",
    )
    add(
        "--eval-seed",
        type=whole,
        default=defaults["eval_seed"],
        metavar="SEED",
        help="seed of the questions (default: %(default)s)",
    )
    add(
        "--eval-complexity",
        type=_fixed_complexity,
        default=defaults["eval_complexity"],
        metavar="NUMBER",
        help="0 (easiest level) to 1 (hardest), or none (reasoning-gym's default configs; the default)",
    )
    add_settings(parser, ITEM_OPTIONS[1:], verb="export")


def _add_completions(kinds: Any, kind: str, summary: str, description: str) -> None:
    parser = _add_kind(kinds, kind, write_completions, summary, description)
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        type=path_name,
        metavar="PATH",
        help="dumps, and groups of `process`: files or folders",
    )
    add(
        "--min-score",
        type=share,
        default=1.0,
        metavar="SCORE",
        help="lowest verifier's score of a good completion, 0 to 1 (default: 1, full credit)",
    )
    add(
        "--per-question",
        type=positive,
        default=1,
        metavar="N",
        help="most good completions of the same question (default: 1)",
    )


def _add_cold_start(kinds: Any) -> None:
    parser = _add_kind(
        kinds,
        "cold-start",
        write_cold_start,
        "examples for a model that does not use the answer format yet",
        "Write training items with their expected answers, in the format `messages`. They teach the answer format to a "
        "model that does not use it yet. None of the items is a held-out question.",
    )
    _add_count(parser)
    _add_draw(parser, complexity="0")
    add_settings(parser, ITEM_OPTIONS, verb="export")


def _add_kind(
    kinds: Any, kind: str, write: Callable[[argparse.Namespace], str], summary: str, description: str
) -> argparse.ArgumentParser:
    """The parser of a kind. `write` writes the folder and returns a sentence about it."""
    parser: argparse.ArgumentParser = kinds.add_parser(kind, help=summary, description=description)
    parser.set_defaults(write=write)
    parser.add_argument("--to", required=True, metavar="FOLDER", type=path_name, help="a new folder")
    return parser


def _add_count(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=positive, required=True, metavar="N", help="number of items")


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=[*ITEM_FORMATS],
        default="hf",
        help="hf (for Hugging Face's libraries; the default), verl (for SkyRL too), or nemo-gym",
    )


def _add_draw(parser: argparse.ArgumentParser, *, complexity: str) -> None:
    parser.add_argument(
        "--complexity",
        type=_any_complexity,
        default=complexity,
        metavar="LEVEL",
        help="0 (easiest level) to 1 (hardest), random (any level), or none (reasoning-gym's default configs); "
        "default: %(default)s",
    )
    parser.add_argument(
        "--seed",
        type=whole,
        default=SEED,
        help="use another seed than the training run (default: %(default)s)",
    )


def _fixed_complexity(text: str) -> float | None:
    """A number from 0 to 1, or None for "none"."""
    return None if text == "none" else share(text)


def _any_complexity(text: str) -> float | str | None:
    """A number from 0 to 1, "random", or None for "none"."""
    return text if text == "random" else _fixed_complexity(text)
