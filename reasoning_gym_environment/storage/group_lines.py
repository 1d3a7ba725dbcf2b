"""A scored group as a line: of the dumps of `serve`, and of the file of groups (`data_path_to_save_groups`).

    Episode ── dump_record ──> {"item_id", "rollouts": [{"conversation", "score", ...}], ...}   a line of a dump
                 ── described ────> the trainer's tensors, and "rollout_details" in place of "rollouts"
    a line of either, of this version or an older one ── as_dumped ── rollouts_in ──> its rollouts

Other programs rely on `item_id` and on `rollouts[].{conversation, score}`. There `score` is the reward, as in the
environment that ships with Atropos; `reward` says the same, and `verifier_score` is what the answer is worth.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import EnvironmentSetupError
from ..records import Episode, Outcome, Rollout, Score, has_signal, plain
from .append_log import AppendLog, BrokenLineError, free_name

logger = logging.getLogger(__name__)

ROLLOUTS, FAILED = "rollouts", "FAILED_rollouts"
FILE_STEM = "reasoning_gym_environment"
PART_SUFFIX, TORN_SUFFIX = ".part", ".torn"
DUMP_NAME = re.compile(
    rf"{FILE_STEM}_(?P<kind>{FAILED}|{ROLLOUTS})_(?P<run>[0-9A-Za-z.-]+)_\d{{4,}}(?:_\d+)?\.jsonl"
    rf"(?P<suffix>{re.escape(PART_SUFFIX)}|{re.escape(TORN_SUFFIX)})?"
)
"""The older version set torn lines aside, in files that end with TORN_SUFFIX."""

OLD_KEYS = {"raw_score": "verifier_score"}
"""Keys of a rollout in files of an older version, and what they are called now."""

LARGEST = 1e15
"""No score, level or count is as large. Beyond it, floats no longer tell whole numbers apart."""


# --- written


def dump_record(group: Episode, version: str) -> dict[str, Any]:
    """The line of a dump, as plain JSON data; `version` is that of reasoning-gym."""
    problem = group.problem
    record = {
        "item_id": problem.task,
        "rollouts": [rollout_record(group.messages, rollout) for rollout in group.rollouts],
        "task": problem.task,
        "category": problem.category,
        "split": problem.split,
        "index": problem.index,
        "seed": problem.seed,
        "level": problem.level,
        "complexity": problem.complexity,
        "config": dict(problem.config),
        "expected_answer": problem.entry.get("answer"),
        "reasoning_gym_version": version,
        "sampled_at_step": group.sampled_at,
        "scored_at_step": group.scored_at,
    }
    found: dict[str, Any] = plain(record)
    return found


def described(group: Episode, version: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a line of the file of groups says beside the trainer's tensors and messages."""
    record = dump_record(group, version)
    details = [{k: v for k, v in one.items() if k != "conversation"} for one in record.pop("rollouts")]
    return {**record, "rollout_details": details, "settings": dict(settings), "version": __version__}


def rollout_record(messages: list[dict[str, str]], rollout: Rollout) -> dict[str, Any]:
    """One rollout of a line."""
    completion = rollout.completion
    return {
        "conversation": [*messages, {"role": "assistant", "content": completion.text}],
        **scored_fields(rollout.score, rollout.reward, rollout.credit),
        "finish_reason": completion.finish_reason,
        "num_tokens": len(completion.tokens),
        "num_completion_tokens": completion.num_completion_tokens,
        "mask_reason": rollout.mask_reason,
    }


def scored_fields(score: Score, reward: float, credit: float) -> dict[str, Any]:
    """What a line says of one completion's score, and of the reward made from it."""
    return {
        "score": reward,
        "reward": reward,
        "verifier_score": score.value,
        "native_score": score.native,
        "credit": credit,
        "outcome": score.outcome.value,
        "format_failure": score.failure.value if score.failure else None,
        "answer": score.answer,
    }


# --- the file of groups: written by `serve` on request, and resumed by `process`


@dataclass(frozen=True)
class WrittenGroup:
    """What a line tells the choosers of tasks and levels. `credits` are those of the completions that were scored."""

    index: int
    task: str
    level: int | None
    credits: tuple[float, ...]
    has_signal: bool


def open_groups(path: Path, settings: Mapping[str, Any], *, is_resumed: bool) -> AppendLog:
    """The file of groups. If it is resumed, `done` maps each index that it has to its WrittenGroup.

    Otherwise a file that exists is left alone, and another name is taken, as Atropos does. An index without a line was
    in progress, or gave no group: it is drawn again. Raises EnvironmentSetupError if the file cannot be opened, was
    made with other settings, or is written by another run.
    """
    if not is_resumed:
        free = free_name(path)
        if free != path:
            logger.info("Groups are written to %s, because %s exists.", free, path)
        return AppendLog(free)
    try:
        return AppendLog(
            path,
            plain(dict(settings)),
            identity_key="settings",
            key=lambda record: int(record["index"]),
            keep=_written_group,
            remedy="Set env.data_path_to_save_groups to another file, or the settings to what they were.",
        )
    except OSError as error:
        raise EnvironmentSetupError(f"Cannot write groups to {path}: {error}.") from error


def _written_group(record: Mapping[str, Any]) -> WrittenGroup:
    details = record["rollout_details"]
    return WrittenGroup(
        index=int(record["index"]),
        task=str(record["task"]),
        level=record["level"],
        credits=tuple(float(one["credit"]) for one in details if Outcome(one["outcome"]).is_scored),
        has_signal=has_signal(record["scores"], [one["mask_reason"] is not None for one in details]),
    )


# --- read: anybody may have written the file


def with_current_keys(record: dict[str, Any]) -> dict[str, Any]:
    """A line's record, whose rollouts have the keys that this version writes."""
    named = {name: rows for name in ("rollouts", "rollout_details") if isinstance(rows := record.get(name), list)}
    return {
        **record,
        **{
            name: [{OLD_KEYS.get(key, key): one[key] for key in one} if isinstance(one, dict) else one for one in rows]
            for name, rows in named.items()
        },
    }


def as_dumped(record: dict[str, Any]) -> dict[str, Any]:
    """A line of the file of groups that says what it is, in the form of a dump's line; with the keys of today."""
    record = with_current_keys(record)
    lists = [record.get(name) for name in ("rollout_details", "messages", "scores")]
    rows = [one for one in lists if isinstance(one, list)]
    if "rollouts" in record or len(rows) < len(lists) or len({len(one) for one in rows}) > 1:
        return record
    rollouts = [
        {**details, "conversation": conversation, "score": score}
        for details, conversation, score in zip(*rows, strict=True)
        if isinstance(details, dict)
    ]
    return {**record, "rollouts": rollouts}


def rollouts_in(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rollouts in a dump's line, as far as a reader may rely on them. Raises BrokenLineError.

    Each has a `conversation` that ends with a question and a reply, which are mappings with `content`, and a number as
    `score`, the reward. Other keys may be missing, or hold anything.
    """
    rollouts = record.get("rollouts")
    if not isinstance(record.get("item_id"), str):
        raise BrokenLineError("no item_id")
    if not isinstance(rollouts, list) or not rollouts:
        raise BrokenLineError("no rollouts")
    for rollout in rollouts:
        if not isinstance(rollout, dict) or not is_conversation(rollout.get("conversation")):
            raise BrokenLineError("a rollout without a conversation")
        if not is_number(rollout.get("score")):
            raise BrokenLineError("a rollout without a score")
    return rollouts


def is_conversation(value: Any) -> bool:
    """Whether it is a list of messages that ends with a question and a reply."""
    return (
        isinstance(value, list)
        and len(value) >= 2
        and all(isinstance(message, dict) and "content" in message for message in value[-2:])
    )


def is_number(value: Any) -> bool:
    """Whether it is a number that can be drawn, which NaN, infinity and integers beyond any float are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST
