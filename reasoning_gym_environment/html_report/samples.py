"""Encodes the samples of a report for its page: an index of what it filters by, and the texts in compressed chunks.

    sources ── questions_of ──> questions, each a list of samples ── select ──> at most N samples ── encode ──> blocks

A *question* has all samples of one group of training, or all samples that evaluations have of it, so that two models
can be compared. A *block* is JSON, compressed and in base64. The page decodes the index when it starts, and a chunk of
texts when a reader looks at one of its questions. Base64 can neither end a script element nor start a comment.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from ..evaluation.results import by_question
from ..scoring.extraction import split_for_display
from ..storage.append_log import read_object
from ..storage.lines import UNKNOWN, group_in
from ..thinking import strip_markers
from .load import Place, Sources, talk_of

TEXT_LIMIT = 12_000
"""Maximum number of characters of one question, thinking, reply or answer on the page."""

CHUNK = 16
"""The texts of this many questions are one block."""

Sample: TypeAlias = Mapping[str, Any]
AskedQuestion: TypeAlias = Sequence[Sample]
"""The samples of a question."""


@dataclass(frozen=True)
class SampleBlocks:
    """The blocks of a page, which shows `shown` of `total` samples."""

    index: str
    chunks: list[str]
    shown: int
    total: int


def questions_of(sources: Sources) -> list[AskedQuestion]:
    """All questions: first the questions of evaluations, then the groups of training."""
    evaluated = chain.from_iterable(evaluation.samples for evaluation in sources.evaluations)
    questions: list[AskedQuestion] = list(by_question(evaluated).values())
    for run in sources.runs:
        questions += [group.rollouts for group in run.groups]
    return questions


def select(questions: Sequence[AskedQuestion], limit: int) -> list[AskedQuestion]:
    """Questions with at most `limit` samples together, taken in turn from all sources, tasks and outcomes.

    They keep their order.
    """
    seen: Counter[Any] = Counter()
    turns = []
    for number, samples in enumerate(questions):
        kind = (samples[0]["task"], frozenset((sample["source"], outcome_of(sample)) for sample in samples))
        turns.append((seen[kind], number))
        seen[kind] += 1
    kept = []
    size = 0
    for _, number in sorted(turns):
        size += len(questions[number])
        if size > limit:
            break
        kept.append(number)
    return [questions[number] for number in sorted(kept)]


def encode(sources: Sources, limit: int) -> SampleBlocks:
    """The blocks with at most `limit` samples. Raises OSError if a file has gone."""
    questions = questions_of(sources)
    kept = select(questions, limit)
    chunks = []
    for start in range(0, len(kept), CHUNK):
        chunks.append(block([_texts_of(samples) for samples in kept[start : start + CHUNK]]))
    index = block([_index_of(samples) for samples in kept])
    return SampleBlocks(index, chunks, shown=sum(map(len, kept)), total=sum(map(len, questions)))


def block(value: Any) -> str:
    """JSON, compressed and in base64."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A completion may contain half of a surrogate pair, which cannot be encoded.
    data = text.encode("utf-8", "replace")
    return base64.b64encode(zlib.compress(data, 5)).decode("ascii")


# --- the index: what the page filters and sorts by


def _index_of(samples: AskedQuestion) -> dict[str, Any]:
    first = samples[0]
    return {
        "task": str(first["task"]),
        "level": first.get("level"),
        "item": first.get("index"),
        "step": first.get("step"),
        "samples": [
            {
                "source": sample["source"],
                "outcome": outcome_of(sample),
                "failures": failures_of(sample),
                "score": sample["score"],
                "reward": sample.get("reward"),
                "advantage": sample.get("advantage"),
                "tokens": sample.get("num_completion_tokens"),
            }
            for sample in samples
        ],
    }


def outcome_of(sample: Sample) -> str:
    """The outcome of a sample, which is `unscored` for all samples without a score."""
    return "unscored" if sample["score"] is None else str(sample.get("outcome") or UNKNOWN)


def failures_of(sample: Sample) -> list[str]:
    """Why a sample has no readable answer, no score or no weight in training, in a word or two each."""
    reasons = {str(sample.get("format_failure") or sample.get("unscored_reason") or "")}
    if sample.get("finish_reason") == "length":
        reasons.add("cut off")
    # An unscored sample is masked for the same reason.
    if sample["score"] is not None:
        reasons.add(str(sample.get("mask_reason") or ""))
    return sorted(reason.replace("_", " ") for reason in reasons - {""})


# --- texts


def _texts_of(samples: AskedQuestion) -> dict[str, Any]:
    """The texts of a question and its samples."""
    # All rollouts of a group are in one line.
    rollouts_at = lru_cache(maxsize=1)(_rollouts_at)
    question = ""
    shown = []
    for sample in samples:
        place: Place = sample["place"]
        texts = rollouts_at(place.file, place.start)[place.number]
        prompt, reply = talk_of(texts)
        thinking, rest = split_for_display(reply)
        answer = sample.get("model_parsed")
        question = question or _cut(texts["question"])
        shown.append(
            {
                "prompt": [(message["role"], _cut(message["content"])) for message in prompt],
                "thinking": _cut(strip_markers(thinking)),
                "reply": _cut(rest).strip(),
                "answer": None if answer is None else _cut(answer),
            }
        )
    return {"question": question, "expected": _cut(samples[0].get("expected_answer")), "samples": shown}


def _rollouts_at(file: Path, start: int) -> Sequence[Sample]:
    """All rollouts in the line that starts at this byte, with their texts."""
    with file.open("rb") as opened:
        opened.seek(start)
        record = read_object(opened.readline())
    return [record] if "question" in record else group_in(record).rollouts


def _cut(value: Any) -> str:
    text = "" if value is None else str(value)
    more = len(text) - TEXT_LIMIT
    return text if more <= 0 else f"{text[:TEXT_LIMIT]} … [{more} characters more]"
