"""The same answer without harmless decoration: `\\boxed{12}`, `**12**`, `12.` and `1,200` as a model writes them.

Only what cannot be part of the answer is removed: decoration that the item's own oracle answer carries stays, and
a wrapping goes only if it spans the whole answer. Nothing inside an answer is ever changed but the separators of
one plain number. Pure functions over strings, linear in the answer.
"""

from __future__ import annotations

import re
from typing import Any

_WRAPPINGS = (
    ("\\boxed{", "}"),
    ("\\text{", "}"),
    ("\\mathrm{", "}"),
    ("\\mathbf{", "}"),
    ("$$", "$$"),
    ("$", "$"),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
    ("**", "**"),
    ("```", "```"),
    ("`", "`"),
    ('"', '"'),
    ("'", "'"),
)
MAX_ROUNDS = 6
"""How deep decoration may be nested; `**$\\boxed{\\text{5}}$.**` needs five."""

_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?", re.ASCII)


def normalize(answer: str, oracle: Any) -> str:
    """`answer` without decoration that `oracle` (the item's oracle answer, or None) does not carry itself."""
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
            return inner.strip()
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
    """`1,200` as `1200`, where the expected answer is a plain number."""
    if _GROUPED.fullmatch(answer) and _NUMBER.fullmatch(expected):
        return answer.replace(",", "")
    return answer
