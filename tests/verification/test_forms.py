"""A right answer is right in every notation, other answers are wrong, and reading any text takes bounded time."""

from __future__ import annotations

import functools
import json
import random
import re
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification.forms import EXACT_TASKS, FORMS, READERS
from reasoning_gym_environment.verification.grade import CHECK_ERRORS, CHECKS
from reasoning_gym_environment.verification.markup import MAX_CHARS, strip_markup
from reasoning_gym_environment.verification.questions import is_sound
from reasoning_gym_environment.verification.validators import VALIDATORS
from testing.hostile_answers import HOSTILE_ANSWERS
from testing.reference_answers import is_right, reference_answer

CASES = [json.loads(line) for line in (Path(__file__).parent / "form_cases.jsonl").read_text("utf-8").splitlines()]
SLOW = {"codeio", "intermediate_integration", "jugs", "knight_swap", "simple_integration", "sokoban", "zebra_puzzles"}
TASKS = [pytest.param(task, marks=[pytest.mark.slow] * (task in SLOW)) for task in sorted(CHECKS)]
ITEMS = 3
SEED = 31


@functools.cache
def solved(task: str) -> list[tuple[dict[str, Any], str]]:
    """Items with a right answer each."""
    dataset = library.create_dataset(task, seed=SEED, size=8 * ITEMS)
    found: list[tuple[dict[str, Any], str]] = []
    for index in range(8 * ITEMS):
        entry = dataset[index]
        answer = reference_answer(task, entry) if is_sound(task, entry) else None
        # An empty text is no answer, and reaches no check.
        if answer:
            found.append((entry, answer))
        if len(found) == ITEMS:
            break
    return found


def test_every_task_of_reasoning_gym_has_a_form_or_a_validator() -> None:
    assert set(CHECKS) == set(library.registry()) - {"composite"}


# --- other notations ---

WRAPPED = (
    *("{}", "  {}\n", "\n\n{}", "**{}**", "`{}`", "```\n{}\n```", "```json\n{}\n```", "```matrix\n{}\n```"),
    *("${}$", "$${}$$", "\\({}\\)", "\\[{}\\]", "\\boxed{{{}}}", "$\\boxed{{{}}}$", "\\text{{{}}}"),
    *("**\\boxed{{{}}}**", "{}.", "Answer: {}", "$\\displaystyle {}$"),
    *("### {}", "## Answer\n\n{}", "<b>{}</b>", "<pre>\n{}\n</pre>"),
    *("**Answer:** {}", "The final answer is {}.", "The answer is: **{}**"),
)
ENCLOSED = WRAPPED[: WRAPPED.index("**\\boxed{{{}}}**")]
"""The notations that enclose an answer, and add no word and no full stop."""
QUOTED = ('"{}"', "'{}'", "“{}”")
MARKS = {
    **{"**{}**": "**", "${}$": "$", "$\\boxed{{{}}}$": "$", "$\\displaystyle {}$": "$"},
    **{"`{}`": "`", '"{}"': '"', "'{}'": "'", "“{}”": '"'},
}
"""A mark that the answer itself begins or ends with cannot be told from the one around it."""


@pytest.mark.parametrize("task", TASKS)
def test_decoration_and_line_ends_change_nothing(task: str) -> None:
    for entry, answer in solved(task):
        notations = ENCLOSED if task in EXACT_TASKS else WRAPPED
        patterns = [pattern for pattern in (*notations, *QUOTED) if MARKS.get(pattern, "\0") not in answer]
        written = [pattern.format(answer) for pattern in patterns]
        written += [answer.replace("\n", "\r\n"), answer.replace("\n", "  \n") + "  "]
        written.append(json.dumps({"answer": answer}))
        refused = [text for text in written if not is_right(task, entry, text)]
        assert not refused, (answer, refused)


@pytest.mark.parametrize("task", sorted(CHECKS.keys() - SLOW - EXACT_TASKS))
def test_typographic_signs_mean_the_same_as_plain_signs(task: str) -> None:
    for entry, answer in solved(task):
        written = [answer.replace(plain, sign) for plain, signs in TYPOGRAPHIC.items() for sign in signs]
        refused = [text for text in written if not is_right(task, entry, text)]
        assert not refused, (answer, refused)


def respaced(separator: str) -> Callable[[str], str]:
    return lambda answer: "\n".join(separator.join(line.split()) for line in answer.splitlines() if line.strip())


def rows_of(answer: str) -> list[list[str]]:
    return [line.split() for line in answer.splitlines() if line.strip()]


def words_of(answer: str) -> list[str]:
    return [strip_markup(word) for word in re.split(r"[\s,]+", answer.strip("[]"))]


def numbered(pattern: str, words: list[str]) -> str:
    return "\n".join(pattern.format(place, word) for place, word in enumerate(words, 1))


NUMBERS: tuple[Callable[[str], str], ...] = (
    lambda answer: answer if answer.startswith("-") else f"+{answer}",
    lambda answer: f"= {answer}",
    *(pattern.format for pattern in ("({})", "[{}]", "{{{}}}", "\\{{{}\\}}", "≈ {}", "\\approx {}")),
    lambda answer: answer.translate(FULL_WIDTH),
    lambda answer: answer if "." in answer else f"{answer}.0",
    lambda answer: f"{answer}0" if "." in answer else f"{answer}.00",
    lambda answer: f"{int(answer):,}" if answer.lstrip("-").isdigit() else answer,
    lambda answer: f"{int(answer):,}".replace(",", "\u202f") if answer.lstrip("-").isdigit() else answer,
)
FULL_WIDTH = {ord(sign): chr(ord(sign) + 0xFEE0) for sign in "+-.0123456789"}
TYPOGRAPHIC = {"-": "‐‑‒–−", "'": "’′", " ": "\u00a0\u2009\u202f"}
"""Signs that models write for the plain sign of the keyboard."""
GRIDS: tuple[Callable[[str], str], ...] = (
    *(respaced(", "), respaced(","), respaced("\t"), respaced(" | "), respaced("  ")),
    lambda answer: "\n".join(f"| {' | '.join(row)} |" for row in rows_of(answer)),
    lambda answer: "\n".join(f"[{' '.join(row)}]" for row in rows_of(answer)),
    lambda answer: "\n\n".join(f"  {' '.join(row)}" for row in rows_of(answer)),
    lambda answer: json.dumps(rows_of(answer)),
    lambda answer: str(rows_of(answer)),
    lambda answer: f"[{', '.join('[' + ', '.join(row) + ']' for row in rows_of(answer))}]",
    lambda answer: f"[{(',' + chr(10)).join('[' + ', '.join(row) + ',]' for row in rows_of(answer))}]",
    lambda answer: "\\begin{bmatrix} " + " \\\\ ".join(" & ".join(row) for row in rows_of(answer)) + " \\end{bmatrix}",
)
LISTS: tuple[Callable[[str], str], ...] = (
    *(lambda answer, separator=separator: separator.join(words_of(answer)) for separator in (",", ", ", " , ", " ")),
    lambda answer: "\n".join(words_of(answer)),
    lambda answer: ", ".join(words_of(answer)) + ",",
    lambda answer: json.dumps(words_of(answer)),
    lambda answer: str(words_of(answer)),
    lambda answer: f"[{', '.join(words_of(answer))}]",
    lambda answer: f"({', '.join(words_of(answer))})",
    lambda answer: numbered("{}. {}", words_of(answer)),
    lambda answer: numbered("{}) `{}`", words_of(answer)),
)
JSONS: tuple[Callable[[str], str], ...] = (
    lambda answer: str(json.loads(answer)),
    lambda answer: json.dumps(json.loads(answer), indent=2),
    lambda answer: json.dumps(json.loads(answer), separators=(",", ":")),
)
GRID_TASKS = (
    *("arc_agi", "binary_matrix", "mini_sudoku", "rearc", "rotate_matrix", "sudoku", "kakurasu", "survo"),
    *("manipulate_matrix", "n_queens", "pool_matrix"),
)
LIST_TASKS = (
    *("ab", "arc_1d", "list_functions", "number_filtering", "number_sorting", "path_star", "spiral_matrix"),
    *("string_splitting", "string_synthesis", "word_sequence_reversal", "word_sorting"),
)
NUMBER_TASKS = (
    *("aiw", "basic_arithmetic", "binary_alternation", "chain_sum", "count_bits", "count_primes", "decimal_chain_sum"),
    *("gcd", "gsm_symbolic", "largest_island", "lcm", "leg_counting", "letter_counting", "maze", "number_sequence"),
    *("products", "rectangle_count", "rotten_oranges", "self_reference", "simple_equations", "simple_geometry"),
    *("circuit_logic",),
)
ANOTHER_WRITING = [
    *((task, NUMBERS) for task in NUMBER_TASKS),
    *((task, GRIDS) for task in GRID_TASKS),
    *((task, LISTS) for task in LIST_TASKS),
    *((task, JSONS) for task in ("game_of_life", "group_anagrams", "palindrome_partitioning")),
    ("game_of_life", (lambda answer: "\n".join(" ".join(map(str, row)) for row in json.loads(answer)),)),
]


@pytest.mark.parametrize(("task", "writings"), ANOTHER_WRITING)
def test_another_way_to_write_the_same_value_changes_nothing(task: str, writings: Any) -> None:
    for entry, answer in solved(task):
        written = [write(answer) for write in writings]
        refused = [text for text in written if not is_right(task, entry, text)]
        assert not refused, (answer, refused)


# --- what is not right ---

SPOILED = (
    *("{} or {other}", "{other} or {}", "{}, {other}", "{}\n{other}", "{other}\n{}", "not {}", "Maybe {}", "{}?"),
    *("{} and something more", "{} {}", "It is not the case that {}", "\\boxed{{{}}} \\boxed{{{other}}}", "{other}"),
    *("{} (or {other})", "**{}** **{other}**", "~{}", "{}*0", "{} is wrong", "{}!", "no solution\n{}", "{} # comment"),
)
MOVES = {"sokoban", "shortest_path", "rush_hour", "rubiks_cube", "quantum_lock", "jugs", "boxnet", "tower_of_hanoi"}
"""Of these, a solution followed by moves that lead back to it is one, too."""


@pytest.mark.parametrize("task", TASKS)
def test_a_second_candidate_a_hedge_and_another_items_answer_are_wrong(task: str) -> None:
    known = solved(task)
    answers = {answer for _, answer in known}
    for entry, answer in known:
        for other in sorted(answers, key=len):
            if not is_right(task, entry, other):
                # `x**2 + C*0` is an antiderivative of 2*x.
                patterns = [pattern for pattern in SPOILED if not (pattern == "{}*0" and "integr" in task)]
                spoiled = [pattern.format(answer, answer, other=other) for pattern in patterns if task not in MOVES]
                hedges = ("not {}", "{}?", "{} is wrong", "{} or not", "if {}")
                spoiled += [other, *(hedge.format(answer) for hedge in hedges)]
                paid = [text for text in spoiled if is_right(task, entry, text)]
                assert not paid, (answer, paid)
                break


@pytest.mark.parametrize("task", sorted(FORMS))
def test_one_digit_or_letter_altered_is_wrong(task: str) -> None:
    rng = random.Random(1)
    for entry, answer in solved(task):
        for _ in range(6):
            places = [place for place, sign in enumerate(answer) if sign.isalnum() and sign.isascii()]
            place = rng.choice(places or [0])
            sign = answer[place]
            instead = str((int(sign) + 1) % 10) if sign.isdigit() else "q" if sign.lower() != "q" else "z"
            altered = answer[:place] + instead + answer[place + 1 :]
            assert not is_right(task, entry, altered) or is_the_same(task, answer, altered), (answer, altered)


def is_the_same(task: str, answer: str, altered: str) -> bool:
    """A digit beyond those asked for may be altered, and the name of a symbol in LaTeX."""
    return task in ("codeio", "knights_knaves", "power_function", "time_intervals") or "frac" in answer


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["task"])
def test_cases(case: dict[str, Any]) -> None:
    refused = [answer for answer in case.get("right", ()) if not is_right(case["task"], case["entry"], answer)]
    paid = [answer for answer in case.get("wrong", ()) if is_right(case["task"], case["entry"], answer)]
    assert not refused and not paid


# --- hostile text ---

REPEATED = (
    *"9[({- \n²\0'\"*¬\\<=1",
    *("1 ", "**", "\\boxed{", "1,", '"a",', "x^", "a=", "---|", "1:", "\\frac{", "A, ", "up ", "R U' ", "UD", "0 "),
    *("1+", "\n1. ", '{"answer":', "# ", "<b>", "<sup>", "\\text{", "+(", "- ", "^{", "1/"),
)
OF_ANY_LENGTH = {
    **{"exponent": "1e999999999", "tiny": "1e-" + "9" * 900, "surrogates": "\ud800" * 9, "empty": ""},
    **{"braces": "{" * 900 + "}" * 900, "brackets": "+(1" * 300, "nested": "(" * 5_000 + "1" + ")" * 5_000},
}


def hostile_texts() -> dict[str, str]:
    """Texts that a careless reader would need very long for. Most have half of the characters that are read."""
    long = MAX_CHARS // 2
    return {
        **{piece: piece * (long // len(piece)) for piece in REPEATED},
        "huge": "!" * (50 * MAX_CHARS),
        "label": "answer" + " " * (long - 7),
        "rows": "[" + "[1]," * (long // 4 - 1) + "]",
        "list": "[" + "1," * (long // 2 - 2) + "1]",
        "decimals": "1." + "9" * (long - 2),
        "hexadecimal": "0x" + "f" * (long - 2),
        "gap": "]" + " " * (long - 2) + "[",
        "wide heading": "#" + " " * (long - 2) + "1x",
        **OF_ANY_LENGTH,
        **HOSTILE_ANSWERS,
    }


ONE_TASK_PER_READER = {reader: task for task, reader in READERS.items()}.values()
ONE_TASK_PER_CHECK = {*ONE_TASK_PER_READER, *(FORMS.keys() - READERS.keys()), *VALIDATORS}


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(ONE_TASK_PER_CHECK - SLOW))
def test_hostile_text_is_wrong_and_reading_it_takes_no_longer_than_its_length_allows(task: str) -> None:
    [(entry, _), *_] = solved(task)
    for name, text in hostile_texts().items():
        before = time.process_time()
        assert not is_right(task, entry, text), name
        # Processor time. Nearly all take milliseconds; what grows with the square of the text would take minutes.
        assert time.process_time() - before < 2.5, name


def test_any_character_of_unicode_may_stand_anywhere() -> None:
    by_class: dict[str, list[str]] = {}
    for code in range(sys.maxunicode + 1):
        by_class.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
    rng = random.Random(7)
    for task, check in FORMS.items():
        [(entry, answer), *_] = solved(task)
        for characters in by_class.values():
            for text in (rng.choice(characters) + answer, answer + rng.choice(characters), rng.choice(characters)):
                try:
                    check(entry, text)
                except CHECK_ERRORS:
                    continue
