"""Grade one answer: what reasoning-gym's verifier pays, and whether it is right. Pure; runs where verifiers may run.

    answer ──> form or solver of the task ──> right 1, wrong 0 ──> Verdict.value
      └──────> reasoning-gym's verifier, bare and in <answer> tags ──> Verdict.native (and the value, if neither)

A few of reasoning-gym's verifiers want the answer inside `<answer>` tags, nearly all want it bare. Both are tried and
the better one counts; the second is not run when the first already gives full credit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..records import Status, Verdict
from .forms import FORMS, Check, Entry
from .solvers import SOLVERS

CHECKS: Mapping[str, Check] = {**FORMS, **SOLVERS}
"""By task, for all tasks of reasoning-gym but `composite`."""
FULL_CREDIT = 1.0
ROUNDING = 1e-9
"""Credit that is summed up from parts may miss 1.0 by this."""
Verifier = Callable[..., float]
"""`score_answer(answer=..., entry=...)` of a dataset."""
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a check may raise for hostile text, which is no right answer then."""


def check_for(task: str, entry: Entry) -> Check | None:
    """The form or solver that says whether an answer to this item is right; None for a task that has neither."""
    if task == "composite":
        return check_for(str(entry["metadata"]["source_dataset"]), entry)
    return CHECKS.get(task)


def grade(score_answer: Verifier, entry: dict[str, Any], answer: str, check: Check | None = None) -> Verdict:
    """The verdict of `check` with reasoning-gym's own score beside it; without a check, that score.

    A format whose verifier raises counts 0. The status is VERIFIER_ERROR if no format could be scored and there is no
    check either.
    """
    native = _native(score_answer, entry, answer)
    if check is None:
        return native
    try:
        is_right = check(entry, answer)
        reason = "right" if is_right else "not the right answer"
    except UNREADABLE as error:
        is_right, reason = False, str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    detail = "" if is_right == (native.native == FULL_CREDIT) else f"{reason}; reasoning-gym pays {native.native:g}"
    return Verdict(FULL_CREDIT if is_right else 0.0, bare=native.bare, tagged=native.tagged, detail=detail[:200])


def _native(score_answer: Verifier, entry: dict[str, Any], answer: str) -> Verdict:
    bare, error = _attempt(score_answer, entry, answer)
    if bare == FULL_CREDIT:
        return Verdict(value=FULL_CREDIT, bare=bare)
    tagged, tagged_error = _attempt(score_answer, entry, f"<answer>{answer}</answer>")
    if bare is None and tagged is None:
        return Verdict(value=0.0, status=Status.VERIFIER_ERROR, detail=error or tagged_error)
    return Verdict(value=max(bare or 0.0, tagged or 0.0), bare=bare, tagged=tagged, detail=error or tagged_error)


def _attempt(score_answer: Verifier, entry: dict[str, Any], answer: str) -> tuple[float | None, str]:
    # Verifiers raise anything on odd text (ValueError, RecursionError, sympy's own); those that evaluate it also
    # raise SystemExit for "exit()". All of it is this answer's failure, and is reported as such in the verdict.
    try:
        value = float(score_answer(answer=answer, entry=entry))
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001
        return None, f"{type(error).__name__}: {error}"[:200]
    if value != value:
        return None, "the verifier returned NaN"
    return FULL_CREDIT if value > FULL_CREDIT - ROUNDING else max(value, 0.0), ""
