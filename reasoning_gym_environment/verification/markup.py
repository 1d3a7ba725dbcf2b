"""Strip the markup around an answer: markdown, LaTeX, HTML, quotes, a label such as `Answer:`, a full stop.

    strip_markup: "**Answer: $\\boxed{\\text{5}}$.**" ──> "5"
    plain_text:   "$\\left[\\text{a},\\;b\\right]$"    ──> "[a, b]"

Answers are hostile text. Therefore stripping takes about linear time in the text, and refuses texts of more than
MAX_CHARS characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from .bounded_eval import UnreadableTextError

MAX_CHARS = 200_000

_FONTS = (
    "text|textbf|textit|textrm|textsf|texttt|mathbf|mathbb|mathit|mathrm|mathsf|mathtt"
    "|emph|underline|operatorname|boldsymbol|bm|mbox"
)
"""Commands of LaTeX that change only what their text looks like."""
_WRAPPINGS = {
    "\\boxed{": "}",
    "\\fbox{": "}",
    **{f"\\{font}{{": "}" for font in _FONTS.split("|")},
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
    "“": "”",
    "‘": "’",
    **{f"<{tag}>": f"</{tag}>" for tag in ("b", "strong", "i", "em", "u", "code", "pre", "p", "span", "div")},
    **{f"<h{level}>": f"</h{level}>" for level in range(1, 7)},
}
"""The closing mark of each opening mark."""
_MAX_ROUNDS = 8
"""The deepest nesting of markup that is stripped; `**Answer: $\\boxed{\\text{5}}$.**` needs six rounds."""
_TYPOGRAPHY = str.maketrans(
    "\u00a0\u2007\u2009\u202f\u3000\u2010\u2011\u2012\u2013−“”‘’′\u2044\u2215",
    "     -----\"\"'''//",
    "\u200b\u2060\ufeff\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
)
"""Typographic blanks, hyphens, minus signs, quotes and slashes become plain. Invisible characters disappear, also the
marks that set the direction of writing."""
_TYPOGRAPHY.update({ord(sign) + 0xFEE0: ord(sign) for sign in "0123456789+-.,:;()/=%"})
"""Full-width digits and signs become plain."""
_LANGUAGE = re.compile(r"\A[A-Za-z]+[ \t]*\n(?=\s*\S)")
"""A word that follows an opening code fence, as in ```` ```json ````. It names the language of the lines below it."""
_POWER = re.compile(r"(?<=[\w)])\*\*(?=[-\w(])")
"""A `**` inside bold text that is the power sign, and no markup, as in `**x**2 + 1**`."""
_LABEL_WORDS = (
    r"(?:(?:so|thus|therefore|hence)[, ] ?)?(?:the |my )?(?:final |correct )?(?:answer|result|output|solution)"
)
_LABEL = re.compile(
    rf"(?:{_LABEL_WORDS}(?: is\b ?:?| ?[:=])|(?P<mark>\*\*|__){_LABEL_WORDS}(?: is)? ?:? ?(?P=mark) ?:?)\s*(?=\S)",
    re.I,
)
_HEADING = re.compile(rf"#{{1,6}} +(?:{_LABEL_WORDS} ?:?\n)?\s*(?=\S)", re.I)
"""The mark of a markdown heading. The heading may be a label, with the answer on the line below it."""
_STYLE = re.compile(r"\\(?:displaystyle|textstyle|bf|rm)(?![A-Za-z])\s*(?=\S)")
_ANSWER_OBJECT = re.compile(r'\{\s*"(?:final_)?answer"\s*:', re.I)
_ANSWER_DICT = re.compile(r"""\{\s*'(?:final_)?answer'\s*:((?:[^:]|(?<!['"\s]):)*)\}""", re.I)
"""A dict of Python without a second key, which would end in a quote and a colon."""
_BARE = re.compile(r"-?[A-Za-z0-9]{1,40}(?:\.[0-9]{1,40})?")
"""A text that certainly has no markup. Nearly every cell of a list or grid is such a text, so this check saves time."""


def strip_markup(text: str) -> str:
    """Return `text` without the markup that encloses all of it, without a label before it, and without a final stop.

    A JSON object with the single key `answer`, or such a dict of Python, counts as markup around its value.

    Raises UnreadableTextError if the text is longer than MAX_CHARS.
    """
    if _BARE.fullmatch(text):
        return text
    text = _with_plain_line_ends(text).translate(_TYPOGRAPHY)
    return _stripped(text, _without_label, _without_final_mark, _without_wrapping, _without_answer_object)


def exact_text(text: str) -> str:
    """The text within quotes, a code fence or other markup that encloses all of it, with its signs as they are.

    Questions that ask for an exact text get such an answer, without a label and without another full stop.
    """
    return _stripped(_with_plain_line_ends(text), _without_wrapping, _without_answer_object)


def _with_plain_line_ends(text: str) -> str:
    if len(text) > MAX_CHARS:
        raise UnreadableTextError(f"expected at most {MAX_CHARS} characters, got {len(text)}")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _stripped(text: str, *steps: Callable[[str], str]) -> str:
    text = text.strip()
    for _ in range(_MAX_ROUNDS):
        plain = text
        for step in steps:
            plain = step(plain)
        if plain == text:
            break
        text = plain
    return text


def _without_label(text: str) -> str:
    label = _HEADING.match(text) or _STYLE.match(text) or _LABEL.match(text)
    return text[label.end() :] if label else text


def _without_final_mark(text: str) -> str:
    """The text without a final `\\,` and one full stop or comma. Dots at the end, as in `1, 2, ...`, stay."""
    text = text.removesuffix("\\,").rstrip()
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
        return _is_balanced(inner, "{", "}")
    if f"{inner[0]}{inner[-1]}" in ("[]", "{}"):
        return True
    plain = _POWER.sub("", inner) if opening == "**" else inner
    return opening not in plain and closing not in plain


def _is_balanced(text: str, opening: str, closing: str) -> bool:
    depth = 0
    for sign in text:
        if sign == opening:
            depth += 1
        elif sign == closing:
            depth -= 1
        if depth < 0:
            return False
    return depth == 0


def _without_answer_object(text: str) -> str:
    """The value of `{"answer": value}`, as the text writes it."""
    dict_of_python = _ANSWER_DICT.fullmatch(text)
    if dict_of_python:
        return dict_of_python[1].strip()
    start = _ANSWER_OBJECT.match(text)
    if start is None:
        return text
    try:
        pairs = json.loads(text, object_pairs_hook=list, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return text
    if len(pairs) != 1:
        return text
    _, value = pairs[0]
    # A text is decoded, because JSON writes \frac as \\frac. The notation of any other value stays.
    return value.strip() if text[:-1].rstrip().endswith('"') else text[start.end() : -1].strip()


_BRACKETS = {"(": ")", "[": "]", "{": "}"}


def without_brackets(text: str) -> str:
    """The text without the brackets that enclose all of it: `(5)`, `[5]`, `{5}`. `(1)(2)` stays as it is."""
    opening = text[:1]
    closing = _BRACKETS.get(opening)
    if closing and text.endswith(closing) and _is_balanced(text[1:-1], opening, closing):
        return text[1:-1].strip()
    return text


_LIST_MARK = re.compile(
    r"[ \t]*(?:(?:\*\*)?\(?(?P<number>\d{1,5}|[A-Za-z])[.):](?:\*\*)?|[-*•·◦▪])[ \t]+(?=\S)", re.ASCII
)


def without_list_marks(text: str) -> str:
    """The text without the numbers 1, 2, 3, ..., the letters a, b, c, ... or the bullets at the start of its lines.

    All lines must have their mark. Otherwise the text stays as it is, because `2. 5` can also mean two numbers. On a
    single line, a bullet would look like a minus sign.
    """
    lines = list(filter(str.strip, text.split("\n")))
    items = []
    for place, line in enumerate(lines, 1):
        mark = _LIST_MARK.match(line)
        if mark is None:
            return text
        number = (mark["number"] or "").lower().lstrip("0")
        is_bullet = mark["number"] is None and len(lines) > 1
        if not is_bullet and number not in (str(place), chr(ord("a") - 1 + place)):
            return text
        items.append(line[mark.end() :])
    return "\n".join(items)


# --- LaTeX and HTML inside of an answer ---


def compiled(notations: Mapping[str, str]) -> dict[re.Pattern[str], str]:
    """An answer can have tens of thousands of cells, and `re.sub` would look each pattern up."""
    return {re.compile(notation, re.ASCII): plain for notation, plain in notations.items()}


_LAYOUT = compiled(
    {
        "[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+": r"^\g<0>",
        "[₀₁₂₃₄₅₆₇₈₉]+": r"_\g<0>",
        r"<sup>([-+\w]{1,20})</sup>": r"^\1",
        r"<sub>([-+\w]{1,20})</sub>": r"_\1",
        r"</?(?:br|li|ol|ul) ?/?>|\\\\|\\item(?![A-Za-z])": "\n",
        r"\\(?:begin|end) ?\{[A-Za-z]{1,20}\*?\}(?:\{[clr| ]{1,60}\})?|\\hline(?![A-Za-z])": "",
        # Between a digit and three digits, a blank of LaTeX separates thousands.
        r"(?<=\d)(?:\\[,;: ]|\\!\\,|\{\\,\})(?=\d{3}(?!\d))|\{,\}": ",",
        r"\\!|\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])|&(?==)": "",
        r"\\[,;: ]|\\(?:q?quad|(?:thin)?space)(?![A-Za-z])|(?<=,)~|(?<=\w)~(?=[\\(])": " ",
        r"\\lbrack(?![A-Za-z])": "[",
        r"\\rbrack(?![A-Za-z])": "]",
        r"\\in(?![A-Za-z])": "∈",
        # The arrows `<->` and `<=>` stay.
        r"\\(?:to|(?:long)?rightarrow|Rightarrow)(?![A-Za-z])|(?<![<=-])[-=]{1,3}>|[⇒➔➜]": "→",
        rf"\\(?:{_FONTS}) ?\{{([^{{}}]{{0,60}})\}}": r"\1",
        r"\\([{}*_#%&$])": r"\1",
        r"[ \t]+": " ",
    }
)
"""Patterns of other notations for blanks, lines, brackets, digits and indices -> the plain sign."""
_PLAIN_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻₀₁₂₃₄₅₆₇₈₉", "0123456789+-0123456789")


def plain_text(answer: str) -> str:
    """The text without the markup around it, and without LaTeX and HTML that only lay it out."""
    text = strip_markup(answer)
    if text.isascii() and text.isalnum():
        # The cell of a grid, for example: there can be tens of thousands in an answer.
        return text
    for notation, plain in _LAYOUT.items():
        text = notation.sub(plain, text)
    return text.translate(_PLAIN_DIGITS).strip()


_DEGREES = re.compile(
    r"\^ ?\{? ?\\circ ?\}?|\\degrees?(?![A-Za-z])|°|(?<![^\W\d])deg(?:rees?)?(?![^\W\d])", re.IGNORECASE
)


def without_degrees(text: str) -> str:
    """The text without degree signs, for questions that ask for an angle."""
    return _DEGREES.sub(" ", text)
