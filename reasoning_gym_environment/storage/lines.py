"""Scored completions as JSON lines: samples of an evaluation, dumps, and the file of groups.

    Problem, Completion, Score ── sample_of ──> a sample: one completion, a line of samples.jsonl
    Group ── dump_record ──> {"item_id", "rollouts": [{"conversation", "score", ...}], ...}   a line of a dump
          ── described ────> the trainer's tensors, and "rollout_details" in place of "rollouts"
    a line of a dump or of the file of groups ── group_in ──> DumpedGroup, whose rollouts have the keys of samples

Other programs rely on `item_id` and on `rollouts[].{conversation, score}`. There `score` is the reward, as in the
environment that ships with Atropos. `reward` is the same number, and `verifier_score` is the score of the answer.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from ..errors import EnvironmentSetupError
from ..inference.prompts import Message, as_dicts
from ..records import Completion, Group, Outcome, Problem, Rollout, Score, has_signal, to_json
from ..sampling.seeds import is_held_out, question_digest
from .append_log import AppendLog, BrokenLineError

logger = logging.getLogger(__name__)

ROLLOUTS = "rollouts"
FAILED = "FAILED_rollouts"
SAMPLE = "sample"
FILE_STEM = "reasoning_gym_environment"
DUMP_NAME = re.compile(
    rf"{FILE_STEM}_(?P<kind>{FAILED}|{ROLLOUTS}|{SAMPLE})_(?P<run>[0-9A-Za-z.-]+)_\d{{4,}}(?:_\d+)?\.jsonl"
)

UNKNOWN = "unknown"

UNSCORED = frozenset(outcome.value for outcome in Outcome if not outcome.is_scored)
"""Outcomes of rollouts without a score."""


def scored_fields(score: Score, credit: float) -> dict[str, Any]:
    """The fields that every line has about a completion's score. `credit` is its base reward."""
    return {
        "native_score": score.native,
        "credit": credit,
        "outcome": score.outcome.kind,
        "format_failure": score.outcome.value if score.outcome.is_unreadable else None,
    }


# --- samples of an evaluation


def sample_of(
    problem: Problem,
    prompt: Iterable[Message | Mapping[str, str]],
    attempt: int,
    fields: Mapping[str, Any],
    completion: Completion | None = None,
) -> dict[str, Any]:
    """One line of Atropos' samples.jsonl, as plain data. `fields` come from `sample_fields` or `unscored_fields`."""
    messages = as_dicts(prompt)
    finish_reason = None
    num_completion_tokens = None
    if completion is not None:
        messages.append({"role": "assistant", "content": completion.text})
        finish_reason = completion.finish_reason
        num_completion_tokens = completion.num_completion_tokens
    sample = {
        "messages": messages,
        "question": problem.question,
        "expected_answer": problem.entry.get("answer"),
        **fields,
        "finish_reason": finish_reason,
        "num_completion_tokens": num_completion_tokens,
        "task": problem.task,
        "category": problem.category,
        "seed": problem.seed,
        "index": problem.index,
        "level": problem.level,
        "complexity": problem.complexity,
        "config": dict(problem.config),
        "answer_format": problem.answer_format.value,
        "attempt": attempt,
        "question_digest": question_digest(problem.library_question),
    }
    record: dict[str, Any] = to_json(sample)
    return record


def sample_fields(score: Score, credit: float) -> dict[str, Any]:
    """The fields of a sample with a score. `credit` is what the completion adds to the mean score."""
    return {
        "model_parsed": score.answer,
        "score": score.value,
        **scored_fields(score, credit),
        "correct": score.value >= 1.0,
        "unscored_reason": None,
    }


def unscored_fields(reason: str | None) -> dict[str, Any]:
    """The fields of a sample without a score."""
    return {
        "model_parsed": None,
        "score": None,
        "native_score": None,
        "credit": None,
        "outcome": "unscored",
        "format_failure": None,
        "correct": False,
        "unscored_reason": reason,
    }


# --- groups: in the dumps of `serve`, and in the file of groups (`data_path_to_save_groups`)


def dump_record(group: Group, version: str) -> dict[str, Any]:
    """The line of a dump, as plain JSON data; `version` is reasoning-gym's version."""
    problem = group.problem
    record = {
        "item_id": problem.task,
        "rollouts": [_rollout_record(group.messages, rollout) for rollout in group.rollouts],
        "task": problem.task,
        "category": problem.category,
        "split": problem.split,
        "index": problem.index,
        "seed": problem.seed,
        "level": problem.level,
        "complexity": problem.complexity,
        "config": dict(problem.config),
        "answer_format": problem.answer_format.value,
        "expected_answer": problem.entry.get("answer"),
        "question_digest": question_digest(problem.library_question),
        "is_held_out": is_held_out(problem.library_question),
        "reasoning_gym_version": version,
        "sampled_at_step": group.sampled_at,
        "scored_at_step": group.scored_at,
    }
    found: dict[str, Any] = to_json(record)
    return found


def described(group: Group, version: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a line of the file of groups beside the trainer's tensors and messages."""
    record = dump_record(group, version)
    details = record.pop("rollouts")
    for rollout in details:
        del rollout["conversation"]
    return {
        **record,
        "rollout_details": details,
        "settings": dict(settings),
        "version": __version__,
    }


def _rollout_record(messages: list[dict[str, str]], rollout: Rollout) -> dict[str, Any]:
    completion = rollout.completion
    return {
        "conversation": [*messages, {"role": "assistant", "content": completion.text}],
        "score": rollout.reward,
        "reward": rollout.reward,
        "verifier_score": rollout.score.value,
        **scored_fields(rollout.score, rollout.base_reward),
        "answer": rollout.score.answer,
        "finish_reason": completion.finish_reason,
        "num_tokens": len(completion.tokens),
        "num_completion_tokens": completion.num_completion_tokens,
        "mask_reason": rollout.mask_reason,
    }


# --- the file of groups: written by `serve` on request, and resumed by `process`


@dataclass(frozen=True)
class WrittenGroup:
    """The part of a line that the curriculum needs. `credits` has the scored completions only."""

    index: int
    task: str
    level: int | None
    credits: tuple[float, ...]


def open_groups(path: Path, settings: Mapping[str, Any], *, is_resumed: bool) -> AppendLog:
    """Open the file of groups. If it is resumed, `done` maps each index in the file to its WrittenGroup.

    Otherwise an existing file keeps its content and the new file gets another name, as in Atropos. An index without a
    line was in progress, or gave no group: the caller draws it again. Raises EnvironmentSetupError if the file cannot
    be opened, has other settings, or belongs to another run that still writes.
    """
    if not is_resumed:
        free = _free_name(path)
        if free != path:
            logger.info("Groups are written to %s, because %s exists.", free, path)
        return AppendLog(free)
    try:
        return AppendLog(
            path,
            to_json(dict(settings)),
            key=lambda record: int(record["index"]),
            keep=_written_group,
            remedy="Set env.data_path_to_save_groups to another file, or the settings to what they were.",
        )
    except OSError as error:
        raise EnvironmentSetupError(f"Cannot write groups to {path}: {error}.") from error


def _free_name(path: Path) -> Path:
    """`path`, or the first of `path_1`, `path_2`, ... that does not exist."""
    number = 0
    free = path
    while free.exists():
        number += 1
        free = path.with_stem(f"{path.stem}_{number}")
    return free


def _written_group(record: Mapping[str, Any]) -> WrittenGroup:
    details = record["rollout_details"]
    scored = [rollout for rollout in details if rollout["outcome"] not in UNSCORED]
    return WrittenGroup(
        index=int(record["index"]),
        task=str(record["task"]),
        level=record["level"],
        credits=tuple(float(rollout["credit"]) for rollout in scored),
    )


# --- reading


@dataclass(frozen=True)
class DumpedGroup:
    """One group of a file. Its rollouts have the keys of an evaluation's samples, and `reward` and `mask_reason`.

    In a report they have a `place` instead of their texts, `messages` and `question`.
    """

    task: str
    category: str
    index: int
    level: float | None
    rewards: tuple[float, ...]
    rollouts: tuple[dict[str, Any], ...]
    is_held_out: bool = False
    """Whether the question is for evaluation only."""
    step: float | None = None
    """The trainer's step when the group was scored, or None without a trainer."""

    @property
    def has_signal(self) -> bool:
        masked = [bool(rollout["mask_reason"]) for rollout in self.rollouts]
        return has_signal(self.rewards, masked)


def files_of(path: Path) -> list[Path]:
    """The file itself, or the .jsonl files below a folder. Hidden folders are skipped.

    Raises EnvironmentSetupError for a path that does not exist, and for a folder without such files. Raises OSError for
    a folder that cannot be read.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise EnvironmentSetupError(f"{path} does not exist: expected a folder of results, or a .jsonl file.")
    files = []
    for root, folders, names in os.walk(path, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [Path(root, name) for name in sorted(names) if name.endswith(".jsonl")]
    if not files:
        raise EnvironmentSetupError(
            f"{path} and the folders below it have no .jsonl files: set env.data_dir_to_save_evals or "
            "env.dump_rollouts."
        )
    return files


def _raise(error: OSError) -> NoReturn:
    raise error


def group_in(record: Mapping[str, Any], number: int = 0) -> DumpedGroup:
    """The group in a line. A line without an index gets the index `number`. Raises BrokenLineError.

    Dumps of the environment that ships with Atropos have only `item_id`, conversations and rewards. A line of `serve`
    in the file of groups has only tensors, rewards and messages.
    """
    try:
        return _group(record, number)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BrokenLineError("no group") from error


def _group(record: Mapping[str, Any], number: int) -> DumpedGroup:
    rollouts = _rollouts(record)
    scores = record.get("scores") or [rollout["score"] for rollout, _ in rollouts]
    rewards = tuple(map(float, scores))
    if not rewards or not all(map(math.isfinite, rewards)):
        raise ValueError("a group has rewards, which are finite")
    index = int(record.get("index", number))
    task = str(record.get("item_id", UNKNOWN))
    category = str(record.get("category", UNKNOWN))
    level = _number(record.get("level"))
    item = {
        "task": task,
        "category": category,
        "index": index,
        "level": level,
        "seed": record.get("seed"),
        "expected_answer": record.get("expected_answer"),
    }
    samples = []
    for (rollout, conversation), reward in zip(rollouts, rewards, strict=True):
        samples.append({**item, **_sample(rollout, conversation, reward)})
    # Lines of other programs have the question of reasoning-gym, word for word.
    question = samples[0]["question"]
    digest = str(record.get("question_digest") or question_digest(question))
    for sample in samples:
        sample["question_digest"] = digest
    return DumpedGroup(
        task=task,
        category=category,
        index=index,
        level=level,
        rewards=rewards,
        rollouts=tuple(samples),
        is_held_out=bool(record.get("is_held_out", is_held_out(question))),
        step=_number(record.get("scored_at_step")),
    )


def _rollouts(record: Mapping[str, Any]) -> list[tuple[dict[str, Any], list[dict[str, str]]]]:
    """The fields and the conversation of each rollout of a group's line."""
    if "rollouts" in record:
        return [(rollout, rollout["conversation"]) for rollout in record["rollouts"]]
    conversations = record["messages"]
    details = record.get("rollout_details") or [{} for _ in conversations]
    return list(zip(details, conversations, strict=True))


def _sample(rollout: Mapping[str, Any], conversation: list[dict[str, str]], reward: float) -> dict[str, Any]:
    """A rollout with the keys of an evaluation's sample. A rollout that training could not score has no score here."""
    question = conversation[-2]["content"]
    reply = conversation[-1]
    if reply["role"] != "assistant" or not isinstance(reply["content"], str):
        raise ValueError("the last message of a conversation is a text of the model")
    outcome = str(rollout.get("outcome", UNKNOWN))
    is_unscored = outcome in UNSCORED
    score = _number(rollout.get("verifier_score", reward))
    return {
        "messages": conversation,
        "question": question,
        "score": None if is_unscored else score,
        "native_score": _number(rollout.get("native_score")),
        "reward": reward,
        "outcome": outcome,
        "unscored_reason": outcome if is_unscored else None,
        "num_completion_tokens": _number(rollout.get("num_completion_tokens")),
        "model_parsed": rollout.get("answer"),
        "format_failure": rollout.get("format_failure"),
        "finish_reason": rollout.get("finish_reason"),
        "mask_reason": rollout.get("mask_reason"),
    }


def _number(value: Any) -> float | None:
    """A finite number, or None. Raises ValueError or TypeError for another value."""
    if value is None or math.isfinite(value):
        number: float | None = value
        return number
    raise ValueError(f"expected a finite number, got {value}")
