"""Whether an answer solves its item, for the tasks in which many answers do.

    answer ── forms ──> moves, pairs, rows or an expression ── rules of the task ──> does it end where it was asked to?

A solver reads what the question asks for and carries it out from the start, by the question's rules. Any solution is
right, in whatever dress: lists may be JSON, numbered, or set apart by blanks, commas or arrows. Between the moves
nothing may stand that says something. A move that cannot be carried out makes the answer wrong.

Answers are hostile text: each solver is about linear in the answer, and raises an ordinary error for what it
cannot read (`grade.UNREADABLE`).
"""

from __future__ import annotations

import ast
import functools
import itertools
import operator
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..tasks import reasoning_gym_source as library
from .bounded_eval import Unreadable, evaluate, evaluate_symbolic
from .forms import TIMES, Check, Entry, by_name, items, literal, number_grid, picture, undress


def module_of(task: str) -> Any:
    """The module of reasoning-gym that has the dataset of `task`, and the rules of its game."""
    return sys.modules[library.registry()[task][0].__module__]


def rules_of(task: str) -> Any:
    """The dataset of `task` without its items, for those rules that are its methods."""
    return object.__new__(library.registry()[task][0])


# --- moves ---

_LABEL = re.compile(r"\A(?:the )?(?:moves?|steps?|path|plan|sequence|presses|buttons)\s?:\s", re.IGNORECASE)
_NUMBERING = re.compile(r"(?m)^[ \t]*(?:(?:step|move) )?(?:\d{1,5}[.):]|[-*•])[ \t]+", re.IGNORECASE)
_ARROW = re.compile(r"\\(?:to|rightarrow|Rightarrow|longrightarrow)\b|[-=]{1,3}>|⇒|➔|➜")
_MARKS = frozenset(" \t\n,;|[](){}\"'`*$→")
"""What may stand between moves, for it says nothing."""


def _moves(answer: str, pattern: str) -> list[tuple[str, ...]]:
    """The groups of every match of `pattern`, letters of either case, if there are no other words or signs.

    Raises Unreadable if there are, or if there is no match.
    """
    plain = _ARROW.sub("→", _NUMBERING.sub("", _LABEL.sub("", undress(answer), count=1)))
    move = re.compile(pattern, re.IGNORECASE | re.ASCII)
    found = [match.groups() for match in move.finditer(plain)]
    if not found or not _MARKS.issuperset(move.sub("", plain)):
        raise Unreadable("something else than moves")
    return found


_SQUARE = r"\[ ?[1-9]?\d\.5, ?[1-9]?\d\.5 ?\]"
_BOX_ORDER = re.compile(rf"Agent{_SQUARE}: ?move\(box_\w+, ?(?:square{_SQUARE}|target_\w+)\)", re.ASCII)


def boxnet(entry: Entry, answer: str) -> bool:
    """Every order is for another agent of its step, moves a box that is there, and in the end all are gone."""
    carry_out, squares = module_of("boxnet").action_from_response, entry["metadata"]["initial_state"]
    for step in literal(answer):
        if len({agent.replace(" ", "") for agent in step}) != len(step):
            return False
        for agent, order in step.items():
            if not _BOX_ORDER.fullmatch(f"{agent}:{order}"):
                return False
            # What cannot be carried out changes nothing.
            before, squares = squares, carry_out(squares, [{agent: order.replace(", ", ",").replace(",", ", ")}])
            if squares == before:
                return False
    return not any(thing.startswith("box_") for things in squares.values() for thing in things)


_ORDER = r"\b(?:(fill|empty) (?:jug )?([A-Z])|pour (?:jug )?([A-Z])\s?(?:→|to|into)\s?(?:jug )?(?!\3)([A-Z]))\b"


def jugs(entry: Entry, answer: str) -> bool:
    orders = [[(part or "").upper() for part in order] for order in _moves(answer, _ORDER)]
    moves = [f"{verb.lower()} {jug}" if verb else f"pour {source}->{target}" for verb, jug, source, target in orders]
    is_solved, _ = module_of("jugs").verify_solution(entry["metadata"]["puzzle"], moves)
    return bool(is_solved)


def knight_swap(entry: Entry, answer: str) -> bool:
    """Knights move by turns, to squares that are free; `No` is right where they cannot change places."""
    metadata = entry["metadata"]
    if undress(answer).casefold() == "no" or not metadata["is_possible"]:
        return undress(answer).casefold() == "no" and not metadata["is_possible"]
    pieces, turn = dict(metadata["pieces"]), metadata["start_turn"]
    for colour, start, end in _moves(answer, r"\b([wB])\s?[,:]\s?([A-Z]\d{1,2})\s?(?:,|→)\s?([A-Z]\d{1,2})\b"):
        start, end = start.upper(), end.upper()
        is_his = colour.lower() == turn.lower() == str(pieces[start]).lower()
        if not is_his or pieces[end] is not None or end not in metadata["board"][start]:
            return False
        pieces[start], pieces[end] = None, pieces[start]
        turn = "wB".replace(turn, "")
    swapped = {"w": "B", "B": "w", None: None}
    return all(swapped[piece] == pieces[place] for place, piece in metadata["pieces"].items())


def quantum_lock(entry: Entry, answer: str) -> bool:
    """As few presses as the item's own answer: the shortest sequence is asked for, so that none is without effect."""
    metadata = entry["metadata"]
    presses = [name.upper() for (name,) in _moves(answer, r"([A-C])\s?-?")]
    value = rules_of("quantum_lock").simulate_sequence(metadata, presses)
    return len(presses) <= len(metadata["solution_path"]) and bool(value == metadata["target_value"])


MAX_TURNS = 2_000
"""Of a cube; reasoning-gym's own solver takes about 150."""


def rubiks_cube(entry: Entry, answer: str) -> bool:
    from magiccube import Cube  # type: ignore[import-untyped]
    from magiccube.cube_base import CubeException  # type: ignore[import-untyped]

    metadata, plain = entry["metadata"], undress(answer)
    if plain.startswith("["):
        # A list of texts, in which 'U' is not the turn U'.
        plain = " ".join(items(plain))
    turns = _moves(plain, r"(?<!\w)(\d?(?-i:[LRUDBF]w?|[XYZMESxyz])'?)([123]?)(?!\w)")
    if len(turns) > MAX_TURNS:
        return False
    cube = Cube(metadata["cube_size"])
    cube.rotate(metadata["scramble_moves"])
    try:
        cube.rotate(" ".join(turn[0].upper() + turn[1:] for turn, times in turns for _ in range(int(times or "1"))))
    except CubeException:
        # A cube of even size has no middle slice.
        return False
    return bool(cube.is_done())


def rush_hour(entry: Entry, answer: str) -> bool:
    """Every car moves over free squares, and the first one, the red car, ends at the exit, or beyond it."""
    board, has_left = module_of("rush_hour").Board(entry["metadata"]["board_config"]), False
    for car, sign, steps in _moves(answer, r"\b([A-Z])\1{0,2}\s?([+-])\s?(\d)\b"):
        if has_left:
            return False
        for _ in range(int(steps)):
            before = str(board)
            board.move(car.upper(), int(f"{sign}1"))
            if str(board) == before:
                has_left = board.solved and (car.upper(), sign) == ("A", "+")
                if not has_left:
                    return False
    return bool(board.solved)


def shortest_path(entry: Entry, answer: str) -> bool:
    metadata = entry["metadata"]
    if not metadata["solution"]:
        return undress(answer).casefold() == "infeasible"
    ways = [way.lower() for (way,) in _moves(answer, r"\b(up|down|left|right)\b")]
    is_path = rules_of("shortest_path")._is_valid_path(metadata["matrix"], ways)
    return bool(is_path) and len(ways) == len(metadata["solution"])


MAX_BLOCKED = 2


def sokoban(entry: Entry, answer: str) -> bool:
    """In the end every box stands on a goal. A step against a wall does nothing; random walks take many of those."""
    from reasoning_gym.games.contrib.sokoban.src.game import Game

    rows = [list(row) for row in entry["metadata"]["gamestr"].replace(" ", "").strip().split("\n")]
    game = Game(height=len(rows), width=len(rows[0]))
    game.load_puzzle_matrix(rows)
    moved = [game.player.update(way) for (way,) in _moves(answer, r"((?-i:[LRUD]))")]
    return moved.count(0) <= MAX_BLOCKED and "@" not in game.get_curr_state()


def tower_of_hanoi(entry: Entry, answer: str) -> bool:
    """The shortest way is not asked for."""
    metadata = entry["metadata"]
    pegs: dict[int, list[int]] = {peg: [] for peg in range(1, metadata["num_pegs"] + 1)}
    pegs[metadata["start_peg"]] = list(range(metadata["num_disks"], 0, -1))
    for move in _moves(
        answer, r"\b(?:move )?(?:disk ?)?(\d{1,3}) from (?:peg ?)?(\d{1,3}) to (?:peg ?)?(\d{1,3})\b\.?"
    ):
        disk, source, target = map(int, move)
        if pegs[source][-1:] != [disk] or min(pegs[target], default=disk) < disk:
            return False
        pegs[target].append(pegs[source].pop())
    return len(pegs[metadata["target_peg"]]) == metadata["num_disks"]


def word_ladder(entry: Entry, answer: str) -> bool:
    length = len(entry["metadata"]["start_word"])
    words = [word for (word,) in _moves(answer, rf"\b([A-Z]{{{length}}})\b")]
    return bool(rules_of_word_ladder().score_answer(",".join(words), entry) == 1.0)


@functools.cache
def rules_of_word_ladder() -> Any:
    """With the English words of reasoning-gym, from a file."""
    rules = rules_of("word_ladder")
    rules.word_sets = rules._load_words_from_csv()
    return rules


def tsumego(entry: Entry, answer: str) -> bool:
    """The move captures white stones: some, or as many as any move does where that is asked for."""
    board = entry["metadata"]["board"]
    found = re.fullmatch(r"([A-S]) ?(\d{1,2})", undress(answer).upper(), re.ASCII)
    if found is None:
        raise Unreadable("not a place on the board")
    at = (len(board) - int(found[2]), ord(found[1]) - ord("A"))
    places = ((row, column) for row in range(len(board)) for column in range(len(board)))
    captured = {place: _captured(board, *place) for place in places}
    least = max(captured.values()) if "as many" in entry["question"] else 1
    return captured.get(at, 0) >= least > 0


def _captured(board: Sequence[Sequence[str]], row: int, column: int) -> int:
    """How many white stones a black one there captures."""
    rules, after = rules_of("tsumego"), [*map(list, board)]
    rules._ko_point = None
    rules._make_move(after, row, column, "X")
    return sum(line.count("O") for line in board) - sum(line.count("O") for line in after)


# --- assignments and boards ---


def _pairs(answer: str, key: str, value: str) -> dict[str, int]:
    """`A=1,B=2`, `{"A": 1}` as a mapping. Raises Unreadable if a key stands twice."""
    found = _moves(answer, rf"(?<!\w)[\"'`]?({key})[\"'`]?\s?[=:]\s?[\"'`]?({value})[\"'`]?(?!\w)")
    pairs = {name.upper(): int(number) for name, number in found}
    if len(pairs) != len(found):
        raise Unreadable("a key stands twice")
    return pairs


def cryptarithm(entry: Entry, answer: str) -> bool:
    puzzle = [entry["metadata"][name] for name in ("words_letters", "result_letters", "allow_leading_zero")]
    is_right, _ = module_of("cryptarithm").verify_cryptarithm_solution(_pairs(answer, "[A-Z]", r"\d"), *puzzle)
    return bool(is_right)


def graph_color(entry: Entry, answer: str) -> bool:
    puzzle, colours = entry["metadata"]["puzzle"], _pairs(answer, r"\d{1,4}", r"\d{1,4}")
    is_right, _ = module_of("graph_color").verify_graph_coloring_solution(puzzle, colours)
    return bool(is_right) and len(colours) == len(puzzle["vertices"])


def kakurasu(entry: Entry, answer: str) -> bool:
    metadata, rows = entry["metadata"], picture(answer)
    if len(rows) != metadata["n_rows"] or any(len(row) != metadata["n_cols"] or {*row} - {*"01"} for row in rows):
        return False
    row_sums, column_sums = (
        [sum(index for index, cell in enumerate(line, 1) if cell == "1") for line in lines]
        for lines in (rows, zip(*rows, strict=True))
    )
    return row_sums == metadata["row_sums"] and column_sums == metadata["col_sums"]


def n_queens(entry: Entry, answer: str) -> bool:
    """The item has all solutions."""
    return [[*row] for row in picture(answer)] in entry["metadata"]["solutions"]


def survo(entry: Entry, answer: str) -> bool:
    """The numbers given fill the empty cells, each once, and every row and column ends in the sum of what is before."""
    metadata, rows = entry["metadata"], number_grid(answer)
    puzzle = metadata["puzzle"]
    if [len(row) for row in rows] != [len(row) for row in puzzle]:
        return False
    cells = [pair for lines in zip(puzzle, rows, strict=True) for pair in zip(*lines, strict=True)]
    return (
        all(given in (0, cell) for given, cell in cells)
        and Counter(cell for given, cell in cells if given == 0) == Counter(metadata["candidate_numbers"])
        and all(sum(line[:-1]) == line[-1] for line in (*rows, *zip(*rows, strict=True)))
    )


def palindrome_generation(entry: Entry, answer: str) -> bool:
    word = undress(answer).lower()
    return word == word[::-1] and sorted(word) == sorted(entry["metadata"]["letters"])


# --- expressions ---


def _makes(answer: str, target: int, numbers: Iterable[int], *also: type[ast.operator]) -> bool:
    plain = re.sub(r"\\left|\\right", "", re.sub(r"÷|\\div", "/", TIMES.sub("*", undress(answer))))
    value, used = evaluate(plain, *also)
    return value == target and Counter(used) == Counter(map(int, numbers))


def countdown(entry: Entry, answer: str) -> bool:
    return _makes(answer, entry["metadata"]["target"], entry["metadata"]["numbers"], ast.Pow)


def puzzle24(entry: Entry, answer: str) -> bool:
    return _makes(answer, 24, entry["metadata"]["numbers"])


def integration(entry: Entry, answer: str) -> bool:
    """Its derivative is the integrand; an integral that is only written down is no answer."""
    import sympy

    metadata, plain = entry["metadata"], re.sub(r"\barc(?=(?:sin|cos|tan)\()", "a", undress(answer))
    if not plain.isascii() or {*"#!"} & {*plain}:
        raise Unreadable("a comment, a factorial, or letters that look like others")
    x = sympy.Symbol(metadata["variable"])
    antiderivative, integrand = (sympy.sympify(evaluate_symbolic(text)) for text in (plain, metadata["integrand"]))
    constants = {symbol.name for symbol in antiderivative.free_symbols} - {x.name}
    is_closed = not antiderivative.has(sympy.Integral, sympy.oo, sympy.zoo, sympy.nan)
    if not is_closed or x.name.swapcase() in constants or not all(map(_CONSTANT.fullmatch, constants)):
        return False
    return bool(sympy.simplify(sympy.diff(antiderivative, x) - integrand) == 0)


_CONSTANT = re.compile(r"[A-Za-z](?:_?\d)?|const|constant")


def propositional_logic(entry: Entry, answer: str) -> bool:
    return is_conclusion(undress(answer), entry["metadata"]["variables"], joined_premises(entry))


def is_conclusion(formula: str, letters: Sequence[str], joined: Mapping[int, int]) -> bool:
    """Whether it says all that the premises say about its letters, in fewer signs than those it follows from have.

    So a premise over again is no conclusion, nor one with more hung on it, nor several as they stand, nor what is
    always true; nor is `P ∨ Q` where P is known. `joined` is what `joined_premises` gives.
    """
    said, size = truth_table(formula, letters)
    known = functools.reduce(operator.and_, joined)
    for index, letter in enumerate(letters):
        if letter not in formula:
            # Whatever this letter is: each row of a pair that differs in it alone counts for both.
            ones = known & _columns(tuple(letters))[0][letter]
            known |= ones >> (1 << index) | (known ^ ones) << (1 << index)
    return said == known and size < min((signs for table, signs in joined.items() if not table & ~said), default=0)


def joined_premises(entry: Entry) -> dict[int, int]:
    """The truth table of each selection of the premises, and how many signs these have, joined by ∧."""
    letters = entry["metadata"]["variables"]
    joined = {(1 << (1 << len(letters))) - 1: -1}
    for premise in entry["metadata"]["premises"]:
        table, size = truth_table(premise, letters)
        for others, signs in list(joined.items()):
            joined[others & table] = min(joined.get(others & table, signs + 1 + size), signs + 1 + size)
    return joined


def short_formulas(letters: Sequence[str]) -> Iterable[str]:
    """Those of one or two letters."""
    pairs = itertools.permutations(letters, 2)
    return itertools.chain(letters, map("¬{}".format, letters), (f"{a} {sign} {b}" for a, b in pairs for sign in "∨→↔"))


_MAX_FORMULA = 2_000
_SPELLINGS = {
    r"\\(?:land|wedge)\b|&&?": "∧",
    r"\\(?:lor|vee)\b|\|\|?": "∨",
    r"\\(?:lnot|neg)\b|[~!]": "¬",
    r"\\(?:leftrightarrow|iff)\b|<[-=]{1,3}>|⇔": "↔",
    r"\\(?:rightarrow|to|implies)\b|[-=]{1,3}>|⇒": "→",
}
_CONNECTIVES: Mapping[str, Callable[[int, int], int]] = {
    **{"∧": operator.and_, "∨": operator.or_},
    **{"→": lambda one, other: ~one | other, "↔": lambda one, other: ~(one ^ other)},
}


def truth_table(formula: str, letters: Sequence[str]) -> tuple[int, int]:
    """The table as one whole number, and how many letters and connectives the formula has.

    Bit i is its value in row i, where the k-th letter has the value of bit k of i. Raises ValueError, LookupError or
    RecursionError if the text is no formula in these letters.
    """
    if len(formula) > _MAX_FORMULA:
        raise Unreadable(f"a formula of more than {_MAX_FORMULA} characters")
    for spelling, sign in _SPELLINGS.items():
        formula = re.sub(spelling, sign, formula)
    columns, everything = _columns(tuple(letters))

    def table(node: Any) -> int:
        if node.operator is None:
            return columns[node.left]
        if node.operator == "¬":
            return everything ^ table(node.left)
        return everything & _CONNECTIVES[node.operator](table(node.left), table(node.right))

    # The library's parser evaluates nothing. Whatever it does not know is a letter to it.
    tree = module_of("propositional_logic").Expression.from_string(formula)
    return table(tree), len(re.findall("[A-Z∧∨¬→↔]", formula))


@functools.cache
def _columns(letters: tuple[str, ...]) -> tuple[dict[str, int], int]:
    """What each letter is in all rows, and what is true in all of them."""
    rows = range(1 << min(len(letters), 12))
    columns = (sum(1 << row for row in rows if row >> index & 1) for index in range(len(letters)))
    return dict(zip(letters, columns, strict=True)), (1 << len(rows)) - 1


SOLVERS: Mapping[str, Check] = {
    **by_name(boxnet, countdown, cryptarithm, graph_color, jugs, kakurasu, knight_swap, n_queens),
    **by_name(palindrome_generation, propositional_logic, puzzle24, quantum_lock, rubiks_cube, rush_hour),
    **by_name(shortest_path, sokoban, survo, tower_of_hanoi, tsumego, word_ladder),
    **dict.fromkeys(("simple_integration", "intermediate_integration"), integration),
}
"""By task, for those with many right answers."""
