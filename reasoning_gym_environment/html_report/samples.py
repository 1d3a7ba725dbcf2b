"""Encodes the samples of a report for its page: an index of numbers, and the texts in compressed chunks.

    sources ── questions_of ──> questions with their samples ── select ──> at most N samples ── encode ──> blocks

A *question* has all samples of one group of training, or all samples that evaluations have of it, so that two models
can be compared. A *block* is JSON, compressed and in base64. The page decodes the index when it starts, and a chunk of
texts when a reader looks at one of its questions. Base64 can neither end a script element nor start a comment.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from ..scoring.extraction import split_for_display
from ..storage.append_log import read_object
from ..storage.lines import UNKNOWN, group_in
from ..thinking import strip_markers
from .load import Place, Sources, reply_of

TEXT_LIMIT = 12_000
"""Maximum number of characters of one question, thinking, reply or answer on the page."""

CHUNK_SIZE = 250_000
"""A chunk is full when its texts have this many characters. The page decodes one in a few milliseconds."""

UNSCORED = "unscored"
"""The outcome on the page of all samples without a score. Their failure is the reason."""

Sample = Mapping[str, Any]


@dataclass
class AskedQuestion:
    """One question and its samples, each with the number of its source. A group of training has its `step`."""

    task: str
    level: float | None
    item: Any
    step: float | None = None
    samples: list[tuple[int, Sample]] = field(default_factory=list)


@dataclass(frozen=True)
class SampleBlocks:
    """The blocks of a page, which shows `shown` of `total` samples."""

    index: str
    chunks: list[str]
    shown: int
    total: int


def source_names(sources: Sources) -> list[str]:
    """The names of all evaluations and runs. The number of a source is its place in this list."""
    return [evaluation.name for evaluation in sources.evaluations] + [run.name for run in sources.runs]


def questions_of(sources: Sources) -> Iterator[AskedQuestion]:
    """All questions: first the questions of evaluations, then the groups of training."""
    asked: dict[tuple[str, ...], AskedQuestion] = {}
    for number, evaluation in enumerate(sources.evaluations):
        for sample in evaluation.samples:
            digest = sample.get("question_digest")
            # Without a hash of its text, a question of another source cannot be recognised.
            names = [sample["task"], sample.get("index"), sample.get("seed"), digest or number]
            key = tuple(map(str, names))
            question = asked.get(key)
            if question is None:
                question = asked[key] = _question(sample)
            question.samples.append((number, sample))
    yield from asked.values()
    for number, run in enumerate(sources.runs, len(sources.evaluations)):
        for group in run.groups:
            question = _question(group.rollouts[0])
            question.step = group.step
            mean = fmean(group.rewards)
            for rollout, reward in zip(group.rollouts, group.rewards, strict=True):
                advantage = 0.0 if rollout["mask_reason"] else reward - mean
                question.samples.append((number, {**rollout, "advantage": advantage}))
            yield question


def _question(sample: Sample) -> AskedQuestion:
    return AskedQuestion(str(sample["task"]), sample.get("level"), sample.get("index"))


def select(questions: Sequence[AskedQuestion], limit: int) -> list[AskedQuestion]:
    """Questions with at most `limit` samples together, taken in turn from all sources, tasks and outcomes.

    They keep their order.
    """
    queues: dict[tuple[Any, ...], list[int]] = {}
    for place, question in enumerate(questions):
        numbers = frozenset(number for number, _ in question.samples)
        outcomes = frozenset(outcome_of(sample) for _, sample in question.samples)
        queues.setdefault((numbers, question.task, outcomes), []).append(place)
    kept = []
    size = 0
    for place in chain.from_iterable(zip_longest(*queues.values())):
        if place is None:
            continue
        size += len(questions[place].samples)
        if size > limit:
            break
        kept.append(place)
    return [questions[place] for place in sorted(kept)]


def encode(sources: Sources, limit: int) -> SampleBlocks:
    """The blocks with at most `limit` samples. Raises OSError if a file has gone."""
    questions = list(questions_of(sources))
    total = sum(len(question.samples) for question in questions)
    # All rollouts of a group are in one line.
    rollouts_at = lru_cache(maxsize=1)(_rollouts_at)
    question_rows = []
    sample_rows = []
    chunks: list[str] = []
    texts: list[dict[str, Any]] = []
    chunk_size = 0
    for question in select(questions, limit):
        question_rows.append(_question_row(question, len(chunks)))
        sample_rows += [_sample_row(source, sample) for source, sample in question.samples]
        found = _texts_of(question, rollouts_at)
        length = len(json.dumps(found, ensure_ascii=False))
        chunk_size += length
        texts.append(found)
        if chunk_size >= CHUNK_SIZE:
            chunks.append(block(texts))
            texts = []
            chunk_size = 0
    if texts:
        chunks.append(block(texts))
    index = {
        "sources": source_names(sources),
        "questions": columns_of(question_rows),
        "samples": columns_of(sample_rows),
    }
    return SampleBlocks(block(index), chunks, len(sample_rows), total)


def columns_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The values of all rows by name. All rows have the same names."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def block(value: Any) -> str:
    """JSON, compressed and in base64."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A completion may contain half of a surrogate pair, which cannot be encoded.
    data = text.encode("utf-8", "replace")
    return base64.b64encode(zlib.compress(data, 5)).decode("ascii")


# --- the index: what the page filters and sorts by


def _question_row(question: AskedQuestion, chunk: int) -> dict[str, Any]:
    return {
        "task": question.task,
        "level": question.level,
        "item": question.item,
        "step": question.step,
        "count": len(question.samples),
        "chunk": chunk,
    }


def _sample_row(source: int, sample: Sample) -> dict[str, Any]:
    return {
        "source": source,
        "outcome": outcome_of(sample),
        "failure": failure_of(sample),
        "score": _rounded(sample["score"]),
        "reward": _rounded(sample.get("reward")),
        "advantage": _rounded(sample.get("advantage")),
        "tokens": sample.get("num_completion_tokens"),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)


def outcome_of(sample: Sample) -> str:
    return UNSCORED if sample["score"] is None else str(sample.get("outcome") or UNKNOWN)


def failure_of(sample: Sample) -> str:
    """Why a sample has no readable answer, no score or no weight in training, in a word or two, or ""."""
    reasons = [str(sample.get("format_failure") or sample.get("unscored_reason") or "")]
    if sample.get("finish_reason") == "length":
        reasons.append("cut off")
    mask = str(sample.get("mask_reason") or "")
    if mask == "too_long" or not any(reasons):
        reasons.append(mask)
    return ", ".join(reason.replace("_", " ") for reason in reasons if reason)


# --- texts


def _rollouts_at(file: Path, start: int) -> Sequence[Sample]:
    """All rollouts in the line that starts at this byte, with their texts."""
    with file.open("rb") as opened:
        opened.seek(start)
        record = read_object(opened.readline())
    return [record] if "question" in record else group_in(record).rollouts


def _texts_of(question: AskedQuestion, rollouts_at: Callable[[Path, int], Sequence[Sample]]) -> dict[str, Any]:
    """The texts of a question and its samples."""
    first: dict[str, Any] = {}
    samples = []
    for _, sample in question.samples:
        place: Place = sample["place"]
        texts = rollouts_at(place.file, place.start)[place.number]
        prompt = _prompt_of(texts)
        if not first:
            first = {
                "question": _cut(texts.get("question")),
                "prompt": prompt,
                "expected": _cut(sample.get("expected_answer")),
            }
        thinking, reply = split_for_display(reply_of(texts))
        shown: dict[str, Any] = {
            "thinking": _cut(strip_markers(thinking)),
            "reply": _cut(reply).strip(),
            "answer": None if sample.get("model_parsed") is None else _cut(sample["model_parsed"]),
        }
        if prompt != first["prompt"]:
            shown["prompt"] = prompt
        samples.append(shown)
    return {**first, "samples": samples}


def _prompt_of(texts: Sample) -> list[tuple[str, str]]:
    """Role and content of each message before the reply. The page shows the user's message as the question."""
    messages = texts["messages"]
    before_reply = messages[:-1] if messages[-1]["role"] == "assistant" else messages
    return [(str(message["role"]), _cut(message["content"])) for message in before_reply]


def _cut(value: Any) -> str:
    if value is None:
        return ""
    text = str(value)
    more = len(text) - TEXT_LIMIT
    if more <= 0:
        return text
    return f"{text[:TEXT_LIMIT]} … [{more} characters more]"
