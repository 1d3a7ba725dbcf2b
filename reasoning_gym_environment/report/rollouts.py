"""The single rollouts that the page lets a person browse: chosen evenly, cut to size, as JSON that cannot act."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .load import Sources

TEXT_LIMIT = 12_000
"""Characters shown of one question, thinking, reply or answer."""

TOTAL_LIMIT = 20_000_000
"""Characters of all rollouts together."""

_END = "</think>"


@dataclass(frozen=True)
class Selection:
    """What is shown of how many; `payload` is JSON that may stand inside a script element."""

    payload: str
    shown: int
    total: int


def select(sources: Sources, limit: int) -> Selection:
    """At most `limit` rollouts: in turn one of every source, task and outcome, so that rare ones are there."""
    every = list(_all(sources))
    queues: dict[tuple[str, str, str], list[tuple[str, Mapping[str, Any]]]] = {}
    for source, rollout in every:
        queues.setdefault((source, str(rollout["task"]), str(rollout.get("outcome"))), []).append((source, rollout))
    kept: list[dict[str, Any]] = []
    size = 0
    for source, rollout in _in_turn(list(queues.values())):
        record = _record(source, rollout)
        size += sum(len(value) for value in record.values() if isinstance(value, str))
        if len(kept) >= limit or size > TOTAL_LIMIT:
            break
        kept.append(record)
    kept.sort(key=lambda record: (record["source"], record["task"], str(record["item"])))
    return Selection(as_inert_json(kept), len(kept), len(every))


def as_inert_json(value: Any) -> str:
    """JSON in ASCII without `<`, `>` and `&`: nothing in it can end a script element or start a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _all(sources: Sources) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for evaluation in sources.evaluations:
        yield from ((evaluation.name, sample) for sample in evaluation.samples)
    for name, group in sources.groups:
        yield from ((name, rollout) for rollout in group.rollouts)


def _in_turn(queues: Sequence[Sequence[Any]]) -> Iterable[Any]:
    for place in range(max((len(queue) for queue in queues), default=0)):
        for queue in queues:
            if place < len(queue):
                yield queue[place]


def _record(source: str, rollout: Mapping[str, Any]) -> dict[str, Any]:
    thinking, reply = split_thinking(_reply(rollout))
    return {
        "source": source,
        "task": str(rollout["task"]),
        "category": str(rollout.get("category") or ""),
        "item": rollout["index"] if isinstance(rollout.get("index"), int) else "",
        "level": rollout["level"] if isinstance(rollout.get("level"), int) else None,
        "question": _cut(rollout.get("question")),
        "thinking": _cut(thinking),
        "reply": _cut(reply),
        "answer": _cut(rollout.get("model_parsed")),
        "expected": _cut(rollout.get("gold_answer")),
        "score": None if rollout.get("score") is None else round(float(rollout["score"]), 4),
        "outcome": str(rollout.get("outcome") or ""),
        "detail": str(rollout.get("format_failure") or rollout.get("unscored_reason") or ""),
        "finish": str(rollout.get("finish_reason") or ""),
        "tokens": rollout.get("num_completion_tokens"),
    }


def split_thinking(text: str) -> tuple[str, str]:
    """What stands before the last `</think>`, and what after it; thinking that never ends is all thinking."""
    before, end, after = text.rpartition(_END)
    if end:
        return before.strip().removeprefix("<think>").strip(), after.strip()
    stripped = text.strip()
    if stripped.startswith("<think>"):
        return stripped.removeprefix("<think>").strip(), ""
    return "", stripped


def _reply(rollout: Mapping[str, Any]) -> str:
    messages = rollout.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return str(last.get("content", "")) if isinstance(last, Mapping) and last.get("role") == "assistant" else ""


def _cut(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]} … [{len(text) - TEXT_LIMIT} characters more]"
