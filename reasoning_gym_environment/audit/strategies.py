"""Programs from a question to an answer that do no work on the problem: what they are made of, and how they change.

    View (the question, other items with their answers) ── Strategy ──> text, or None where it has nothing to say

A strategy is a tree of tuples: a leaf takes a text from somewhere, a node changes or joins texts.

    ("text", "0")                       always the same
    ("piece", "numbers", -1)            a part of the question, or another item's answer, by its place
    ("all", "numbers", ", ")            all of them, once each
    ("figure", "numbers", "max")        one number made of all
    ("like", 0)                         another item's answer with its question's words replaced by this one's
    ("shape", 0, "1")                   another item's answer with this in place of every value
    ("grid", "fill", "1")               the last grid of the question, its blanks filled in, turned, made all one
    ("change", "reverse words", leaf)   see CHANGES
    ("join", " or ", leaf, leaf)

No strategy sees metadata or the item's own answer, so whatever it earns a learner could earn as well.
"""

from __future__ import annotations

import json
import math
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Strategy = tuple[Any, ...]

MAX_CHARS = 3000
"""Longer answers are not tried: they cost time, and what they earn shorter ones do."""
MAX_NODES = 9
MAX_PIECES = 400


@dataclass(frozen=True)
class View:
    """What a strategy sees of an item. `others` are (question, answer) of other items of the same task and level."""

    question: str
    others: tuple[tuple[str, str], ...]
    _pieces: dict[str, list[str]] = field(default_factory=dict, compare=False, repr=False)
    _texts: dict[Strategy, str | None] = field(default_factory=dict, compare=False, repr=False)

    def answer(self, strategy: Strategy) -> str | None:
        """What the strategy says to this item, stripped; None where it has nothing to say."""
        if strategy not in self._texts:
            try:
                text = _MAKE[strategy[0]](self, *strategy[1:]).strip()
            except _NOTHING_TO_SAY:
                text = ""
            self._texts[strategy] = text if 0 < len(text) <= MAX_CHARS else None
        return self._texts[strategy]

    def pieces(self, kind: str) -> list[str]:
        """The parts of that kind, in order."""
        if kind not in self._pieces:
            self._pieces[kind] = PIECES[kind](self)[:MAX_PIECES]
        return self._pieces[kind]

    def forget(self) -> None:
        """Drop the answers that are kept."""
        self._texts.clear()

    def said(self, strategy: Strategy) -> str:
        """As `answer`, for a strategy inside another. Raises LookupError where there is nothing."""
        text = self.answer(strategy)
        if text is None:
            raise LookupError(strategy)
        return text


def trimmed(question: str) -> str:
    """Without the middle of a very long one: strategies that read all of it would take all the time there is."""
    return question if len(question) <= 8000 else f"{question[:3000]}\n{question[-5000:]}"


_NOTHING_TO_SAY = (LookupError, ValueError, TypeError, ArithmeticError, RecursionError, AttributeError)

# --- parts of the question ---

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_TOKEN = re.compile(r"[^\W_]+|[^\w\s]")


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _balanced(text: str, opening: str, closing: str) -> list[str]:
    """The outermost bracketed parts, with their brackets."""
    found, depth, start = [], 0, 0
    for at, character in enumerate(text):
        if character == opening:
            start = start if depth else at
            depth += 1
        elif character == closing and depth:
            depth -= 1
            if not depth:
                found.append(text[start : at + 1])
    return found


def _fresh(view: View) -> list[str]:
    """The words of this question that the other questions do not share."""
    shared = set.intersection(*(set(question.split()) for question, _ in view.others[:8]))
    return [word for word in view.question.split() if word not in shared]


def _tail(view: View) -> list[str]:
    """What is left of the question after the beginning that all questions share."""
    lines = view.question.splitlines()
    known = {line.strip() for question, _ in view.others[:8] for line in question.splitlines()}
    return ["\n".join(line for line in lines if line.strip() and line.strip() not in known)]


def _block(view: View) -> list[str]:
    """Paragraphs of at least two lines: boards, tables, lists, programs."""
    parts = re.split(r"\n\s*\n", view.question)
    return [part.strip("\n") for part in parts if part.strip().count("\n")]


def _after(mark: str) -> Callable[[View], list[str]]:
    return lambda view: [part.strip() for part in view.question.split(mark)[1:]]


def _listed(view: View) -> list[str]:
    """The elements of the last list, in brackets or after a colon."""
    lists = _balanced(view.question, "[", "]")
    text = lists[-1][1:-1] if lists else _lines(view.question)[-1].split(":")[-1]
    return [part.strip().strip("'\"") for part in text.split(",") if part.strip()]


def _common(view: View) -> list[str]:
    return [answer for answer, _ in Counter(answer for _, answer in view.others).most_common()]


def _near(view: View) -> list[str]:
    """Answers to other questions, those to the most similar first."""
    own = set(view.question.split())

    def distance(other: tuple[str, str]) -> float:
        words = set(other[0].split())
        return -len(own & words) / (len(own | words) or 1)

    return [answer for _, answer in sorted(view.others, key=distance)]


def _letters(view: View) -> list[str]:
    return re.findall(r"\b[A-Za-z]\b", view.question)


PIECES: Mapping[str, Callable[[View], list[str]]] = {
    "question": lambda view: [view.question],
    "lines": lambda view: _lines(view.question),
    "paragraphs": lambda view: [part.strip() for part in re.split(r"\n\s*\n", view.question) if part.strip()],
    "blocks": _block,
    "sentences": lambda view: [part.strip() for part in re.split(r"(?<=[.?!:])\s+", view.question) if part.strip()],
    "words": lambda view: _WORD.findall(view.question),
    "numbers": lambda view: _NUMBER.findall(view.question),
    "fresh words": _fresh,
    "fresh numbers": lambda view: _NUMBER.findall(" ".join(_fresh(view))),
    "fresh lines": _tail,
    "capitals": lambda view: re.findall(r"(?<![.?!:\n] )(?<!^)\b[A-Z][a-z]+\b", view.question),
    "letters": _letters,
    "quoted": lambda view: [
        a or b or c for a, b, c in re.findall(r'"([^"\n]+)"|\'([^\'\n]+)\'|`([^`]+)`', view.question)
    ],
    "round": lambda view: _balanced(view.question, "(", ")"),
    "square": lambda view: _balanced(view.question, "[", "]"),
    "curly": lambda view: _balanced(view.question, "{", "}"),
    "after colons": _after(":"),
    "after =": _after("="),
    "items": lambda view: [
        part.split(maxsplit=1)[1] for part in _lines(view.question) if re.match(r"[-.]?\d*[.)-] ", part)
    ],
    "listed": _listed,
    "options": lambda view: [
        word for pair in re.findall(r"([\w-]+)(?:/| or |, or )([\w-]+)", view.question) for word in pair
    ],
    "rows": lambda view: [" ".join(row) for row in _grid(view)],
    "answers": _common,
    "near answers": _near,
    "answer words": lambda view: [
        word for word, _ in Counter(word for _, answer in view.others for word in _TOKEN.findall(answer)).most_common()
    ],
}


def _commonest(parts: Iterable[str]) -> str:
    return Counter(parts).most_common(1)[0][0]


# --- the grid of a question ---


def _grid(view: View) -> list[list[str]]:
    """The last at least two lines of equally many entries, without commas and brackets."""
    best: list[list[str]] = []
    run: list[list[str]] = []
    for line in [*view.question.splitlines(), ""]:
        cells = re.sub(r"[\[\],'\"]", " ", line).split()
        if len(cells) >= 2 and (not run or len(cells) == len(run[0])):
            run.append(cells)
            continue
        best = run if len(run) >= 2 else best
        run = [cells] if len(cells) >= 2 else []
    if not best:
        raise LookupError("no grid")
    return best


_BLANKS = frozenset("_.?0*")


def _filled(rows: list[list[str]], by_column: bool, backwards: bool) -> list[list[str]]:
    """Blanks filled with the numbers, 1 to the size, that their row (and column) lacks."""
    board = [list(row) for row in rows]
    size = max(len(board), len(board[0]))
    numbers = [str(number) for number in range(1, size + 1)][:: -1 if backwards else 1]
    for row in board:
        for at, cell in enumerate(row):
            if cell in _BLANKS:
                column = [other[at] for other in board] if by_column else []
                left = [number for number in numbers if number not in row and number not in column]
                row[at] = left[0] if left else next((n for n in numbers if n not in row), numbers[0])
    return board


def _turned(rows: list[list[str]]) -> list[list[str]]:
    return [list(row) for row in zip(*rows[::-1], strict=True)]


_GRIDS: Mapping[str, Callable[[list[list[str]], str], list[list[str]]]] = {
    "as it is": lambda rows, _: rows,
    "fill": lambda rows, text: [[text if cell in _BLANKS else cell for cell in row] for row in rows],
    "complete": lambda rows, text: _filled(rows, text == "1", False),
    "complete downwards": lambda rows, text: _filled(rows, text == "1", True),
    "all": lambda rows, text: [[text] * len(row) for row in rows],
    "commonest": lambda rows, _: [[_commonest(cell for row in rows for cell in row)] * len(row) for row in rows],
    "turned": lambda rows, _: _turned(rows),
    "upside down": lambda rows, _: rows[::-1],
    "mirrored": lambda rows, _: [row[::-1] for row in rows],
    "transposed": lambda rows, _: [list(row) for row in zip(*rows, strict=True)],
    "one row less": lambda rows, _: rows[:-1],
    "border": lambda rows, text: [
        [text if x in (0, len(row) - 1) or y in (0, len(rows) - 1) else cell for x, cell in enumerate(row)]
        for y, row in enumerate(rows)
    ],
}
_CELLS = ("0", "1", "2", "3", "5", "_")


def _make_grid(view: View, how: str, text: str, is_json: bool) -> str:
    rows = _GRIDS[how](_grid(view), text)
    if not is_json:
        return "\n".join(" ".join(row) for row in rows)
    return json.dumps([[int(cell) if cell.lstrip("-").isdigit() else cell for cell in row] for row in rows])


# --- other items' answers, fitted ---


def _alike(view: View, at: int) -> str:
    """Another item's answer in which every word of its question gives way to the word here that stands in its place."""
    question, answer = view.others[at]
    theirs, ours = _TOKEN.findall(question), _TOKEN.findall(view.question)
    shared = set(theirs) & set(ours)
    places: dict[str, int] = {}
    for place, word in enumerate(word for word in theirs if word not in shared):
        places.setdefault(word, place)
    fresh = [word for word in ours if word not in shared]

    def replaced(match: re.Match[str]) -> str:
        place = places.get(match[0])
        return match[0] if place is None else fresh[min(place, len(fresh) - 1)]

    return _TOKEN.sub(replaced, answer)


def _same_shape(view: View, at: int, text: str) -> str:
    answer = view.pieces("near answers")[at]
    try:
        value = json.loads(answer)
    except ValueError:
        return re.sub(r"[^\W_]+(?:\.\d+)?", text, answer)
    leaf = int(text) if text.isdigit() else text

    def emptied(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: emptied(inner) for key, inner in part.items()}
        return [emptied(inner) for inner in part] if isinstance(part, list) else leaf

    return json.dumps(emptied(value))


def _by_place(view: View, separator: str) -> str:
    """At every place the entry that most answers have there, up to the usual length."""
    split = [answer.split(separator) if separator else list(answer) for _, answer in view.others]
    length = sorted(map(len, split))[len(split) // 2]
    return separator.join(_commonest(parts[at] for parts in split if at < len(parts)) for at in range(length))


_MAPPINGS = ("json", "=", " is a ", ": ", "move")


def _mapped(view: View, kind: str, values: str, form: str) -> str:
    """Every part of that kind with a value, which come in turn."""
    names = list(dict.fromkeys(view.pieces(kind)))
    turn = [values.split("|")[at % len(values.split("|"))] for at in range(len(names))]
    if form == "json":
        return json.dumps(
            {name: int(value) if value.isdigit() else value for name, value in zip(names, turn, strict=True)}
        )
    if form == "move":
        return json.dumps([{name: value} for name, value in zip(names, turn, strict=True)])
    glue = "," if form == "=" else ", "
    return glue.join(f"{name}{form}{value}" for name, value in zip(names, turn, strict=True))


def _table(view: View, before: str, which: int, is_list: bool) -> str:
    """From lines such as `name: ... 'this', 'that'` what stands in quotes, by name."""
    rows = {}
    for line in _lines(view.question):
        name, sign, rest = line.partition(before)
        quoted = re.findall(r"'([^']*)'|\"([^\"]*)\"", rest)
        if sign and quoted:
            rows[name] = quoted[which][0] or quoted[which][1]
    if not rows:
        raise LookupError("no table")
    return json.dumps([{name: value} for name, value in rows.items()] if is_list else rows)


def _morphed(view: View, kind: str, glue: str) -> str:
    """From the last but one to the last, letter by letter."""
    start, end = view.pieces(kind)[-2:]
    return glue.join(dict.fromkeys(end[:at] + start[at:] for at in range(min(len(start), len(end)) + 1)))


# --- numbers ---

_FIGURES: Mapping[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "count": len,
    "mean": lambda values: sum(values) / len(values),
    "rounded mean": lambda values: round(sum(values) / len(values)),
    "median": lambda values: sorted(values)[len(values) // 2],
    "product": math.prod,
    "range": lambda values: max(values) - min(values),
    "last two added": lambda values: values[-1] + values[-2],
    "last two subtracted": lambda values: values[-1] - values[-2],
    "last two multiplied": lambda values: values[-1] * values[-2],
    "last two divided": lambda values: values[-2] / values[-1],
}


def _written(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.6g}"


def _figure(view: View, kind: str, how: str) -> str:
    return _written(_FIGURES[how]([float(n) for piece in view.pieces(kind) for n in _NUMBER.findall(piece)]))


def _each_number(change: Callable[[float], float]) -> Callable[[str], str]:
    return lambda text: _NUMBER.sub(lambda match: _written(change(float(match[0]))), text)


# --- changes ---


def _on(pattern: str, glue: str, change: Callable[[list[str]], list[str]]) -> Callable[[str], str]:
    return lambda text: glue.join(change([part for part in re.split(pattern, text) if part]))


def _halved(text: str) -> str:
    return text[: (len(text) + 1) // 2]


_SPLITS = {"words": (r"\s+", " "), "lines": (r"\n", "\n"), "parts": (r",\s*", ", "), "characters": ("", "")}
_ORDERS: Mapping[str, Callable[[list[str]], list[str]]] = {
    "reverse": lambda parts: parts[::-1],
    "sort": sorted,
    "sort backwards": lambda parts: sorted(parts, reverse=True),
    "shortest first": lambda parts: sorted(parts, key=len),
    "capitals first in": lambda parts: sorted(parts, key=lambda part: (not part[:1].isupper(), part[-1:] in ".!?")),
    "once each": lambda parts: list(dict.fromkeys(parts)),
    "first of": lambda parts: parts[:1],
    "last of": lambda parts: parts[-1:],
    "without first of": lambda parts: parts[1:],
    "without last of": lambda parts: parts[:-1],
    "half of": lambda parts: parts[: (len(parts) + 1) // 2],
    "second half of": lambda parts: parts[len(parts) // 2 :],
    "every other of": lambda parts: parts[::2],
    "middle of": lambda parts: [parts[len(parts) // 2]],
    "first two of": lambda parts: parts[:2],
    "commonest of": lambda parts: [_commonest(parts)] * len(parts),
    "double": lambda parts: [part for part in parts for _ in (0, 1)],
    "swap ends of": lambda parts: [parts[-1], *parts[1:-1], parts[0]],
    "twice": lambda parts: parts * 2,
    "thrice": lambda parts: parts * 3,
    "ten times": lambda parts: parts * 10,
}
_WRAPPED = [
    *((sign, "") for sign in string.punctuation),
    *(("", sign) for sign in string.punctuation),
    *(("[", "]"), ("[[", "]]"), ("(", ")"), ("{", "}"), ('"', '"'), ("'", "'"), ('["', '"]'), ("`", "`"), ("$", "$")),
    *(("<answer>", "</answer>"), ("\\boxed{", "}"), ("The answer is ", "."), ("not ", ""), ("¬(", ")"), ("0x", "")),
    *(("0", ""), ("", "0"), ("", "e0"), ("", ".0"), ("", " + C"), ("0*", ""), ("", "*1"), ("", "\n0"), ("", "°")),
    *(("", " x"), ("x ", ""), ("1 ", ""), ("", " 1"), ("", ", 1"), ("", " or not"), ("1 × ", ""), ("", " ∨ Z")),
]
"""What is put before and after a text."""
_REPLACED = [
    *((" ", ""), (" ", ", "), (" ", ","), (", ", " "), (",", ""), ("\n", " "), (" ", "\n"), ("\n", ""), ("\n", ", ")),
    *(("_", "1"), ("_", "2"), ("_", "0"), (".", "0"), ("0", "1"), ("1", "0"), ("-", ""), ("'", '"'), ('"', "")),
    *(("[", ""), ("]", ""), ("(", ""), (")", ""), (".", ""), ("\n", ";"), ("=", ":"), (" ", "_"), ("and", "or")),
    *(("-", "+"), (" is a ", " is not a "), ("_", ""), ("0", "O"), (" ", "-"), ("*", ""), (":", "")),
]


def _wrapped(before: str, after: str) -> Callable[[str], str]:
    return lambda text: f"{before}{text}{after}"


def _replaced(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


def _in_letters(letter: str) -> Callable[[str], str]:
    return lambda text: re.sub(r"[^\W\d_]", letter, text)


CHANGES: Mapping[str, Callable[[str], str]] = {
    "upper": str.upper,
    "lower": str.lower,
    "title": str.title,
    "half": _halved,
    "quarter": lambda text: _halved(_halved(text)),
    "second half": lambda text: text[len(text) // 2 :],
    "all but a character": lambda text: text[:-1],
    "all but the first character": lambda text: text[1:],
    "a character": lambda text: text[:1],
    "last character": lambda text: text[-1:],
    "without punctuation": lambda text: re.sub(r"[^\w\s]", "", text),
    "numbers": lambda text: ", ".join(_NUMBER.findall(text)),
    "as JSON": json.dumps,
    "words as JSON": lambda text: json.dumps(text.split()),
    "lines as JSON": lambda text: json.dumps(text.splitlines()),
    "numbers as JSON": lambda text: json.dumps([json.loads(number) for number in _NUMBER.findall(text)]),
    "words as strings": lambda text: str(_WORD.findall(text)),
    "numbers as strings": lambda text: str(_NUMBER.findall(text)),
    "plus one": _each_number(lambda value: value + 1),
    "minus one": _each_number(lambda value: value - 1),
    "negated": _each_number(lambda value: -value),
    "doubled": _each_number(lambda value: 2 * value),
    "halved": _each_number(lambda value: value / 2),
    "whole": _each_number(math.floor),
    "one digit": _each_number(lambda value: float(f"{value:.1g}")),
    "two digits": _each_number(lambda value: float(f"{value:.2g}")),
    "numbers 1": _each_number(lambda value: 1),
    "numbers 0": _each_number(lambda value: 0),
    **{f"all letters {letter}": _in_letters(letter) for letter in "aesx"},
    **{f"{how} {what}": _on(*_SPLITS[what], order) for how, order in _ORDERS.items() for what in _SPLITS},
    **{f"{before}_{after}": _wrapped(before, after) for before, after in _WRAPPED},
    **{f"{old!r} -> {new!r}": _replaced(old, new) for old, new in _REPLACED},
}
_CHANGES = tuple(CHANGES)
_GLUES = ("", " ", ", ", ",", "\n", " or ", "/", " and ", "|", "; ", " = ", " + ", " × ", " ∧ ", " ∨ ", "=")


def _as_long_as(view: View, inner: Strategy, other: Strategy) -> str:
    text, length = view.said(inner), len(view.said(other))
    return (text * (length // len(text) + 1))[:length]


_MAKE: Mapping[str, Callable[..., str]] = {
    "text": lambda view, text: text,
    "piece": lambda view, kind, at: view.pieces(kind)[at],
    "middle": lambda view, kind: sorted(view.pieces(kind))[len(view.pieces(kind)) // 2],
    "longest": lambda view, kind: max(view.pieces(kind), key=len),
    "shortest": lambda view, kind: min(view.pieces(kind), key=len),
    "commonest": lambda view, kind: _commonest(view.pieces(kind)),
    "all": lambda view, kind, glue: glue.join(dict.fromkeys(view.pieces(kind))),
    "every": lambda view, kind, glue: glue.join(view.pieces(kind)),
    "some": lambda view, kind, glue, count: glue.join(list(dict.fromkeys(view.pieces(kind)))[:count]),
    "each": lambda view, kind, before, after, glue: glue.join(
        f"{before}{piece}{after}" for piece in dict.fromkeys(view.pieces(kind))
    ),
    "figure": _figure,
    "like": _alike,
    "shape": _same_shape,
    "by place": _by_place,
    "mapped": _mapped,
    "table": _table,
    "morphed": _morphed,
    "grid": _make_grid,
    "change": lambda view, how, inner: CHANGES[how](view.said(inner)),
    "join": lambda view, glue, left, right: f"{view.said(left)}{glue}{view.said(right)}",
    "repeat": lambda view, glue, count, inner: glue.join([view.said(inner)] * count),
    "as long as": _as_long_as,
    "as often as": lambda view, kind, glue, inner: glue.join([view.said(inner)] * len(view.pieces(kind))),
}


def described(strategy: Strategy) -> str:
    """For people."""
    head, rest = strategy[0], strategy[1:]
    if head == "text":
        return repr(rest[0])
    return f"{head}({', '.join(described(part) if isinstance(part, tuple) else repr(part) for part in rest)})"


# --- where a search starts from ---

CONSTANTS = (
    *map(str, range(-2, 21)),
    *re.split(
        r" {2,}|\n\s*",
        """24  25  30  32  42  50  64  90  99  100  120  128  180  256  360  500  999  1000  12  123  0.5  0.25  0.1
        0.0  0.01  1/2  1/4  1e9  1e-9  nan  inf  -inf  0x0  0x1  0b1  1j  0j  0 + 0i  0.5 0.5
        True  False  yes  no  Yes  No  true  false  TrueFalse  True False  YesNo  Yes No  null  None  undetermined  N/A
        infeasible  impossible  unknown  nothing  on  off  same  empty  odd  even  the  The  and
        A  B  C  D  E  F  G  H  X  Y  Z  a  b  c  e  n  r  s  t  x  a b c  abcdefghijklmnopqrstuvwxyz  A1  C3  D4  E5
        K10  up  down  left  right  U  D  L  R  U U  R L  UDLR  LRLR  red  green  blue  yellow  white  black  Peng  Chi
        Alice  Bob  John  mother  father  brother  sister  knight  knave  Monday  Sunday  2020-01-01  12:00  00:00
        12:00:00  08:00:00  1 day  10 days  33 days, 12:00:00  Move disk 1 from Peg 1 to Peg 2
        0,0  0, 0  0 0  0, 0, 0  0 0 0 0  1 1  1 2  1, 2  1, 2, 3  1 2 3 4  1,2,3,4,5,6,7,8,9  0 1 2 3 4 5 6 7 8 9
        0123456789  (0, 0)  []  {}  ()  ""  [[]]  [[0]]  [0]  [1]  [""]  {"": ""}  [[],[]]  ?  -  .  _  ...  *
        C  0*x  x + C  X**2  1=1  A=1  1 + 1  1 × 1  2 × 2  2 × 3  2 × 2 × 2 × 3 × 5  A→B  P  ¬P  P ∧ Q  P ∨ Q  P → P
        ¬  ∧  I do not know.  The answer is 1.""",
    ),
)


def first_strategies(view: View, rng: random.Random) -> list[Strategy]:
    """What is tried first, whatever the task; shuffled, so that a short search tries some of each."""
    kinds = tuple(PIECES)
    texts = [*CONSTANTS, *(answer for answer in _common(view)[:30])]
    found: list[Strategy] = [("text", text) for text in dict.fromkeys(texts)]
    found += [("piece", kind, at) for kind in kinds for at in (0, -1, 1, -2, 2, -3)]
    found += [(how, kind) for kind in kinds for how in ("middle", "longest", "shortest", "commonest")]
    found += [(how, kind, glue) for kind in kinds for how in ("all", "every") for glue in ("", " ", ", ", "\n")]
    found += [("some", kind, glue, count) for kind in kinds for glue in (" ", "") for count in (2, 3)]
    found += [("figure", kind, how) for kind in ("numbers", "fresh numbers", "listed", "answers") for how in _FIGURES]
    found += [("like", at) for at in range(8)]
    found += [("shape", at, text) for at in (0, 1, 2) for text in ("0", "1", "", "a")]
    found += [("by place", glue) for glue in ("", " ", ", ", "\n", ",")]
    found += [("grid", how, cell, as_json) for how in _GRIDS for cell in _CELLS for as_json in (False, True)]
    found += [
        ("mapped", kind, values, form)
        for kind in ("listed", "letters", "capitals", "quoted", "words", "fresh words", "numbers")
        for values in ("0", "1", "0|1", "1|2|3", "0|1|2|3|4|5|6|7|8|9", "yes", "True|False", "knight", "knight|knave")
        for form in _MAPPINGS
    ]
    found += [
        ("table", before, which, is_list) for before in (":", " ") for which in (0, 1, -1) for is_list in (True, False)
    ]
    found += [
        ("morphed", kind, glue) for kind in ("quoted", "words", "capitals", "fresh words") for glue in (",", " ", "->")
    ]
    rng.shuffle(found)
    # The last is taken first: what is right of others may be right here, and then the search need not go on for it.
    return found + [("text", text) for text in _common(view)[19::-1]]


def random_leaf(view: View, rng: random.Random) -> Strategy:
    kind = rng.choice(tuple(PIECES))
    glue, form = rng.choice(_GLUES), rng.choice(_MAPPINGS)
    choices: tuple[Callable[[], Strategy], ...] = (
        lambda: ("text", rng.choice(CONSTANTS)),
        lambda: ("text", rng.choice(view.others)[1]),
        lambda: ("text", rng.choice(view.pieces("answer words") or ["0"])),
        lambda: ("piece", kind, rng.randrange(-6, 6)),
        lambda: ("all", kind, glue),
        lambda: ("every", kind, glue),
        lambda: ("some", kind, glue, rng.randrange(2, 6)),
        lambda: (rng.choice(("middle", "longest", "shortest", "commonest")), kind),
        lambda: ("figure", rng.choice(("numbers", "fresh numbers", "listed", "answers")), rng.choice(tuple(_FIGURES))),
        lambda: ("like", rng.randrange(len(view.others))),
        lambda: ("shape", rng.randrange(len(view.others)), rng.choice((*CONSTANTS[:12], "", "a"))),
        lambda: ("by place", rng.choice(("", " ", ", ", "\n", ","))),
        lambda: ("grid", rng.choice(tuple(_GRIDS)), rng.choice(_CELLS), rng.random() < 0.5),
        lambda: (
            *(
                "each",
                kind,
                rng.choice(("", "move ", "-", "'", "¬")),
                rng.choice(("", "=1", " is a knight", "'", ": 1")),
            ),
            glue,
        ),
        lambda: ("as often as", kind, glue, ("text", rng.choice(CONSTANTS))),
        lambda: (
            "mapped",
            kind,
            "|".join(rng.choices(view.pieces("answer words") or ["0", "1"], k=rng.randrange(1, 4))),
            form,
        ),
        lambda: ("mapped", kind, rng.choice(("0|1", "1|2|3", "0|1|2|3|4|5|6|7|8|9")), form),
        lambda: ("morphed", kind, glue),
    )
    return rng.choice(choices)()


def offspring(parents: Sequence[Strategy], view: View, rng: random.Random) -> Strategy:
    """A parent changed, or two joined; at most MAX_NODES nodes."""
    parent = rng.choice(parents)
    child = _changed(parent, parents, view, rng)
    return child if _size(child) <= MAX_NODES else random_leaf(view, rng)


def _changed(parent: Strategy, parents: Sequence[Strategy], view: View, rng: random.Random) -> Strategy:
    dice = rng.random()
    if dice < 0.4:
        return ("change", rng.choice(_CHANGES), parent)
    other = rng.choice(parents) if rng.random() < 0.5 else random_leaf(view, rng)
    if dice < 0.6:
        pair = (parent, other) if rng.random() < 0.5 else (other, parent)
        return ("join", rng.choice(_GLUES), *pair)
    if dice < 0.68:
        return ("repeat", rng.choice(_GLUES), rng.choice((2, 3, 4, 5, 8, 16, 40)), parent)
    if dice < 0.72:
        return ("as long as", parent, other)
    if dice < 0.76:
        return ("as often as", rng.choice(tuple(PIECES)), rng.choice(_GLUES), parent)
    if dice < 0.8 and parent[0] in ("change", "join", "repeat"):
        return parent[-1]
    if dice < 0.9:
        return _tweaked(parent, view, rng)
    return random_leaf(view, rng)


def _tweaked(strategy: Strategy, view: View, rng: random.Random) -> Strategy:
    """One parameter, or one part, becomes another one."""
    at = rng.randrange(1, len(strategy))
    part = strategy[at]
    new: Any = part
    if isinstance(part, tuple):
        new = _tweaked(part, view, rng) if rng.random() < 0.7 else random_leaf(view, rng)
    elif isinstance(part, bool):
        new = not part
    elif isinstance(part, int):
        new = part + rng.choice((-2, -1, 1, 2))
    elif part in PIECES:
        new = rng.choice(tuple(PIECES))
    elif part in _MAPPINGS:
        new = rng.choice(_MAPPINGS)
    elif part in CHANGES:
        new = rng.choice(_CHANGES)
    elif part in _FIGURES:
        new = rng.choice(tuple(_FIGURES))
    elif part in _GRIDS:
        new = rng.choice(tuple(_GRIDS))
    elif part in _GLUES:
        new = rng.choice(_GLUES)
    elif strategy[0] == "text":
        new = _edited(part, view, rng)
    return (*strategy[:at], new, *strategy[at + 1 :])


def _edited(text: str, view: View, rng: random.Random) -> str:
    """A word of it left out, doubled, or replaced by one of other answers."""
    words = re.split(r"(\W)", text)
    at = rng.randrange(len(words))
    words[at] = rng.choice(
        ("", words[at] * 2, rng.choice(view.pieces("answer words") or ["1"]), str(rng.randrange(100)))
    )
    return "".join(words)


def _size(strategy: Strategy) -> int:
    return 1 + sum(_size(part) for part in strategy if isinstance(part, tuple))
