"""Words around a value: a label before it, such as `The GCD is 3`, and a unit after it, such as `12 legs in total`.

The words must come from the question, or have no meaning of their own. Words that hedge or negate are never allowed.
If a question gives the number of one thing and asks for that of another, the name of the first thing is not allowed
either: `2 brothers` is no number of sisters.
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction

from . import expressions
from .bounded_eval import UnreadableTextError
from .markup import exact_text
from .readers import number, plain_number

MAX_LABEL_CHARS = 300
"""A longer text before a value is no label."""

_WORD = re.compile(r"[^\W\d_]+")

HEDGES = frozenset(
    _WORD.findall(
        """
        not no non nor never neither either or if unless except but other than less more fewer least most under over
        below above about around wrong false incorrect impossible maybe perhaps possibly cannot times half twice
        double triple dozen hundred thousand million percent one two three four five six seven eight nine ten minus
        negative
        """
    )
)
"""Words that change the meaning of a value. An answer must not contain them, even if the question does."""

_MEANINGLESS = frozenset(
    _WORD.findall(
        """
        a an the this that these it its my our we i you so thus hence therefore final correct answer answers result
        solution solutions value values output total number count is are was were be has have there in of for to by
        at on with and get gives equals exactly takes contains appears needed required next term sum product
        difference expression text word
        """
    )
)
_ASKED = re.compile(
    r"\b(?:how (?:many|much)|number of) (.*?)(?:[:.,?\n]|\b(?:do|does|did|are|is|was|were|will|would|can|could|have|has"
    r"|had|there|in|on|to|that|which|appear|you|must|such|when|if)\b)",
    re.IGNORECASE | re.DOTALL,
)
"""The thing that a question counts, such as `female friends`."""
_COUNTED = re.compile(r"\d (?:([^\W\d_]+) )?([^\W\d_]+)")
"""A thing of which the question gives the number, such as the brothers in `3 brothers`."""
_DEGREES = frozenset({"°", "deg", "degree", "degrees"})


@functools.lru_cache(maxsize=1)
def words_of(question: str) -> frozenset[str]:
    """The words, in lower case, that may stand beside the answer to a question."""
    words = set(_WORD.findall(question.lower()))
    if "°" in question:
        words |= _DEGREES
    asked = _asked_words(question)
    counted = set(_WORD.findall(" ".join(map(" ".join, _COUNTED.findall(question))).lower()))
    foreign = counted - asked - _MEANINGLESS if asked else set()
    # `12 legs` for a question about `a leg`, and the reverse.
    words |= {f"{word}s" for word in asked} | {word.removesuffix("s") for word in asked}
    # The question may count the times that a letter appears.
    hedges = HEDGES - asked
    return frozenset((words | _MEANINGLESS) - foreign - hedges)


def _asked_words(question: str) -> set[str]:
    return set(_WORD.findall(" ".join(_ASKED.findall(question)).lower()))


def count(answer: str, question: str) -> Fraction:
    """Read the number of `12 legs` or `There are 12 legs in total`, for a question that asks how many legs there are.

    If the question says what it counts, no other thing may follow the number: `12 animals` is no number of legs.
    """
    text = answer
    for phrase in _ASKED.findall(question):
        # `18 1 bits` answers `How many 1 bits are there`.
        if re.search(r"\d", phrase):
            text = text.replace(phrase.strip(), " ")
    value = amount(text, words_of(question))
    asked = _asked_words(question)
    after = _AMOUNT.split(plain_number(text), maxsplit=1)[-1].lower()
    named = [word for word in _WORD.findall(after) if word not in _MEANINGLESS | _DEGREES]
    allowed = asked | {f"{word}s" for word in asked} | {word.removesuffix("s") for word in asked}
    if asked and named and named[0] not in allowed:
        raise UnreadableTextError("a number of another thing")
    return value


_LABEL = re.compile(
    rf"([^\W\d_][^=≈:\n]{{0,{MAX_LABEL_CHARS}}}?)"
    r"(?:\s(?:is|are|was|equals)\b(?: equal to| an?\b)?\s?:?|\s?[:=≈])\s*(?=\S)"
)


def without_label(answer: str, question: str) -> str | None:
    """What follows a label, such as `3` in `The GCD is 3` or `GCD(6, 9) = 3`. None for an answer without a label."""
    text = exact_text(answer)
    found = _LABEL.match(text)
    if found is None:
        return _right_side(text, question)
    label = found[1].lower()
    numbers = set(re.findall(r"\d+", label))
    signs = {sign for sign in label if not (sign.isalnum() or sign.isspace())}
    is_explained = words_of(question).issuperset(_WORD.findall(label))
    is_explained = is_explained and numbers <= set(re.findall(r"\d+", question)) and signs <= set("'’-,()*_$")
    return text[found.end() :] if is_explained else None


def _right_side(text: str, question: str) -> str | None:
    """The right side of an equation whose left side stands in the question, such as `12` in `3 * 4 = 12`."""
    left, equals, right = text.replace("≈", "=").rpartition("=")
    squeezed = re.sub(r"\s", "", left)
    is_expression = re.search(r"\d[-+*/^()]", squeezed) is not None
    if equals and is_expression and squeezed in re.sub(r"\s", "", question):
        return right.strip()
    return None


_AMOUNT = re.compile(rf"[-+]? ?\.?(?:{expressions.THOUSANDS}|\d+)(?:\.\d+)?", re.ASCII)
_SIGNS_AROUND = frozenset(" \n.,:;*_()\\'\"")
_DEGREE_COMMAND = re.compile(r"\^ ?\{?\\circ\}?")


def amount(text: str, words: frozenset[str]) -> Fraction:
    """Read the number of `84 dollars`, `$84`, `84 \\text{ km}` or `There are 12 legs in total`.

    Only `words` may surround the number. A single character in `words` may also be a sign, such as `%`.
    """
    plain = plain_number(text).replace("$", " ")
    plain = _DEGREE_COMMAND.sub(" ", plain)
    amounts = _AMOUNT.findall(plain)
    around = _AMOUNT.sub(" ", plain, count=1).lower()
    signs = {sign for sign in around if not sign.isalpha()}
    is_explained = words.issuperset(_WORD.findall(around)) and signs <= words | _SIGNS_AROUND
    if len(amounts) != 1 or not is_explained:
        raise UnreadableTextError("not one number with words of the question")
    return number(amounts[0])
