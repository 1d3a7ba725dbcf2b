"""Which items training replaces, which keys it corrects, and which questions get a sentence that leaves one meaning."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder
from reasoning_gym_environment.verification.grade import CHECKS
from reasoning_gym_environment.verification.questions import (
    CORRECTED,
    IS_SOUND,
    SENTENCES,
    is_sound,
    mended,
    rounded,
)
from testing.in_process import InProcessGenerator

TASKS = sorted({*IS_SOUND, *CORRECTED, *(sentence.task for sentence in SENTENCES)})
SLOW = {"bf", "codeio", "intermediate_integration", "knight_swap", "propositional_logic", "sokoban", "tsumego"}
"""Their items take long to make."""
GENERATOR = InProcessGenerator()


def item(task: str, seed: int, level: int | None = None) -> dict[str, Any]:
    config = {} if level is None else build_ladder(task).levels[level].config
    return GENERATOR.make(task, seed, config)


@pytest.mark.parametrize("task", [pytest.param(t, marks=pytest.mark.slow if t in SLOW else ()) for t in TASKS])
def test_a_mended_item_is_sound_its_key_is_paid_and_mending_it_again_changes_no_key(task: str) -> None:
    top = build_ladder(task).levels[-1].index
    for seed in range(8):
        entry = item(task, seed, top if seed % 2 else 0)
        if not is_sound(task, entry):
            continue
        found = mended(task, entry)
        assert is_sound(task, found)
        assert mended(task, found)["answer"] == found["answer"]
        assert found["question"].startswith(entry["question"].rstrip())
        if found["answer"] is not None:
            assert CHECKS[task](found, str(found["answer"]))


@pytest.mark.parametrize("task", ["chain_sum", "sudoku", "word_ladder"])
def test_an_item_of_a_task_without_faults_stays_as_it_is(task: str) -> None:
    entry = item(task, 3)
    assert is_sound(task, entry) and mended(task, entry) == entry


DECIMALS = [
    ("8", "3.9396*9.6132*(4.030830*(6.111838*0.61777))", "576.38575"),
    ("10", "8.24806469+6.5488088*6.2630060+8.0051535+0.67854432/3.21644116+7.9353215*7.16457364", "114.3326035"),
    ("10", "((8.126624/(9.737738/8.62854820))-8.92523795*5.78141321*8.133075)*(4.064431*3.789016)", "-6352.113335"),
    ("6", "7.25-7.25", "0"),
]


@pytest.mark.parametrize(("digits", "expression", "right"), DECIMALS)
def test_an_exact_value_is_rounded_once(digits: str, expression: str, right: str) -> None:
    asked = f"Please solve this problem to a maximum of {digits} significant digits, rounding up from the half.\n"
    entry = {"question": f"{asked}{expression} = ?", "answer": "0.1", "metadata": {}}
    assert mended("decimal_arithmetic", entry)["answer"] == right


def test_a_result_that_was_cut_off_is_whole_again() -> None:
    entry = item("gsm_symbolic", 2920)
    assert (entry["answer"], mended("gsm_symbolic", entry)["answer"]) == ("77", "77.5")


def test_a_duration_with_milliseconds_is_exact() -> None:
    metadata = {"expected_format": "HH:MM:SS.mmm", "format": "%H:%M:%S.%f"}
    metadata |= {"start_time": "2024-01-01 10:00:00.100000", "end_time": "2024-01-01 11:02:03.223000"}
    entry = {"question": "?", "answer": "01:02:03.122", "metadata": metadata}
    assert mended("time_intervals", entry)["answer"] == "01:02:03.123"


def test_repeated_words_of_a_sentence_stand_where_they_stood() -> None:
    found = mended("sentence_reordering", item("sentence_reordering", 138))
    assert "is is" not in found["answer"]
    assert sorted(found["answer"].split()) == sorted(item("sentence_reordering", 138)["answer"].split())


CLARIFIED = {
    "aiw": "is one of",
    "bf": "a byte",
    "calendar_arithmetic": "The ",
    "circuit_logic": "an odd number of them",
    "coin_flip": "exact probability",
    "color_cube_rotation": "the left and the right side stay",
    "family_relationships": "male.",
    "leg_counting": "5 legs",
    "letter_counting": "Capital letters",
    "manipulate_matrix": "reverses the order",
    "pool_matrix": "beyond the right or the lower edge",
    "power_function": "means (",
    "quantum_lock": "can only be pressed while",
    "rectangle_count": "give the smallest of these numbers",
    "sentence_reordering": "In the Year 2889",
    "string_manipulation": "the middle character is",
    "string_synthesis": "begin again with rule 1",
    "syllogism": "at least one of each kind",
    "time_intervals": "month/day/year",
}


@pytest.mark.parametrize("task", [pytest.param(t, marks=pytest.mark.slow if t in SLOW else ()) for t in CLARIFIED])
def test_a_question_with_two_readings_gets_a_sentence(task: str) -> None:
    top = build_ladder(task).levels[-1].index
    questions = []
    for seed in range(60):
        entry = item(task, seed, top if seed % 2 else 0)
        if is_sound(task, entry):
            questions.append(mended(task, entry)["question"].rpartition("\n\n")[2])
        if CLARIFIED[task] in (questions or [""])[-1]:
            return
    pytest.fail(f"no question of {task} says {CLARIFIED[task]!r}, the last: {questions[-1]!r}")


@given(st.fractions(max_denominator=10**9), st.integers(1, 20))
def test_a_number_is_rounded_once_to_its_digits_and_half_away_from_zero(value: Fraction, digits: int) -> None:
    found = Fraction(rounded(value, digits))
    assert len(rounded(value, digits).as_tuple().digits) <= digits
    if value:
        unit = Fraction(10) ** (rounded(abs(value), digits).adjusted() - digits + 1)
        assert abs(found - value) <= unit / 2
        if abs(found - value) == unit / 2:
            assert abs(found) > abs(value)


def test_a_polygon_has_no_angle_of_180_degrees_and_no_item_asks_for_an_input_of_a_program() -> None:
    assert not is_sound("simple_geometry", {"question": "?", "answer": "180", "metadata": {}})
    assert is_sound("simple_geometry", {"question": "?", "answer": "179.5", "metadata": {}})
    asked = {"question": "Can you predict a feasible input without ...", "answer": "{}", "metadata": {}}
    assert not is_sound("codeio", asked)


REARC = [
    ("1 2", "2 1", "4 1", "1 4", "3 2", "2 3", True),
    # The colour 4 stands in no output, and 3 only in the words `Example 3`.
    ("4 2", "2 2", "4 1", "1 1", "5 1", "5 4", False),
    ("1 2", "2 1", "4 1", "1 4", "5 1", "5 3", False),
    # Each example gives 7.
    ("1 2", "7", "2 2", "7", "7 1", "1", False),
    ("1 2", "7", "2 2", "7", "7 1", "7", True),
    # No example changes its input.
    ("1 2", "1 2", "2 2", "2 2", "3 2", "2 3", False),
    ("1 2", "1 2", "2 2", "2 2", "3 2", "3 2", True),
]


@pytest.mark.parametrize(("input_1", "output_1", "input_2", "output_2", "test", "answer", "sound"), REARC)
def test_the_examples_of_rearc_show_the_colours_of_the_answer_and_that_something_changes(
    input_1: str, output_1: str, input_2: str, output_2: str, test: str, answer: str, sound: bool
) -> None:
    first = f"Example 1:\n\nInput:\n{input_1}\nOutput:\n{output_1}"
    second = f"Example 3:\n\nInput:\n{input_2}\nOutput:\n{output_2}"
    question = f"Find the rule.\n\n{first}\n\n{second}\n\n\nBelow is a test input grid.\n\nInput:\n{test}\n"
    assert is_sound("rearc", {"question": question, "answer": answer, "metadata": {}}) == sound


@pytest.mark.parametrize(
    ("outputs", "answer", "sound"),
    [
        (["[1]", "[0]"], "[4]", False),
        (["[1]", "[0]"], "[0]", True),
        (["[4]", "[4]"], "[3]", False),
        (["[4]", "[2]"], "[3]", True),
    ],
)
def test_the_examples_of_list_functions_show_that_the_rule_counts(outputs: list[str], answer: str, sound: bool) -> None:
    examples = [f"Input {number}: [5]\nOutput {number}: {output}" for number, output in enumerate(outputs, 1)]
    question = "Examples:\n" + "\n".join(examples) + "\n\n\nInput: [5, 5]\nOutput:\n"
    assert is_sound("list_functions", {"question": question, "answer": answer, "metadata": {}}) == sound
