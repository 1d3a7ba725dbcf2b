"""Grade one answer with a task's own verifier, in both formats. Pure; runs wherever the verifier may run.

    answer ──> bare, tagged: reasoning-gym's own scores ──> the stricter check ──> value
      └──────> normalized, if that is asked for and the answer as written lacks full credit ──> the same again

Nearly every reasoning-gym verifier wants the bare answer, a few want it inside `<answer>` tags. Both are
tried and the better one counts; the second is not run when the first already gives full credit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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
    """`value`, in [0, 1], is what the answer is worth.

    `bare` and `tagged` are what reasoning-gym's verifier pays for the answer as written, by format; a format
    that was not run or raised is None. `value` is the higher of both unless `Standards` changed it.
    """

    value: float
    status: Status = Status.SCORED
    bare: float | None = None
    tagged: float | None = None
    detail: str = ""

    @property
    def native(self) -> float:
        """What reasoning-gym alone would pay."""
        return max(self.bare or 0.0, self.tagged or 0.0)


def _unchanged(entry: dict[str, Any], answer: str, native: float) -> float:
    return native


@dataclass(frozen=True)
class Standards:
    """What is applied beside the verifier itself.

    `strict(entry, answer, native)` is what the answer is worth where the verifier pays `native`;
    `normalize(answer, oracle)` is the same answer without harmless decoration. The defaults change nothing.
    """

    strict: Callable[[dict[str, Any], str, float], float] = _unchanged
    normalize: Callable[[str, Any], str] = lambda answer, oracle: answer


NATIVE = Standards()


def grade(
    score_answer: Callable[..., float], entry: dict[str, Any], answer: str, standards: Standards = NATIVE
) -> Verdict:
    """Score `answer` bare and, unless that gives full credit, wrapped in `<answer>` tags.

    A format whose verifier raises counts 0; if no format could be scored the status is VERIFIER_ERROR.
    """
    verdict = _judged(score_answer, entry, answer, standards)
    if verdict.value == FULL_CREDIT:
        return verdict
    plain = standards.normalize(answer, entry.get("answer"))
    if plain == answer:
        return verdict
    value = _judged(score_answer, entry, plain, standards).value
    if value <= verdict.value:
        return verdict
    return replace(verdict, value=value, status=Status.SCORED, detail="scored without its decoration")


def _judged(score_answer: Callable[..., float], entry: dict[str, Any], answer: str, standards: Standards) -> Verdict:
    verdict = _native(score_answer, entry, answer)
    if not verdict.native:
        return verdict
    # A check reads hostile text: whatever it stumbles over is no right answer. MemoryError is told apart elsewhere.
    try:
        value, remark = standards.strict(entry, answer, verdict.native), ""
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        value, remark = 0.0, f" ({type(error).__name__}: {error})"
    if value == verdict.value:
        return verdict
    detail = f"reasoning-gym pays {verdict.native:g}, the stricter check {value:g}{remark}"[:200]
    return replace(verdict, value=value, detail=detail)


def _native(score_answer: Callable[..., float], entry: dict[str, Any], answer: str) -> Verdict:
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
