"""Words around a value: a label (`The GCD is 3`), a unit (`12 legs in total`), or a remark (`7 (seven)`).

    answer ── readings ──> the answer, and the answer without a label or a remark ── check of the task
           ── number_said, says, says_truth ──> the value of a short sentence

The words must come from the question or have no meaning of their own. Names keep the order of the question: if it asks
what Ann is to Bo, `Bo is Ann's aunt` is no answer. Words that hedge or negate never count, except within three words
that the question has in the same order, such as `least common multiple`. A question that counts one thing gets no
number of another thing: `2 brothers` is no number of sisters.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from . import expressions
from .bounded_eval import UnreadableTextError
from .expressions import value_of
from .markup import exact_text, plain_text, strip_markup
from .readers import number

MAX_SENTENCE_CHARS = 1_000
"""A longer text is no short sentence."""
MAX_LABEL_CHARS = 300
"""A longer text before a value is no label."""

_WORD = re.compile(r"[^\W_]+")


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("n't", " not").replace("cannot", "can not").replace("'s", ""))


def _stem(word: str) -> str:
    """The word without its ending, so that `rotated` is found in `rotate`, and `leg` in `legs`."""
    if len(word) <= 3:
        return word
    return re.sub(r"(?:ings?|ed|es|e|s)$", "", re.sub(r"(?:ied|ies)$", "y", word))


def _stems(text: str) -> list[str]:
    return list(map(_stem, _words(text)))


HEDGES = frozenset(
    _words(
        """
        not no nor never neither either or if unless except but other than less more fewer least most under over
        below above about around before after wrong false incorrect impossible maybe perhaps possibly possible could may
        might probably likely guess think times half twice double triple dozen hundred thousand million percent minus
        plus negative
        """
    )
)
"""Words that change the meaning of a value."""
_FUNCTION_WORDS = frozenset(
    _words(
        """
        a an the this that these it its he she they his her their my our we i you here so thus hence therefore is are
        was were be been has have had there in of for to by at with from and get gives equals exactly takes does did
        do now only all will would can total overall final
        """
    )
)
"""Words without a meaning of their own."""
_PREPOSITIONS = frozenset({"in", "of", "for", "to", "by", "at", "with", "from"})
_LABEL_WORDS = frozenset(
    _stems(
        """
        correct answer result solution value output number count contains appears needed required next missing term sum
        product difference expression text word following list best name person day time duration relationship message
        representation conclusion form simplified expanded filtered completed grid matrix board sequence order move
        antiderivative integral indefinite
        """
    )
)
"""The stems of words that name the answer of any question. They may stand before a value."""
_ASKED = re.compile(
    r"\b(?:how (?:many|much)|number of) (.*?)(?:[:.,?\n]|\b(?:do|does|did|are|is|was|were|will|would|can|could|have|has"
    r"|had|there|in|on|to|that|which|appear|you|must|such|when|if)\b)",
    re.IGNORECASE | re.DOTALL,
)
"""The thing that a question counts, such as `female friends`."""
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!Mr\.)(?<!Mrs\.)(?<!Ms\.)(?<!Dr\.)\s+|\n\n")
_COUNTED = re.compile(r"\d (?:([^\W\d_]+) )?([^\W\d_]+)")
"""A thing of which the question gives the number, such as the brothers in `3 brothers`."""
_SYMBOLS = {"r": "radius", "h": "orthocenter", "p": "probability", "z": "complex"}
"""Usual names of a thing that a question asks for."""
TRUTH: Mapping[str, bool] = {"true": True, "yes": True, "false": False, "no": False}
_SIGNS = frozenset(" \n.,:;()[]{}'’\"“”_=≈–—→|∠$")
"""Signs that may stand beside a value. A hyphen may stand between two letters."""


@dataclass(frozen=True)
class Vocabulary:
    """What the words beside an answer to a question may be. Words are without their endings."""

    text: str
    """The words of the question, with a blank around each of them."""
    squeezed: str
    """The question without blanks."""
    asking: tuple[str, ...]
    """The words of the sentences that ask."""
    known: frozenset[str]
    """The words that may stand alone."""
    choices: frozenset[str]
    """The answers that the question allows, such as True and False. None of them may stand beside a value."""
    asked: frozenset[str]
    """The words for what the question counts."""
    counted: frozenset[str]
    """The words for other things of which the question gives a number."""
    names: frozenset[str]
    """The letters that may stand before a value, as in `x = 5`."""
    symbols: frozenset[str]
    """Those of them that are the usual symbol of what the question asks for."""
    signs: frozenset[str]
    """The signs that may stand beside a value."""


@functools.lru_cache(maxsize=2)
def vocabulary(question: str, *, is_short: bool = True) -> Vocabulary:
    """The vocabulary of a question. With `is_short`, it has the words of the sentences that ask, if any ends in `?`.

    Other sentences name what the answer could be instead: other colours and other houses.
    """
    sentences = _SENTENCE_END.split(question)
    asking = " ".join(sentence for sentence in sentences if "?" in sentence) if is_short else ""
    source = asking or question
    asked = set(_stems(" ".join(_ASKED.findall(source)))) - _FUNCTION_WORDS
    counted = set(_stems(" ".join(map(" ".join, _COUNTED.findall(question))))) - _FUNCTION_WORDS
    units = set()
    if _stem("times") in asked:
        units.update(_stems("occurrences occurs"))
    if "old" in source:
        units.update(_stems("years"))
    if re.search(r"%|percent", source):
        units |= {"percent", "%"}
    if re.search(r"°|degrees", question):
        units.update(_stems("deg degrees"))
    letters = set(re.findall(r"(?<![A-Za-z'’])[A-Za-z](?![A-Za-z'’])", source)) - {"a", "A", "I"}
    letters.update(re.findall(r"(?:[\d*+=^] ?|\bof )([aA])(?![A-Za-z'’])", source))
    # If the question has no names, x is the usual one.
    names = {letter.lower() for letter in letters} or {"x"}
    symbols = {symbol for symbol, name in _SYMBOLS.items() if name in question.lower()}
    # A word in quotes may be one of the answers that the question allows.
    choices = set(_stems(" ".join(re.findall(r"[\"'“‘](\w{2,})[\"'”’]", question))))
    choices.update(map(_stem, TRUTH))
    known = (set(_stems(source)) - (HEDGES - asked) - choices) | units
    return Vocabulary(
        text=f" {' '.join(_stems(question))} ",
        squeezed=_squeezed(question),
        asking=tuple(_stems(source)),
        known=frozenset(known),
        choices=frozenset(choices),
        asked=frozenset(asked | units if asked else asked),
        counted=frozenset(counted - asked - units),
        names=frozenset(names | symbols),
        symbols=frozenset(symbols),
        signs=_SIGNS | {sign for sign in "€£¥₹°" if sign in question} | ({"%"} & units),
    )


def is_explained(text: str, vocabulary: Vocabulary, *, is_label: bool = True) -> bool:
    """Whether a text beside a value has only words of the question and words without a meaning.

    Three successive words of the question are always allowed, and so is a calculation that stands in the question. Any
    other number must stand beside a word of a label, or follow a preposition. In `4 (3)`, the 3 could be the answer.
    """
    text = re.sub(r"(?<=[^\W\d_])-(?=\w)", " ", text)
    for calculation in _CALCULATION.findall(text):
        if not _AMOUNT.fullmatch(calculation) and _squeezed(calculation) in vocabulary.squeezed:
            text = text.replace(calculation, "", 1)
    if not vocabulary.signs.issuperset(sign for sign in text if not sign.isalnum()):
        return False
    words = _words(text)
    stems = list(map(_stem, words))
    if not vocabulary.choices.isdisjoint(stems):
        return False
    if len(stems) == 1 and len(stems[0]) == 1 and stems[0].isalpha():
        return stems[0] in vocabulary.names
    quoted: set[int] = set()
    for start in range(len(stems) - 2):
        if f" {' '.join(stems[start : start + 3])} " in vocabulary.text:
            quoted.update(range(start, start + 3))
    for place, (word, stem) in enumerate(zip(words, stems, strict=True)):
        is_free = word in _FUNCTION_WORDS or (is_label and stem in _LABEL_WORDS)
        is_percent = word == "percent" and "%" in vocabulary.signs
        is_hedge = word in HEDGES and stem not in vocabulary.asked and not is_percent
        is_known = is_free or stem in vocabulary.known
        stands_alone = word.isdecimal() and stem not in vocabulary.asked
        if is_label:
            stands_alone = stands_alone and all(map(str.isdecimal, stems))
        elif place:
            stands_alone = stands_alone and words[place - 1] not in _PREPOSITIONS
        if place not in quoted and (is_hedge or stands_alone or not is_known):
            return False
    return True


_CALCULATION = re.compile(r"[\d(][\d.()+*/^ ×·-]{1,300}[\d)]")


def _names(text: str, vocabulary: Vocabulary) -> list[str]:
    """The words with a capital letter that the question has too, without words that have no meaning of their own."""
    words = [name.lower() for name in re.findall(r"\b[A-Z][a-z]+\b", text)]
    return [_stem(word) for word in words if word not in _FUNCTION_WORDS and _stem(word) in vocabulary.asking]


def _has_order_of(text: str, vocabulary: Vocabulary) -> bool:
    """Whether the names in a text stand in the order of the question: `Ann is Bo's aunt` is not `Bo is Ann's aunt`."""
    remaining = iter(vocabulary.asking)
    return all(name in remaining for name in _names(text, vocabulary))


# --- labels and remarks

_VERB_LABEL = re.compile(
    rf"([^=≈:\n]{{1,{MAX_LABEL_CHARS}}}?)\s"
    r"(?:is|are|was|equals|reads|says|(?:simplifies|evaluates|decrypts) to)\b(?: equal to| an?\b)?\s?:?\s*(?=\S)"
)
_SIGN_LABEL = re.compile(rf"([^=≈:\n]{{1,{MAX_LABEL_CHARS}}}?)\s?[:=≈]\s*(?=\S)")
_ARROW_LABEL = re.compile(rf"([^=≈:\n→>]{{1,{MAX_LABEL_CHARS}}}?)\s?(?:->|→)\s*(?=\S)")
_COMMAND = re.compile(r"\\(?:[a-z]+\s?\{([^{}]*)\}|([a-z]+))")
"""A command of LaTeX in a label. Its argument is text, or its name is a word, such as `\\gcd`."""
_EVENT = re.compile(r"\A\$?P(?:r|rob)?\s?\(([^()]*)\)")
"""A probability, such as `P(X ≥ 3)`."""
_CONCLUSION = re.compile(
    r"(?:(?:(?:so|thus|therefore|hence|∴|\$?\\therefore)\b,?|we (?:can )?conclude(?: that)?)\s+)+", re.IGNORECASE
)
_REMARK = re.compile(r"(.*\S)\s*\(([^()]{1,100})\)\.?", re.DOTALL)
_NEARLY = re.compile(r"\A(?:≈|\\approx|about\b|approximately\b|approx\.?|i\.e\.)\s*", re.IGNORECASE)


def readings(answer: str, question: str, *, is_short: bool) -> Iterator[str]:
    """The answer without a label, without a remark, and without both."""
    text = exact_text(answer)
    # Bold type may end within the label.
    text = re.sub(r"\A\*\*([^*\n]{1,80})\*\*", r"\1", text).replace("\\approx", "≈")
    texts = [text, *_without_label(text, question, is_short=is_short)]
    if _asks_to_round(question):
        texts += [_NEARLY.sub("", found) for found in texts if _NEARLY.match(found)]
    yield from texts[1:]
    for candidate in texts:
        if candidate.rstrip(" .*").endswith(")"):
            yield from _without_remark(candidate, question)


@functools.lru_cache(maxsize=2)
def _asks_to_round(question: str) -> bool:
    return re.search("significant|decimal place|[Rr]ound", question) is not None


def _without_label(text: str, question: str, *, is_short: bool) -> Iterator[str]:
    """What may follow a label, such as `3` in `The GCD is 3` or `GCD(6, 9) = 3`."""
    conclusion = _CONCLUSION.match(text)
    if conclusion:
        yield text[conclusion.end() :]
    # Elsewhere, an arrow can be part of a formula or between two steps.
    patterns = (_SIGN_LABEL, _VERB_LABEL, _ARROW_LABEL) if is_short else (_SIGN_LABEL, _VERB_LABEL)
    for found in filter(None, (pattern.match(text) for pattern in patterns)):
        if _is_label(found[1], text, vocabulary(question, is_short=is_short), is_short=is_short):
            yield text[found.end() :]
    left, equals, right = text.replace("≈", "=").rpartition("=")
    squeezed = _squeezed(left)
    # The left side of an equation may stand in the question: `3 * 4 = 12`.
    if equals and re.search(r"\d[-+*/^()]", squeezed) and squeezed in _squeezed(question):
        yield right.strip()


def _is_label(label: str, text: str, known: Vocabulary, *, is_short: bool) -> bool:
    """Whether a label at the beginning of a text says what the question asks for."""
    event = _EVENT.match(label)
    if event and "p" in known.symbols:
        label = "probability " + re.sub(r"[≥≤<>]|\\[lg]eq?\b|\bX\b", " ", event[1])
    if label.strip("$ ") == "?":
        return True
    label = re.sub(r"_\{?(\d+)\}?", r" base \1", _COMMAND.sub(r"\1\2 ", label))
    name = "".join(re.findall(r"[^\W\d_]", label)).lower()
    is_named = len(name) > 1 or name in (known.names if is_short else known.symbols)
    is_one_sentence = re.search(r"\w\.\s", label) is None
    if not (is_named and is_one_sentence and is_explained(label, known)):
        return False
    return not _names(label, known) or _has_order_of(text, known)


def _squeezed(text: str) -> str:
    plain = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text)
    plain = re.sub(r"\\times|\\cdot|[×·]", "*", plain)
    return re.sub(r"\s|\$|\\int|\\,|∫", "", plain.replace("**", "^"))


def _without_remark(answer: str, question: str) -> Iterator[str]:
    """The value before a remark in brackets that is true: the same value, or what the question says of the value."""
    found = _REMARK.fullmatch(strip_markup(answer))
    if found is None:
        return
    value, remark = found.groups()
    if re.search(r"\d", with_digits(remark)):
        sign = "≈" if _NEARLY.match(remark) else "="
        # The text is no equation, or its sides differ.
        with contextlib.suppress(UnreadableTextError, ArithmeticError):
            value_of(f"{with_digits(value)} {sign} {with_digits(_NEARLY.sub('', remark))}")
            yield value
    elif is_explained(remark, vocabulary(question, is_short=False)) or _is_said_of(value, remark, question):
        yield value


def _is_said_of(number: str, word: str, question: str) -> bool:
    """Whether a sentence of the question has this number and this word: it says that -1 means `impossible`."""
    if not re.fullmatch(r"-?\d+", number):
        return False
    sentences = [sentence for sentence in _SENTENCE_END.split(question) if word.lower() in _words(sentence)]
    return any(re.search(rf"(?<![\w.-]){number}(?!\w)", sentence) for sentence in sentences)


# --- numbers

_SMALL = _words(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
    """
)
_NUMERALS = {word: number for number, word in enumerate(_SMALL)} | {"once": 1, "twice": 2}
for _tens, _word in enumerate(_words("twenty thirty forty fifty sixty seventy eighty ninety"), 2):
    _NUMERALS |= {f"{_word}-{unit}": 10 * _tens + number for number, unit in enumerate(_SMALL[1:10], 1)}
    _NUMERALS[_word] = 10 * _tens
_NUMERAL = re.compile(
    rf"\b(?:{'|'.join(sorted(_NUMERALS, key=len, reverse=True)).replace('-', '[- ]')})\b", re.IGNORECASE
)


def with_digits(text: str) -> str:
    """The text with digits in place of the number words up to ninety-nine, and of `once` and `twice`."""
    text = _NUMERAL.sub(lambda found: str(_NUMERALS[found[0].lower().replace(" ", "-")]), text)
    return re.sub(r"\b(?:negative|minus) (?=\d)", "-", text, flags=re.IGNORECASE)


_AMOUNT = re.compile(rf"(?<![\w.,])[-+]? ?\.?(?:{expressions.THOUSANDS}|\d+)(?:\.\d+)?(?![A-Za-z\d])", re.ASCII)
_LAST_VERB = re.compile(r".*(?:\b(?:is|are|was|were|has|have|had|equals)\b|[=:≈→])", re.DOTALL | re.IGNORECASE)
_DEGREES = re.compile(r"\^ ?\{?\\circ\}?|\\degree|°|\bdeg(?:rees?)?\b")
_MARKS = re.compile(r"(?<![\w)])\*\*|\*\*(?![\w(])|`|(?<!\w)__|__(?!\w)|\\[()\[\]]")


def number_said(answer: str, question: str) -> Fraction:
    """Read the number of `12`, `12 legs`, `There are twelve legs in total` or `4 * 3 = 12 legs`.

    It is the number after the last verb, or else the first number. If the question says what it counts, the number must
    not be followed by the name of another thing.
    """
    try:
        return number(answer)
    except UnreadableTextError:
        if len(answer) > MAX_SENTENCE_CHARS:
            raise
    known = vocabulary(question)
    text = strip_markup(_MARKS.sub("", strip_markup(answer)))
    text = re.sub(r"\\text\s?\{([^{}]*)\}|\\(?=[$%])", r" \1", with_digits(text))
    if "°" in known.signs or "deg" in known.known:
        text = _DEGREES.sub(" ", text)
    try:
        return number(text)
    except UnreadableTextError:
        return _amount(plain_text(text).replace("$", " "), known)


def _amount(text: str, known: Vocabulary) -> Fraction:
    verb = _LAST_VERB.match(text)
    found = (_AMOUNT.search(text, verb.end()) if verb else None) or _AMOUNT.search(text)
    if found is None:
        raise UnreadableTextError("no number")
    before = text[: found.start()]
    after = text[found.end() :]
    units = [_stem(word) for word in _words(after) if word not in _FUNCTION_WORDS]
    is_of_another_thing = bool(units) and (units[0] not in known.asked if known.asked else units[0] in known.counted)
    if is_of_another_thing or ".." in after or not is_explained(after, known, is_label=False):
        raise UnreadableTextError("a number of another thing")
    label = re.sub(r"\?\s*=", "=", before)
    if not _has_order_of(before + after, known) or not is_explained(label, known):
        # The words before the number may be the working: `4 * 3 = 12 legs`.
        return number(text[: found.end()])
    return number(found[0])


# --- words


def says(answer: str, question: str, value: str) -> bool:
    """Whether a short sentence with words of the question gives this word, as in `The colour is red`."""
    text = _MARKS.sub("", strip_markup(answer)).replace("->", "→")
    found = list(re.finditer(rf"(?<!\w){re.escape(value)}(?!\w)", text, re.IGNORECASE))
    if " " in value or len(found) != 1 or len(text) > MAX_SENTENCE_CHARS:
        return False
    before = text[: found[0].start()]
    after = text[found[0].end() :]
    known = vocabulary(question)
    if re.search(r"[=:→]|\.\.", after) or not _has_order_of(before + after, known):
        return False
    return is_explained(before, known) and is_explained(after, known, is_label=False)


_NEGATIONS = frozenset({"not", "never", "impossible"})


def says_truth(answer: str, question: str, value: str) -> bool:
    """Whether the answer is this truth value. `Yes` means True, and words of the question may repeat it.

    `False, the strings are not isomorphic` repeats it, and `False, the strings are isomorphic` contradicts it.
    """
    text = _MARKS.sub("", strip_markup(answer)).replace("\\text", "").replace(" - ", ", ")
    words = _words(re.sub(r"\Areturn\s", "", text, flags=re.IGNORECASE))
    if len(text) > MAX_SENTENCE_CHARS or not words or TRUTH.get(words[0]) is not TRUTH[value]:
        return False
    negations = [word for word in words[1:] if word in _NEGATIONS]
    rest = " ".join(word for word in words[1:] if word not in _NEGATIONS)
    has_plain_signs = _SIGNS.issuperset(sign for sign in text if not sign.isalnum()) and "=" not in text
    is_conditional = "if" in words
    if is_conditional or (len(words) > 1 and len(negations) != (not TRUTH[value])):
        return False
    return has_plain_signs and is_explained(rest, vocabulary(question, is_short=False))
