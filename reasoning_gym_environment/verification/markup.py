"""Strip the markup around an answer: markdown, LaTeX, quotes, a label such as `Answer:`, a full stop.

    "**Answer: $\\boxed{\\text{5}}$.**" ──> "5"

Answers are hostile text. Therefore stripping takes about linear time in the text, and refuses texts of more than
MAX_CHARS characters.
"""

from __future__ import annotations

import re

from .bounded_eval import UnreadableTextError

MAX_CHARS = 200_000

_WRAPPINGS = {
    "\\boxed{": "}",
    "\\fbox{": "}",
    "\\text{": "}",
    "\\textbf{": "}",
    "\\texttt{": "}",
    "\\mathrm{": "}",
    "\\mathbf{": "}",
    "$$": "$$",
    "$": "$",
    "\\(": "\\)",
    "\\[": "\\]",
    "**": "**",
    "__": "__",
    "*": "*",
    "```": "```",
    "`": "`",
    '"': '"',
    "'": "'",
}
"""The closing mark of each opening mark."""
_MAX_ROUNDS = 8
"""The deepest nesting of markup that is stripped; `**Answer: $\\boxed{\\text{5}}$.**` needs six rounds."""
_TYPOGRAPHY = str.maketrans(
    "\u00a0\u2007\u2009\u202f\u2010\u2011\u2012\u2013−“”‘’′",
    "    -----\"\"'''",
    "\u200b\u2060\ufeff",
)
"""Typographic blanks, hyphens, minus signs and quotes become plain. Invisible characters disappear."""
_LANGUAGE = re.compile(r"\A[A-Za-z]+[ \t]*\n(?=\s*\S)")
"""A word that follows an opening code fence, as in ```` ```json ````. It names the language of the lines below it."""
_POWER = re.compile(r"(?<=[\w)])\*\*(?=[\w(])")
"""A `**` inside bold text that is the power sign, and no markup, as in `**x**2 + 1**`."""
_LABEL_WORDS = (
    r"(?:(?:so|thus|therefore|hence)[, ] ?)?(?:the |my )?(?:final |correct )?(?:answer|result|output|solution)"
)
_LABEL = re.compile(
    rf"(?:{_LABEL_WORDS}(?: is\b ?:?| ?[:=])|(?P<mark>\*\*|__){_LABEL_WORDS}(?: is)? ?:? ?(?P=mark) ?:?)\s*(?=\S)",
    re.I,
)
_BARE = re.compile(r"-?[A-Za-z0-9]{1,40}(?:\.[0-9]{1,40})?")
"""A text that certainly has no markup. Nearly every cell of a list or grid is such a text, so this check saves time."""


def strip_markup(text: str) -> str:
    """Return `text` without the markup that encloses all of it, without a label before it, and without a final stop.

    Raises UnreadableTextError if the text is longer than MAX_CHARS.
    """
    if _BARE.fullmatch(text):
        return text
    if len(text) > MAX_CHARS:
        raise UnreadableTextError(f"expected at most {MAX_CHARS} characters, got {len(text)}")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = text.translate(_TYPOGRAPHY).strip()
    for _ in range(_MAX_ROUNDS):
        plain = _without_wrapping(_without_final_mark(_without_label(text)))
        if plain == text:
            break
        text = plain
    return text


def _without_label(text: str) -> str:
    label = _LABEL.match(text)
    return text[label.end() :] if label else text


def _without_final_mark(text: str) -> str:
    """The text without one full stop or comma at its end. Dots at the end, as in `1, 2, ...`, stay."""
    if text.endswith((".", ",")) and not text.endswith(".."):
        return text[:-1].rstrip()
    return text


def _without_wrapping(text: str) -> str:
    if text in ('""', "''"):
        return ""
    for opening, closing in _WRAPPINGS.items():
        is_longer = len(text) > len(opening) + len(closing)
        if is_longer and text.startswith(opening) and text.endswith(closing):
            inner = text[len(opening) : -len(closing)]
            if _are_a_pair(inner, opening, closing):
                plain = _LANGUAGE.sub("", inner) if opening == "```" else inner
                return plain.strip()
    return text


def _are_a_pair(inner: str, opening: str, closing: str) -> bool:
    """Whether the opening mark at the start of a text and the closing mark at its end are a pair around `inner`.

    They are a pair in `"["a", "b"]"`. They are none in `"a", "b"`, where each word has its own quotes.
    """
    if closing == "}":
        return _has_balanced_braces(inner)
    if f"{inner[0]}{inner[-1]}" in ("[]", "{}"):
        return True
    plain = _POWER.sub("", inner) if opening == "**" else inner
    return opening not in plain and closing not in plain


def _has_balanced_braces(text: str) -> bool:
    depth = 0
    for character in text:
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
        if depth < 0:
            return False
    return depth == 0
