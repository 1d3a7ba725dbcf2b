"""Tasks of puzzles, games, logic and graphs."""

from __future__ import annotations

import ast
import functools
import itertools
import json
import re
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np

from ..solution import Solution, undecided, value

Cell = tuple[int, int]
"""A row and a column of a grid."""

ENOUGH = 2
"""Solutions of a puzzle after which a search ends."""
NEIGHBOURS = ((0, 1), (1, 0), (0, -1), (-1, 0))

# --- grids of numbers


def rows_of(text: str, pattern: str) -> list[list[str]]:
    """The lines that match the pattern, each as the list of its words."""
    return [line.split() for line in text.splitlines() if re.fullmatch(pattern, line.strip())]


def as_text(rows: Iterable[Iterable[object]]) -> str:
    """A grid as the tasks write it: blanks between the columns, line ends between the rows."""
    return "\n".join(" ".join(map(str, row)) for row in rows)


def fillings(
    filled: dict[Cell, int], blanks: set[Cell], allowed: Callable[[Mapping[Cell, int], Cell], set[int]]
) -> Iterator[dict[Cell, int]]:
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
    cells = list(itertools.product(range(size), repeat=2))
    givens = {(row, column): int(grid[row][column]) for row, column in cells if grid[row][column] != "_"}

    def sees(first: Cell, second: Cell) -> bool:
        same_box = first[0] // box == second[0] // box and first[1] // box == second[1] // box
        return first[0] == second[0] or first[1] == second[1] or same_box

    peers = {cell: [other for other in cells if other != cell and sees(cell, other)] for cell in cells}
    for cell, number in givens.items():
        if any(givens.get(peer) == number for peer in peers[cell]):
            return Solution(why="two of the numbers that are given are the same in a row, a column or a box")

    def allowed(filled: Mapping[Cell, int], cell: Cell) -> set[int]:
        return set(range(1, size + 1)) - {filled[peer] for peer in peers[cell] if peer in filled}

    answers = []
    for solution in itertools.islice(fillings(givens, set(cells) - givens.keys(), allowed), ENOUGH):
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
    board = [line.ljust(4 * size) for line in lines[first : first + 2 * size - 1]]
    givens: dict[Cell, int] = {}
    smaller_and_greater: list[tuple[Cell, Cell]] = []
    for row, column in itertools.product(range(size), repeat=2):
        character = board[2 * row][4 * column]
        if character != "_":
            givens[row, column] = int(character)
        right = board[2 * row][4 * column + 2]
        if right == "<":
            smaller_and_greater.append(((row, column), (row, column + 1)))
        if right == ">":
            smaller_and_greater.append(((row, column + 1), (row, column)))
        below = board[2 * row + 1][4 * column] if row < size - 1 else " "
        if below == "∧":
            smaller_and_greater.append(((row, column), (row + 1, column)))
        if below == "∨":
            smaller_and_greater.append(((row + 1, column), (row, column)))
    cells = list(itertools.product(range(size), repeat=2))
    greater_than = {cell: [great for small, great in smaller_and_greater if small == cell] for cell in cells}
    smaller_than = {cell: [small for small, great in smaller_and_greater if great == cell] for cell in cells}

    def allowed(filled: Mapping[Cell, int], cell: Cell) -> set[int]:
        highest = min((filled.get(other, size) - 1 for other in greater_than[cell]), default=size)
        lowest = max((filled.get(other, 1) + 1 for other in smaller_than[cell]), default=1)
        line = [(cell[0], index) for index in range(size)] + [(index, cell[1]) for index in range(size)]
        return set(range(lowest, highest + 1)) - {filled[other] for other in line if other in filled}

    answers = []
    for solution in itertools.islice(fillings(givens, set(cells) - givens.keys(), allowed), ENOUGH):
        answer = []
        for index, line in enumerate(board):
            characters = list(line)
            for column in range(size):
                if index % 2 == 0:
                    characters[4 * column] = str(solution[index // 2, column])
            answer.append("".join(characters).rstrip())
        answers.append("\n".join(answer))
    return Solution(answers, why=f"{len(answers)} solutions found")


def kakurasu(question: str) -> Solution:
    """`... row sums [8, 8, 2, 6] and column sums [7, 7, 7, 3]`. A 1 counts the number of its column and of its row."""
    found = re.findall(r"\[([\d, ]+)\]", question)
    row_sums, column_sums = (list(map(int, numbers.split(","))) for numbers in found[:2])
    columns = len(column_sums)

    def rows_above(row: int, needs: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
        """All ways to fill the rows up to this one. The columns still need these sums."""
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

    solutions = itertools.islice(rows_above(len(row_sums), tuple(column_sums)), ENOUGH)
    return Solution([as_text(solution) for solution in solutions])


def survo(question: str) -> Solution:
    """`Given a 4*4 matrix where the last element of each row and column equals the sum of the other elements ...`"""
    matrix = [list(map(int, row)) for row in rows_of(question, r"\d+( \d+)+")]
    numbers = Counter(map(int, re.findall(r"\[([\d, ]+)\]", question)[0].split(",")))
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

    return Solution(list(itertools.islice(fill(0), ENOUGH)))


@functools.lru_cache(maxsize=4)
def digits_of_letters(letters: int) -> np.ndarray:
    """All ways to give different digits to so many letters. Shape: (ways, letters)."""
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
"""Whether a statement is true, if these persons tell the truth."""


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
        if len(set(connectives)) > 1 or connectives.count("if and only if") > 1:
            raise ValueError(text)
        if "and" in connectives:
            return lambda world: all(term(world) for term in terms)
        if "or" in connectives:
            return lambda world: any(term(world) for term in terms)
        return lambda world: len({term(world) for term in terms}) == 1

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
        """The trait that the phrase speaks of."""
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
        """Whether all traits find a house. Narrows the sets of houses that it is given."""
        is_changed = True
        while is_changed:
            before = sum(map(len, domains.values()))
            for first, second, relation in relations:
                for one, other in ((first, second), (second, first)):
                    holds = relation if one == first else lambda here, there, rule=relation: rule(there, here)
                    domains[one] = {
                        here for here in domains[one] if any(holds(here, there) for there in domains[other])
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
        world = [dict(zip(kinds, one, strict=True)) for one in itertools.compress(somebody, is_there)]
        if not all(any(one[kind] for one in world) for kind in kinds):
            continue
        if all(holds(premise, world) for premise in premises) and not holds(conclusion, world):
            return value("No")
    return value("Yes")


def holds(statement: Sequence[str | None], world: Iterable[Mapping[str, bool]]) -> bool:
    """Whether a statement of a syllogism is true in a world, which is the list of its inhabitants."""
    quantifier, subject, negation, predicate = statement
    among = [one[str(predicate)] for one in world if one[str(subject)]]
    if negation:
        among = [not is_so for is_so in among]
    if quantifier == "All":
        return all(among)
    if quantifier == "No":
        return not any(among)
    return any(among)


def parse_formula(text: str) -> Truth:
    """A formula of `∨ ∧ → ↔ ¬`, with all its parentheses."""
    tokens = re.findall(r"[()∨∧→↔¬]|\w+", text)

    def formula() -> Truth:
        token = tokens.pop(0)
        if token == "¬":
            denied = formula()
            return lambda world: not denied(world)
        if token != "(":
            return lambda world: world[token]
        left = formula()
        connective = tokens.pop(0)
        right = formula()
        tokens.pop(0)
        if connective == "∧":
            return lambda world: left(world) and right(world)
        if connective == "∨":
            return lambda world: left(world) or right(world)
        if connective == "→":
            return lambda world: not left(world) or right(world)
        return lambda world: left(world) == right(world)

    return formula()


def propositional_logic(question: str) -> Solution:
    """`Given: 1. (P ∧ P) .2. (P ↔ Q) ... What can we conclude from the above statements?`

    Each consequence is a right answer. The solver gives literals that follow, or clauses of two of them.
    """
    premises = re.findall(r"^\.?\d+\. (.*)$", question, re.M)
    variables = sorted(set(re.findall(r"[A-Z]", " ".join(premises))))
    formulas = [parse_formula(premise) for premise in premises]
    worlds = []
    for truths in itertools.product((False, True), repeat=len(variables)):
        world = dict(zip(variables, truths, strict=True))
        if all(formula(world) for formula in formulas):
            worlds.append(world)
    if not worlds:
        return undecided("the premises contradict each other, so that everything follows")
    literals = [*variables, *(f"¬{variable}" for variable in variables)]
    answers = [literal for literal in literals if all(map(parse_formula(literal), worlds))]
    for first, second in itertools.combinations(literals, 2):
        clause = f"({first} ∨ {second})"
        is_tautology = second == f"¬{first}"
        if not is_tautology and not {first, second} & set(answers) and all(map(parse_formula(clause), worlds)):
            answers.append(clause)
    if not answers:
        return undecided("neither a literal nor a clause of two literals follows")
    return Solution([*answers[:ENOUGH], *answers[-1:]])


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


def worth(expression: str, numbers: Sequence[int]) -> Fraction | None:
    """The value of an expression that uses each of the numbers once, None if it does not."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError:
        return None
    used = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    if sorted(used) != sorted(numbers):
        return None
    return _worth_of(tree.body)


def _worth_of(node: ast.expr) -> Fraction | None:
    if isinstance(node, ast.Constant):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _worth_of(node.operand)
        return None if inner is None else -inner
    if not isinstance(node, ast.BinOp):
        return None
    left = _worth_of(node.left)
    right = _worth_of(node.right)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.Div) and right != 0:
        return left / right
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

State = Hashable


def shortest_path(
    start: State, steps: Callable[[State], Iterable[tuple[str, State]]], is_end: Callable[[State], bool], limit: int
) -> list[str] | None:
    """The moves of a shortest way from the start to an end, None if there is none among so many states."""
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


def n_queens(question: str) -> Solution:
    """`Your job is to complete an n x n chess board with n Queens in total, such that no two attack each other.`"""
    board = rows_of(question, r"[_Q]( [_Q])+")
    size = len(board)
    given = {row: line.index("Q") for row, line in enumerate(board) if "Q" in line}

    def attacks(first: Cell, second: Cell) -> bool:
        across = abs(first[1] - second[1])
        return across in (0, abs(first[0] - second[0])) or first[0] == second[0]

    def place(queens: dict[int, int]) -> Iterator[dict[int, int]]:
        if len(queens) == size:
            yield dict(queens)
            return
        row = min(set(range(size)) - queens.keys())
        for column in range(size):
            if not any(attacks((row, column), queen) for queen in queens.items()):
                queens[row] = column
                yield from place(queens)
                del queens[row]

    def judge(key: str) -> bool:
        answer = rows_of(key, r"[_Q]( [_Q])+")
        cells = list(itertools.product(range(size), repeat=2))
        queens = [(row, column) for row, column in cells if answer[row][column] == "Q"]
        keeps = all(answer[row][column] == "Q" for row, column in given.items())
        return keeps and len(queens) == size and not any(itertools.starmap(attacks, itertools.combinations(queens, 2)))

    answers = []
    for queens in itertools.islice(place(given), ENOUGH):
        answers.append(as_text(["Q" if queens[row] == column else "_" for column in range(size)] for row in queens))
        rows = [["Q" if queens[row] == column else "_" for column in range(size)] for row in range(size)]
        answers[-1] = as_text(rows)
    return Solution(answers, judge)


def maze(question: str) -> Solution:
    """`Navigate from 'M' (start) to 'g' (goal): ... What is the minimum number of steps to reach the goal?`

    A step goes to one of the four cells beside a cell. The text does not say it.
    """
    start_mark, goal_mark = re.findall(r"from '(.)' \(start\) to '(.)' \(goal\)", question)[0]
    wall = re.findall(r"'(.)' = Wall", question)[0]
    grid = question.split("```")[1].strip("\n").split("\n")
    cells = {(row, column): mark for row, line in enumerate(grid) for column, mark in enumerate(line)}
    start = next(cell for cell, mark in cells.items() if mark == start_mark)

    def steps(cell: State) -> Iterator[tuple[str, State]]:
        row, column = cell  # type: ignore[misc]
        for down, right in NEIGHBOURS:
            beside = (row + down, column + right)
            if cells.get(beside, wall) != wall:
                yield "step", beside

    path = shortest_path(start, steps, lambda cell: cells[cell] == goal_mark, 1_000_000)  # type: ignore[index]
    return value("infinity" if path is None else len(path))
