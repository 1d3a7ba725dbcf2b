"""The command `export`: write a folder of rows that trainers read.

    --items: items without completions, for reinforcement learning ──> see export_items.py

    dumps of serve, groups of process ──> groups ──> good completions, or pairs of a good and a bad one ──> FOLDER
    --cold-start N: training items ──> their expected answers in the form that the prompt asks for ─────> FOLDER

        FOLDER/data/train.jsonl     one row a line: the text, its task, level, seed and score
        FOLDER/README.md            the card, which describes the rows

Hugging Face's `datasets.load_dataset(FOLDER)` reads the folder. TRL and Axolotl define the formats:

    messages            {"messages": [system, user, assistant]}
    prompt_completion   {"prompt": [system, user], "completion": [assistant]}
    dpo                 {"prompt": [system, user], "chosen": [assistant], "rejected": [assistant]}
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from .. import __version__
from ..api import PromptedProblem, Tasks, training_items
from ..errors import EnvironmentSetupError
from ..integrations.item_formats import ITEM_FORMATS
from ..sampling.seeds import is_held_out
from ..scoring.extraction import write_answer
from ..storage.append_log import BrokenLineError, read_object
from ..storage.lines import DumpedGroup, files_of, group_in
from ..tasks import reasoning_gym_source as library
from ..utils.terminal import Progress, path_name, positive, share, whole
from ..verification.entries import right_answer
from .dataset_folder import CARD, new_folder, write_card
from .export_items import (
    DEFAULT_ITEM_FORMAT,
    EVAL,
    EVAL_OPTIONS,
    TRAINING_DEFAULTS,
    add_options,
    any_complexity,
    check_item_options,
    items_file,
    write_items,
)
from .options import ITEM_OPTIONS, add_settings, check_tasks, refuse_unused, task_settings

FORMATS = ("messages", "prompt_completion", "dpo")
ROWS = Path("data", "train.jsonl")
CARD_TEMPLATE = "dataset_card.md.j2"
KEPT = ("task", "category", "level", "index", "seed")
THOUGHT = "<think>\nI work out what is asked. The answer is {answer}.\n</think>\n"
"""The thinking in each example for a cold start. It teaches the form of an answer, not how to think."""
COMPLETION_DEFAULTS: Mapping[str, Any] = {"min_score": 1.0, "per_question": 1}
EXAMPLE_DEFAULTS: Mapping[str, Any] = {"complexity": 0.0, "seed": 42}
MAX_WITHOUT_ANSWER = 200
"""The command gives up after this many items in a row without an expected answer."""


def main(arguments: Sequence[str]) -> int:
    """Export what the arguments name; returns the exit code 0.

    Raises EnvironmentSetupError or OSError if there is nothing to export, or if files cannot be read or written.
    """
    options = _parse(arguments)
    rows_file = items_file(options) if options.items else ROWS
    with new_folder(options.to, rows_file) as folder:
        if options.items:
            summary = write_items(options, folder)
        elif options.cold_start:
            with library.stdout_to_stderr():
                summary = _write_examples(options, folder)
        else:
            summary = _write_completions(options, folder)
    print(summary)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, with the default format of the rows that they name. Raises EnvironmentSetupError."""
    options = _parser().parse_args(arguments)
    if options.format is None:
        options.format = DEFAULT_ITEM_FORMAT if options.items else FORMATS[0]
    if options.format in ITEM_FORMATS and not options.items:
        raise EnvironmentSetupError(f"--format {options.format} has no completions: add --items N or --items eval.")
    _check_used(options)
    check_tasks(options)
    if options.items:
        check_item_options(options)
    elif options.cold_start and (options.paths or options.format == "dpo"):
        raise EnvironmentSetupError("--cold-start takes no PATH, and has nothing to reject for --format dpo.")
    elif not options.cold_start and not options.paths:
        raise EnvironmentSetupError("name at least one PATH, or --cold-start N.")
    return argparse.Namespace(**{**COMPLETION_DEFAULTS, **vars(options)})


def _check_used(options: argparse.Namespace) -> None:
    """Raise EnvironmentSetupError for options that this kind of export would ignore."""
    if options.items == EVAL:
        kind = "--items eval"
        used = {*ITEM_OPTIONS, *EVAL_OPTIONS}
    elif options.items:
        kind = "--items N"
        used = {*ITEM_OPTIONS, *TRAINING_DEFAULTS}
    elif options.cold_start:
        kind = "--cold-start"
        used = {*ITEM_OPTIONS, *EXAMPLE_DEFAULTS}
    else:
        kind = "An export of completions"
        used = {*COMPLETION_DEFAULTS}
    optional = [*COMPLETION_DEFAULTS, *ITEM_OPTIONS, *TRAINING_DEFAULTS, *EVAL_OPTIONS]
    refuse_unused(kind, options, [name for name in optional if name not in used])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env export",
        description="Write the good completions of dumps and groups, or pairs of a good and a bad one, as a folder "
        "that Hugging Face's datasets, TRL and Axolotl read. Questions that are held out for evaluation are skipped. "
        "With --items, write items without completions for the trainers verl, SkyRL, NeMo Gym and TRL.",
    )
    add = parser.add_argument
    add(
        "paths",
        nargs="*",
        type=path_name,
        metavar="PATH",
        help="dumps, and groups of process: files or folders",
    )
    add("--to", required=True, metavar="FOLDER", type=path_name, help="a new folder")
    add(
        "--format",
        choices=[*FORMATS, *ITEM_FORMATS],
        help="completions: messages (the default), prompt_completion, or dpo, which pairs the best and the worst "
        "completion of each group; items: hf (the default, for TRL too), verl or nemo-gym",
    )
    add(
        "--min-score",
        type=share,
        default=argparse.SUPPRESS,
        metavar="SCORE",
        help="lowest verifier's score of a good completion, 0 to 1 (default: 1, full credit)",
    )
    add(
        "--per-question",
        type=positive,
        default=argparse.SUPPRESS,
        metavar="N",
        help="most good completions of the same question (default: 1)",
    )

    add_options(parser)

    cold = parser.add_argument_group("examples for a model that does not use the answer format yet")
    cold.add_argument(
        "--cold-start",
        type=positive,
        metavar="N",
        help="write N training items with their expected answers, instead of completions",
    )

    _add_choice_of_items(parser)
    return parser


def _add_choice_of_items(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_argument_group("choice of items, for --items and --cold-start")
    chosen.add_argument(
        "--complexity",
        type=any_complexity,
        default=argparse.SUPPRESS,
        metavar="LEVEL",
        help="0 (easiest level) to 1 (hardest), random (any level), or none (reasoning-gym's default configs); "
        "default: random for --items, 0 for --cold-start",
    )
    chosen.add_argument(
        "--seed",
        type=whole,
        default=argparse.SUPPRESS,
        help="use another seed than the training run (default: 42)",
    )
    add_settings(chosen, ITEM_OPTIONS)


@dataclass
class _Summary:
    """Counts of an export: groups and rows by task, skipped lines and groups by reason."""

    groups: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    models: set[str] = field(default_factory=set)

    @property
    def reasons(self) -> str:
        return ", ".join(f"{reason} ({count})" for reason, count in sorted(self.skipped.items()))


# --- examples for a cold start


def _write_examples(options: argparse.Namespace, folder: Path) -> str:
    """Write examples from training items, so that none of them is a question of an evaluation. Returns a sentence."""
    summary = _Summary()
    settings = {**EXAMPLE_DEFAULTS, **vars(options)}
    with (
        Tasks(complexity_mode=settings["complexity"], **task_settings(options)) as tasks,
        _rows_file(folder) as target,
    ):
        examples = islice(_items_with_answers(tasks, settings["seed"]), options.cold_start)
        for problem, answer in Progress(examples, "export", options.cold_start, unit="item"):
            prompt = [dict(message) for message in problem.messages]
            text = THOUGHT.format(answer=answer) + write_answer(answer, problem.answer_format)
            reply = {"role": "assistant", "content": text}
            row = _row(options.format, prompt, reply)
            for name in KEPT:
                row[name] = getattr(problem, name)
            target.write(json.dumps(row) + "\n")
            summary.groups[problem.task] += 1
            summary.rows[problem.task] += 1
    _write_card(options, folder, summary)
    return f"{summary.rows.total()} examples of {len(summary.rows)} tasks in {options.to}"


def _items_with_answers(tasks: Tasks, seed: int) -> Iterator[tuple[PromptedProblem, str]]:
    """Training items with their expected answers. Raises EnvironmentSetupError if the tasks' items have none."""
    without_answer = 0
    for problem in training_items(tasks, seed):
        answer = right_answer(problem.task, problem.entry)
        if answer is not None:
            without_answer = 0
            yield problem, answer
            continue
        without_answer += 1
        if without_answer > MAX_WITHOUT_ANSWER:
            raise EnvironmentSetupError(f"{', '.join(tasks.names)}: their items have no expected answers.")


# --- rows of completions


def _write_completions(options: argparse.Namespace, folder: Path) -> str:
    """Write the good completions; returns sentences about them."""
    files: dict[Path, Path] = {}
    for path in options.paths:
        files |= {file.resolve(): file for file in files_of(path)}
    summary = _Summary()
    with _rows_file(folder) as target:
        for row in _rows_of_files(list(files.values()), options, summary):
            # The rows are ASCII, because a completion may hold half of a surrogate pair.
            target.write(json.dumps(row) + "\n")
    if not summary.rows.total():
        reasons = summary.reasons or "the files hold no groups"
        raise EnvironmentSetupError(f"There is nothing to export: {reasons}.")
    _write_card(options, folder, summary)
    lines = [
        f"{summary.rows.total()} rows of {summary.groups.total()} groups in {options.to}.",
        f"{CARD} in this folder counts them by task.",
    ]
    if summary.skipped:
        lines.append(f"Skipped: {summary.reasons}.")
    return "\n".join(lines)


def _rows_of_files(files: Sequence[Path], options: argparse.Namespace, summary: _Summary) -> Iterator[dict[str, Any]]:
    taken_by_question: dict[str, set[int]] = defaultdict(set)
    for group in _groups(files, summary):
        summary.groups[group.task] += 1
        first = group.rollouts[0]
        if is_held_out(first["question"]):
            summary.skipped["a question that is held out for evaluation"] += 1
            continue
        good, reason = _good_completions(group, options)
        worst = min(group.rollouts, key=_score_or_infinite)
        rows = list(_rows(good, worst, options, taken_by_question[first["question_digest"]]))
        if not rows:
            summary.skipped[reason or "a question that has its rows already"] += 1
        summary.rows[group.task] += len(rows)
        yield from rows


def _groups(files: Sequence[Path], summary: _Summary) -> Iterator[DumpedGroup]:
    """The groups of all files. Adds the models that their lines name to the summary."""
    for path in Progress(files, "export", unit="file"):
        with path.open("rb") as file:
            for number, line in enumerate(file):
                try:
                    record = read_object(line)
                    group = group_in(record, number)
                except BrokenLineError:
                    summary.skipped["a line that holds no group"] += 1
                    continue
                settings = record.get("settings")
                model = settings.get("model_name") if isinstance(settings, dict) else None
                summary.models.add(str(model or "not recorded"))
                yield group


Rollout: TypeAlias = Mapping[str, Any]


def _good_completions(group: DumpedGroup, options: argparse.Namespace) -> tuple[list[Rollout], str]:
    """The group's completions that can have a row, the best first, or the reason why there are none."""
    scored = [rollout for rollout in group.rollouts if rollout["score"] is not None]
    if not scored:
        return [], "a group whose completions are unscored"
    good = [rollout for rollout in scored if rollout["score"] >= options.min_score]
    if not good:
        return [], f"a group without a completion of score {options.min_score:g} or more"
    # A completion that was cut off, or that training masked for another reason, is not a good example.
    good = [rollout for rollout in good if not rollout.get("mask_reason")]
    if not good:
        return [], "a group whose good completions were masked in training"
    if options.format == "dpo":
        lowest = min(rollout["score"] for rollout in scored)
        good = [rollout for rollout in good if rollout["score"] > lowest]
        if not good:
            return [], "a group without a worse completion for a pair"
    return sorted(good, key=_score_or_infinite, reverse=True), ""


def _score_or_infinite(rollout: Rollout) -> float:
    return math.inf if rollout["score"] is None else float(rollout["score"])


def _rows(
    good: Iterable[Rollout], worst: Rollout, options: argparse.Namespace, taken: set[int]
) -> Iterator[dict[str, Any]]:
    """Rows of good completions.

    `taken` has the hashes of the completions of this question that have a row, and gets the hashes of the new rows.
    """
    for rollout in good:
        if len(taken) >= options.per_question:
            return
        prompt = rollout["messages"][:-1]
        reply = rollout["messages"][-1]
        text_hash = hash(reply["content"])
        if text_hash in taken:
            continue
        if options.format == "dpo":
            row = {
                "prompt": prompt,
                "chosen": [reply],
                "rejected": [worst["messages"][-1]],
            }
        else:
            row = _row(options.format, prompt, reply)
        taken.add(text_hash)
        for name in KEPT:
            row[name] = rollout.get(name)
        row["score"] = rollout["score"]
        if options.format == "dpo":
            row["score_rejected"] = worst["score"]
        yield row


def _row(form: str, prompt: list[Any], reply: Mapping[str, Any]) -> dict[str, Any]:
    if form == "messages":
        return {"messages": [*prompt, reply]}
    return {"prompt": prompt, "completion": [reply]}


# --- the folder


def _rows_file(folder: Path) -> TextIO:
    path = folder / ROWS
    path.parent.mkdir()
    return path.open("w", encoding="utf-8")


def _write_card(options: argparse.Namespace, folder: Path, summary: _Summary) -> None:
    write_card(folder, CARD_TEMPLATE, options=options, summary=summary, version=__version__)
