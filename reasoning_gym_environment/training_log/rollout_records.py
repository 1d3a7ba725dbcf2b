"""One line of a dump: a group as plain JSON data."""

from __future__ import annotations

import math
from typing import Any

from ..records import Rollout, RolloutGroup


def group_record(group: RolloutGroup, version: str) -> dict[str, Any]:
    """One dump line. `item_id` and `rollouts[].{conversation, score}` are the format others read."""
    problem = group.problem
    return {
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
        "expected_answer": problem.entry.get("answer"),
        "reasoning_gym_version": version,
    }


def _rollout_record(messages: list[dict[str, str]], rollout: Rollout) -> dict[str, Any]:
    completion, score = rollout.completion, rollout.score
    return {
        "conversation": [*messages, {"role": "assistant", "content": completion.text}],
        "score": rollout.reward,
        "raw_score": score.value,
        "native_score": score.native,
        "outcome": score.outcome.value,
        "format_failure": score.failure.value if score.failure else None,
        "answer": score.answer,
        "finish_reason": completion.finish_reason,
        "num_tokens": completion.num_tokens,
        "num_completion_tokens": completion.num_completion_tokens,
        "mask_reason": rollout.mask_reason,
    }


def plain(value: Any) -> Any:
    """The value as plain JSON data; configs hold tuples, other keys than strings, dates, infinities."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value)
