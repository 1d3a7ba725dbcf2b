"""What a strict check is, and how it reads an answer: hostile text, parsed with bounds and never run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Entry = Mapping[str, Any]

ALMOST_FULL_CREDIT = 1.0 - 1e-9
"""Credit that is summed up from parts may miss 1.0 by rounding."""
SOME_CREDIT = 1e-9
BELOW_FULL_CREDIT = 1.0 - 2e-9

_TAGGED = re.compile(r"\s*<answer>(.*)</answer>\s*", re.DOTALL | re.IGNORECASE)
_UNREADABLE = (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading hostile text as JSON, numbers or expressions raises."""
_MAX_CHARS = 200_000
AROUND = " \t\r\n.,;:\"'`*_$"
"""What may stand around an answer and is no part of it."""
HARMLESS = frozenset(" \t\r\n.,;:\"'`*_$\\(){}[]")
"""Signs that change nothing about what is said: no negation, no comparison, no arithmetic."""
WRAPPING = frozenset({"boxed", "text", "textbf", "mathbf", "mathrm", "the", "final", "answer", "is"})
"""Words that may stand around an answer."""


@dataclass(frozen=True)
class Check:
    """`holds(entry, answer)`: whether an answer deserves credit from `credit_from` to `credit_to`; if not, `reason`."""

    holds: Callable[[Entry, str], bool]
    reason: str
    credit_from: float = ALMOST_FULL_CREDIT
    credit_to: float = 1.0

    @property
    def __name__(self) -> str:
        return self.holds.__name__

    def __call__(self, entry: Entry, answer: str) -> bool:
        """Reads the answer without tags and blanks around; what is too long or unreadable is no solution."""
        tagged = _TAGGED.fullmatch(answer)
        text = (tagged[1] if tagged else answer).strip()
        if len(text) > _MAX_CHARS:
            return False
        try:
            return self.holds(entry, text)
        except _UNREADABLE:
            return False


def refuses(reason: str, **credit: float) -> Callable[[Callable[[Entry, str], bool]], Check]:
    return lambda holds: Check(holds, reason, **credit)


def words_of(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def signs_of(text: str) -> set[str]:
    """What is neither a letter nor a digit."""
    return {character for character in text if not character.isalnum()}


def is_wrapping(text: str, signs: str = "") -> bool:
    """Whether `text`, which stands around an answer, says nothing: `The answer is $...$`; `signs` are allowed too."""
    return {*words_of(text)} <= WRAPPING and signs_of(text) <= HARMLESS | set(signs)


def is_wrapped(text: str, part: str, signs: str = "") -> bool:
    """Whether `text` is matches of the pattern `part`, with such words around them, but none between them."""
    first, *between = re.sub(part, _PART, text.replace(_PART, "?")).split(_PART)
    last = between.pop() if between else ""
    inside = "".join(between)
    return is_wrapping(f"{first} {last}", signs) and is_wrapping(inside, signs) and not words_of(inside)


_PART = "\0"


def loads(text: str) -> Any:
    """JSON in which no key stands twice: of those only the last would count."""
    return json.loads(text, object_pairs_hook=_without_repetition)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)
