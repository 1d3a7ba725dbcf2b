"""Grade one answer with a task's own verifier, in both formats. Pure; runs wherever the verifier may run.

    answer ──> bare, tagged: reasoning-gym's own scores ──> the stricter check ──> value
      └──────> normalized, if that is asked for and the answer as written lacks full credit ──> the same again

Nearly every reasoning-gym verifier wants the bare answer, a few want it inside `<answer>` tags. Both are
tried and the better one counts; the second is not run when the first already gives full credit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..records import Status, Verdict
from .strict_checks import refusal

FULL_CREDIT = 1.0
ROUNDING = 1e-9
Verifier = Callable[..., float]
"""`score_answer(answer=..., entry=...)` of a dataset."""


@dataclass(frozen=True)
class Standards:
    """What is applied beside the verifier itself.

    `refuse(entry, answer, native)` says why an answer that the verifier pays `native` is worth nothing, or "";
    `normalize(answer, oracle)` is the same answer without harmless decoration. The defaults change nothing.
    """

    refuse: Callable[[dict[str, Any], str, float], str] = lambda entry, answer, native: ""
    normalize: Callable[[str, Any], str] = lambda answer, oracle: answer


NATIVE = Standards()


def standards_for(task: str, *, strict: bool, lossless: bool) -> Standards:
    """By a run's settings: the stricter check of `task`, if it has one, and normalization."""
    return Standards(
        refuse=partial(refusal, task) if strict else NATIVE.refuse,
        normalize=normalize if lossless else NATIVE.normalize,
    )


def grade(score_answer: Verifier, entry: dict[str, Any], answer: str, standards: Standards = NATIVE) -> Verdict:
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


def _judged(score_answer: Verifier, entry: dict[str, Any], answer: str, standards: Standards) -> Verdict:
    verdict = _native(score_answer, entry, answer)
    if not verdict.native:
        return verdict
    # A check reads hostile text: whatever it stumbles over is no right answer. MemoryError is told apart elsewhere.
    try:
        reason = standards.refuse(entry, answer, verdict.native)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
    if not reason:
        return verdict
    return replace(verdict, value=0.0, detail=f"refused, reasoning-gym pays {verdict.native:g}: {reason}"[:200])


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
    # Credit that is summed up from parts may miss 1.0 by rounding.
    return FULL_CREDIT if value > FULL_CREDIT - ROUNDING else max(value, 0.0), ""


# --- the same answer without harmless decoration: `\\boxed{12}`, `**12**`, `12.` and `1,200` as a model writes them ---

_WRAPPINGS = (
    *(("\\boxed{", "}"), ("\\text{", "}"), ("\\mathrm{", "}"), ("\\mathbf{", "}"), ("$$", "$$"), ("$", "$")),
    *(("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("```", "```"), ("`", "`"), ('"', '"'), ("'", "'")),
)
MAX_ROUNDS = 6
"""How deep decoration may be nested; `**$\\boxed{\\text{5}}$.**` needs five."""

_LANGUAGE = re.compile(r"\A(?:json|te?xt|plaintext|plain|python|latex|tex|math|markdown|md|bash|csv)[ \t]*\n", re.I)
"""What a fence names its content as; any other word there may be part of what is said: `False`, `not`, `minus`."""
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?", re.ASCII)


def normalize(answer: str, oracle: Any) -> str:
    """`answer` without decoration that `oracle` (the item's oracle answer, or None) does not carry itself.

    Only what cannot be part of the answer is removed: decoration that the oracle carries stays, and a wrapping goes
    only if it spans the whole answer. Nothing inside an answer is ever changed but the separators of one plain
    number. Linear in the answer.
    """
    expected = oracle.strip() if isinstance(oracle, str) else ""
    for _ in range(MAX_ROUNDS):
        plain = _without_wrapping(_without_period(answer.strip(), expected), expected)
        if plain == answer:
            break
        answer = plain
    return _without_separators(answer, expected)


def _without_period(answer: str, expected: str) -> str:
    if answer.endswith(".") and not answer.endswith("..") and not expected.endswith("."):
        return answer[:-1].rstrip()
    return answer


def _without_wrapping(answer: str, expected: str) -> str:
    for opening, closing in _WRAPPINGS:
        if not (answer.startswith(opening) and answer.endswith(closing)) or expected.startswith(opening):
            continue
        inner = answer[len(opening) : len(answer) - len(closing)]
        if len(answer) > len(opening) + len(closing) and _spans(inner, opening, closing):
            return (_LANGUAGE.sub("", inner) if opening == "```" else inner).strip()
    return answer


def _spans(inner: str, opening: str, closing: str) -> bool:
    """Whether the first and the last mark belong together: `"a", "b"` is not wrapped in quotes."""
    if closing != "}":
        return opening not in inner and closing not in inner
    depth = 0
    for character in inner:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


def _without_separators(answer: str, expected: str) -> str:
    """`1,200` as `1200` and `−5` as `-5`, where the expected answer is a plain number."""
    plain = "-" + answer[1:] if answer.startswith("−") else answer
    if _GROUPED.fullmatch(plain):
        plain = plain.replace(",", "")
    return plain if _NUMBER.fullmatch(plain) and _NUMBER.fullmatch(expected) else answer
