"""`export sft`, `export dpo` and `export cold-start`: write completions for fine-tuning.

    dumps of `serve`, groups of `process` ──> groups ──> good completions, or pairs of a good and a bad completion ──┐
    training items ──> their expected answers in the form that the prompt asks for ──────────────────────────────────┤
                                                        FOLDER: data/train.jsonl with a row a line, and a card <─────┘

TRL and Axolotl define the columns; each row also has the task, level, seed and score:

    sft, cold-start     {"messages": [system, user, assistant]}
    dpo                 {"prompt": [system, user], "chosen": [assistant], "rejected": [assistant]}
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from .. import __version__
from ..api import PromptedProblem, Tasks, training_items
from ..errors import EnvironmentSetupError
from ..scoring.extraction import write_answer
from ..storage.append_log import BrokenLineError, read_object
from ..storage.lines import DumpedGroup, files_of, group_in
from ..utils.terminal import Progress
from ..verification.entries import right_answer
from .dataset_folder import CARD, new_folder, write_card
from .options import task_settings

Rollout: TypeAlias = Mapping[str, Any]

ROWS = Path("data", "train.jsonl")
CARD_TEMPLATE = "dataset_card.md.j2"
KEPT = ("task", "category", "level", "index", "seed")
THOUGHT = "<think>\nI work out what is asked. The answer is {answer}.\n</think>\n"
"""The thinking in each example for a cold start. It teaches the form of an answer, not how to think."""
MAX_WITHOUT_ANSWER = 200
"""The command gives up after this many items in a row without an expected answer."""


@dataclass
class Summary:
    """Counts of an export: groups and rows by task, skipped lines and groups by reason."""

    groups: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    models: set[str] = field(default_factory=set)

    @property
    def reasons(self) -> str:
        return ", ".join(f"{reason} ({count})" for reason, count in sorted(self.skipped.items()))


def write_completions(options: argparse.Namespace) -> str:
    """Write good completions, or pairs if the kind is dpo; returns sentences about them."""
    files: dict[Path, Path] = {}
    for path in options.paths:
        files |= {file.resolve(): file for file in files_of(path)}
    summary = Summary()
    with new_folder(options.to) as folder:
        with _rows_file(folder) as target:
            for row in _rows_of_files(list(files.values()), options, summary):
                # The rows are ASCII, because a completion may hold half of a surrogate pair.
                target.write(json.dumps(row) + "\n")
        if not summary.rows.total():
            reasons = summary.reasons or "the files hold no groups"
            raise EnvironmentSetupError(f"There is nothing to export: {reasons}.")
        write_card(folder, CARD_TEMPLATE, options=options, summary=summary, version=__version__)
    lines = [
        f"{summary.rows.total()} rows of {summary.groups.total()} groups in {options.to}.",
        f"{CARD} in this folder counts them by task.",
    ]
    if summary.skipped:
        lines.append(f"Skipped: {summary.reasons}.")
    return "\n".join(lines)


def write_cold_start(options: argparse.Namespace) -> str:
    """Write examples from training items, so that none of them is a question of an evaluation. Returns a sentence."""
    summary = Summary()
    with new_folder(options.to) as folder:
        with (
            Tasks(complexity_mode=options.complexity, **task_settings(options)) as tasks,
            _rows_file(folder) as target,
        ):
            examples = islice(_items_with_answers(tasks, options.seed), options.count)
            for problem, answer in Progress(examples, "export", options.count, unit="item"):
                text = THOUGHT.format(answer=answer) + write_answer(answer, problem.answer_format)
                messages = [*map(dict, problem.messages), {"role": "assistant", "content": text}]
                facts = {name: getattr(problem, name) for name in KEPT}
                target.write(json.dumps({"messages": messages, **facts}) + "\n")
                summary.groups[problem.task] += 1
                summary.rows[problem.task] += 1
        write_card(folder, CARD_TEMPLATE, options=options, summary=summary, version=__version__)
    return f"{summary.rows.total()} examples of {len(summary.rows)} tasks in {options.to}."


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


def _rows_file(folder: Path) -> TextIO:
    path = folder / ROWS
    path.parent.mkdir()
    return path.open("w", encoding="utf-8")


# --- rows of completions


def _rows_of_files(files: Sequence[Path], options: argparse.Namespace, summary: Summary) -> Iterator[dict[str, Any]]:
    taken_by_question: dict[str, set[int]] = defaultdict(set)
    for group in _groups(files, summary):
        summary.groups[group.task] += 1
        first = group.rollouts[0]
        if group.is_held_out:
            summary.skipped["a question that is held out for evaluation"] += 1
            continue
        good, reason = _good_completions(group, options)
        taken = taken_by_question[first["question_digest"]]
        rows = []
        for rollout in good:
            text_hash = hash(rollout["messages"][-1]["content"])
            if len(taken) < options.per_question and text_hash not in taken:
                taken.add(text_hash)
                rows.append(_row(rollout, group, options.kind))
        if not rows:
            summary.skipped[reason or "a question that has its rows already"] += 1
        summary.rows[group.task] += len(rows)
        yield from rows


def _groups(files: Sequence[Path], summary: Summary) -> Iterator[DumpedGroup]:
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


def _good_completions(group: DumpedGroup, options: argparse.Namespace) -> tuple[list[Rollout], str]:
    """The group's completions that can have a row, the best first, or the reason why there are none."""
    scored = _scored(group)
    if not scored:
        return [], "a group whose completions are unscored"
    good = [rollout for rollout in scored if rollout["score"] >= options.min_score]
    if not good:
        return [], f"a group without a completion of score {options.min_score:g} or more"
    # A completion that was cut off, or that training masked for another reason, is not a good example.
    good = [rollout for rollout in good if not rollout.get("mask_reason")]
    if not good:
        return [], "a group whose good completions were masked in training"
    if options.kind == "dpo":
        lowest = min(rollout["score"] for rollout in scored)
        good = [rollout for rollout in good if rollout["score"] > lowest]
        if not good:
            return [], "a group without a worse completion for a pair"
    return sorted(good, key=_score, reverse=True), ""


def _scored(group: DumpedGroup) -> list[Rollout]:
    return [rollout for rollout in group.rollouts if rollout["score"] is not None]


def _score(rollout: Rollout) -> float:
    return float(rollout["score"])


def _row(rollout: Rollout, group: DumpedGroup, kind: str) -> dict[str, Any]:
    facts = {name: rollout.get(name) for name in KEPT}
    facts["score"] = rollout["score"]
    if kind == "sft":
        return {"messages": rollout["messages"], **facts}
    *prompt, reply = rollout["messages"]
    worst = min(_scored(group), key=_score)
    pair = {"prompt": prompt, "chosen": [reply], "rejected": [worst["messages"][-1]]}
    return {**pair, **facts, "score_rejected": worst["score"]}
