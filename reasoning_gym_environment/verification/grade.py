"""Grade one answer: is it right, and what does reasoning-gym's verifier pay for it?

    answer ──> form or validator of the task ──> right 1, wrong 0 ──> Verdict.value
      └──────> reasoning-gym's verifier, bare and in <answer> tags ──> Verdict.native (and the value, without a check)

A few of reasoning-gym's verifiers want the answer inside `<answer>` tags, and nearly all want it bare. The grader tries
both and takes the higher score. It skips the second format if the first already gives the full score.

All functions are pure. They run where verifiers may run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..records import Outcome, Verdict
from .entries import Check, Entry, task_of
from .forms import EXACT_TASKS, FORMS, READERS, SHORT_READERS
from .sentences import readings
from .validators import VALIDATORS

FULL_SCORE = 1.0
ROUNDING = 1e-9
"""A score that is a sum of parts may differ from 1.0 by this much."""
MAX_DETAIL_CHARS = 200
Verifier = Callable[..., float]
"""`score_answer(answer=..., entry=...)` of a dataset."""
CHECK_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that a check may raise for hostile text. The answer is wrong then."""


class UnreadableItemError(Exception):
    """The check of a task cannot read an item, whatever the answer is."""


def _check_of_readings(check: Check, entry: Entry, answer: str) -> bool:
    """Whether an answer is right as it stands, or without a label such as `The GCD is` or a remark in brackets."""
    for text in readings(answer, str(entry.get("question", ""))):
        with contextlib.suppress(*CHECK_ERRORS):
            if check(entry, text):
                return True
    return check(entry, answer)


def _all_checks() -> dict[str, Check]:
    checks: dict[str, Check] = {}
    for task, check in {**FORMS, **VALIDATORS}.items():
        is_short = task in EXACT_TASKS or READERS.get(task) in SHORT_READERS
        checks[task] = check if is_short else partial(_check_of_readings, check)
    return checks


CHECKS = _all_checks()
"""The check of each task of reasoning-gym except `composite`."""


def check_for(task: str, entry: Entry) -> Check | None:
    """The form or validator that decides whether an answer to this item is right. None if the task has neither."""
    return CHECKS.get(task_of(task, entry))


def grade(
    score_answer: Verifier,
    entry: dict[str, Any],
    answer: str,
    check: Check | None = None,
    *,
    needs_native: bool = True,
) -> Verdict:
    """The decision of `check`, and with `needs_native` reasoning-gym's own score. Without a check, that score decides.

    A format for which the verifier raises an error counts 0. The failure is VERIFIER_ERROR if no format could be scored
    and there is no check. Raises UnreadableItemError, and MemoryError.
    """
    if check is not None and not needs_native:
        is_right, reason = _decision(check, entry, answer)
        return Verdict(
            FULL_SCORE if is_right else 0.0,
            detail="" if is_right else reason[:MAX_DETAIL_CHARS],
        )
    score, error = _native_score(score_answer, entry, answer)
    native = score or 0.0
    if check is None:
        return Verdict(native, Outcome.VERIFIER_ERROR if score is None else None, native, error)
    is_right, reason = _decision(check, entry, answer)
    detail = ""
    if is_right != (native == FULL_SCORE):
        detail = f"{reason}; reasoning-gym pays {native:g}"
    return Verdict(FULL_SCORE if is_right else 0.0, native=native, detail=detail[:MAX_DETAIL_CHARS])


def _decision(check: Check, entry: Entry, answer: str) -> tuple[bool, str]:
    """Whether the answer is right, and the reason. Raises UnreadableItemError."""
    try:
        is_right = check(entry, answer)
    except ValueError as error:
        return False, str(error)
    except CHECK_ERRORS as error:
        _check_item(check, entry)
        return False, f"{type(error).__name__}: {error}"
    return is_right, "right" if is_right else "not the right answer"


def _check_item(check: Check, entry: Entry) -> None:
    """Raise UnreadableItemError if the check raises an error for the item's own answer too."""
    key = entry.get("answer")
    try:
        if key is not None:
            check(entry, str(key))
    except (AttributeError, LookupError, TypeError) as error:
        raise UnreadableItemError(f"the item cannot be read: {_error_and_its_place(error)}") from error
    except CHECK_ERRORS:
        return


def _native_score(score_answer: Verifier, entry: dict[str, Any], answer: str) -> tuple[float | None, str]:
    """The higher score of both formats, or None if neither could be scored; and the error of a format, if any."""
    bare, bare_error = _verifier_score(score_answer, entry, answer)
    if bare == FULL_SCORE:
        return bare, ""
    tagged, tagged_error = _verifier_score(score_answer, entry, f"<answer>{answer}</answer>")
    scores = [score for score in (bare, tagged) if score is not None]
    return max(scores, default=None), bare_error or tagged_error


def _verifier_score(score_answer: Verifier, entry: dict[str, Any], answer: str) -> tuple[float | None, str]:
    """The verifier's score in [0, 1] and no error, or None and the error."""
    # Verifiers raise any exception on odd text (ValueError, RecursionError, sympy's own). Verifiers that evaluate the
    # text also raise SystemExit for "exit()". Each is a failure of this answer, and the verdict reports it.
    try:
        score = float(score_answer(answer=answer, entry=entry))
    except MemoryError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001
        return None, _error_and_its_place(error)
    if score != score:
        return None, "the verifier returned NaN"
    if score > FULL_SCORE - ROUNDING:
        return FULL_SCORE, ""
    return max(score, 0.0), ""


def _error_and_its_place(error: BaseException) -> str:
    """Such as `NameError: no such name (own_task.py, line 31)`, in a line of at most MAX_DETAIL_CHARS characters."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    place = ""
    if last is not None:
        place = f" ({Path(last.tb_frame.f_code.co_filename).name}, line {last.tb_lineno})"
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"[: MAX_DETAIL_CHARS - len(place)] + place
