"""Files -> sources: results of `evaluate`, dumps of training, groups of `process`; told apart line by line.

Groups become samples like those of an evaluation, so that everything after this reads one kind of rollout. A line that
is none of the three is counted and left out. At the end: the rollouts that the page lets a person browse, chosen
evenly, cut to size, as JSON that cannot act.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import EnvironmentSetupError
from ..evaluation.questions import question_digest
from ..records import MASKED, Outcome, has_signal
from ..scoring.scorer import extract_answer, split_thinking
from ..training_log.dump_files import BrokenLineError, group_of, is_conversation, is_number, numbered_lines, read_object

logger = logging.getLogger(__name__)

UNKNOWN = "unknown"
UNSCORED = frozenset(outcome.value for outcome in Outcome if not outcome.is_scored)
PATTERNS = ("*.jsonl", "*.jsonl.part")
"""What is read of a folder: finished files, and those that a run is writing or has left."""

ASKED = {"temperature": "temperature", "n": "completions a question", "max_new_tokens": "tokens at most"}
GRADED = {
    "verification": "verification",
    "answer_normalization": "answer normalization",
    "scoring_timeout_s": "seconds for a verifier",
}
"""Names in an evaluation's parameters, with those for a person: how its completions were sampled, and graded."""


@dataclass(frozen=True)
class Evaluation:
    """Results of `evaluate`. `parameters` is how it asked and graded, from metrics.json (empty without one)."""

    name: str
    model: str
    parameters: Mapping[str, Any]
    samples: list[dict[str, Any]]

    @property
    def manifest(self) -> str:
        """The hash of its questions; "" if its samples have none or several."""
        found = {str(sample.get("manifest") or "") for sample in self.samples}
        return found.pop() if len(found) == 1 else ""


@dataclass(frozen=True)
class Group:
    """One dumped group; its rollouts have the keys of evaluation samples."""

    task: str
    category: str
    index: int
    level: int | None
    complexity: float | None
    rewards: tuple[float, ...]
    rollouts: tuple[dict[str, Any], ...]

    @property
    def has_signal(self) -> bool:
        return has_signal(self.rewards, [bool(rollout.get("mask_reason")) for rollout in self.rollouts])


@dataclass(frozen=True)
class Sources:
    """Everything that was read."""

    evaluations: list[Evaluation] = field(default_factory=list)
    groups: list[tuple[str, Group]] = field(default_factory=list)
    malformed: dict[str, int] = field(default_factory=dict)


def load(paths: Sequence[Path]) -> Sources:
    """Read files and folders, each file once.

    Raises EnvironmentSetupError for a path that is missing or holds nothing to show.
    """
    sources = Sources()
    for file in {file.resolve(): file for path in paths for file in _files(path)}.values():
        _load_file(file, sources)
    for name, count in sources.malformed.items():
        logger.warning("%d lines of %s are not what a result or dump holds; they are left out.", count, name)
    if not any(one.samples for one in sources.evaluations) and not sources.groups:
        raise EnvironmentSetupError("There is nothing to show: the files hold neither evaluation samples nor groups.")
    return sources


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path.with_name("samples.jsonl") if path.name == "metrics.json" else path]
    if not path.is_dir():
        raise EnvironmentSetupError(f"{path} does not exist: expected a folder of results, or a .jsonl file.")
    if found := sorted(file for pattern in PATTERNS for file in path.glob(pattern)):
        return found
    raise EnvironmentSetupError(f"{path} has no .jsonl files: set env.data_dir_to_save_evals or env.dump_rollouts.")


def _load_file(path: Path, sources: Sources) -> None:
    samples: list[dict[str, Any]] = []
    count = 0
    try:
        with path.open("rb") as file:
            for _, line, _ in numbered_lines(file):
                if line is not None and not line.strip():
                    continue
                try:
                    record = read_object(line)
                    if "question" in record:
                        samples.append(_checked(record))
                    else:
                        sources.groups.append((path.name, _group(record, count)))
                except BrokenLineError:
                    sources.malformed[str(path)] = sources.malformed.get(str(path), 0) + 1
                count += 1
    except OSError as error:
        raise EnvironmentSetupError(f"Cannot read {path}: {error}") from error
    if samples:
        model, parameters = _described(path.with_name("metrics.json"))
        name = path.parent.name if path.name == "samples.jsonl" and path.parent.name else path.stem
        taken = {evaluation.name for evaluation in sources.evaluations}
        sources.evaluations.append(Evaluation(name if name not in taken else str(path), model, parameters, samples))


def _described(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        general = json.loads(path.read_text(encoding="utf-8"))["config_general"]
        return str(general.get("model_name") or ""), dict(general.get("generation_parameters") or {})
    except FileNotFoundError:
        return "", {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EnvironmentSetupError(
            f"Cannot read {path}: expected a metrics.json of `evaluate` ({error!r})."
        ) from error


def _checked(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample, if what is counted of it is there. Raises BrokenLineError."""
    numbers = (sample.get("score"), sample.get("native_score"), sample.get("num_completion_tokens"))
    if not isinstance(sample.get("task"), str) or not all(one is None or is_number(one) for one in numbers):
        raise BrokenLineError("no sample of `evaluate`")
    return sample


def _group(record: Mapping[str, Any], number: int) -> Group:
    """A group of a dump, or of a file of `process`, which knows neither task nor outcome. Raises BrokenLineError."""
    level, complexity = _whole(record.get("level")), record.get("complexity")
    shared = {
        "task": record.get("item_id", UNKNOWN),
        "category": str(record.get("category", UNKNOWN)),
        "index": number if (index := _whole(record.get("index"))) is None else index,
        "level": level,
    }
    if "rollouts" in record:
        found = [_of_dump(rollout, record) for rollout in group_of(record).rollouts]
    else:
        found = _of_process(record)
    return Group(
        **shared,
        complexity=float(complexity) if is_number(complexity) else None,  # type: ignore[arg-type]
        rewards=tuple(float(rollout["reward"]) for rollout in found),
        rollouts=tuple({**shared, **rollout} for rollout in found),
    )


def _of_dump(rollout: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    raw_score, tokens = rollout.get("raw_score"), rollout.get("num_completion_tokens")
    score, outcome = rollout["score"], str(rollout.get("outcome", UNKNOWN))
    return {
        **_sample(rollout["conversation"], raw_score if is_number(raw_score) else score, outcome),
        "reward": score,
        "seed": record.get("seed"),
        "gold_answer": record.get("expected_answer"),
        "model_parsed": rollout.get("answer"),
        "format_failure": rollout.get("format_failure"),
        "finish_reason": rollout.get("finish_reason"),
        "mask_reason": rollout.get("mask_reason"),
        "num_completion_tokens": int(tokens) if is_number(tokens) else None,  # type: ignore[arg-type]
    }


def _of_process(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        rows = list(zip(record["messages"], record["scores"], record["masks"], strict=True))
        lengths = [sum(mask != MASKED for mask in masks) for _, _, masks in rows]
    except (KeyError, TypeError, ValueError):
        raise BrokenLineError("no group of `process`") from None
    if not rows or not all(is_conversation(messages) and is_number(score) for messages, score, _ in rows):
        raise BrokenLineError("no group of `process`")
    return [
        {**_sample(messages, score, UNKNOWN), "reward": score, "num_completion_tokens": length}
        for (messages, score, _), length in zip(rows, lengths, strict=True)
    ]


def _sample(messages: Sequence[Mapping[str, Any]], score: Any, outcome: str) -> dict[str, Any]:
    """What an evaluation's sample has of a conversation; a score that training could not give is None here too."""
    question = str(messages[-2]["content"])
    is_unscored = outcome in UNSCORED
    return {
        "messages": list(messages),
        "question": question,
        "question_digest": question_digest(question),
        "score": None if is_unscored else score,
        "outcome": outcome,
        "unscored_reason": outcome if is_unscored else None,
    }


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and is_number(value) else None


# --- the rollouts to browse


TEXT_LIMIT = 12_000
"""Characters shown of one question, thinking, reply or answer."""

TOTAL_LIMIT = 20_000_000
"""Characters of all rollouts together."""

_THINK_EDGES = re.compile(r"\A\s*<think>|</think>\s*\Z", re.IGNORECASE)


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
    thinking, reply = parts_of(_reply(rollout))
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


def parts_of(text: str) -> tuple[str, str]:
    """The thinking without the tags around it, and the reply; thinking that never ends is all thinking."""
    thinking, reply = split_thinking(text)
    return _THINK_EDGES.sub("", thinking).strip(), (reply or "").strip()


def _reply(rollout: Mapping[str, Any]) -> str:
    messages = rollout.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return str(last.get("content", "")) if isinstance(last, Mapping) and last.get("role") == "assistant" else ""


def answer_of(rollout: Mapping[str, Any]) -> str | None:
    """The answer that was read in a rollout; where a line does not say, as old ones do not, the one in its text."""
    answer = rollout.get("model_parsed")
    if answer is None and not rollout.get("format_failure"):
        return extract_answer(_reply(rollout)).answer
    return None if answer is None else str(answer)


def _cut(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]} … [{len(text) - TEXT_LIMIT} characters more]"
