"""Grade one answer with a task's own verifier, in both formats. Pure; runs wherever the verifier may run.

Nearly every reasoning-gym verifier wants the bare answer, a few want it inside `<answer>` tags. Both are
tried and the better one counts; the second is not run when the first already gives full credit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

FULL_CREDIT = 1.0


class Status(str, Enum):
    """How the verifier ended, apart from what it decided."""

    SCORED = "scored"
    VERIFIER_ERROR = "verifier_error"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Verdict:
    """`value` is the higher of both formats, in [0, 1]; a format that was not run or raised is None."""

    value: float
    status: Status = Status.SCORED
    bare: float | None = None
    tagged: float | None = None
    detail: str = ""


def grade(score_answer: Callable[..., float], entry: dict[str, Any], answer: str) -> Verdict:
    """Score `answer` bare and, unless that gives full credit, wrapped in `<answer>` tags.

    A format whose verifier raises counts 0; if no format could be scored the status is VERIFIER_ERROR.
    """
    bare, error = _attempt(score_answer, entry, answer)
    if bare == FULL_CREDIT:
        return Verdict(value=FULL_CREDIT, bare=bare)
    tagged, tagged_error = _attempt(score_answer, entry, f"<answer>{answer}</answer>")
    if bare is None and tagged is None:
        return Verdict(value=0.0, status=Status.VERIFIER_ERROR, detail=error or tagged_error)
    return Verdict(value=max(bare or 0.0, tagged or 0.0), bare=bare, tagged=tagged, detail=error or tagged_error)


def _attempt(score_answer: Callable[..., float], entry: dict[str, Any], answer: str) -> tuple[float | None, str]:
    # Verifiers raise anything on odd text (ValueError, RecursionError, sympy's own); those that evaluate it also
    # raise SystemExit for "exit()". All of it is this answer's failure, and is reported as such in the verdict.
    try:
        value = float(score_answer(answer=answer, entry=entry))
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001
        return None, f"{type(error).__name__}: {error}"[:200]
    if value != value:
        return None, "the verifier returned NaN"
    return min(max(value, 0.0), FULL_CREDIT), ""
