"""Solvers of tasks whose rule has to be found from examples, and of circuits, fonts and programs."""

from __future__ import annotations

import ast
import functools
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

import pyfiglet

from benchmarks.questions.solution import Solution, undecided, value

Numbers = list[int]
Rule = Callable[[Numbers], Numbers]


# --- circuit_logic


def circuit_logic(question: str) -> Solution:
    """Each row below the names has one wire that ends there, an optional `>o`, and a gate or a gap."""
    picture, _, rest = question.partition("\n\nLegend for gates:\n")
    assigned = {name: int(bit) for name, bit in re.findall(r"^  (\w+) = ([01])$", rest, re.MULTILINE)}
    last_gate = re.findall(r"^(\S\S): (\w+)$", rest.partition("Given the")[0], re.MULTILINE)[-1][1]
    rows = picture.partition("\n\n")[2].strip("\n").split("\n")
    column_names = {}
    for row in rows[: len(assigned)]:
        name, _, wire = row.partition(":")
        column_names[len(name) + 1 + wire.index("┐")] = name
    gate_column = max(column_names) + 1
    values = []
    for is_gap, group in itertools.groupby(rows[len(assigned) :], key=lambda row: not _branch(row, gate_column)):
        if not is_gap:
            values.append(_gate_value(list(group), column_names, assigned, gate_column))
    gates = {"OR": any(values), "NOR": not any(values), "AND": all(values), "XOR": sum(values) % 2}
    return value(int(gates[last_gate]))


def _branch(row: str, gate_column: int) -> re.Match[str] | None:
    """The end of the wire that leads to a gate in this row, or to the output of a gate without a symbol."""
    return re.search("[├└]─*$", row[:gate_column])


def _gate_value(rows: Sequence[str], column_names: dict[int, str], assigned: dict[str, int], gate_column: int) -> int:
    bits = []
    for row in rows:
        branch = _branch(row, gate_column)
        assert branch is not None
        bit = assigned[column_names[branch.start()]]
        is_negated = row[gate_column : gate_column + 4].endswith(">o─")
        bits.append(1 - bit if is_negated else bit)
    gate = rows[0][gate_column + 5 : gate_column + 7]
    results = {"&&": all(bits), "↑↑": not all(bits), "⊕⊕": sum(bits) % 2 == 1, "──": bits[0] == 1}
    return int(results[gate])


# --- codeio


_CALL = """
import json as _json
_result = main_solution(**_json.loads(_INPUT))
print("\\n" + _json.dumps(_result))
"""


def codeio(question: str) -> Solution:
    """The program of the question, run with the input of the question, in another process."""
    given = re.search(r"Given the following input:\s*(.*?)\s*Can you predict the output", question, re.DOTALL)
    if given is None:
        return undecided("it asks for an input")
    code = question.partition("not copy spans of code directly.")[2]
    arguments = json.dumps(ast.literal_eval(given.group(1)))
    program = f"{code}\n_INPUT = {arguments!r}\n{_CALL}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = subprocess.run(
                [sys.executable, "-I", "-c", program],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=8,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return undecided("the program takes over 8 s")
    if run.returncode:
        return undecided(f"the program fails: {run.stderr.strip().splitlines()[-1]}")
    result = json.loads(run.stdout.strip().splitlines()[-1])
    return Solution([json.dumps(result)], judge=lambda key: bool(json.loads(key) == result))


# --- figlet_font


def figlet_font(question: str) -> Solution:
    """A word is right if some font draws this picture for it, and no word that differs in one letter."""
    picture = _picture(question.partition("\n\n")[2])

    def is_drawn(word: str) -> bool:
        fonts = [font for font in _fonts() if _draw(font, word) == picture]
        letters = [chr(code) for code in range(ord("A"), ord("Z") + 1)]
        for font in fonts[:1]:
            for place in range(len(word)):
                others = {word[:place] + letter + word[place + 1 :] for letter in letters} - {word}
                if any(_draw(font, other) == picture for other in others):
                    return False
        return bool(fonts)

    return Solution(judge=is_drawn)


@functools.cache
def _fonts() -> list[str]:
    return sorted(pyfiglet.FigletFont.getFonts())


@functools.cache
def _figlet(font: str) -> pyfiglet.Figlet:
    return pyfiglet.Figlet(font=font)


@functools.lru_cache(maxsize=4096)
def _draw(font: str, word: str) -> str:
    """The picture of a word, its letters with a blank between them."""
    return _picture(_figlet(font).renderText(" ".join(word)))


def _picture(text: str) -> str:
    """A picture without blanks at the ends of its lines, and without empty lines above and below."""
    lines = [line.rstrip() for line in text.split("\n")]
    return "\n".join(lines).strip("\n")


# --- list_functions


def list_functions(question: str) -> Solution:
    """The result of all simple rules that fit the examples, if it is the same."""
    lists = [ast.literal_eval(text) for text in re.findall(r"put(?: \d+)?: (\[.*\])", question)]
    *shown, asked = lists
    examples = list(zip(shown[::2], shown[1::2], strict=True))
    fitting = [
        (name, rule)
        for name, rule in _simple_rules(examples)
        if all(_applied(rule, given) == result for given, result in examples)
    ]
    # Among a hundred numbers, the count of one of them often fits by chance.
    natural = [(name, rule) for name, rule in fitting if not name.startswith("count of")]
    found: dict[str, str] = {}
    for name, rule in natural or fitting:
        found.setdefault(str(_applied(rule, asked)), name)
    if len(found) == 1:
        return value(*found)
    if not found:
        return undecided("no simple rule found")
    return undecided(f"{len(found)} rules fit: {', '.join(sorted(found.values()))}")


def _applied(rule: Rule, given: Numbers) -> Numbers | None:
    try:
        return rule(list(given))
    except IndexError:
        return None


def _simple_rules(examples: Sequence[tuple[Numbers, Numbers]]) -> Iterator[tuple[str, Rule]]:
    yield "the list itself", lambda given: given
    yield "the list reversed", lambda given: given[::-1]
    yield "in ascending order", sorted
    yield "in descending order", lambda given: sorted(given, reverse=True)
    for place in (0, 1, 2, 3, -1, -2, -3):
        yield f"element {place}", lambda given, place=place: [given[place]]
    yield "the element whose place is the last element", lambda given: [given[given[-1]]]
    yield "the length", lambda given: [len(given)]
    yield "the sum", lambda given: [sum(given)]
    yield "the largest", lambda given: [max(given)]
    yield "the smallest", lambda given: [min(given)]
    for first in (0, 1):
        yield f"plus place from {first}", lambda given, first=first: [n + place for place, n in enumerate(given, first)]
    yield "what stands before an even number", lambda given: [a for a, b in itertools.pairwise(given) if b % 2 == 0]
    yield "ends plus one", lambda given: [given[0] + 1, *given[1:-1], given[-1] + 1]
    for limit in range(10, 100, 10):
        yield f"sum below {limit}", lambda given, limit=limit: [sum(n for n in given if n < limit)]
        yield f"sum of different below {limit}", lambda given, limit=limit: [sum(n for n in set(given) if n < limit)]
    for number in range(1, 101):
        yield f"count of {number}", lambda given, number=number: [given.count(number)]
    yield "whether it ascends", lambda given: [int(given == sorted(given))]
    yield "whether it is even", lambda given: [int(given[0] % 2 == 0)] if len(given) == 1 else []
    yield "twice the last", lambda given: [2 * given[-1]]
    yield from _lines(examples)


def _lines(examples: Sequence[tuple[Numbers, Numbers]]) -> Iterator[tuple[str, Rule]]:
    """The line through two examples with one number each."""
    points = sorted({(given[0], result[0]) for given, result in examples if len(given) == len(result) == 1})
    if len(points) > 1:
        (x1, y1), (x2, y2) = points[:2]
        slope, rest = divmod(y2 - y1, x2 - x1)
        if not rest and slope:
            yield "a line", lambda given: [slope * (given[0] - x1) + y1]
