"""One completion for one held-out question: graded, and as the line of samples.jsonl that is kept of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..inference.prompts import build_messages
from ..records import Completion, Outcome, Problem, Score
from ..sampling.hold_out import question_digest
from ..scoring.scorer import Scorer, score_patiently


@dataclass(frozen=True)
class Reply:
    """What is kept of a completion. Its token ids, twenty times as large as its text, are for training."""

    text: str
    finish_reason: str
    num_completion_tokens: int


@dataclass(frozen=True)
class EvalResult:
    """One completion for a held-out problem, the `attempt`-th from 0; `score` is None when it is unscored."""

    problem: Problem
    reply: Reply | None = None
    score: Score | None = None
    unscored_reason: str = ""
    attempt: int = 0


async def judged(
    scorer: Scorer, problem: Problem, completion: Completion, attempt: int = 0, *, thinking_opened: bool
) -> EvalResult:
    """The scored completion; what broke our grading is unscored, what was too much for its verifier is wrong."""
    [score] = await score_patiently(scorer, problem, [completion], thinking_opened=thinking_opened)
    reply = Reply(completion.text, completion.finish_reason, completion.num_completion_tokens)
    if score.outcome is Outcome.CRASHED:
        return EvalResult(problem, reply, unscored_reason=score.outcome.value, attempt=attempt)
    return EvalResult(problem, reply, score, attempt=attempt)


def sample_record(result: EvalResult, manifest: str = "") -> dict[str, Any]:
    """One line of Atropos' samples.jsonl."""
    problem, score, reply = result.problem, result.score, result.reply
    messages = [dict(message) for message in build_messages(problem.question)]
    if reply is not None:
        messages.append({"role": "assistant", "content": reply.text})
    return {
        "messages": messages,
        "question": problem.question,
        "gold_answer": problem.entry.get("answer"),
        **scored_fields(score, result.unscored_reason),
        "finish_reason": reply.finish_reason if reply else None,
        "num_completion_tokens": reply.num_completion_tokens if reply else None,
        "task": problem.task,
        "category": problem.category,
        "config": dict(problem.config),
        "seed": problem.seed,
        "index": problem.index,
        "attempt": result.attempt,
        "level": problem.level,
        "complexity": problem.complexity,
        "question_digest": question_digest(problem.question),
        "manifest": manifest,
    }


def scored_fields(score: Score | None, unscored_reason: str = "") -> dict[str, Any]:
    """What a sample says of its score; None where it has none."""
    return {
        "model_parsed": score.answer if score else None,
        "score": score.value if score else None,
        "native_score": score.native if score else None,
        "correct": bool(score and score.value >= 1.0),
        "outcome": score.outcome.value if score else "unscored",
        "format_failure": score.failure.value if score and score.failure else None,
        "unscored_reason": unscored_reason or None,
    }
