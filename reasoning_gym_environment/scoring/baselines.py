"""What a wrong answer to an item earns without any work on it: the baseline that partial credit is counted from.

    paid = max(0, (score - baseline) / (1 - baseline)), and 1 for full credit

A learner finds whatever pays. Much of the partial credit of reasoning-gym is paid for what owes nothing to the problem:
the cells that the question gives, an answer that lists all options, the middle of a range. Which baseline an item has
is decided by its task:

    right or wrong    The task's partial credit cannot be told from such an answer's: the baseline is 1, and only full
                      credit is paid. So is every task that leaves scoring to reasoning-gym's base class, which pays any
                      text that contains the right answer its share of the characters: a guess with a blank and a
                      bracket, or a line of the question, would be paid too.
    graded            Partial credit is worth something: the baseline is a floor, or what the best of a few answers
                      that need no work earns on this very item, whichever is higher. They are graded in the sandbox
                      together with the group.
    unknown           A dataset of one's own: answers that fit anywhere are graded with each group.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..tasks import reasoning_gym_source as library
from ..tasks.measured_data import load_facts
from ..verification.grade import FULL_CREDIT
from ..workers import Status, Verdict

Item = Mapping[str, Any]
Effortless = Callable[[Item], Iterable[str]]

RIGHT_OR_WRONG = 1.0
"""As a baseline: nothing short of full credit is paid."""


@dataclass(frozen=True)
class Graded:
    """Partial credit of a task that counts: above `floor`, and above what `answers` earn on the item."""

    floor: float | Callable[[Item], float] = 0.0
    answers: Effortless = lambda entry: ()


class Baseline:
    """Of one item: which `answers` to grade beside the group's, and what follows from their verdicts."""

    def __init__(self, task: str, entry: Item) -> None:
        self.answers: tuple[str, ...] = ()
        self._floor = RIGHT_OR_WRONG
        rule = _rule(task, entry)
        self._is_broken = False
        if rule is None:
            return
        try:
            answers = tuple(dict.fromkeys(rule.answers(entry)))
            self._floor = min(1.0, rule.floor(entry) if callable(rule.floor) else rule.floor)
            self.answers = answers
        # An item that lacks what the task's always have.
        except (AttributeError, LookupError, TypeError, ValueError):
            self._is_broken = True

    def is_known(self, verdicts: Sequence[Verdict]) -> bool:
        """Whether `answers` could be made and graded."""
        return not self._is_broken and all(one.status in (Status.SCORED, Status.VERIFIER_ERROR) for one in verdicts)

    def value(self, verdicts: Sequence[Verdict]) -> float:
        """The baseline, in [0, 1], given the verdicts on `answers`.

        Where one of them is right, what is almost like it owes nothing to work either, and nothing but full credit is
        paid; nor is it where one could not be scored.
        """
        return max([self._floor, *(one.value for one in verdicts)]) if self.is_known(verdicts) else RIGHT_OR_WRONG


def above_baseline(value: float, base: float) -> float:
    """What a score is paid, in [0, 1]."""
    if value >= FULL_CREDIT:
        return 1.0
    return 0.0 if value <= base else (value - base) / (1.0 - base)


def _rule(task: str, entry: Item) -> Graded | None:
    """None for right or wrong."""
    if task == "composite":
        return _rule(str(entry["metadata"]["source_dataset"]), entry)
    if task in GRADED or task in _known_tasks() or library.has_base_verifier(task):
        return GRADED.get(task)
    return _UNKNOWN


@functools.cache
def _known_tasks() -> frozenset[str]:
    return frozenset(load_facts()[1])


# --- answers that need no work ---


def _anywhere(entry: Item) -> Iterable[str]:
    """For a dataset nobody has looked at: constants, and the question itself."""
    yield from ("0", "1", "-1", "10", "yes", "no", "True", "False", "A", "x", "[]", "{}", "I do not know.")
    yield str(entry["question"])


def _filled_in(entry: Item) -> Iterable[str]:
    """The puzzle with its blanks filled in: with one number everywhere, or with what each row or cell still lacks.

    Cells that the question gives count as right too, and so does a guess by the rules now and then.
    """
    puzzle: list[list[int]] = entry["metadata"]["puzzle"]
    size = len(puzzle)
    numbers = list(range(1, size + 1))
    for number in numbers:
        yield _grid([[cell or number for cell in row] for row in puzzle])
    # Futoshiki has no boxes.
    box = 1 if "constraints" in entry["metadata"] else math.isqrt(size)
    for order in (numbers, numbers[::-1], sorted(numbers, key=lambda number: abs(2 * number - size - 1))):
        yield _grid([_completed(row, order) for row in puzzle])
        columns = [_completed([row[at] for row in puzzle], order) for at in range(size)]
        yield _grid([list(row) for row in zip(*columns, strict=True)])
        yield _grid(_first_that_fits(puzzle, order, box, range(size)))
    # What is nearly full leaves little choice: the numbers that are there most often, in the fullest rows. It solves
    # most mini_sudoku, of which nothing but solutions would be paid then.
    often = sorted(numbers, key=lambda number: -sum(row.count(number) for row in puzzle))
    orders = (range(size), range(size)[::-1], sorted(range(size), key=lambda row: puzzle[row].count(0)))
    for rows in orders if box > 2 else ():
        yield _grid(_first_that_fits(puzzle, often, box, rows))


def _grid(rows: Sequence[Sequence[int]]) -> str:
    return "\n".join(" ".join(map(str, row)) for row in rows)


def _completed(row: Sequence[int], numbers: Sequence[int]) -> list[int]:
    missing = iter([number for number in numbers if number not in row])
    return [cell or next(missing, 1) for cell in row]


def _first_that_fits(
    puzzle: Sequence[Sequence[int]], numbers: Sequence[int], box: int, rows: Iterable[int]
) -> list[list[int]]:
    """Cell after cell, the first number that its row, its column and its box of `box` x `box` cells have not yet."""
    board = [list(row) for row in puzzle]
    for place in rows:
        row = board[place]
        for at, cell in enumerate(row):
            if not cell:
                top, left = place - place % box, at - at % box
                taken = {*row, *(other[at] for other in board)}
                taken.update(*(other[left : left + box] for other in board[top : top + box]))
                row[at] = next((number for number in numbers if number not in taken), numbers[0])
    return board


_BOARD = re.compile(r"\[\s*\[[\d,\s\[\]]*\]\s*\]")


def _boards_at_rest(entry: Item) -> Iterable[str]:
    """Everything dead, everything alive, the board as it was, or of it the cells that are not alone."""
    before = json.loads(_BOARD.findall(entry["question"])[-1])
    yield json.dumps(before)
    for cell in (0, 1):
        yield json.dumps([[cell] * len(row) for row in before])
    for around in (_BESIDE, _BESIDE + _ACROSS):
        for least in (1, 2):
            yield json.dumps(_not_alone(before, around, least))


_BESIDE = ((0, 1), (1, 0), (0, -1), (-1, 0))
_ACROSS = ((1, 1), (1, -1), (-1, 1), (-1, -1))


def _not_alone(board: Sequence[Sequence[int]], around: Sequence[tuple[int, int]], least: int) -> list[list[int]]:
    """The live cells with so many live neighbours. Edges wrap."""
    rows, columns = len(board), len(board[0])

    def neighbours(row: int, column: int) -> int:
        return sum(board[(row + down) % rows][(column + right) % columns] for down, right in around)

    return [
        [int(bool(cell) and neighbours(row, column) >= least) for column, cell in enumerate(cells)]
        for row, cells in enumerate(board)
    ]


def _same_list(entry: Item) -> Iterable[str]:
    """The words of word_sorting as they are given, reversed, the wrong way round, or with case left out of account."""
    words, right = entry["metadata"]["transformed_words"], list(entry["metadata"]["sorted_words"])
    by_letters = sorted(words, key=str.lower)
    for order in (words, words[::-1], right[::-1], by_letters, by_letters[::-1]):
        if order != right:
            yield ", ".join(order)


def _hardly_unscrambled(entry: Item) -> Iterable[str]:
    """The words as given, and with the shortest of them, or all, turned round."""
    words = entry["metadata"]["scrambled_words"]
    for longest in (0, 2, 3, 99):
        yield " ".join(word[::-1] if len(word) <= longest else word for word in words)


def _hardly_reversed(entry: Item) -> Iterable[str]:
    """The word as it stands, its last letter put in front, its ends swapped, and one letter all along."""
    word = str(entry["metadata"]["word"])
    yield from (word, word[-1:] + word[:-1], word[-1:] + word[1:], word[-1:] + word[1:-1] + word[:1])
    for letter in sorted({*word.lower(), *"aeinorst"}):
        yield letter * len(word)
        yield word[-1:] + letter * (len(word) - 2) + word[:1]


# --- which partial credit counts ---


def _two_right(parts: int) -> float:
    """A guess gets one of a few parts right now and then, seldom two; of many it gets a tenth or two."""
    return max(0.3, 1.0 / max(parts, 1))


_UNKNOWN = Graded(answers=_anywhere)

GRADED: Mapping[str, Graded] = {
    # Not the form that was asked for, but the right answer.
    "n_queens": Graded(),
    # A solution that is longer than it need be, or not finished; the floors are paid for whatever can be read.
    "knight_swap": Graded(floor=0.05),
    "shortest_path": Graded(),
    # The value without its exact form, or right to a digit less.
    "advanced_geometry": Graded(floor=0.05),
    "complex_arithmetic": Graded(floor=0.95),
    "polynomial_equations": Graded(floor=0.95),
    # Cells, words and letters that are right.
    **dict.fromkeys(("futoshiki", "mini_sudoku", "sudoku"), Graded(answers=_filled_in)),
    "emoji_mystery": Graded(floor=0.4),
    "figlet_font": Graded(floor=lambda entry: min(0.9, 0.1 * max(2.0, 0.3 * len(entry["answer"])))),
    "game_of_life": Graded(answers=_boards_at_rest),
    "letter_jumble": Graded(floor=lambda entry: _two_right(len(entry["answer"].split())), answers=_hardly_unscrambled),
    "spell_backward": Graded(floor=lambda entry: max(0.5, 2.0 / len(entry["answer"])), answers=_hardly_reversed),
    "word_sorting": Graded(floor=lambda entry: _two_right(len(entry["metadata"]["sorted_words"])), answers=_same_list),
}
"""Tasks of reasoning-gym whose partial credit is paid. All others are right or wrong."""
