"""Tasks of puzzles, games, logic and graphs."""

from __future__ import annotations

import ast
import functools
import itertools
import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from ..common import Cell, as_text, distances, evaluate, neighbours_of
from ..solution import Solution, undecided, value

ENOUGH = 2
"""A search ends after it has found this many solutions."""
MANY = 20
"""The same limit for puzzles whose key must be among the solutions."""

# --- grids of numbers


def rows_of(text: str, pattern: str) -> list[list[str]]:
    """The lines that match the pattern, each as the list of its words."""
    return [line.split() for line in text.splitlines() if re.fullmatch(pattern, line.strip())]


def fillings(
    filled: dict[Any, int], blanks: set[Any], allowed: Callable[[Mapping[Any, int], Any], set[int]]
) -> Iterator[dict[Any, int]]:
    """All ways to fill the blank cells with allowed values. Tries the cell that has the fewest allowed values first."""
    if not blanks:
        yield dict(filled)
        return
    choices = {cell: allowed(filled, cell) for cell in blanks}
    cell = min(choices, key=lambda blank: len(choices[blank]))
    for number in sorted(choices[cell]):
        filled[cell] = number
        yield from fillings(filled, blanks - {cell}, allowed)
        del filled[cell]


def latin_squares(grid: list[list[str]], box: int) -> Solution:
    """The solutions of a Sudoku whose boxes have `box` rows and columns."""
    size = len(grid)
    cells = list(itertools.product(range(size), range(size)))
    givens = {(row, column): int(grid[row][column]) for row, column in cells if grid[row][column] != "_"}

    def sees(first: Cell, second: Cell) -> bool:
        same_box = first[0] // box == second[0] // box and first[1] // box == second[1] // box
        return first[0] == second[0] or first[1] == second[1] or same_box

    peers = {cell: [other for other in cells if other != cell and sees(cell, other)] for cell in cells}
    for cell, number in givens.items():
        if any(givens.get(peer) == number for peer in peers[cell]):
            return Solution(why="two numbers of the question are equal in a row, a column or a box")

    def allowed(filled: Mapping[Cell, int], cell: Cell) -> set[int]:
        return set(range(1, size + 1)) - {filled[peer] for peer in peers[cell] if peer in filled}

    answers = []
    for solution in itertools.islice(fillings(givens, set(cells) - givens.keys(), allowed), MANY):
        answers.append(as_text([solution[row, column] for column in range(size)] for row in range(size)))
    return Solution(answers, why=f"{len(answers)} solutions found")


def sudoku(question: str) -> Solution:
    """`Solve this Sudoku puzzle: _ _ 8 1 9 3 4 5 _ ...`, with the usual rules."""
    return latin_squares(rows_of(question, r"[1-9_]( [1-9_]){8}"), 3)


def mini_sudoku(question: str) -> Solution:
    """`In 4x4 Mini Sudoku: Each row must contain each number from 1-4 exactly once ... 2 1 _ 4 ...`"""
    return latin_squares(rows_of(question, r"[1-4_]( [1-4_]){3}"), 2)


def futoshiki(question: str) -> Solution:
    """`Solve the following 4x4 Futoshiki puzzle: ...`. A cell takes four characters, the sign after it included."""
    size = int(re.findall(r"following (\d+)x", question)[0])
    lines = question.split("\n")
    first = next(index for index, line in enumerate(lines) if re.match(r"[\d_] [ <>] ", line))
    board = [line.ljust(4 * size) for line in [*lines[first : first + 2 * size - 1], ""]]
    givens: dict[Cell, int] = {}
    smaller_and_greater: list[tuple[Cell, Cell]] = []
    for row, column in itertools.product(range(size), range(size)):
        character = board[2 * row][4 * column]
        if character != "_":
            givens[row, column] = int(character)
        right = (board[2 * row][4 * column + 2], (row, column + 1))
        below = (board[2 * row + 1][4 * column], (row + 1, column))
        for sign, other in (right, below):
            if sign in "<∧":
                smaller_and_greater.append(((row, column), other))
            if sign in ">∨":
                smaller_and_greater.append((other, (row, column)))
    cells = list(itertools.product(range(size), range(size)))
    greater_than = {cell: [great for small, great in smaller_and_greater if small == cell] for cell in cells}
    smaller_than = {cell: [small for small, great in smaller_and_greater if great == cell] for cell in cells}

    def allowed(filled: Mapping[Cell, int], cell: Cell) -> set[int]:
        highest = min((filled.get(other, size) - 1 for other in greater_than[cell]), default=size)
        lowest = max((filled.get(other, 1) + 1 for other in smaller_than[cell]), default=1)
        line = [(cell[0], index) for index in range(size)] + [(index, cell[1]) for index in range(size)]
        return set(range(lowest, highest + 1)) - {filled[other] for other in line if other in filled}

    answers = []
    for solution in itertools.islice(fillings(givens, set(cells) - givens.keys(), allowed), MANY):
        picture = [list(line) for line in board[:-1]]
        for (row, column), number in solution.items():
            picture[2 * row][4 * column] = str(number)
        answers.append("\n".join("".join(line).rstrip() for line in picture))
    return Solution(answers, why=f"{len(answers)} solutions found")


def kakurasu(question: str) -> Solution:
    """`... row sums [8, 8, 2, 6] and column sums [7, 7, 7, 3]`

    A 1 adds the number of its column to the sum of its row, and the number of its row to the sum of its column.
    """
    found = re.findall(r"\[([\d, ]+)\]", question)
    row_sums, column_sums = (list(map(int, numbers.split(","))) for numbers in found[:2])
    columns = len(column_sums)

    def rows_above(row: int, needs: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
        """All ways to fill the rows up to `row`. The columns still need these sums."""
        if row == 0:
            if not any(needs):
                yield []
            return
        for cells in itertools.product((0, 1), repeat=columns):
            points = sum(column * cell for column, cell in enumerate(cells, start=1))
            if points != row_sums[row - 1]:
                continue
            rest = tuple(need - row * cell for need, cell in zip(needs, cells, strict=True))
            # The rows above can add at most 1 + 2 + ... + (row - 1).
            if min(rest) >= 0 and max(rest) <= row * (row - 1) // 2:
                for above in rows_above(row - 1, rest):
                    yield [*above, cells]

    solutions = itertools.islice(rows_above(len(row_sums), tuple(column_sums)), MANY)
    return Solution([as_text(solution) for solution in solutions])


def survo(question: str) -> Solution:
    """`Given a 4*4 matrix where the last element of each row and column equals the sum of the other elements ...`"""
    matrix = [list(map(int, row)) for row in rows_of(question, r"\d+( \d+)+")]
    numbers = Counter(map(int, re.findall(r"\[([\d, ]+)\]", question)[0].split(",")))
    puzzle = [list(row) for row in matrix]
    given_numbers = Counter(numbers)
    inner = range(len(matrix) - 1)
    blanks = [(row, column) for row, column in itertools.product(inner, inner) if matrix[row][column] == 0]
    row_needs = [matrix[row][-1] - sum(matrix[row][:-1]) for row in inner]
    column_needs = [matrix[-1][column] - sum(matrix[row][column] for row in inner) for column in inner]
    row_blanks = Counter(row for row, _ in blanks)
    column_blanks = Counter(column for _, column in blanks)

    def fits(need: int, count: int) -> bool:
        if count == 0:
            return need == 0
        left = [number for number in numbers if numbers[number]]
        return bool(left) and count * min(left) <= need <= count * max(left)

    def fill(index: int) -> Iterator[str]:
        if index == len(blanks):
            yield as_text(matrix)
            return
        row, column = blanks[index]
        row_blanks[row] -= 1
        column_blanks[column] -= 1
        for number in sorted(numbers):
            if not numbers[number]:
                continue
            numbers[number] -= 1
            matrix[row][column] = number
            row_needs[row] -= number
            column_needs[column] -= number
            if fits(row_needs[row], row_blanks[row]) and fits(column_needs[column], column_blanks[column]):
                yield from fill(index + 1)
            row_needs[row] += number
            column_needs[column] += number
            matrix[row][column] = 0
            numbers[number] += 1
        row_blanks[row] += 1
        column_blanks[column] += 1

    def judge(key: str) -> bool:
        answer = [list(map(int, row.split())) for row in key.strip().splitlines()]
        sums = [sum(row[:-1]) == row[-1] for row in [*answer, *zip(*answer, strict=True)]]
        keeps = all(
            given in (0, new)
            for old, row in zip(puzzle, answer, strict=True)
            for given, new in zip(old, row, strict=True)
        )
        return all(sums) and keeps and Counter(answer[row][column] for row, column in blanks) == given_numbers

    return Solution(list(itertools.islice(fill(0), ENOUGH)), judge)


@functools.lru_cache(maxsize=4)
def digits_of_letters(letters: int) -> np.ndarray:
    """All ways to assign different digits to `letters` letters. Shape: (ways, letters)."""
    flat = itertools.chain.from_iterable(itertools.permutations(range(10), letters))
    return np.fromiter(flat, dtype=np.int8).reshape(-1, letters)


def cryptarithm(question: str) -> Solution:
    """`KMF + PMMP + TTEEM + FMF = ETMQF`, one number a line, with a rule before the sum."""
    words = re.findall(r"^\+? *([A-Z]+)$", question, re.MULTILINE)
    letters = sorted(set("".join(words)))
    weights = Counter[str]()
    for word in words[:-1]:
        for place, letter in enumerate(reversed(word)):
            weights[letter] += 10**place
    for place, letter in enumerate(reversed(words[-1])):
        weights[letter] -= 10**place
    ways = digits_of_letters(len(letters))
    total = np.zeros(len(ways), dtype=np.int64)
    for index, letter in enumerate(letters):
        total += ways[:, index] * np.int64(weights[letter])
    leading = [letters.index(word[0]) for word in words]
    answers = []
    for way in ways[total == 0]:
        if all(way[index] != 0 for index in leading):
            answers.append(",".join(f"{letter}={digit}" for letter, digit in zip(letters, way, strict=True)))
    return Solution(answers[:ENOUGH], judge=lambda key: ",".join(sorted(key.split(","))) in answers)


# --- logic

Truth = Callable[[Mapping[str, bool]], bool]
"""Decides whether a statement is true, given which persons tell the truth."""


def parse_claim(text: str, truthful: str) -> Truth:
    """A claim such as `(A is a fool) or (B is a sage and C is a fool)`. Raises ValueError if it has two readings."""
    tokens = re.findall(
        r"\(|\)|if and only if|it is not the case that|\w+ is an? \w+|\bif\b|\bthen\b|\band\b|\bor\b|\S+", text
    )

    def operand() -> Truth:
        token = tokens.pop(0)
        if token == "(":
            inside = claim()
            if tokens.pop(0) != ")":
                raise ValueError(text)
            return inside
        if token == "it is not the case that":
            denied = operand()
            return lambda world: not denied(world)
        if token == "if":
            condition = claim()
            if tokens.pop(0) != "then":
                raise ValueError(text)
            consequence = claim()
            return lambda world: not condition(world) or consequence(world)
        found = re.fullmatch(r"(\w+) is an? (\w+)", token)
        if found is None:
            raise ValueError(text)
        name, role = found.groups()
        return lambda world: world[name] == (role == truthful)

    def claim() -> Truth:
        terms = [operand()]
        connectives = []
        while tokens and tokens[0] in ("and", "or", "if and only if"):
            connectives.append(tokens.pop(0))
            terms.append(operand())
        if not connectives:
            return terms[0]
        if len(set(connectives)) > 1 or connectives.count("if and only if") > 1:
            raise ValueError(text)
        if "and" in connectives:
            return lambda world: all(term(world) for term in terms)
        if "or" in connectives:
            return lambda world: any(term(world) for term in terms)
        return lambda world: terms[0](world) == terms[1](world)

    whole = claim()
    if tokens:
        raise ValueError(text)
    return whole


def knights_knaves(question: str) -> Solution:
    """`... inhabited only by sages and fools. Sages always tell the truth ... You meet 2 inhabitants: ...`"""
    article = r"an? (\w+)"
    truthful, lying = re.findall(rf"who is {article} and who is {article}\?", question)[0]
    people, rest = re.findall(r"inhabitants: (.*?)\. (.*) So who is", question, re.DOTALL)[0]
    names = re.findall(r"[A-Z]\w*", people)
    quotes: list[str] = []

    def shorten(found: re.Match[str]) -> str:
        quotes.append(found.group(1).rstrip(".,"))
        return f"#{len(quotes) - 1}" + (". " if found.group(1).endswith(".") else "")

    claims: list[tuple[str, Truth]] = []
    for sentence in re.sub(r'"([^"]*)"', shorten, rest).split(". "):
        if not sentence.strip(" ."):
            continue
        quoted = re.findall(r"#(\d+)", sentence)
        speaker = next(word for word in re.findall(r"[A-Z]\w*", sentence) if word in names)
        said = quotes[int(quoted[0])] if quoted else sentence.split(" that ", 1)[1]
        try:
            claims.append((speaker, parse_claim(said.strip(" ."), truthful)))
        except (ValueError, IndexError, KeyError):
            return undecided(f"no reading of {said!r}")
    worlds = []
    for truths in itertools.product((True, False), repeat=len(names)):
        world = dict(zip(names, truths, strict=True))
        if all(claim(world) == world[speaker] for speaker, claim in claims):
            worlds.append(world)

    def with_article(word: str) -> str:
        return ("an " if word[0] in "aeiou" else "a ") + word

    answers = []
    for world in worlds:
        parts = [f"{name} is {with_article(truthful if world[name] else lying)}" for name in names]
        answers.append(", ".join(parts[:-1]) + f", and {parts[-1]}.")

    return Solution(answers, why=f"{len(worlds)} worlds fit")


PLACES = ("first", "second", "third", "fourth", "fifth", "sixth")
Trait = tuple[str, str]
"""A characteristic and its value, such as ("Each person has a favorite drink", "tea")."""


def zebra_puzzles(question: str) -> Solution:
    """`This is a logic puzzle. There are 2 houses ... What is Name of the person who lives in House 1??`"""
    characteristics = {name: values.split(", ") for name, values in re.findall(r"^ - (.*): (.*)$", question, re.M)}
    name_of_names = next(name for name in characteristics if "name" in name)
    houses = range(1, len(characteristics[name_of_names]) + 1)
    traits = [(name, word) for name, words in characteristics.items() for word in words]

    def trait_of(phrase: str) -> Trait | None:
        """The trait that the phrase describes."""
        text = phrase.strip().lower()
        if (name_of_names, text) in traits:
            return name_of_names, text
        is_child = "child" in text or "mother" in text
        found = []
        for name, word in traits:
            stem = "rose" if word == "roses" else word
            if name != name_of_names and ("child" in name) == is_child and re.search(rf"\b{stem}", text):
                found.append((name, word))
        return max(found, key=lambda trait: len(trait[1]), default=None)

    domains = {trait: set(houses) for trait in traits}
    relations: list[tuple[Trait, Trait, Callable[[int, int], bool]]] = []
    for clue in re.findall(r"^\d+\. (.*)\.$", question, re.M):
        place = re.fullmatch(r"(.*) is in the (\w+) house", clue)
        left = re.fullmatch(r"(.*) is directly left of (.*)", clue)
        beside = re.fullmatch(r"(.*) and (.*) are next to each other", clue)
        if place:
            trait = trait_of(place.group(1))
            if trait is None:
                return undecided(clue)
            domains[trait] &= {PLACES.index(place.group(2)) + 1}
            continue
        relation: Callable[[int, int], bool] = int.__eq__
        pairs = [(clue[: cut.start()], clue[cut.end() :]) for cut in re.finditer(" is ", clue)]
        if left:
            relation = is_directly_left
            pairs = [(left.group(1), left.group(2))]
        if beside:
            relation = is_beside
            pairs = [(beside.group(1), beside.group(2))]
        readings = [(trait_of(first), trait_of(second)) for first, second in pairs]
        both = [(first, second) for first, second in readings if first and second]
        if not both:
            return undecided(clue)
        relations.append((both[0][0], both[0][1], relation))

    def exists(domains: dict[Trait, set[int]]) -> bool:
        """Whether every trait has a possible house. Narrows the sets of houses in `domains`."""
        is_changed = True
        while is_changed:
            before = sum(map(len, domains.values()))
            for first, second, relation in relations:
                for trait, other in ((first, second), (second, first)):
                    holds = relation if trait == first else lambda here, there, rule=relation: rule(there, here)
                    domains[trait] = {
                        here for here in domains[trait] if any(holds(here, there) for there in domains[other])
                    }
            for trait in traits:
                if len(domains[trait]) == 1:
                    for other in characteristics[trait[0]]:
                        if other != trait[1]:
                            domains[trait[0], other] = domains[trait[0], other] - domains[trait]
            if not all(domains.values()):
                return False
            is_changed = sum(map(len, domains.values())) < before
        open_traits = [trait for trait in traits if len(domains[trait]) > 1]
        if not open_traits:
            return True
        trait = min(open_traits, key=lambda one: len(domains[one]))
        return any(exists({**domains, trait: {house}}) for house in domains[trait])

    answers = []
    for name in characteristics[name_of_names]:
        trait = (name_of_names, name)
        if 1 in domains[trait] and exists({**domains, trait: {1}}):
            answers.append(name)
    return Solution(answers)


def is_directly_left(first: int, second: int) -> bool:
    """Whether the first house is the next one to the left of the second."""
    return first + 1 == second


def is_beside(first: int, second: int) -> bool:
    """Whether two houses are next to each other."""
    return abs(first - second) == 1


def syllogism(question: str) -> Solution:
    """`1. All dogs are doctors 2. All doctors are insects. Does it logically follow that: All dogs are insects?`"""
    pattern = r"(All|No|Some) (.+?) are (not )?(.+?)\??$"
    lines = [line.removeprefix("1. ").removeprefix("2. ").strip() for line in question.splitlines()]
    found = [re.fullmatch(pattern, line) for line in lines]
    statements = [match.groups() for match in found if match]
    kinds = sorted({statement[1] for statement in statements} | {statement[3] for statement in statements})
    somebody = list(itertools.product((False, True), repeat=len(kinds)))
    *premises, conclusion = statements
    for is_there in itertools.product((False, True), repeat=len(somebody)):
        world = [dict(zip(kinds, person, strict=True)) for person in itertools.compress(somebody, is_there)]
        if not all(any(person[kind] for person in world) for kind in kinds):
            continue
        if all(holds(premise, world) for premise in premises) and not holds(conclusion, world):
            return value("No")
    return value("Yes")


def holds(statement: Sequence[str | None], world: Iterable[Mapping[str, bool]]) -> bool:
    """Whether a statement of a syllogism is true in a world, which is the list of its inhabitants."""
    quantifier, subject, negation, predicate = statement
    among = [person[str(predicate)] for person in world if person[str(subject)]]
    if negation:
        among = [not is_so for is_so in among]
    if quantifier == "All":
        return all(among)
    if quantifier == "No":
        return not any(among)
    return any(among)


Worlds: TypeAlias = frozenset[int]
"""The worlds in which a formula is true. A letter is true in the worlds whose number has the bit of the letter."""


def worlds_of(text: str, letters: Sequence[str]) -> Worlds:
    """Where a formula of `∨ ∧ → ↔ ¬`, with all its parentheses, is true."""
    tokens = re.findall(r"[()∨∧→↔¬]|\w+", text)
    everywhere = frozenset(range(2 ** len(letters)))

    def formula() -> Worlds:
        token = tokens.pop(0)
        if token == "¬":
            return everywhere - formula()
        if token != "(":
            return frozenset(world for world in everywhere if world >> letters.index(token) & 1)
        left = formula()
        connective = tokens.pop(0)
        right = formula()
        tokens.pop(0)
        results = {
            "∧": left & right,
            "∨": left | right,
            "→": everywhere - left | right,
            "↔": everywhere - (left ^ right),
        }
        return results[connective]

    return formula()


def propositional_logic(question: str) -> Solution:
    """`Given: 1. (P ∧ P) .2. (P ↔ Q) ... What can we conclude from the above statements?`

    The solver gives literals that follow, and clauses of two of them that say all that follows about their letters.
    """
    premises = re.findall(r"^\.?\d+\. (.*)$", question, re.M)
    letters = sorted(set(re.findall(r"[A-Z]", " ".join(premises))))
    possible = frozenset.intersection(*(worlds_of(premise, letters) for premise in premises))
    if not possible:
        return undecided("the premises contradict each other, so that everything follows")
    literals = {literal: worlds_of(literal, letters) for name in letters for literal in (name, f"¬{name}")}
    answers = [literal for literal in sorted(literals) if possible <= literals[literal]]
    for first, second in itertools.combinations(sorted(literals), 2):
        only_first = possible & literals[first] - literals[second]
        only_second = possible & literals[second] - literals[first]
        both = possible & literals[first] & literals[second]
        if only_first and only_second and both and possible <= literals[first] | literals[second]:
            answers.append(f"({first} ∨ {second})")
    # A premise follows from itself, but repeating it in any form is not a conclusion.
    answers = [answer for answer in answers if not any(say_the_same(answer, premise) for premise in premises)]
    if not answers:
        return undecided("neither a literal nor a clause of two literals follows")
    return Solution([*answers[:ENOUGH], *answers[-1:]])


def say_the_same(first: str, second: str) -> bool:
    """Whether two formulas have the same letters, and the same truth in every world."""
    letters = sorted(set(re.findall("[A-Z]", first)))
    if letters != sorted(set(re.findall("[A-Z]", second))):
        return False
    return worlds_of(first, letters) == worlds_of(second, letters)


def is_prime(number: int) -> bool:
    """Whether the number is a prime."""
    return number > 1 and all(number % divisor for divisor in range(2, number))


def self_reference(question: str) -> Solution:
    """`Given the truthfulness of these statements, please tell me the number of possible solutions: ...`"""
    statements = re.findall(r"Statement \d+: '(.*)'", question)
    number_of_solutions = 0
    for truths in itertools.product((False, True), repeat=len(statements)):
        if all(is_true_here(text, truths) == truth for text, truth in zip(statements, truths, strict=True)):
            number_of_solutions += 1
    return value(number_of_solutions)


def is_true_here(text: str, truths: Sequence[bool]) -> bool:
    """Whether a statement about the statements is true, if they have these truth values."""
    count = truths.count("true" in text)
    either = re.fullmatch(r"Either Statement (\d+) or Statement (\d+) is true, but not both\.", text)
    amount = re.fullmatch(r"(At least|At most|Exactly) (\d+) of these \d+ statements are (true|false)\.", text)
    if either:
        return truths[int(either.group(1)) - 1] != truths[int(either.group(2)) - 1]
    if amount:
        limit = int(amount.group(2))
        return {"At least": count >= limit, "At most": count <= limit, "Exactly": count == limit}[amount.group(1)]
    if text.endswith("is a prime number."):
        return is_prime(count)
    if text.endswith("is a composite number."):
        return count > 1 and not is_prime(count)
    raise ValueError(text)


# --- arithmetic games


BASIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def worth(expression: str, numbers: Sequence[int]) -> Fraction | None:
    """The value of an expression that uses each of the numbers once, None if it does not."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError:
        return None
    used: list[Any] = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    if sorted(used) != sorted(numbers):
        return None
    if any(isinstance(node, ast.operator) and not isinstance(node, BASIC) for node in ast.walk(tree)):
        return None
    try:
        return evaluate(expression)
    except (ValueError, ZeroDivisionError):
        return None


Term = tuple[Fraction, str]
"""A value and the expression that has it."""


def combined(terms: Sequence[Term], target: int) -> Iterator[str]:
    """All expressions that combine all the terms to the target."""
    if len(terms) == 1:
        if terms[0][0] == target:
            yield terms[0][1]
        return
    for first, second in itertools.permutations(range(len(terms)), 2):
        rest = [term for index, term in enumerate(terms) if index not in (first, second)]
        (left, left_text), (right, right_text) = terms[first], terms[second]
        results = [(left - right, f"({left_text}-{right_text})")]
        if first < second:
            results.append((left + right, f"({left_text}+{right_text})"))
            results.append((left * right, f"({left_text}*{right_text})"))
        if right != 0:
            results.append((left / right, f"({left_text}/{right_text})"))
        for result in results:
            yield from combined([*rest, result], target)


def signed_sums(terms: Sequence[Term], target: int) -> str | None:
    """A sum of all the terms, each added or subtracted, that has this value."""
    reached: dict[Fraction, str] = {terms[0][0]: terms[0][1]}
    for amount, text in terms[1:]:
        further: dict[Fraction, str] = {}
        for total, sum_so_far in reached.items():
            further[total + amount] = f"{sum_so_far}+{text}"
            further[total - amount] = f"{sum_so_far}-{text}"
        reached = further
    return reached.get(Fraction(target))


def countdown(question: str) -> Solution:
    """`Find a way to make 169 using all of these numbers: 83, 94, 74, 90, 40. Each number can only be used once.`"""
    heading = question.split("Final answer format")[0]
    listed = max(re.findall(r"\d+(?:, \d+)+", heading), key=len)
    numbers = list(map(int, listed.split(", ")))
    target = int(re.findall(r"\d+", heading.replace(listed, ""))[0])

    def judge(expression: str) -> bool:
        return worth(expression, numbers) == target

    terms = [(Fraction(number), str(number)) for number in numbers]
    if len(terms) <= 4:
        return Solution(list(itertools.islice(combined(terms, target), ENOUGH)), judge)
    answers = []
    for chosen in itertools.permutations(range(len(terms)), 3):
        factor, first, second = (terms[index] for index in chosen)
        rest = [term for index, term in enumerate(terms) if index not in chosen]
        product = (factor[0] * (first[0] - second[0]), f"{factor[1]}*({first[1]}-{second[1]})")
        answer = signed_sums([product, *rest], target)
        if answer:
            answers.append(answer)
        if len(answers) == ENOUGH or factor[0] > 300:
            break
    return Solution(answers, judge)


def puzzle24(question: str) -> Solution:
    """`Make 24 using 6, 4, 1, 1. You can only use each number once.` Read as in the game: all of them are used."""
    numbers = list(map(int, re.findall(r"using ([\d, ]+)\.", question)[0].split(",")))
    terms = [(Fraction(number), str(number)) for number in numbers]
    answers = list(itertools.islice(combined(terms, 24), ENOUGH))
    return Solution(answers, judge=lambda expression: worth(expression, numbers) == 24)


# --- boards and moves

State: TypeAlias = Any
"""A position of a game, hashable."""


def shortest_walk(
    start: State, steps: Callable[[State], Iterable[tuple[str, State]]], is_end: Callable[[State], bool], limit: int
) -> list[str] | None:
    """The moves of a shortest path from the start to an end. None if the search finds no path in so many states."""
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    waiting = deque([start])
    while waiting and len(came_from) < limit:
        state = waiting.popleft()
        if is_end(state):
            moves = []
            step = came_from[state]
            while step is not None:
                moves.append(step[1])
                step = came_from[step[0]]
            return moves[::-1]
        for move, following in steps(state):
            if following not in came_from:
                came_from[following] = (state, move)
                waiting.append(following)
    return None


def replay(start: State, steps: Callable[[State], Iterable[tuple[str, State]]], moves: Iterable[str]) -> State | None:
    """The state after these moves, or None if a move is not possible."""
    state = start
    for move in moves:
        following = dict(steps(state))
        if move not in following:
            return None
        state = following[move]
    return state


def n_queens(question: str) -> Solution:
    """`Your job is to complete an n x n chess board with n Queens in total, such that no two attack each other.`"""
    board = rows_of(question, r"[_Q]( [_Q])+")
    size = len(board)
    given = {row: line.index("Q") for row, line in enumerate(board) if "Q" in line}

    def attacks(first: Cell, second: Cell) -> bool:
        across = abs(first[1] - second[1])
        return across in (0, abs(first[0] - second[0])) or first[0] == second[0]

    def allowed(queens: Mapping[Any, int], row: Any) -> set[int]:
        return {column for column in range(size) if not any(attacks((row, column), queen) for queen in queens.items())}

    def judge(key: str) -> bool:
        answer = rows_of(key, r"[_Q]( [_Q])+")
        cells = list(itertools.product(range(size), range(size)))
        queens = [(row, column) for row, column in cells if answer[row][column] == "Q"]
        keeps = all(answer[row][column] == "Q" for row, column in given.items())
        return keeps and len(queens) == size and not any(itertools.starmap(attacks, itertools.combinations(queens, 2)))

    answers = []
    for queens in itertools.islice(fillings(dict(given), set(range(size)) - given.keys(), allowed), ENOUGH):
        rows = [["Q" if queens[row] == column else "_" for column in range(size)] for row in range(size)]
        answers.append(as_text(rows))
    return Solution(answers, judge)


def maze(question: str) -> Solution:
    """`Navigate from 'M' (start) to 'g' (goal): ... What is the minimum number of steps to reach the goal?`

    A step goes to one of the four cells beside a cell. The text does not say it.
    """
    start_mark, goal_mark = re.findall(r"from '(.)' \(start\) to '(.)' \(goal\)", question)[0]
    wall = re.findall(r"'(.)' = Wall", question)[0]
    # A mark of the maze may be a backtick.
    grid = re.findall(r"\n```\n(.*?)\n```\n", question, re.DOTALL)[0].split("\n")
    cells = {(row, column): mark for row, line in enumerate(grid) for column, mark in enumerate(line)}
    start = next(cell for cell, mark in cells.items() if mark == start_mark)

    steps = distances([start], lambda cell: cells.get(cell, wall) != wall)
    goal = next(cell for cell, mark in cells.items() if mark == goal_mark)
    return value(steps.get(goal, "infinity"))


def tower_of_hanoi(question: str) -> Solution:
    """`Solve the Tower of Hanoi problem with 3 disks and 3 pegs. Move all disks from Peg 2 to Peg 1 ...`

    The text does not ask for few moves. Disk 1 is the smallest: this is the custom, the text does not say it.
    """
    disks, pegs = map(int, re.findall(r"with (\d+) disks and (\d+) pegs", question)[0])
    start, goal = map(int, re.findall(r"from Peg (\d+) to Peg (\d+) following", question)[0])

    def tower(these: Sequence[int], source: int, target: int, free: tuple[int, ...]) -> list[str]:
        """The moves for these disks, smallest first. The free pegs hold no smaller disk."""
        if len(these) == 1:
            return [f"Move disk {these[0]} from Peg {source} to Peg {target}"]
        # With three pegs, all disks but one move to one peg. With more pegs, half of the disks first move aside.
        aside = len(these) - 1 if len(free) == 1 else len(these) // 2
        first = tower(these[:aside], source, free[0], (*free[1:], target))
        middle = tower(these[aside:], source, target, free[1:])
        last = tower(these[:aside], free[0], target, (*free[1:], source))
        return [*first, *middle, *last]

    def judge(key: str) -> bool:
        towers: dict[int, list[int]] = {peg: [] for peg in range(1, pegs + 1)}
        towers[start] = list(range(disks, 0, -1))
        for line in key.strip().splitlines():
            disk, source, target = map(int, re.findall(r"\d+", line))
            if not towers[source] or towers[source][-1] != disk:
                return False
            if towers[target] and towers[target][-1] < disk:
                return False
            towers[target].append(towers[source].pop())
        return len(towers[goal]) == disks

    others = tuple(peg for peg in range(1, pegs + 1) if peg not in (start, goal))
    moves = tower(range(1, disks + 1), start, goal, others)
    detour = [f"Move disk 1 from Peg {start} to Peg {others[0]}", f"Move disk 1 from Peg {others[0]} to Peg {start}"]
    answers = ["\n".join(moves), "\n".join([*detour, *moves])]
    return Solution([answer for answer in answers if judge(answer)], judge)


def jugs(question: str) -> Solution:
    """`... The empty jugs hold this many litres of water: A:3, B:7, C:3 And your target is: 5 litres.`"""
    capacities = {name: int(litres) for name, litres in re.findall(r"([A-Z]):(\d+)", question)}
    names = list(capacities)
    target = int(re.findall(r"target is: (\d+)", question)[0])

    def steps(amounts: State) -> Iterator[tuple[str, State]]:
        held = dict(zip(names, amounts, strict=True))
        for name in names:
            yield f"fill {name}", tuple({**held, name: capacities[name]}.values())
            yield f"empty {name}", tuple({**held, name: 0}.values())
        for source, goal in itertools.permutations(names, 2):
            amount = min(held[source], capacities[goal] - held[goal])
            poured = {**held, source: held[source] - amount, goal: held[goal] + amount}
            yield f"pour {source}->{goal}", tuple(poured.values())

    def judge(key: str) -> bool:
        amounts = replay(start, steps, json.loads(key))
        return amounts is not None and target in amounts

    start = (0,) * len(names)
    path = shortest_walk(start, steps, lambda amounts: target in amounts, 100_000)
    if path is None:
        return Solution(judge=judge)
    detour = [f"fill {names[0]}", f"empty {names[0]}", *path]
    return Solution([json.dumps(path), json.dumps(detour)], judge)


def quantum_lock(question: str) -> Solution:
    """`... Start: 0 (red) Target: 8 Buttons: A: Add 2 (when green) B: ...`. All shortest sequences are right."""
    number, colour = re.findall(r"Start: (-?\d+) \((\w+)\)", question)[0]
    target = int(re.findall(r"Target: (-?\d+)", question)[0])
    buttons = re.findall(r"^([A-Z]): (\w+) (\d+) \(when (\w+)\)", question, re.M)
    reached: dict[tuple[int, str], list[str]] = {(int(number), colour): [""]}
    seen = set(reached)
    while reached:
        found = [way for (total, _), ways in reached.items() if total == target for way in ways]
        if found:
            answers = [" → ".join(way) for way in found]
            return Solution(answers)
        following: dict[tuple[int, str], list[str]] = {}
        for (total, light), ways in reached.items():
            for name, verb, operand, when in buttons:
                if when not in ("any", light):
                    continue
                amount = int(operand)
                result = {"Add": total + amount, "Subtract": total - amount, "Multiply": total * amount}[verb]
                state = (result, "green" if light == "red" else "red")
                if state not in seen and abs(result) < 10_000:
                    following.setdefault(state, []).extend(way + name for way in ways)
        seen |= following.keys()
        reached = following
    return Solution(why="no sequence reaches the target")


def next_generation(board: Sequence[Sequence[int]]) -> list[list[int]]:
    """One step of Conway's Game of Life on a torus."""
    height = len(board)
    width = len(board[0])
    around = [step for step in itertools.product((-1, 0, 1), repeat=2) if step != (0, 0)]
    following = []
    for row in range(height):
        line = []
        for column in range(width):
            alive = sum(board[(row + down) % height][(column + right) % width] for down, right in around)
            line.append(int(alive == 3 or (alive == 2 and board[row][column] == 1)))
        following.append(line)
    return following


def game_of_life(question: str) -> Solution:
    """`What will this Game of Life board look like after 1 steps of simulation? ... [[0,1,0,0,...]]`"""
    steps = int(re.findall(r"after (\d+) step", question)[0])
    board = json.loads(question.split("\n\n", 1)[1].strip().rstrip("."))
    for _ in range(steps):
        board = next_generation(board)
    text = json.dumps(board)
    return Solution([text, text.replace(" ", "")])


def game_of_life_halting(question: str) -> Solution:
    """`... We consider a game halted if there are no cells alive. Will this game halt at or before 20 steps?`"""
    steps = int(re.findall(r"before (\d+) steps", question)[0])
    board = [list(map(int, re.findall(r"[01]", line))) for line in question.split("board:")[1].strip().splitlines()]
    for _ in range(steps):
        board = next_generation(board)
    return value(not any(map(any, board)))


def graph_color(question: str) -> Solution:
    """`Vertices: [0, 1, 2] Edges: [(0, 1)] Possible colors: [1, 2, 3]. Return your solution as a JSON map ...`"""
    vertices = ast.literal_eval(re.findall(r"Vertices: (.*)", question)[0])
    edges = ast.literal_eval(re.findall(r"Edges: (.*)", question)[0])
    colours = ast.literal_eval(re.findall(r"colors: (.*)", question)[0])
    neighbours: dict[int, set[int]] = {vertex: set() for vertex in vertices}
    for first, second in edges:
        neighbours[first].add(second)
        neighbours[second].add(first)

    def allowed(painted: Mapping[Any, int], vertex: Any) -> set[int]:
        return set(colours) - {painted.get(beside) for beside in neighbours[vertex]}

    answers = [json.dumps(painted) for painted in itertools.islice(fillings({}, set(vertices), allowed), ENOUGH)]
    if not answers:
        return undecided("the graph has no such colouring")
    return Solution(answers)


def boxnet(question: str) -> Solution:
    """`You are a central planner tasked with directing agents in a grid-like field to move colored boxes ...`

    The plan moves one box a step, each to the first free target of its colour.
    """
    boxes: list[tuple[str, Cell]] = []
    targets: list[tuple[str, Cell]] = []
    for row, column, things in re.findall(r"in square\[([\d.]+), ([\d.]+)\], I can observe \[(.*?)\]", question):
        cell = (int(float(row)), int(float(column)))
        boxes += [(colour, cell) for colour in re.findall(r"box_(\w+)", things)]
        targets += [(colour, cell) for colour in re.findall(r"target_(\w+)", things)]
    plan: list[dict[str, str]] = []

    def named(cell: Cell) -> str:
        return f"[{cell[0] + 0.5}, {cell[1] + 0.5}]"

    for colour, cell in boxes:
        target = next((target for target in targets if target[0] == colour), None)
        if target is None:
            return undecided("there are more boxes than targets of their colour")
        while cell != target[1]:
            axis = 0 if cell[0] != target[1][0] else 1
            further = list(cell)
            further[axis] += 1 if target[1][axis] > cell[axis] else -1
            following = (further[0], further[1])
            plan.append({f"Agent{named(cell)}": f"move(box_{colour}, square{named(following)})"})
            cell = following
        plan.append({f"Agent{named(cell)}": f"move(box_{colour}, target_{colour})"})
        targets.remove(target)
    return Solution([json.dumps(plan)])


def knight_swap(question: str) -> Solution:
    """`Is it possible to swap all knights' positions? If yes, list the moves.` Or else, the answer is `No`."""
    places: dict[str, str] = {}
    for number, line in re.findall(r"^(\d+) \|(.*)\|$", question, re.M):
        for index, mark in enumerate(line.split("|")):
            if mark.strip():
                places["ABCDEFGHIJ"[index] + number] = mark.strip()
    first = re.findall(r"(\w) moves first", question)[0]
    white = frozenset(place for place, mark in places.items() if mark == "w")
    black = frozenset(place for place, mark in places.items() if mark == "B")

    def is_jump(source: str, target: str) -> bool:
        across = abs(ord(source[0]) - ord(target[0]))
        return {across, abs(int(source[1:]) - int(target[1:]))} == {1, 2}

    jumps = {place: [other for other in places if is_jump(place, other)] for place in places}

    def steps(state: State) -> Iterator[tuple[str, State]]:
        whites, blacks, colour = state
        own, others = (whites, blacks) if colour == "w" else (blacks, whites)
        for source in sorted(own):
            for target in jumps[source]:
                if target not in own and target not in others:
                    moved = own - {source} | {target}
                    after = (moved, blacks, "B") if colour == "w" else (whites, moved, "w")
                    yield f"{colour},{source},{target}", after

    def is_swapped(state: State) -> bool:
        return state[0] == black and state[1] == white

    start = (white, black, first)
    path = shortest_walk(start, steps, is_swapped, 1_000_000)
    if path is None:
        return value("No")

    def judge(key: str) -> bool:
        end = None if key == "No" else replay(start, steps, json.loads(key))
        return end is not None and is_swapped(end)

    answers = [json.dumps(path)]
    # Both players move a knight away and back. This returns the game to its start.
    for move, state in steps(start):
        for reply, _ in steps(state):
            back = [",".join([hop[0], *hop[2:].split(",")[::-1]]) for hop in (move, reply)]
            longer = json.dumps([move, reply, *back, *path])
            if judge(longer):
                return Solution([*answers, longer], judge)
    return Solution(answers, judge)


def mahjong_puzzle(question: str) -> Solution:
    """`... given the initial cards UJZPDEIGXLVGN, what is the result at the end of ... Round 1: Add a G card ...`"""
    hand = Counter(re.findall(r"initial cards ([A-Z]+)", question)[0])
    result = ""
    for card, removed in re.findall(r"Add an? ([A-Z]) card and remove an? ([A-Z]) card", question):
        around = {distance: hand[chr(ord(card) + distance)] for distance in (-2, -1, 1, 2)}
        result = "Pass"
        if (around[-2] and around[-1]) or (around[-1] and around[1]) or (around[1] and around[2]):
            result = "Chi"
        if hand[card] >= 2:
            result = "Peng"
        hand[card] += 1
        if hand[removed] < 1:
            return undecided(f"the hand has no card {removed} to remove")
        hand[removed] -= 1
    return value(result)


def rush_hour(question: str) -> Solution:
    """`Move the red car (AA) to the exit on the right.` A move may go several spaces: `F+1 K+1 M-1`."""
    board = [line for line in question.split("Board:")[1].split("\n") if re.fullmatch(r"[A-Zxo.]+", line)]
    width = len(board[0])
    cells = {(row, column): mark for row, line in enumerate(board) for column, mark in enumerate(line)}
    walls = {cell for cell, mark in cells.items() if mark == "x"}
    names = sorted({mark for mark in cells.values() if mark.isupper()})
    parts = {name: sorted(cell for cell, mark in cells.items() if mark == name) for name in names}
    is_level = {name: parts[name][0][0] == parts[name][-1][0] for name in names}

    def cells_of(name: str, at: int) -> list[Cell]:
        row, column = parts[name][0]
        length = range(at, at + len(parts[name]))
        return [(row, index) for index in length] if is_level[name] else [(index, column) for index in length]

    def steps(state: State) -> Iterator[tuple[str, State]]:
        places = list(state)
        taken = set(walls)
        for name, at in zip(names, places, strict=True):
            taken.update(cells_of(name, at))
        for index, name in enumerate(names):
            own = set(cells_of(name, places[index]))
            for direction in (1, -1):
                at = places[index] + direction
                while all(cell in cells and (cell in own or cell not in taken) for cell in cells_of(name, at)):
                    moved = (*places[:index], at, *places[index + 1 :])
                    yield f"{name}{at - places[index]:+d}", moved
                    at += direction

    red = names.index("A")
    last = width - len(parts["A"])
    start = tuple(parts[name][0][1 if is_level[name] else 0] for name in names)
    path = shortest_walk(start, steps, lambda state: state[red] == last, 60_000)
    if path is None:
        return undecided("a search of 60,000 positions found no solution")
    return Solution([" ".join(path)])


DIRECTIONS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}


def sokoban(question: str) -> Solution:
    """`You are going to solve a 'sokoban' puzzle. ...`. A move against a wall or a stuck box changes nothing."""
    lines = [line.split() for line in question.split("Here is your puzzle:")[1].strip().splitlines()]
    cells = {(row, column): mark for row, line in enumerate(lines) for column, mark in enumerate(line)}
    goals = {cell for cell, mark in cells.items() if mark in "X$%"}
    boxes = frozenset(cell for cell, mark in cells.items() if mark in "@$")
    player = next(cell for cell, mark in cells.items() if mark in "*%")

    def steps(state: State) -> Iterator[tuple[str, State]]:
        (row, column), crates = state
        for letter, (down, right) in DIRECTIONS.items():
            beside = (row + down, column + right)
            behind = (row + 2 * down, column + 2 * right)
            if cells[beside] == "+":
                continue
            if beside not in crates:
                yield letter, (beside, crates)
            elif cells[behind] != "+" and behind not in crates:
                yield letter, (beside, crates - {beside} | {behind})

    def judge(key: str) -> bool:
        state = replay(start, steps, key.strip())
        return state is not None and state[1] <= goals

    start = (player, boxes)
    path = shortest_walk(start, steps, lambda state: state[1] <= goals, 20_000)
    return Solution([] if path is None else ["".join(path)], judge)


Point = tuple[int, int, int]
"""A sticker: coordinates from left to right, from below to above, and from back to front. Each is -3, -2, 0, 2 or 3."""

TURNS: Mapping[str, tuple[int, int, Callable[[int, int, int], Point]]] = {
    "R": (0, 1, lambda x, y, z: (x, z, -y)),
    "L": (0, -1, lambda x, y, z: (x, -z, y)),
    "U": (1, 1, lambda x, y, z: (-z, y, x)),
    "D": (1, -1, lambda x, y, z: (z, y, -x)),
    "F": (2, 1, lambda x, y, z: (y, -x, z)),
    "B": (2, -1, lambda x, y, z: (-y, x, z)),
}
"""For each move in Singmaster's notation: the axis, the side of the layer, and the new place of a sticker."""


def stickers() -> list[Point]:
    """The stickers of a 3x3x3 cube in the order of the picture: U; then a row each of L, F, R and B; then D."""
    line = (-2, 0, 2)
    down = line[::-1]
    places = [(x, 3, z) for z in line for x in line]
    for y in down:
        places += [(-3, y, z) for z in line]
        places += [(x, y, 3) for x in line]
        places += [(3, y, z) for z in down]
        places += [(x, y, -3) for x in down]
    return places + [(x, -3, z) for z in down for x in line]


def face_of(place: Point) -> Point:
    """The centre of the face that the sticker is on."""
    x, y, z = (coordinate if abs(coordinate) == 3 else 0 for coordinate in place)
    return x, y, z


def turned(name: str) -> tuple[int, ...]:
    """For each place of the picture, the sticker that is there after the move. `R'` is the inverse of `R`."""
    places = stickers()
    axis, side, goes_to = TURNS[name[0]]
    source = list(range(len(places)))
    for index, place in enumerate(places):
        if place[axis] * side >= 2:
            goal = places.index(goes_to(*place))
            if name.endswith("'"):
                source[index] = goal
            else:
                source[goal] = index
    return tuple(source)


@functools.lru_cache(maxsize=2)
def cubes_around(start: tuple[int, ...], most: int) -> dict[tuple[int, ...], tuple[str, ...]]:
    """All cubes within `most` quarter turns of the start, with the moves that lead to each cube."""
    moves = {name + mark: turned(name + mark) for name in TURNS for mark in ("", "'")}
    reached: dict[tuple[int, ...], tuple[str, ...]] = {start: ()}
    newest = [start]
    for _ in range(most):
        following = []
        for cube in newest:
            for name, source in moves.items():
                after = tuple([cube[index] for index in source])
                if after not in reached:
                    reached[after] = (*reached[cube], name)
                    following.append(after)
        newest = following
    return reached


def rubiks_cube(question: str) -> Solution:
    """`You are given a 3x3x3 Rubik's cube. It looks like this: ...`. Solves cubes within eight quarter turns."""
    lines = re.findall(r"^[YRBGOW ]+$", question, re.M)
    colours = "".join(lines).split()
    if len(colours) != len(stickers()):
        return undecided("only cubes of three layers are solved")
    places = stickers()
    centres = sorted({face_of(place) for place in places})
    colour_of = {centre: colours[places.index(centre)] for centre in centres}
    face_with = {colour: index for index, colour in enumerate(colour_of.values())}
    cube = tuple(face_with[colour] for colour in colours)
    solved = tuple(centres.index(face_of(place)) for place in places)
    from_solved = cubes_around(solved, 4)
    for middle, moves in cubes_around(cube, 4).items():
        if middle in from_solved:
            back = [move[0] if move.endswith("'") else move + "'" for move in reversed(from_solved[middle])]
            detour = ["R", "R'"]
            return Solution([" ".join([*moves, *back]), " ".join([*detour, *moves, *back])])
    return undecided("the cube is more than eight quarter turns away")


def tsumego(question: str) -> Solution:
    """`Tsumego time. Black to play and capture some stones. Find the key move.`

    The solver looks one move ahead, and returns the moves that capture the most stones directly. It cannot tell whether
    a slower plan captures more.
    """
    lines = re.findall(r"^ ?(\d+) ([.XO](?: [.XO])*)$", question, re.M)
    stones = {(int(row), column): mark for row, line in lines for column, mark in enumerate(line.split())}

    def captured(move: Cell) -> int:
        board = {**stones, move: "X"}
        taken: set[Cell] = set()
        for cell, mark in board.items():
            if mark == "O" and cell not in taken:
                group, has_liberty = group_of(board, cell)
                if not has_liberty:
                    taken |= group
        return len(taken)

    counts = {move: captured(move) for move, mark in stones.items() if mark == "."}
    most = max(counts.values())
    if most == 0:
        return undecided("no single move captures stones")
    answers = ["ABCDEFGHIJKLMNOPQRST"[column] + str(row) for (row, column), count in counts.items() if count == most]
    return Solution(answers, why=f"captures {most} stones in one move")


def group_of(board: Mapping[Cell, str], start: Cell) -> tuple[set[Cell], bool]:
    """The stones that are connected to this stone, and whether the group has a free cell beside it."""
    group = {start}
    waiting = [start]
    has_liberty = False
    while waiting:
        for beside in neighbours_of(waiting.pop()):
            mark = board.get(beside)
            if mark == ".":
                has_liberty = True
            if mark == board[start] and beside not in group:
                group.add(beside)
                waiting.append(beside)
    return group, has_liberty


def arc_agi(question: str) -> Solution:
    """`Find the common rule that maps an input grid to an output grid, given the examples below.`"""
    return undecided("the rule is known from examples only")


def rearc(question: str) -> Solution:
    """`Find the common rule that maps an input grid to an output grid, given the examples below.`"""
    return undecided("the rule is known from examples only")
