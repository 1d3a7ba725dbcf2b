"""Words around a value: a label (`The GCD is 3`), a unit (`12 legs in total`), or a remark (`7 (seven)`).

    answer ── says, says_truth ──> whether a short sentence gives this number, word or truth value
           ── readings ──────────> the answer without a label or a remark ── check of the task

The words must come from the question or have no meaning of their own. Words that hedge or negate count only before a
word that also follows them in the question, as in `least common multiple`. Names keep the order of the question: if it
asks what Ann is to Bo, `Bo is Ann's aunt` is no answer. A question that counts one thing gets no number of another
thing: `2 brothers` is no number of sisters.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from . import expressions
from .bounded_eval import UnreadableTextError
from .expressions import value_of
from .markup import exact_text, plain_text, strip_markup, without_degrees
from .readers import SMALL_NUMBERS, number

MAX_SENTENCE_CHARS = 1_000
"""A longer text is no short sentence."""


# --- the words of a question


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower().replace("n't", " not").replace("cannot", "can not").replace("'s", ""))


def _stem(word: str) -> str:
    """The word without its ending, so that `rotated` is found in `rotate`, and `leg` in `legs`."""
    if len(word) <= 3:
        return word
    return re.sub(r"(?:ings?|ed|es|e|s)$", "", re.sub(r"(?:ied|ies)$", "y", word))


def _stems(text: str) -> list[str]:
    return list(map(_stem, _words(text)))


_UNDECIDED = frozenset(
    _words("if unless maybe perhaps possibly probably or but however actually wait guess think otherwise")
)
"""Words after which another answer may follow."""
_HEDGES = _UNDECIDED | frozenset(
    _words(
        """
        not no nor never neither either except other than less more fewer least most under over below above about around
        before after wrong incorrect possible could may might likely times half twice double triple dozen hundred
        thousand million minus plus negative
        """
    )
)
"""Words that change the meaning of a value."""
_FUNCTION_WORDS = frozenset(
    _stems(
        """
        a an the this that these it its he she they his her their my our we i you here so thus hence therefore is are
        was were be been has have had there in of for to by at with from and get gives equals exactly takes does did
        do now only all each every any both will would can should total overall final required needed necessary long
        took fell falls turns stay remain play
        """
    )
)
"""Words without a meaning of their own."""
_PREPOSITIONS = frozenset({"in", "of", "for", "to", "by", "at", "with", "from"})
_LABEL_WORDS = frozenset(
    _stems(
        """
        correct answer result solution value output number count contains appears next missing term sum out circuit
        key vital point largest smallest maximum minimum max min satisfies equation reversed backwards figlet font shown
        outcome quotient last detector light length flight call
        product difference expression text word following list best name person day time duration relationship message
        representation conclusion form simplifies expanded filtered completed grid matrix board sequence order move
        antiderivative integral indefinite says reads evaluates decrypted sorted relation hexadecimal
        """
    )
)
"""Words that name the answer of any question. They may stand before a value."""
_ASKED = re.compile(
    r"\b(?:how (?:many|much)|number of) (.*?)(?:[:.,?\n]|\b(?:do|does|did|are|is|was|were|will|would|can|could|have|has"
    r"|had|there|in|on|to|that|which|appear|you|must|such|when|if)\b)",
    re.IGNORECASE | re.DOTALL,
)
"""The thing that a question counts, such as `female friends`."""
_COUNTED = re.compile(r"\d (?:([^\W\d_]+) )?([^\W\d_]+)")
"""A thing of which the question gives the number, such as the brothers in `3 brothers`."""
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!Mr\.)(?<!Mrs\.)(?<!Ms\.)(?<!Dr\.)\s+|\n\n")
_UNITS = {
    "times": "occurrences occurs",
    "old": "years",
    r"\d%|percent": "percent",
    "minutes": "min",
    r"\barea\b": "cells units",
    "radius|length": "units",
    r"\b1 bits": "ones one 1s set",
}
"""A pattern in a question, and the words with which an answer may repeat it."""
TRUTH: Mapping[str, bool] = {"true": True, "yes": True, "false": False, "no": False}
_SYMBOLS = {"r": "radius", "h": "orthocenter", "p": "probability", "z": "complex"}
"""Usual names of a thing that a question asks for."""
_SIGNS = frozenset(" \n.,:;()[]{}'’\"“”_=≈–—→|∠$")
"""Signs that may stand beside a value."""


@dataclass(frozen=True)
class Vocabulary:
    """What may stand beside an answer to a question. Words are without their endings."""

    question: str
    """The words of the question, with a blank around each of them."""
    calculations: str
    """The sentences that ask, without blanks."""
    asking: tuple[str, ...]
    """The words of the sentences that ask."""
    known: frozenset[str]
    """The words that may stand beside a value."""
    asked: frozenset[str]
    """The words for what the question counts."""
    counted: frozenset[str]
    """The words for other things of which the question gives a number."""
    names: frozenset[str]
    """The letters that may stand before a value, as in `x = 5`."""
    signs: frozenset[str]
    """The signs that may stand beside a value."""


@functools.lru_cache(maxsize=2)
def vocabulary(question: str, *, is_short: bool = True) -> Vocabulary:
    """The vocabulary of a question. With `is_short`, it has the words of the sentences that ask, if any ends in `?`.

    Other sentences name what the answer could be instead: other colours and other houses.
    """
    asking = " ".join(sentence for sentence in _SENTENCE_END.split(question) if "?" in sentence) if is_short else ""
    source = asking or question
    asked = set(_stems(" ".join(_ASKED.findall(source)[:1]))) - _FUNCTION_WORDS
    counted = set(_stems(" ".join(map(" ".join, _COUNTED.findall(question))))) - _FUNCTION_WORDS
    units = set(_stems(" ".join(words for word, words in _UNITS.items() if re.search(word, source))))
    letters = set(re.findall(r"(?<![A-Za-z'’])[A-Za-z](?![A-Za-z'’])", source)) - {"a", "A", "I"}
    letters.update(re.findall(r"(?:[\d*+=^] ?|\bof )([aA])(?![A-Za-z'’])", source))
    symbols = {symbol for symbol, name in _SYMBOLS.items() if name in question.lower()}
    # A word in quotes may be one of the answers that the question allows.
    choices = set(_stems(" ".join([*TRUTH, *re.findall(r"[\"'“‘](\w{2,})[\"'”’]", question)])))
    return Vocabulary(
        question=f" {' '.join(_stems(question))} ",
        calculations=_squeezed(source),
        asking=tuple(_stems(source)),
        known=frozenset(set(_stems(source)) - choices | units),
        asked=frozenset(asked | units if asked else asked),
        counted=frozenset(counted - asked - units),
        names=frozenset(symbols | {letter.lower() for letter in letters or "x" if is_short}),
        signs=_SIGNS | {sign for sign in "€£¥₹°" if sign in question} | ({"%"} if "percent" in units else set()),
    )


_FIRST_CANDIDATE = re.compile(
    r"(?:\A|[:=]|\b(?:is|are|answer)\b)\W{0,9}"
    r"(?:\d[\d.,]*\s*(?:[.,;→\n](?!\d)|\b(?:so|the|answer)\b)|[^\W\d_]+\s*[.;\n]\W{0,9}(?:so|the|answer)\b)",
    re.IGNORECASE,
)
"""The first of two values in an answer, such as 5 in `5. The answer is 10`. It counts even if the question has a 5."""
_PIECE = re.compile(r"[^\W_]*[^\W\d_][^\W_]*|(?:(?![^\W_]*[^\W\d_])[\d\W_])+|.", re.DOTALL)
"""A word, or the numbers and signs between two words."""


def is_explained(text: str, vocabulary: Vocabulary, *, is_label: bool = True) -> bool:
    """Whether a text beside a value has only words of the question and words without a meaning.

    Numbers and calculations must stand in the question. In `4 (3)`, the 3 could be the answer, so that numbers without
    a word of a label count only after a preposition.
    """
    if is_label and _FIRST_CANDIDATE.search(text):
        return False
    pieces = _PIECE.findall(re.sub(r"(?<=[^\W\d_])-(?=\w)", " ", text.lower().replace("'s", "").replace("n't", " not")))
    words = [piece for piece in pieces if piece.isalnum() and not piece.isdigit()]
    if len(words) == 1 and len(words[0]) == 1:
        is_name = is_label and words[0] in vocabulary.names
        return is_name and vocabulary.signs.issuperset(set(text.lower()) - set(words[0]))
    has_label = is_label and not _FUNCTION_WORDS.issuperset(map(_stem, words))
    for place, piece in enumerate(pieces):
        stem = _stem(piece)
        if piece in _HEDGES and stem not in vocabulary.asked:
            is_allowed = _is_quoted(pieces[place : place + 3], vocabulary)
        elif piece in words:
            is_free = stem in _FUNCTION_WORDS or (is_label and stem in _LABEL_WORDS)
            is_allowed = is_free or stem in vocabulary.known
        elif vocabulary.signs.issuperset(piece) or (is_label and piece.strip() == "?"):
            is_allowed = True
        elif is_label:
            is_calculation = re.search(r"\d\)? ?[-+*/^×·−]", piece) is not None
            is_allowed = (has_label or is_calculation) and _stands_in_question(piece, vocabulary)
        else:
            before = pieces[place - 1] if place else ""
            is_placed = before in _PREPOSITIONS or piece.strip() in vocabulary.asked
            is_placed = is_placed or (before.isalpha() and _is_quoted([before, piece], vocabulary))
            is_allowed = is_placed and _stands_in_question(piece, vocabulary)
        if not is_allowed:
            return False
    return True


def _is_quoted(pieces: list[str], vocabulary: Vocabulary) -> bool:
    """Whether the first two of these words follow each other in the question too."""
    words = _stems(" ".join(pieces))[:2]
    return len(words) == 2 and f" {' '.join(words)} " in vocabulary.question


def _stands_in_question(piece: str, vocabulary: Vocabulary) -> bool:
    calculation = re.escape(_squeezed(piece.strip("".join(_SIGNS))))
    has_digits = re.search(r"\d", calculation) is not None
    return has_digits and re.search(rf"(?<![\d.]){calculation}(?!\d|\.\d)", vocabulary.calculations) is not None


def _squeezed(text: str) -> str:
    plain = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text)
    plain = re.sub(r"\\times|\\cdot|[×·]", "*", plain)
    return re.sub(r"\s|\$|\\int|\\,|∫", "", plain.replace("**", "^"))


def _has_order_of(text: str, vocabulary: Vocabulary) -> bool:
    """Whether the names in a text stand in the order of the question: `Ann is Bo's aunt` is not `Bo is Ann's aunt`.

    Names are words with a capital letter that the question has too.
    """
    words = [_stem(name.lower()) for name in re.findall(r"\b[A-Z][a-z]+\b", text)]
    remaining = iter(vocabulary.asking)
    return all(word in remaining for word in words if word not in _FUNCTION_WORDS and word in vocabulary.asking)


# --- short sentences with a number or a word

_NUMERALS = {word: number for number, word in enumerate(SMALL_NUMBERS)} | {"once": 1, "twice": 2}
for _tens, _word in enumerate(_words("twenty thirty forty fifty sixty seventy eighty ninety"), 2):
    _NUMERALS |= {f"{_word}-{unit}": 10 * _tens + number for number, unit in enumerate(SMALL_NUMBERS[1:10], 1)}
    _NUMERALS[_word] = 10 * _tens
_NUMERAL = re.compile(
    rf"\b(?:{'|'.join(sorted(_NUMERALS, key=len, reverse=True)).replace('-', '[- ]')})\b", re.IGNORECASE
)
_AMOUNT = re.compile(
    rf"(?<![\w.,])(?:[-+]|(?<!\w )[-+] )?\.?(?:{expressions.THOUSANDS}|\d+)(?:\.\d+)?(?![A-Za-z\d])", re.ASCII
)
_MARKS = re.compile(r"(?<![\w)])\*\*|\*\*(?![\w(])|`|(?<!\w)__|__(?!\w)|\\[()\[\]]|\\(?=[$%])")


def with_digits(text: str) -> str:
    """The text with digits in place of the number words up to ninety-nine, and of `once` and `twice`."""
    text = _NUMERAL.sub(lambda found: str(_NUMERALS[found[0].lower().replace(" ", "-")]), text)
    return re.sub(r"\b(?:negative|minus) (?=\d)", "-", text, flags=re.IGNORECASE)


def says(answer: str, question: str, value: Fraction | str) -> bool:
    """Whether a short sentence with words of the question gives this value, as in `The colour is red`.

    A number may follow its working: `4 * 3 = 12 legs`.
    """
    if len(answer) > MAX_SENTENCE_CHARS or (isinstance(value, str) and " " in value):
        return False
    text = _plain_sentence(answer)
    if isinstance(value, str):
        found = list(re.finditer(rf"(?<!\w){re.escape(value)}(?!\w)", text, re.IGNORECASE))
    else:
        text = with_digits(text)
        if re.search("°|degrees", question):
            text = without_degrees(text)
        found = [amount for amount in _AMOUNT.finditer(text) if _number_or_none(amount[0]) == value]
    return any(_is_said(text, place, value, vocabulary(question)) for place in found)


def _plain_sentence(answer: str) -> str:
    text = strip_markup(_MARKS.sub("", strip_markup(answer)))
    text = re.sub(r"\\text\s?\{([^{}]*)\}", r" \1", text)
    return plain_text(text)


def _number_or_none(text: str) -> Fraction | None:
    with contextlib.suppress(UnreadableTextError, ArithmeticError):
        return number(text)
    return None


def _is_said(text: str, found: re.Match[str], value: Fraction | str, known: Vocabulary) -> bool:
    before = _COMMAND.sub(r"\1\2 ", text[: found.start()])
    # The number may be repeated in words, as in `7 (seven)`.
    after = text[found.end() :].removeprefix(f" ({found[0]})")
    if not isinstance(value, str):
        units = [stem for stem in _stems(after) if stem not in _FUNCTION_WORDS]
        is_of_another_thing = units and (units[0] not in known.asked if known.asked else units[0] in known.counted)
        if is_of_another_thing:
            return False
    if re.search(r"[=:→]|\.\.", after) or not is_explained(after, known, is_label=False):
        return False
    if isinstance(value, str) and not _connects(before + after):
        return False
    if is_explained(before, known) and _has_order_of(before + after, known):
        return True
    working, _, gap = text[: found.start()].rpartition("=")
    label, _, working = working.rpartition("=")
    if isinstance(value, str) or not working or re.search(r"[\d(]", gap):
        return False
    return is_explained(_COMMAND.sub(r"\1\2 ", label), known) and _number_or_none(f"{working} = {found[0]}") == value


def _connects(words: str) -> bool:
    """Whether words make a sentence or a label with a value, as in `a rabbit` or `animal: rabbit`."""
    return not _words(words) or re.search("[:=→(]", words) is not None or not _FUNCTION_WORDS.isdisjoint(_stems(words))


def says_truth(answer: str, question: str, value: str) -> bool:
    """Whether the answer is this truth value, with or without a reason. `Yes` means True.

    What follows the truth value must not contradict it: `False, the strings are isomorphic` is no answer.
    """
    text = re.sub(r"\A(?:return|so|thus|therefore|hence)\b,?\s", "", _plain_sentence(answer), flags=re.IGNORECASE)
    verdicts = list(_VERDICT.finditer(text))
    if len(text) > MAX_SENTENCE_CHARS or {TRUTH[found[0].lower()] for found in verdicts} != {TRUTH[value]}:
        return False
    known = vocabulary(question, is_short=False)
    before = text[: verdicts[0].start()]
    after = text[verdicts[0].end() :]
    if _CONCLUSION.search(before):
        before, num_negations = _NEGATION.subn(" ", before)
        is_contradicted = num_negations != (not TRUTH[value])
    else:
        is_contradicted = _contradicts(after, known, is_true=TRUTH[value])
    return not is_contradicted and is_explained(before, known)


def _contradicts(reason: str, known: Vocabulary, *, is_true: bool) -> bool:
    """Whether the text after a truth value takes it back. A text with words of the question alone repeats the value."""
    rest, num_negations = _NEGATION.subn(" ", reason.replace(" - ", ", "))
    words = _words(rest)
    # `no teachers` denies something of the question, and `no cycles` gives a reason.
    num_negations += sum(
        word == "no" and _stem(following) in known.known for word, following in itertools.pairwise(words)
    )
    if words[:1] == ["that"] or "?" in reason or not _UNDECIDED.isdisjoint(words):
        return True
    is_quoted = is_true and len(words) > 1 and f" {' '.join(_stems(reason))} " in known.question
    if not words:
        return not is_explained(reason, known)
    if words[0] in _REASONS or is_quoted:
        return False
    if is_true:
        return num_negations > 0 or not (_BEFORE_REASON.match(reason) or is_explained(reason, known))
    is_repetition = all(word.isdigit() or _stem(word) in known.known | _FUNCTION_WORDS for word in words)
    return num_negations != 1 if is_repetition else not _BEFORE_REASON.match(reason)


_VERDICT = re.compile(r"\b(?:true|yes|false)\b|\Ano\b|\bno\b(?!\s\w)", re.IGNORECASE)
_NEGATION = re.compile(r"\b(?:not|never|impossible)\b|(?<=can)not\b|n't\b", re.IGNORECASE)
_BEFORE_REASON = re.compile(r"\s*(?:[,.;:–—→(\n]|- )\s*[^\W\d_]+\W+\w")
_REASONS = frozenset({"because", "since", "as", "by"})


# --- labels and remarks

_LABEL = r"([^=≈:\n]{1,300}?)\s?"
_LABELS = (
    re.compile(rf"{_LABEL}[:=≈]\s*(?=\S)"),
    re.compile(
        rf"{_LABEL}\s(?:is|are|was|equals|reads|says|took|lasted|fell on|(?:simplifies|evaluates|decrypts) to)\b"
        r"(?: equal to| at| an?\b)?\s?:?\s*(?=\S)"
    ),
)
_COMMAND = re.compile(r"\\(?:[a-z]+\s?\{([^{}]*)\}|([a-z]+))")
"""A command of LaTeX in a label. Its argument is text, or its name is a word, such as `\\gcd`."""
_CONCLUSION = re.compile(
    r"(?:∴\s*|(?:\b(?:so|thus|therefore|hence)\b,?|we (?:can )?conclude(?: that)?)\s+)+", re.IGNORECASE
)
_REMARK = re.compile(r"(.*\S)\s*\(([^()]{1,100})\)\.?", re.DOTALL)
_NEARLY = re.compile(r"\A(?:≈|\\approx|about\b|approximately\b|approx\.?|i\.e\.)\s*", re.IGNORECASE)
_SAME = re.compile(r"(?:\A|,?\s)(?:or|i\.e\.,?|which is)\s")
"""Between two forms of one value, as in `3/8 or 0.375`, if a question allows fractions and decimals."""


def readings(answer: str, question: str) -> Iterator[str]:
    """The answer without a label, without a remark, and without both."""
    # Bold type may end within the label.
    text = re.sub(r"\A\*\*([^*\n]{1,80})\*\*", r"\1", exact_text(answer)).replace("\\approx", "≈")
    texts = [text, *_without_label(text, question)]
    if re.search("significant|decimal place|[Rr]ound", question):
        texts += [_NEARLY.sub("", found) for found in texts if _NEARLY.match(found)]
    yield from texts[1:]
    for candidate in texts:
        yield from _without_remark(candidate, question)


def _without_label(text: str, question: str) -> Iterator[str]:
    """What may follow a label, such as `3` in `The GCD is 3` or `GCD(6, 9) = 3`."""
    conclusion = _CONCLUSION.match(text)
    if conclusion:
        yield text[conclusion.end() :]
    for found in filter(None, (pattern.match(text) for pattern in _LABELS)):
        if _is_label(found[1], vocabulary(question, is_short=False)):
            yield text[found.end() :]
    left, equals, right = text.replace("≈", "=").rpartition("=")
    squeezed = _squeezed(left)
    # The left side of an equation may stand in the question: `3 * 4 = 12`.
    if equals and re.search(r"\d[-+*/^()]", squeezed) and squeezed in _squeezed(question):
        yield right.strip()


def _is_label(label: str, known: Vocabulary) -> bool:
    """Whether a label at the beginning of a text says what the question asks for."""
    label = re.sub(r"_\{?(\d+)\}?", r" base \1", _COMMAND.sub(r"\1\2 ", label))
    name = "".join(re.findall(r"[^\W\d_]", label)).lower()
    has_words = len(name) > 1 or name in known.names
    is_one_sentence = re.search(r"\w\.\s", label) is None
    return has_words and is_one_sentence and is_explained(label, known) and _has_order_of(label, known)


def _without_remark(answer: str, question: str) -> Iterator[str]:
    """The value before a remark that is true: the same value, or words of the question in brackets."""
    text = strip_markup(answer)
    in_brackets = _REMARK.fullmatch(text) if text.rstrip(".").endswith(")") else None
    has_two_forms = "fraction" in question and "decimal" in question
    if in_brackets:
        value, remark = in_brackets.groups()
    elif has_two_forms and len(sides := _SAME.split(text)) == 2:
        value, remark = sides
    else:
        return
    if has_two_forms:
        remark = _SAME.sub("", remark)
    if in_brackets and not re.search(r"\d", remark):
        if is_explained(remark, vocabulary(question, is_short=False)):
            yield value
        return
    sign = "≈" if _NEARLY.match(remark) else "="
    # The text is no equation, or its sides differ.
    with contextlib.suppress(UnreadableTextError, ArithmeticError):
        value_of(f"{strip_markup(value)} {sign} {strip_markup(_NEARLY.sub('', remark))}")
        yield value
