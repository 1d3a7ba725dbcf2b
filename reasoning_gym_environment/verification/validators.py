"""Check answers to the tasks with many right answers.

    answer ── reader ──> moves, pairs, rows or an expression ── rules of the task ──> is the goal reached?

A validator carries out the answer by the rules of the question. Every solution is right, in any notation: a list may
be JSON, numbered, or separated by blanks, commas or arrows. Other words between the moves make the answer wrong, and so
does an impossible move. (Sokoban allows MAX_BLOCKED steps against a wall.) Where reasoning-gym's own verifier follows
these rules, the validator writes the answer in the verifier's notation, and asks the verifier.

Answers are hostile text. Every validator takes about linear time in the answer, and raises one of
`grade.CHECK_ERRORS` for an answer that it cannot read.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from .bounded_eval import ARITHMETIC, UnreadableTextError, evaluate_symbolic, value_of_tree
from .entries import Entry, module_of, rules_of
from .expressions import sides_of, value_of, whole_number
from .logic import is_conclusion, joined_premises
from .markup import plain_text, strip_markup, without_brackets
from .readers import items, literal, number_grid, picture


def _library_accepts(task: str, entry: Entry, answer: str) -> bool:
    """Whether reasoning-gym's own verifier gives its full score."""
    return bool(rules_of(task).score_answer(answer, entry) == 1.0)


# --- moves ---

_LABEL = re.compile(
    r"\A(?:the )?(?:moves?|steps?|path|plan|sequence|presses|buttons)(?: (?:is|are))?\s?:\s",
    re.IGNORECASE,
)
_NUMBERING = re.compile(r"(?m)^[ \t]*(?:(?:step|move) )?(?:\(?\d{1,5}[.):]|[-*•])[ \t]+", re.IGNORECASE)
_SEPARATORS = frozenset(" \t\n,;|[](){}\"'`*$→")
"""Characters that may stand between moves."""


def _moves(answer: str, pattern: str) -> list[tuple[str, ...]]:
    """The groups of every match of `pattern`, in upper or lower case.

    Raises UnreadableTextError if there is no match, or if the answer contains other words or signs.
    """
    plain = _LABEL.sub("", plain_text(answer))
    plain = _NUMBERING.sub("", plain)
    move = re.compile(pattern, re.IGNORECASE | re.ASCII)
    moves = [match.groups() for match in move.finditer(plain)]
    remainder = move.sub("", plain)
    if not moves or not _SEPARATORS.issuperset(remainder):
        raise UnreadableTextError("the answer does not consist of moves")
    return moves


_SQUARE = r"\[ ?([1-9]?\d\.5), ?([1-9]?\d\.5) ?\]"
_BOX_ORDER = re.compile(
    rf"Agent{_SQUARE}: ?move\((box_(\w+)), ?(?:square{_SQUARE}|(target_\4))\)",
    re.ASCII,
)


def boxnet(entry: Entry, answer: str) -> bool:
    """In each step an agent gets at most one order. Every order moves an existing box. In the end no box remains.

    All orders of a step start from the same squares, so their order does not matter.
    """
    squares = entry["metadata"]["initial_state"]
    things = Counter((square, thing) for square in squares for thing in squares[square])
    for step in literal(answer):
        before: list[tuple[str, str]] = []
        after: list[tuple[str, str]] = []
        agents = set()
        for agent, order in step.items():
            found = _BOX_ORDER.fullmatch(f"{agent}:{order}")
            if found is None:
                return False
            x, y, box, _, new_x, new_y, target = found.groups()
            agents.add((x, y))
            before.append((f"{x}_{y}", box))
            if target:
                before.append((f"{x}_{y}", target))
            else:
                after.append((f"{new_x}_{new_y}", box))
                distance = abs(float(x) - float(new_x)) + abs(float(y) - float(new_y))
                if distance != 1 or f"{new_x}_{new_y}" not in squares:
                    return False
        if len(agents) != len(step) or not all(things[thing] for thing in before):
            return False
        things.subtract(before)
        things.update(after)
    return not any(count for (_, thing), count in things.items() if thing.startswith("box_"))


_JUG_MOVE = r"\b(?:(fill|empty) (?:jug )?([A-Z])|pour (?:jug )?([A-Z])\s?(?:→|to|into)\s?(?:jug )?(?!\3)([A-Z]))\b"


def jugs(entry: Entry, answer: str) -> bool:
    moves = []
    for verb, jug, source, target in _moves(answer, _JUG_MOVE):
        if verb:
            moves.append(f"{verb.lower()} {jug.upper()}")
        else:
            moves.append(f"pour {source.upper()}->{target.upper()}")
    return _library_accepts("jugs", entry, json.dumps(moves))


_KNIGHT_MOVE = r"\b([wB])\s?[,:]\s?([A-Z]\d{1,2})\s?(?:,|→)\s?([A-Z]\d{1,2})\b"


def knight_swap(entry: Entry, answer: str) -> bool:
    """The moves swap the knights, however many moves there are. `No` is right if the knights cannot swap places."""
    plain = plain_text(answer)
    if plain.casefold() == "no":
        return _library_accepts("knight_swap", entry, plain)
    # The question asks whether it is possible, so a right answer may begin with `Yes`.
    plain = re.sub(r"\Ayes\b[.,:;!]?\s*", "", plain, flags=re.IGNORECASE)
    moves = []
    for colour, start, end in _moves(plain, _KNIGHT_MOVE):
        player = "w" if colour in "wW" else "B"
        moves.append(f"{player},{start.upper()},{end.upper()}")
    # The verifier gives less for more moves than in the solution.
    metadata = {**entry["metadata"], "solution": moves}
    return _library_accepts("knight_swap", {"metadata": metadata}, json.dumps(moves))


def quantum_lock(entry: Entry, answer: str) -> bool:
    """The presses reach the target, and are as many as in the item's own answer, which is a shortest one."""
    presses = [button for (button,) in _moves(answer, r"([A-C])\s?-?")]
    return _library_accepts("quantum_lock", entry, " ".join(presses))


MAX_TURNS = 2_000
"""Answers with more turns are wrong. The algorithm of reasoning-gym needs about 150."""
_TURN = r"(?<!\w)(\d?(?-i:[LRUDBF]w?|[XYZMESxyz])'?)(?!\w)"
"""A single turn, because the question forbids to write `U2` for `U U`."""


def rubiks_cube(entry: Entry, answer: str) -> bool:
    from magiccube import Cube  # type: ignore[import-untyped]
    from magiccube.cube_base import CubeException  # type: ignore[import-untyped]

    metadata = entry["metadata"]
    plain = strip_markup(answer)
    if plain.startswith("["):
        # In a list of texts, 'U' is the turn U in quotes, and not the turn U'.
        plain = " ".join(items(plain))
    turns = _moves(plain, _TURN)
    if len(turns) > MAX_TURNS:
        return False
    sequence = [turn[0].upper() + turn[1:] for (turn,) in turns]
    cube = Cube(metadata["cube_size"])
    cube.rotate(metadata["scramble_moves"])
    try:
        cube.rotate(" ".join(sequence))
    except CubeException:
        # A cube of even size has no middle slice.
        return False
    return bool(cube.is_done())


def rush_hour(entry: Entry, answer: str) -> bool:
    """Every car moves over free squares. The red car A reaches the exit. Its last move may lead beyond the exit."""
    board = module_of("rush_hour").Board(entry["metadata"]["board_config"])
    has_left = False
    for car, sign, steps in _moves(answer, r"\b([A-Z])\1{0,2}\s?([+-])\s?(\d)\b"):
        if has_left:
            return False
        for _ in range(int(steps)):
            before = str(board)
            board.move(car.upper(), int(f"{sign}1"))
            if str(board) != before:
                continue
            # The board does not move a car that is blocked or that leaves the board.
            has_left = board.solved and car.upper() == "A" and sign == "+"
            if not has_left:
                return False
    return bool(board.solved)


def shortest_path(entry: Entry, answer: str) -> bool:
    """The path is valid and no longer than the item's own. `infeasible` is right if there is none."""
    plain = plain_text(answer).lower()
    if plain != "infeasible":
        plain = " ".join(direction for (direction,) in _moves(plain, r"\b(up|down|left|right)\b"))
    return _library_accepts("shortest_path", entry, plain)


MAX_BLOCKED = 2
"""How many steps against a wall a right answer may have. Such a step does nothing. A random walk has many of them."""


def sokoban(entry: Entry, answer: str) -> bool:
    """Whether every box is on a goal at the end, and at most MAX_BLOCKED steps had no effect."""
    from reasoning_gym.games.contrib.sokoban.src.game import Game

    lines = entry["metadata"]["gamestr"].replace(" ", "").strip().split("\n")
    rows = list(map(list, lines))
    game = Game(height=len(rows), width=len(rows[0]))
    game.load_puzzle_matrix(rows)
    results = [game.player.update(direction) for (direction,) in _moves(answer, r"((?-i:[LRUD]))")]
    return results.count(0) <= MAX_BLOCKED and "@" not in game.get_curr_state()


_DISK_MOVE = r"\b(?:move )?(?:disk ?)?(\d{1,3}) from (?:peg ?)?(\d{1,3}) to (?:peg ?)?(\d{1,3})\b\.?"


def tower_of_hanoi(entry: Entry, answer: str) -> bool:
    """Every move is legal, and in the end all disks are on the target peg. The number of moves does not matter."""
    moves = list(itertools.starmap("Move disk {} from Peg {} to Peg {}".format, _moves(answer, _DISK_MOVE)))
    # The verifier gives less for more moves than in the solution.
    metadata = {**entry["metadata"], "solution_length": len(moves)}
    return _library_accepts("tower_of_hanoi", {"metadata": metadata}, "\n".join(moves))


def word_ladder(entry: Entry, answer: str) -> bool:
    length = len(entry["metadata"]["start_word"])
    words = [word for (word,) in _moves(answer, rf"\b([A-Z]{{{length}}})\b")]
    return rules_of_word_ladder().score_answer(",".join(words), entry) == 1.0


@functools.cache
def rules_of_word_ladder() -> Any:
    """The rules of word_ladder, with the English words of two files of reasoning-gym.

    The task draws its words from the shorter list. An answer may use any English word.
    """
    from reasoning_gym.data import get_data_file_path

    rules = rules_of("word_ladder")
    rules.word_sets = rules._load_words_from_csv()
    longer_list = get_data_file_path("words3to10.txt").read_text(encoding="utf-8")
    for word in longer_list.upper().split():
        if len(word) in rules.word_sets:
            rules.word_sets[len(word)].add(word)
    return rules


_PLAYER = re.compile(r"\A(?:I |B |BLACK )?(?:SHOULD )?(?:PLAYS? |MOVES? )?(?:AT |TO |ON )?(?=\S)")
"""The words before the place, as in `Black plays D4`."""


def tsumego(entry: Entry, answer: str) -> bool:
    """The move captures a white stone. If the question asks for as many as possible, no move captures more."""
    board = tuple(map(tuple, entry["metadata"]["board"]))
    size = len(board)
    plain = _PLAYER.sub("", plain_text(answer).upper())
    found = re.fullmatch(r"([A-S])(?:-|, ?| ?)(\d{1,2})", without_brackets(plain), re.ASCII)
    if found is None:
        raise UnreadableTextError("expected a place on the board, such as D4")
    row = size - int(found[2])
    column = ord(found[1]) - ord("A")
    captured = _captures(board)
    required = max(captured.values()) if "as many" in entry["question"] else 1
    return captured.get((row, column), 0) >= required > 0


@functools.lru_cache(maxsize=1)
def _captures(board: tuple[tuple[str, ...], ...]) -> dict[tuple[int, int], int]:
    """The number of stones that a move to each place captures. All answers of a group need the same numbers."""
    size = range(len(board))
    return {(row, column): _captured(board, row, column) for row, column in itertools.product(size, size)}


def _captured(board: Sequence[Sequence[str]], row: int, column: int) -> int:
    """The number of white stones that a black stone at this place captures."""
    rules = rules_of("tsumego")
    rules._ko_point = None
    after = list(map(list, board))
    rules._make_move(after, row, column, "X")
    return _white_stones(board) - _white_stones(after)


def _white_stones(board: Sequence[Sequence[str]]) -> int:
    return sum(row.count("O") for row in board)


# --- assignments and boards ---


_TABLE_HEAD = re.compile(r"\A[^\n\d]{1,100}\n[|: -]{3,100}\n")


def _pairs(answer: str, key: str, value: str) -> dict[str, int]:
    """Read `A=1,B=2`, `{"A": 1}`, `A → 1` or a table as a mapping. Raises UnreadableTextError if a key occurs twice."""
    plain = _TABLE_HEAD.sub("", plain_text(answer))
    # `_moves` would take the `0:` of a line `0: 1` for the number of the line.
    plain = re.sub(r":|→|(?<=\w) \| (?=\w)", "=", plain)
    plain = re.sub(r"\b(?:vertex|colou?r|and)\b", " ", plain, flags=re.IGNORECASE)
    found = _moves(plain, rf"(?<!\w)[\"'`]?({key})[\"'`]?\s{{0,3}}=\s{{0,3}}[\"'`]?({value})[\"'`]?(?!\w)")
    pairs = {name.upper(): int(number) for name, number in found}
    if len(pairs) != len(found):
        raise UnreadableTextError("a key occurs twice")
    return pairs


def cryptarithm(entry: Entry, answer: str) -> bool:
    digits = _pairs(answer, "[A-Z]", r"\d")
    return _library_accepts("cryptarithm", entry, ",".join(itertools.starmap("{}={}".format, digits.items())))


def graph_color(entry: Entry, answer: str) -> bool:
    colours = _pairs(answer, r"\d{1,4}", r"\d{1,4}")
    vertices = entry["metadata"]["puzzle"]["vertices"]
    return len(colours) == len(vertices) and _library_accepts("graph_color", entry, json.dumps(colours))


def kakurasu(entry: Entry, answer: str) -> bool:
    board = "\n".join(picture(answer))
    # The verifier overlooks other characters.
    return set(board) <= set("01\n") and _library_accepts("kakurasu", entry, board)


def n_queens(entry: Entry, answer: str) -> bool:
    """The board is one of the solutions. The item lists all of them."""
    return list(map(list, picture(answer))) in entry["metadata"]["solutions"]


def survo(entry: Entry, answer: str) -> bool:
    """Every candidate fills one empty cell. The last cell of each row and column is the sum of the cells before it."""
    metadata = entry["metadata"]
    puzzle = metadata["puzzle"]
    rows = number_grid(answer)
    if list(map(len, rows)) != list(map(len, puzzle)):
        return False
    cells = list(zip(itertools.chain(*puzzle), itertools.chain(*rows), strict=True))
    filled = Counter(cell for given, cell in cells if given == 0)
    lines = itertools.chain(rows, zip(*rows, strict=True))
    return (
        all(given in (0, cell) for given, cell in cells)
        and filled == Counter(metadata["candidate_numbers"])
        and all(map(_ends_in_sum, lines))
    )


def _ends_in_sum(line: Sequence[Any]) -> bool:
    return sum(line[:-1]) == line[-1]


def palindrome_generation(entry: Entry, answer: str) -> bool:
    return _library_accepts("palindrome_generation", entry, plain_text(answer))


# --- expressions ---


def _makes(
    answer: str,
    target: int,
    numbers: Iterable[int],
    *also: type[ast.operator],
) -> bool:
    """Whether the expression has the value `target` and uses exactly these numbers.

    `also` are operators that are allowed in addition to the operators of `evaluate`.
    """
    # The questions forbid the sign of equality.
    [expression] = sides_of(answer)
    used = [whole_number(node) for node in ast.walk(expression) if isinstance(node, ast.Constant)]
    value = value_of_tree(expression, (*ARITHMETIC, *also), lambda leaf: Fraction(whole_number(leaf)))
    return bool(value == target) and Counter(used) == Counter(map(int, numbers))


def countdown(entry: Entry, answer: str) -> bool:
    metadata = entry["metadata"]
    return _makes(answer, metadata["target"], metadata["numbers"], ast.Pow)


def puzzle24(entry: Entry, answer: str) -> bool:
    return _makes(answer, 24, entry["metadata"]["numbers"])


_CONSTANT = re.compile(r"[A-Za-z]\d?|const|constant")


def integration(entry: Entry, answer: str) -> bool:
    """The derivative of the answer is the integrand. An answer that still contains an integral is wrong."""
    import sympy

    metadata = entry["metadata"]
    antiderivative = sympy.sympify(evaluate_symbolic(value_of(answer)))
    integrand = sympy.sympify(evaluate_symbolic(metadata["integrand"]))
    if antiderivative.has(sympy.Integral, sympy.oo, sympy.zoo, sympy.nan):
        return False
    variable = sympy.Symbol(metadata["variable"])
    constants = {symbol.name for symbol in antiderivative.free_symbols - {variable}}
    if len(constants) > 1 or variable.name.swapcase() in constants or not all(map(_CONSTANT.fullmatch, constants)):
        return False
    difference = sympy.diff(antiderivative, variable) - integrand
    is_zero = _is_zero_at_points(difference, variable, random.Random(answer))
    if is_zero is None:
        return sympy.simplify(difference) == 0
    return is_zero


_SIGNS_OF_POINTS = (1, 1, 1, -1, -1, -1)
_SURELY_NOT_ZERO = 1e-9
_SURELY_ZERO = 1e-20
"""sympy computes _DIGITS digits, even if terms cancel. Decimal numbers in an answer have a value between these two."""
_DIGITS = 30


def _is_zero_at_points(difference: Any, variable: Any, points: random.Random) -> bool | None:
    """Whether an expression is 0 at random points; None if its values do not tell.

    sympy's `simplify` takes seconds for many wrong answers, and does not find the double angle in some right answers.
    """
    import sympy

    # At negative points, the roots and logarithms of equal expressions may differ.
    for sign in _SIGNS_OF_POINTS:
        point = sign * sympy.Rational(points.randrange(5 * 10**8, 25 * 10**8), 10**9)
        value = difference.evalf(_DIGITS, subs={variable: point})
        if not (value.is_number and value.is_finite):
            return None
        if abs(value) > _SURELY_NOT_ZERO and sign > 0:
            return False
        if abs(value) > _SURELY_ZERO:
            return None
    return True


def propositional_logic(entry: Entry, answer: str) -> bool:
    letters = entry["metadata"]["variables"]
    return is_conclusion(plain_text(answer), letters, joined_premises(entry))


VALIDATORS = {
    "boxnet": boxnet,
    "countdown": countdown,
    "cryptarithm": cryptarithm,
    "graph_color": graph_color,
    "intermediate_integration": integration,
    "jugs": jugs,
    "kakurasu": kakurasu,
    "knight_swap": knight_swap,
    "n_queens": n_queens,
    "palindrome_generation": palindrome_generation,
    "propositional_logic": propositional_logic,
    "puzzle24": puzzle24,
    "quantum_lock": quantum_lock,
    "rubiks_cube": rubiks_cube,
    "rush_hour": rush_hour,
    "shortest_path": shortest_path,
    "simple_integration": integration,
    "sokoban": sokoban,
    "survo": survo,
    "tower_of_hanoi": tower_of_hanoi,
    "tsumego": tsumego,
    "word_ladder": word_ladder,
}
"""The check of each task with many right answers."""
