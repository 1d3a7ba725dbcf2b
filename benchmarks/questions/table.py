"""The table of results.md: how each task was checked, and with which result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.facts.levels import answer_without_work
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).with_name("results.md")
INTRODUCTION = """\
# How each task was checked

<!-- Written by `python benchmarks/questions/check.py`; do not edit. -->

[docs/questions.md](../../docs/questions.md) explains the columns *replaced*, *corrected* and *clarified*. A cell has a
value for each level, easiest first. It has a range if there are more than six levels, and a single value if it is the
same at all levels. *Wrong keys* and *refused answers* are sums over the levels. *Without work* is the share of items
for which an answer without work is right. *Different questions* counts different texts. The number in brackets ignores
names and the form in which a sentence is hidden. *Read* counts items that a person solved, and how many of them have
two meanings or a key that does not follow from the question.
"""
MOST_LEVELS = 6
"""Tasks with more levels show the smallest and the largest value."""

OPEN_FAULTS: Mapping[str, str] = {
    "arc_1d": "two simple rules fit 1 to 3 % of the items, such as a move to a dot with or without a limit",
    "list_functions": "two simple rules fit 1 % of the items, mostly sums of small numbers with or without repeats",
    "rearc": "two rules fit about 2 % of the items",
    "number_sequence": "no simple rule that was tried fits 15 % of the items, and another simple rule fits 0.5 %",
}
"""Known faults that are not mended, as texts for a reader."""
UNKNOWN: Mapping[str, str] = {
    "arc_1d": "the generator never ends at some seeds",
    "arc_agi": "whether a second rule fits",
    "codeio": "programs that take over 8 s or need a missing package",
    "countdown": "the upper two levels have few items here, because their solver is slow",
    "figlet_font": "the checker knows that the key draws the picture, and not whether a person can read it",
    "letter_jumble": "whether another English word of the same letters fits the sentence too",
    "rectangle_count": "most pictures of the upper three levels are too large for the solver",
    "rubiks_cube": "cubes of more than three layers, and cubes far from solved",
    "sokoban": "whether levels at which no item was made within 10 s have faults",
    "survo": "the highest level is too large for the checker",
    "tsumego": "whether a slow plan captures more than the key",
    "word_ladder": "English words that neither word list of the library has, mostly plurals such as `wens`",
}
"""What the check of a task leaves open."""

READ: Mapping[str, tuple[int, int]] = {
    "arc_1d": (40, 1),
    "arc_agi": (17, 0),
    "codeio": (17, 1),
    "rearc": (40, 1),
    "tsumego": (31, 0),
}
"""Items that were read and solved by hand, and how many of them have two meanings or a key that does not follow."""

HEAD = (
    "task", "checked by", "levels", "items", "wrong keys", "refused answers", "not decided, %", "replaced, %",
    "corrected, %", "clarified, %", "without work, %", "different questions", "not known",
)  # fmt: skip

Level = Mapping[str, Any]
Measured = TypeVar("Measured")
"""What is known of one level."""


def write_table(results: Mapping[str, Sequence[Level]]) -> None:
    """Write the page."""
    PAGE.write_text(f"{INTRODUCTION}\n{table(results)}\n", encoding="utf-8")


def table(results: Mapping[str, Sequence[Level]]) -> str:
    """One row for each task."""
    rows = [HEAD, ("---",) * len(HEAD)]
    rows += [row(task, levels) for task, levels in sorted(results.items())]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def row(task: str, levels: Sequence[Level]) -> tuple[str, ...]:
    """The cells of a task; a cell has a value for each level, or a single value if all levels have the same."""

    def share(name: str) -> str:
        return by_level(levels, lambda level: percent(level.get(name, 0), level["items"]))

    open_points = [texts[task] for texts in (OPEN_FAULTS, UNKNOWN) if task in texts]
    return (
        task,
        how_checked(levels) + how_read(task),
        str(len(levels)),
        by_level(levels, lambda level: level["items"]),
        str(total(levels, "wrong_keys")),
        str(total(levels, "refused_answers")),
        share("undecided"),
        share("replaced"),
        share("corrected"),
        share("clarified"),
        by_level(without_work(task), lambda share: round(100 * share)),
        by_level(levels, different),
        "; ".join(open_points),
    )


def without_work(task: str) -> list[float]:
    """For each served level, the share of the items on which the best answer without work is right (guessable.json)."""
    return [answer_without_work(task, level.config)["share"] for level in build_ladder(task).levels]


def how_checked(levels: Sequence[Level]) -> str:
    """Solver: finds the right answer. Checker: judges the key. Nothing: it decides less than one item in twenty."""
    served = total(levels, "items") - total(levels, "replaced")
    decided = served - total(levels, "undecided")
    if decided <= served / 20:
        return "nothing"
    return "checker" if total(levels, "judged") > decided / 2 else "solver"


def how_read(task: str) -> str:
    """How many items were read by hand."""
    if task not in READ:
        return ""
    items, unclear = READ[task]
    return f"; read: {items} items, {unclear} unclear"


def different(level: Level) -> str:
    """The different questions of a level, and in brackets what they ask apart from words that make no difference."""
    contents = level.get("contents")
    return str(level["questions"]) if contents is None else f"{level['questions']} ({contents})"


def total(levels: Sequence[Level], name: str) -> int:
    """The sum over the levels."""
    return sum(level.get(name, 0) for level in levels)


def percent(part: int, whole: int) -> int:
    """A rounded share; a share that is not 0 is at least 1."""
    return max(round(100 * part / max(whole, 1)), 1 if part else 0)


def by_level(levels: Sequence[Measured], value: Callable[[Measured], Any]) -> str:
    """The values of the levels, or the value if it is the same at each."""
    values = [value(level) for level in levels]
    if len(set(values)) == 1:
        return str(values[0])
    if len(values) > MOST_LEVELS:
        numbers = sorted(values, key=lambda text: int(str(text).split()[0]))
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, values))
