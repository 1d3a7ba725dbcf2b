"""Which verifiers can be fooled, shown on each, and that the stricter score is fooled by none and fair to all."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.audit.known_answers import WEAKNESSES, Weakness, WeaknessKind, reference_answer
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder
from reasoning_gym_environment.verification.check import ALMOST_FULL_CREDIT
from reasoning_gym_environment.verification.grade import grade
from reasoning_gym_environment.verification.strict_checks import (
    CHECKS,
    ITEM_CHECKS,
    has_right_answer,
    one_number,
    one_of_a_few,
    refusal,
)

from ..hostile_answers import HOSTILE_ANSWERS

DOCS = Path(__file__).resolve().parents[2] / "docs" / "verifiers.md"
SEEDS = (1, 20_000)
ITEMS = 12
"""Per seed. Averages of weaknesses with a `pays` below 1 hold over all of them."""
TASKS = sorted(task for task in library.registry() if task != "composite")
WITHOUT_ORACLE = {weakness.task for weakness in WEAKNESSES if weakness.kind is WeaknessKind.NO_ORACLE}


SLOW = {"codeio", "figlet_font", "futoshiki", "intermediate_integration", "puzzle24", "simple_integration", "sudoku"}
"""Tasks whose items or verifiers take a second and more here."""


def each(tasks: Iterable[str]) -> list[Any]:
    return [pytest.param(task, marks=[pytest.mark.slow] * (task in SLOW)) for task in sorted(tasks)]


def each_weakness(*kinds: WeaknessKind) -> list[Any]:
    return [
        pytest.param(
            weakness, marks=[pytest.mark.slow] * (weakness.task in SLOW), id=f"{weakness.task}-{weakness.kind.value}"
        )
        for weakness in WEAKNESSES
        if weakness.kind in kinds
    ]


def strict_score(task: str, entry: Any, answer: str, native: float) -> float:
    return 0.0 if refusal(task, entry, answer, native) else native


def native_score(dataset: Any, entry: dict[str, Any], answer: str) -> float:
    return grade(dataset.score_answer, copy.deepcopy(entry), answer).value


def exploited(weakness: Weakness) -> tuple[tuple[dict[str, Any], str, float], ...]:
    """(item, the exploit on it, what its verifier pays for it)"""
    found = []
    for seed in SEEDS:
        dataset = library.create_dataset(weakness.task, seed=seed, size=ITEMS, **weakness.config)
        for index in range(ITEMS):
            entry = dataset[index]
            assert weakness.exploit is not None
            answer = weakness.exploit(entry)
            found.append((entry, answer, native_score(dataset, entry, answer)))
    return tuple(found)


@functools.cache
def solved(task: str, seed: int = 5) -> tuple[tuple[Any, dict[str, Any], str], ...]:
    """(dataset, item, a right answer), from the default config and the last level that is quick."""
    found = []
    quick = {"countdown", "game_of_life", "jugs", "kakurasu", "propositional_logic", "rubiks_cube"}
    level = 0 if task in quick else -1
    for config in ({}, build_ladder(task).levels[level].config):
        dataset = library.create_dataset(task, seed=seed, size=10, **copy.deepcopy(dict(config)))
        entries = [entry for index in range(10) if has_right_answer(task, entry := dataset[index])]
        found += [(dataset, entry, answer) for entry in entries if (answer := reference_answer(task, entry))]
    return tuple(found)


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The programs behind some items of codeio write files where they are run."""
    monkeypatch.chdir(tmp_path)


# --- the table ---


@pytest.mark.parametrize("weakness", each_weakness(WeaknessKind.UNSOUND, WeaknessKind.GENEROUS))
def test_the_verifier_pays_the_exploit_what_the_table_says_and_the_strict_score_does_not(weakness: Weakness) -> None:
    cases = exploited(weakness)
    assert sum(value for _, _, value in cases) / len(cases) >= weakness.pays - 1e-9
    if weakness.kind is WeaknessKind.UNSOUND:
        fooled = [case for case in cases if case[2] >= CHECKS[weakness.task].credit_from]
        assert fooled
        for entry, answer, value in fooled:
            assert strict_score(weakness.task, entry, answer, value) == 0.0
            assert strict_score(weakness.task, entry, f"<answer>{answer}</answer>", value) == 0.0


def test_a_weakness_stands_once_per_task_and_kind_and_a_check_exists_for_each_unsound_verifier() -> None:
    unsound = {weakness.task for weakness in WEAKNESSES if weakness.kind is WeaknessKind.UNSOUND}
    assert unsound == {task for task in CHECKS if CHECKS[task] not in (one_number, one_of_a_few)}
    assert len({(weakness.task, weakness.kind) for weakness in WEAKNESSES}) == len(WEAKNESSES)
    assert {weakness.task for weakness in WEAKNESSES} <= set(TASKS)
    assert all(weakness.reason.endswith(".") and "|" not in weakness.reason for weakness in WEAKNESSES)


def test_the_documentation_has_the_table() -> None:
    rows = ["| task | kind | why | the probe earns |", "|---|---|---|---|"]
    for weakness in WEAKNESSES:
        pays = f"{weakness.pays:g}" if weakness.kind is not WeaknessKind.NO_ORACLE else ""
        rows.append(f"| {weakness.task} | {weakness.kind.value} | {weakness.reason} | {pays} |")
    assert "\n".join(rows) in DOCS.read_text(encoding="utf-8")


# --- answers that are right ---


HARMLESS = [
    *("{}.", "{}\n", " {}", "**{}**", "`{}`", '"{}"', "${}$", "\\boxed{{{}}}", "\\text{{{}}}", "{},"),
    "The answer is {}.",
]


@pytest.mark.parametrize("task", each(CHECKS))
def test_right_answers_keep_their_score_however_they_are_decorated(task: str) -> None:
    for dataset, entry, answer in solved(task):
        value = native_score(dataset, entry, answer)
        assert value >= ALMOST_FULL_CREDIT
        for form in (answer, f"<answer>{answer}</answer>", f" {answer}\n", f"<answer>\n{answer}\n</answer>"):
            assert strict_score(task, entry, form, value) == value
        for form in (pattern.format(answer) for pattern in HARMLESS):
            value = native_score(dataset, entry, form)
            assert strict_score(task, entry, form, value) == value, form


@pytest.mark.parametrize("task", sorted(WITHOUT_ORACLE))
def test_where_the_item_has_no_answer_one_is_made_that_is_right(task: str) -> None:
    assert len(solved(task)) == {"propositional_logic": 16}.get(task, 20)
    for dataset, entry, answer in solved(task):
        assert entry["answer"] is None
        assert native_score(dataset, entry, answer) == 1.0


# --- the same in other words, and what only looks like it ---


def item(answer: str = "", **metadata: Any) -> dict[str, Any]:
    return {"answer": answer, "metadata": metadata}


def flips(heads: int, of: int) -> dict[str, Any]:
    return item(format(heads / of, ".10g"), rational={"numerator": heads, "denominator": of})


def equation(polynomial: str, *real: float) -> dict[str, Any]:
    return item(", ".join(map(str, real)), polynomial_expr=polynomial, variable="x", real_solutions=list(real))


BETWEEN = {
    "expected_format": "D days, HH:MM",
    "format": "%Y-%m-%d %H:%M",
    "start_time": "2213-04-25 05:12:00",
    "end_time": "2213-07-19 08:32:00",
}
CLOCK = {
    "expected_format": "HH:MM:SS.mmm",
    "format": "%H:%M:%S.%f",
    "start_time": "2026-01-01 10:00:00.500000",
    "end_time": "2026-01-01 11:01:02.505000",
}
DAYS = {**BETWEEN, "expected_format": "D days", "start_time": "2213-04-25 00:00:00", "end_time": "2213-05-02 00:00:00"}
MATILDA = {
    "question": "Alice knows 4 men and 5 women. Bob knows 2 men and 5 women. How many women does Matilda know?",
    "answer": "6",
    "metadata": {},
}
HAND = {"add": "C", "remove": "X", "result": "Pass", "cards": "ABDEGHJKMOQRC"}
RING = {"A1": "w", "A3": "B"} | dict.fromkeys(("A2", "B1", "B3", "C1", "C2", "C3"))
QUOTIENT = {"question": "To 12 significant digits.\n6.062/9.923+4.250 = ?", "answer": "4.86090396050", "metadata": {}}
POOLED = item(matrix=[[1, 2, 4], [4, 2, 3]], pool_type="average", pool_size=2)
THIRDS = item(matrix=[[1, 2], [1, 1], [2, 1]], pool_type="average", pool_size=3)
BOARD = item(output=((1, 2), (3, 4)))
COLUMN = item(matrix=[[1], [2]], pool_type="max", pool_size=1)
POINT = item("(1.333, -2.000)", task_type="orthocenter", ortho=("4/3", "-2"))
ANGLE = item("116.57°", task_type="angle_measure", angle_ABC_degrees=116.56505117707799)
GRID = item("1 2\n3 4", solution=[[1, 2], [3, 4]])
KNIGHTS = item(names=["Ann", "Bob"], knight_knave_terms={"knight": "sage", "knave": "fool"})
PROFIT = {"question": "What percentage of the 8 apples is ripe?", "answer": "25", "metadata": {}}
HOURS = {
    "question": "Ann runs 1.5 hours, 6 miles per hour. How many minutes does Mrs. Ann run? Give the result.",
    "answer": "90",
    "metadata": {},
}
SUM = item(result=(24, 87), operation="+")
LARGE_SUM = item(result=(1685648214326420, 1), operation="+")
# As floats are multiplied: the product is 9007199254740993.
PRODUCT = item(result=(9007199254740992, 0), operation="*", num1=(3.0, 0.0), num2=(3002399751580331.0, 0.0))
PRICE = {
    "question": "Of £10, 15% are gone. How much of one note is left? Give the result.",
    "answer": "8.5",
    "metadata": {},
}
BUTTONS = item(
    buttons=[{"name": "A", "type": "add", "value": 2, "active_state": "any"}],
    initial_value=0,
    initial_state="red",
    target_value=4,
)
SORTED = item(sorted_numbers=["-7.0", "1.5"])
SQUARE = item("x**2 + C", variable="x")
SINE = item("x - Integral(sin(x)/x, x) + C", variable="x")
CARS = item(board_config="IoxCCMIoooLMJoAALoJDDKEEoooKooFFGGox")
CARS_OUT = "A-1 F+1 E+1 H+1 H+1 C-1 I-1 I-1 D-1 D-1 J+1 J+1 K+1 B+1 I-1 A+1 A+1 K+1 K+1 A+1"
BOXES = item(
    gamestr="+ + + + + + +  \n+ * $ - - - +  \n+ @ - @ X - +  \n+ - - - - - +  \n+ X + - @ X +  \n+ + + + + + +  \n"
)
RIGHT = [
    ("polynomial_equations", equation("-4*x**2 + 2*x + 12", -1.5, 2.0), "-1.5, 2", "[2.01, -1.50]."),
    ("polynomial_equations", equation("8*x**2 + 2*x - 1", -0.5, 0.25), ".25, -.5", "[-0.5, 0.25]."),
    ("polynomial_equations", equation("x**3 - 8", 2.0), "2"),
    ("polynomial_equations", equation("x**3 - 2*x**2 + x", 0.0, 1.0), "0, 1.0"),
    ("rush_hour", CARS, CARS_OUT, f"The moves: {CARS_OUT} A+1."),
    ("sokoban", BOXES, "DDURRDDR", "D, D, U, R, R, D, D, R", "DDURRDDRR"),
    ("puzzle24", item(numbers=[3, 3, 8, 8]), "8/(3 - 8/3)"),
    ("puzzle24", item(numbers=[1, 2, 3, 4]), "4*3*2*1"),
    ("puzzle24", item(numbers=[10, 2, 2, 10]), "10 + 10 + 2 + 2"),
    ("countdown", item(numbers=[25, 4, 3], target=97), "4*25\n- 3"),
    ("countdown", item(numbers=[2, 7, 1], target=127), "2**7 - 1"),
    ("graph_color", item(puzzle={"vertices": [0, 1]}), '{"0": 1, "1": 2}'),
    ("bitwise_arithmetic", item("-0xc"), "-0xc", "-0XC", "-0x0c"),
    ("bitwise_arithmetic", item("0x5"), "5", "+0x5"),
    ("coin_flip", flips(5, 16), "5/16"),
    ("coin_flip", flips(55, 1024), "0.05371"),
    ("coin_flip", flips(1, 32768), "0.00003"),
    ("coin_flip", flips(1, 1), "1.0"),
    ("coin_flip", flips(1, 1073741824), "9.3e-10", "1/1073741824", "0.00000000093,"),
    ("chain_sum", item("1200"), "1200", "+01,200.00", "1,200,", "= 1200", "1.2e3"),
    ("complex_arithmetic", SUM, "24 + 87i", "(24.0+87.0I)", "24 + 87 i"),
    ("complex_arithmetic", LARGE_SUM, "1685648214326420 + i", "1.68564821432642e15 + 1.0i"),
    ("complex_arithmetic", PRODUCT, "9007199254740993 + 0i", "9007199254740993.0"),
    ("gsm_symbolic", item("59"), "$59.00 in total"),
    ("gsm_symbolic", item("1240"), "1,240"),
    ("game_of_life_halting", item("True"), "true.", "$\\boxed{\\text{True}}$"),
    ("game_of_life_halting", item("False"), "**False**"),
    ("number_sorting", SORTED, "[-7, 1.50]", "['-7', '1.5']"),
    ("number_format", item(solution=2000.125, candidates=[2000.125, 1999.0]), "2,000.125000", "2.000125e+03"),
    ("simple_integration", SQUARE, "x*x + 4", "x**2 + C", "pi + x**2", "x**2 + C_1", "constant + x**2", "2e0*x"),
    ("intermediate_integration", SINE, "x - Si(x) + C", "x - Si (x) + exp(C)"),
    ("propositional_logic", item(variables=["P", "Q"], premises=["P", "(P → ¬¬Q)"]), "Q ∧ P", "¬¬Q"),
    ("propositional_logic", item(variables=["P", "Q"], premises=["¬(P ∨ Q)"]), "¬P"),
    ("spell_backward", item("otO"), "OTO."),
    ("word_sorting", item(sorted_words=["a", "b"]), "a,b,"),
    ("game_of_life", item("[[0,1],[1,0]]"), "[[0, 1],\n[1, 0]]"),
    ("codeio", item("[1, 2]"), "[1, 2]"),
    ("codeio", item('{"a": 75.73070285886317}'), '{"a": 75.7307028588632}', '{"a": 75.730702858863}'),
    ("codeio", item('{"a": 0.30000000000000004, "b": 7}'), '{"a": 0.3, "b": 7.0}'),
    ("codeio", item('{"median": 57.0, "all": [1, null]}'), '{"all": [1, null], "median": 57}'),
    ("advanced_geometry", POINT, "(1.3333, -2)", "1.333,-2.0", "((1.333, -2.000)),"),
    ("advanced_geometry", item("45.00°", task_type="angle_measure", angle_ABC_degrees=45.0), "45°", "45.000"),
    ("advanced_geometry", ANGLE, "116.57°", "116.5651", "116.56505117707799"),
    ("advanced_geometry", item("5.678", task_type="incircle_radius"), "5.678"),
    ("cryptarithm", item(), "A=1, B=2,C=3"),
    ("decimal_arithmetic", QUOTIENT, "4.86090396050", "4.8609039604958", "4.861", "4.8609", "4.86090412345"),
    ("decimal_arithmetic", {**QUOTIENT, "question": "\n6.062 - 4.25 = ?", "answer": "1.812"}, "1.812", "1.8120"),
    ("aiw", {**MATILDA, "question": MATILDA["question"].replace("2 men and 5", "2 men and 2")}, "6"),
    ("aiw", {"question": "Alice has 5 sisters and 4 brothers. How many sisters has her brother?", "answer": "6"}, "6"),
    ("basic_arithmetic", item("3", expression="-( 4 - 10 ) / 2"), "3"),
    ("caesar_cipher", item("BOTH OF THEM"), "BOTH OF THEM"),
    ("family_relationships", item("aunt"), "aunt"),
    ("family_relationships", item("niece", person1="Emma"), "niece"),
    ("family_relationships", item("nephew", person1="Of no list"), "nephew"),
    ("fraction_simplification", item(), "$\\frac{1}{2}$", "\\dfrac{ 1 }{2}.", "1/2", "$3/4$"),
    ("group_anagrams", item(), '[["ab", "ba"]]'),
    ("gsm_symbolic", PROFIT, "25%", "25 apples"),
    ("gsm_symbolic", {**HOURS, "question": "There are 9 bees. Calculate the ants. Give the result."}, "90 ants"),
    ("gsm_symbolic", HOURS, "90 minutes", "90", "does Mrs. Ann run 90 minutes"),
    ("gsm_symbolic", PRICE, "£8.50", "8.5"),
    ("jugs", item(), '["fill A", "pour A->B", "empty B"]'),
    ("kakurasu", item(), "1 0\n0 1", "[[1, 0],\n[0, 1]]", "|1|0|\n|0|1|"),
    ("knights_knaves", KNIGHTS, "Ann is a sage, and Bob is a fool.", "- Ann is a sage\n- Bob is fool"),
    ("knight_swap", item("No", pieces={"A1": "w", "B3": "B"}, is_possible=False, start_turn="w"), "No"),
    ("knight_swap", item("[]", pieces=RING, is_possible=True, start_turn="w"), "[]"),
    ("mahjong_puzzle", item("Chi", rounds=[HAND]), "Chi"),
    ("mahjong_puzzle", item("Peng", rounds=[{**HAND, "add": "E", "cards": "ABDEEHJKMOQRE"}]), "Peng"),
    ("mahjong_puzzle", item("Pass", rounds=[{**HAND, "add": "T", "cards": "ABEEGHJKMOQRT"}]), "Pass"),
    ("palindrome_partitioning", item(), '[["a", "a"], ["aa"]]'),
    ("tsumego", item("B3", board=[[".", ".", "."], ["X", "O", "X"], [".", "X", "."]]), "B3"),
    ("calendar_arithmetic", {**item("5", end_date="2022-12-30"), "question": "... to Friday, December 30, 2022"}, "5"),
    ("calendar_arithmetic", {**item("Friday", target_date="2023-12-30"), "question": ""}, "Friday"),
    ("number_filtering", item("['84', '84']", result=["84", "84"], original_numbers=["84", "1", "84"]), "['84', '84']"),
    ("polynomial_multiplication", item("x**2 + 5*x + 6"), "x**2 + 5*x + 6", "6 + x*5 + 1*x**2", "$(6+5*x)+x**2$."),
    ("pool_matrix", POOLED, "2.25 3.5", "2.250 3.50\n"),
    ("pool_matrix", THIRDS, "1.33", "1.333", "1.3333"),
    ("products", item("1234567"), "1,234,567", "+01234567.00", "1234567", "$1,234,567$,"),
    ("quantum_lock", BUTTONS, "A → A", "AA", "A -> A", "`A, A`", "The final answer is A → A"),
    ("rearc", BOARD, "1 2\n3 4", "Shape: 2x2\n1 2\n3 4"),
    ("rubiks_cube", item(), "R U' F2 Bw'"),
    ("rush_hour", CARS, CARS_OUT.replace("A-1 F+1", "A-1 FF+1")),
    ("survo", GRID, "1 2\n3 4", "| 1 | 2 |\n| 3 | 4 |"),
    ("syllogism", item("Yes", premise1="All a are b", premise2="No b are c", conclusion="No c are a"), "Yes"),
    ("syllogism", item("Yes", premise1="All a are b", conclusion="Some b are a"), "Yes"),
    ("syllogism", item("No", premise1="All a are b", premise2="Some b are c", conclusion="Some a are c"), "No"),
    ("time_intervals", item(**BETWEEN), "85 days, 03:20", "85 days, 3:20:00"),
    ("time_intervals", item(**CLOCK), "01:01:02.005", "1:01:02.0050"),
    ("time_intervals", item(**DAYS), "7 days", "7", "7 D days."),
    ("tower_of_hanoi", item(), "Move disk 1 from Peg 1 to Peg 3\n\n Move disk 2 from Peg 1 to Peg 2"),
    (
        "boxnet",
        item(initial_state={"0.5_0.5": ["box_red", "target_red"], "0.5_1.5": []}),
        '[{"Agent[0.5, 0.5]": "move(box_red, square[0.5, 1.5])"}, '
        '{"Agent[0.5, 1.5]": "move(box_red, square[0.5, 0.5])"}, {"Agent[0.5, 0.5]": "move(box_red, target_red)"}]',
    ),
]
WRONG = [
    ("advanced_geometry", POINT, "(1.333, -2.000), (1, 2)", "(1.333, -2.000), 5", "0(1.333, -2.000)"),
    ("advanced_geometry", POINT, "(1.3329, -2)", "(1.333, -2.0004)"),
    ("advanced_geometry", ANGLE, "116.574°", "116.569"),
    ("aiw", MATILDA, "6", "9"),
    ("codeio", item('{"a": 35, "b": null}'), '{"a": "35", "b": null}', '{"a": 35, "b": "None"}', '{"a": 1, "a": 35}'),
    ("codeio", item('{"a": [], "b": 1}'), '{"a": {}, "b": 1}', '{"a": [], "b": true}'),
    ("codeio", item('{"a": 12345678901234567890}'), '{"a": 12345678901234567891}'),
    ("codeio", item('{"a": 123456789012, "b": "x"}'), '{"a": 123456789013, "b": "x"}'),
    ("codeio", item('{"a": "1011010101010101"}'), '{"a": "1011010101010110"}', '{"a": "1011010101010101.0"}'),
    ("codeio", item('{"a:b": 1, "t": "12:30"}'), '{"a": "b:1", "t": "12:30"}', '{"a:b": 1, "t:12": "30"}'),
    ("codeio", item('{"a": 42.82010568162258}'), '{"a": "42.82010568162251"}'),
    ("codeio", item('{"a": 90.92907910663993, "b": 0.3}'), '{"a": 90.92907910079107, "b": 0.3}'),
    ("codeio", item('{"a": 0.30000000000000004, "b": 7}'), '{"a": 0.3, "b": 7.000000001}'),
    ("bitwise_arithmetic", item("0xc"), "12", "0b1100", "0o14", "0xc_c", "0x"),
    ("coin_flip", flips(1, 8), "0.1251", "0.125,1", "1251/10000", "0,.125", "0.1,25", "0.12499999999"),
    ("coin_flip", flips(1, 1073741824), "0", "1e-9"),
    ("countdown", item(numbers=[25, 4, 3], target=97), "4*25 - 3 # or 5"),
    ("cryptarithm", item(), "A=2,A=1,B=2", "A=1,B=0_2", "A=1,B=-0", "A=1,B=02"),
    ("decimal_arithmetic", QUOTIENT, "4.8618", "4.8615", "4.863"),
    ("decimal_arithmetic", {**QUOTIENT, "question": "\n2.458*3.011 = ?", "answer": "7.401038"}, "7.400938", "7.4011"),
    ("decimal_arithmetic", {**QUOTIENT, "question": "\n6.062 - 4.25 = ?", "answer": "1.812"}, "1.8125", "1.813"),
    ("basic_arithmetic", item("3", expression="3 + 1 / -( 5 - 9 )"), "3", "3.25"),
    ("caesar_cipher", item("AËRIAL"), "AËRIAL"),
    ("family_relationships", item("father-in-law"), "father-in-law"),
    ("family_relationships", item("niece", person1="James"), "niece", "nephew"),
    ("game_of_life", item("[[0,1],[1,0]]"), "[[0,true],[1,0]]", "[[false,1],[1,0]]"),
    ("fraction_simplification", item(), "$\\frac{1}{2}$ or 3/4", "\\frac{1}{2}5", "$\\frac{1}{2}$ = -1"),
    ("group_anagrams", item(), '[{"ab": 0, "ba": 0}]', '{"a": 1}'),
    ("gsm_symbolic", HOURS, "90 results", "90 hours", "90 miles per minute", ".90", ".090", "£90"),
    ("gsm_symbolic", PRICE, "8.5%", "€8.5", "one 8.5"),
    ("chain_sum", item("12"), "1,2", "0,12", ",1,2", "1_2"),
    ("products", item("1234"), "12,34"),
    ("gsm_symbolic", PROFIT, "not 25", "25 or 26", "25!", "25*2", "at most 25", "25 times", "<25", "25 8"),
    ("jugs", item(), '["fill A or B"]', '["fill A not"]', '["pour A->A"]', '{"fill A": 0}'),
    (
        "kakurasu",
        item(),
        "-1 0\n0 1",
        "1 2 0\n0 1",
        "not 1 0\n0 1",
        "~1 0\n0 1",
        "0.0 1\n0 1",
        "1 _0\n0 1",
        "1 0\nthe answer 0 1",
    ),
    (
        "knights_knaves",
        KNIGHTS,
        *("It is a lie that Ann is a sage, and Bob is a fool", "Ann is a sage, and Bob is a fool?"),
        *(
            "¬ Ann is a sage, and Bob is a fool",
            "-(Ann is a sage, and Bob is a fool)",
            "Ann is a sage, and Bob is a fool. False",
            "Maybe Ann is a sage",
        ),
        "Ann is a sage, and Bob is a fool" + " " * 1000 + "not",
    ),
    ("knight_swap", item("No", pieces=RING, is_possible=False, start_turn="B"), "No"),
    ("mahjong_puzzle", item("Pass", rounds=[HAND]), "Pass"),
    ("mahjong_puzzle", item("Chi", rounds=[{**HAND, "cards": "ABCCGHJKMOQRC"}]), "Chi"),
    ("palindrome_partitioning", item(), '[["a", "a"], ["aa"], ["a", "a"]]'),
    ("tsumego", item("B3", board=[[".", ".", "."], ["X", "O", "O"], [".", "X", "."]]), "B3", "C1"),
    ("calendar_arithmetic", {**item("5", end_date="2023-01-06"), "question": "... to Friday, January 6, 2022"}, "5"),
    ("number_filtering", item("['84', '84']", result=["84", "84"], original_numbers=["84", "84.0"]), "['84', '84']"),
    ("polynomial_multiplication", item("x**2 + 1"), "x**2 + 1 # or x", "wrong*0 + x**2 + 1"),
    (
        "polynomial_multiplication",
        item("x**2 + 5*x + 6"),
        "(x + 2)*(x + 3)",
        "x*x + x*3 + 2*x + 2*3",
        "x**2 + 5*x + 2*3",
    ),
    ("pool_matrix", POOLED, "2.26 3.5", "2.25\n3.5", "2.25 3.5 # no", "2.24 3.5", "2.2 3.5", "2.3 3.5", "2 4"),
    ("products", item("123456"), "1,23456", "123,4,56", "1,2,3,4,5,6", "123456,7"),
    ("products", item("12"), "1,2"),
    ("number_format", item(solution=2000.125), "2,0,0,0.125", "20,00.125", "2000.125001"),
    ("pool_matrix", COLUMN, "1 2"),
    ("pool_matrix", item(matrix=[[5] * 8, [5] * 8, [5, 4] * 4], pool_type="max", pool_size=8), "5.01", "4.99"),
    ("pool_matrix", item(matrix=[[5] * 8, [5] * 8, [4] * 5 + [5] * 3], pool_type="average", pool_size=8), "4.8", "5"),
    ("propositional_logic", item(variables=["P", "Q"], premises=["P", "(P → Q)"]), "!Q"),
    (
        "quantum_lock",
        BUTTONS,
        "not A → A",
        "¬A → A",
        "-A → A",
        "A → A5",
        "A or A",
        "final A",
        "answer: A",
        "A",
        "A is A",
    ),
    ("arc_agi", BOARD, "Shape: no\n1 2\n3 4", "1 2\n3 4\n Shape: 3x3"),
    ("rearc", BOARD, "Shape: 2x2 or 5 5\n1 2\n3 4", "Shape: \n1 2\n3 4", "Shape: 2x2\x0bbut not\n1 2\n3 4"),
    ("rubiks_cube", item(), "R U' 2L", "5, R U'", "R not1x U"),
    ("rush_hour", CARS, f"not {CARS_OUT}", f"{CARS_OUT}.5", f"~{CARS_OUT}", f"{CARS_OUT}²", f"{CARS_OUT} is a lie"),
    ("rush_hour", CARS, f"{CARS_OUT} x", f"x{CARS_OUT}", f"{CARS_OUT} is A+1"),
    ("rush_hour", CARS, f"{CARS_OUT} A+7", CARS_OUT.replace("B+1", "B+11")),
    ("sokoban", BOXES, "not DDURRDDR", "~DDURRDDR", "DDURRDDR5", "DDURR the answer DDR"),
    ("survo", GRID, "7 1 2\n3 4 7", "7\n1 2\n3 4", "1 ~ 2\n3 4"),
    ("syllogism", item("Yes", premise1="All a are b", premise2="Some b are c", conclusion="Some a are c"), "Yes"),
    ("time_intervals", item(**BETWEEN), "84 days, 26:80", "84 days, 27:20", "-1 days, 2067:20"),
    ("time_intervals", item(**CLOCK), "00:61:02.005", "01:00:62.005"),
    ("time_intervals", item(**BETWEEN), "85 days, 03:20:00:99", "85 days, 03:20, or more", "85 days, 03:21"),
    ("time_intervals", item(**{**BETWEEN, "format": "%Y-%m-%d (%A) %H:%M:%S %z"}), "85 days, 03:20"),
    ("time_intervals", item(**CLOCK), "01:01:02.5", "01:01:02.004", "01:01:02"),
    ("time_intervals", item(**DAYS), "7 weeks", "7 or 8 days", "7 days, or not", "-7 days", "7 days?"),
    ("word_ladder", item("LIST,LOST,LOFT"), "LIﬆ,LOST,LOFT", "LIſT,LOST,LOFT"),
    ("tower_of_hanoi", item(), "Don'tMove disk 1 from Peg 1 to Peg 3", "not Move disk 1 from Peg 1 to Peg 3"),
    ("polynomial_equations", equation("-3*x**5", 0.0), "-1, 0, 1", "0, 0, (s)|5", "0, none", "2e-4", "nan"),
    ("polynomial_equations", equation("67*x**4 - 103*x**2 + 25*x", 0.0), "0.0", "-1.3465, 0.0, 0.2530, 1.0935"),
    (
        "rush_hour",
        CARS,
        "A+1",
        "B-1",
        f"{CARS_OUT} A+9 A+9",
        "Z+1",
        "A-9999999",
        f"{CARS_OUT} A+٩ A+٩",
        f"{CARS_OUT} A+0009 A+0009",
        f"{'A-1 A+1 ' * 60}{CARS_OUT} A+9 A+9",
    ),
    ("sokoban", BOXES, "L", "DDURRDDRRRR", "U", f"{'DU' * 40}DDURRDDRRRR"),
    ("puzzle24", item(numbers=[3, 3, 8, 8]), "3*8 + 3 - 3"),
    ("puzzle24", item(numbers=[5, 5, 5, 1]), "5*5 - 5/5"),
    ("puzzle24", item(numbers=[1, 1, 5, 5]), "(5 - 1/5)*5 + 1 - 1", "floor(5*5) - 1*1"),
    ("puzzle24", item(numbers=[2, 3, 4, 1]), "2**3*4 - 8*1**3"),
    ("countdown", item(numbers=[25, 4, 3], target=97), "97"),
    ("countdown", item(numbers=[1, 1000], target=1000), "1000 + 1"),
    ("countdown", item(numbers=[3, 1000], target=333), "1000/3"),
    ("countdown", item(numbers=[2, 64], target=0), "2**64**64"),
    ("countdown", item(numbers=[0, 1], target=0), "1/0"),
    ("graph_color", item(puzzle={"vertices": [0, 1]}), '{"0": 1, "1": 2, "2": 3}', '{"0": 1}', "[0, 1]"),
    ("graph_color", item(puzzle={"vertices": [0, 1]}), '{"0": 3, "0": 1, "1": 2}', '{"0": true, "1": 2}'),
    ("coin_flip", flips(5, 16), "0.31"),
    ("coin_flip", flips(1, 32768), "0", "0.000045", "0.000032", ".3e-05"),
    ("coin_flip", flips(32767, 32768), "1"),
    ("coin_flip", flips(1, 1), "11", "0.9999", "0.9999999999"),
    ("complex_arithmetic", SUM, "nan", "n an", "1 + n\ta n i", "24.0000000001 + 87i", "24 - 87i", "87 + 24i"),
    ("complex_arithmetic", LARGE_SUM, "1685648214326420.01 + i"),
    ("complex_arithmetic", PRODUCT, "9007199254740992.0", "9007199254740992 + 0i"),
    ("gsm_symbolic", item("59"), "59,000", "59/2", "fifty-nine"),
    ("game_of_life_halting", item("True"), "True or False", "not True", "¬True", "1", "∼True", "-True", "True?"),
    ("number_sorting", SORTED, "[-7, 1.4]", "[-Infinity, Infinity]", "[-7, 1.50000000000000000001]"),
    ("number_sorting", item(sorted_numbers=["0.0", "1.0"]), "[false, true]"),
    ("number_sorting", item(sorted_numbers=["9989.393271"]), "['9989.39327']"),
    ("simple_integration", SQUARE, "Integral(2*x, x)", "integrate(2*x, x)", "\uff29ntegral(2*x, x)"),
    (
        "simple_integration",
        SQUARE,
        "perhaps - x**2",
        "x**2 + not_this",
        "x**2 + no1",
        "\uff4e\uff4f + x**2",
        "True + x",
        "x**2 + X",
        "x**2 + 1/0",
        "x**2 + gamma(0)",
        "x**2 + \U0001d465",
        "x**2 + \u0445",
    ),
    ("simple_integration", SQUARE, "x**2 + 1/0", "x**2 - log(0)", "x**2 + C/(x - x)", "tan(pi/2) + x**2"),
    ("intermediate_integration", SINE, "Integral(1 - sin(x)/x, x)", "-Integral(sin(x)/x, x) + C + x"),
    (
        "propositional_logic",
        item(variables=["P", "Q", "R"], premises=["P", "(P ∨ Q) → R"]),
        *("P ∨ ¬P", "P ∨ q", "P ∧", "P", "¬¬P", "P ∨ Q", "R ∨ ¬(P ∨ Q)", "((P ∨ Q) → R) ∧ P", "(P ∧ R) ∨ (Q ∧ R)"),
    ),
    ("propositional_logic", item(variables=["P", "Q"], premises=["P", "¬P"]), "Q"),
    ("propositional_logic", item(variables=["P", "Q", "R"], premises=["¬¬¬¬(P ∧ Q)", "R"]), "P ∨ Q ∨ R"),
    (
        "boxnet",
        item(initial_state={"0.5_0.5": ["box_red"], "0.5_1.5": ["target_red"], "1.5_0.5": []}),
        # What the verifier passes over, and what it reads otherwise than it looks.
        '[{"Agent[0.5, 0.5]": "move(box_red,square[1.5, 0.5])"}]',
        '[{"Agent[0.5, 0.5]": "move(box_red, target_red) or square[0.5, 1.5])"}]',
        '[{"Agent[٣ 0.5, 0.5]": "move(box_red, square[0.5, 1.5])"}]',
        '[{"Agent[0.5, 0.5]": "move(box_red, [0.5, 1.5])"}]',
        '[{"Agent[0.5, 0.5]": " move(box_red, square[0.5, 1.5])"}]',
        f'[{{"Agent[0.5, 0.5]": "move(box_red, square[1.5, 0.5]){" " * 200}or not"}}]',
    ),
    (
        "boxnet",
        item(initial_state={"0.5_0.5": ["box_red"], "0.5_1.5": ["target_red"]}),
        '[{"Agent[0.5, 1.5]": "move(target_red, square[0.5, 0.5])"}, {"Agent[0.5, 0.5]": "move(box_red, target_red)"}]',
    ),
]


def test_other_forms_of_a_right_answer_are_right_and_wrong_answers_are_refused() -> None:
    for value, table in ((1.0, RIGHT), (0.0, WRONG)):
        for task, entry, *answers in table:
            for answer in answers:
                assert strict_score(task, entry, answer, 1.0) == value, (task, answer)
                assert strict_score(task, entry, f"<answer> {answer} </answer>", 1.0) == value, (task, answer)


# --- what it leaves alone ---


def test_every_score_of_a_sound_verifier_stays_as_it_is_and_so_does_credit_that_a_check_does_not_look_at() -> None:
    for value in (0.0, 0.01, 0.5, 0.999, 1.0):
        for task in TASKS:
            checks = [table[task] for table in (CHECKS, ITEM_CHECKS) if task in table]
            if not any(check.credit_from <= value <= check.credit_to for check in checks):
                assert strict_score(task, {}, "anything", value) == value


@pytest.mark.parametrize(
    ("task", "entry", "kept", "refused"),
    [
        ("gcd", item("1"), ("x = 1", "gcd(3, 4) = 1", "The answer is 1."), ("12", "-1", "1 or 2", "1.5", "1/2")),
        ("base_conversion", item("3a0"), ("It is 3a0", "`3a0`"), ("3a00", "13a0")),
        ("ransom_note", item("True"), ("It is true: True", "**True**"), ("TrueFalse", "True False", "True or false")),
        ("shortest_path", {}, ("up right right down",), ("up down right", "up up down", "up and right")),
        ("spell_backward", item("olleh"), ("olleg", "oll"), ("olleh and more", "ollehx")),
        ("prime_factorization", {"metadata": {"factors": [2, 2, 3]}}, ("2 × 6", "4×3"), ("12", "1 × 12", "-3 × -4")),
        (
            "knights_knaves",
            {"metadata": {"names": ["Ann", "Bob"], "knight_knave_terms": {"knight": "sage", "knave": "fool"}}},
            ("Ann is a sage, and Bob is a fool.", "Bob is a fool and Ann is a fool"),
            (
                "Ann is a sage, Ann is a fool",
                "If Ann is a sage then Bob is a fool",
                "Ann is a sage fool, Bob is a fool",
            ),
        ),
    ],
)
def test_hedges_lose_their_partial_credit_and_near_misses_keep_theirs(
    task: str, entry: dict[str, Any], kept: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    for answer in kept:
        assert refusal(task, entry, answer, 0.5) == "", answer
    for answer in refused:
        assert refusal(task, entry, answer, 0.5) == CHECKS[task].reason, answer


def test_codeio_keeps_the_partial_credit_of_an_answer_of_ordinary_size() -> None:
    entry = item('{"steps": 30}')
    assert strict_score("codeio", entry, '{"steps": 31}', 0.9) == 0.9
    assert strict_score("codeio", item('{"word": "now"}'), '{"word": "not"}', 0.6) == 0.6
    assert strict_score("codeio", entry, 'The result is {"steps": 30}.', 0.7) == 0.7
    assert strict_score("codeio", entry, json.dumps({"steps": 30, "": {"": {}}}), 0.9) == 0.0
    assert strict_score("codeio", entry, json.dumps({"steps": 30, "more": ["\u2603"] * 20}), 0.9) == 0.0


def test_an_item_of_composite_is_checked_as_what_it_is() -> None:
    entry = {"answer": "True", "metadata": {"source_dataset": "game_of_life_halting"}}
    assert strict_score("composite", entry, "False", 1.0) == 0.0
    assert strict_score("composite", entry, "True", 1.0) == 1.0
    assert strict_score("composite", {"metadata": {"source_dataset": "ab"}}, "x", 0.3) == 0.3


def test_an_item_that_is_not_of_the_task_is_a_fault_and_not_a_wrong_answer() -> None:
    with pytest.raises(KeyError):
        strict_score("puzzle24", {"metadata": {}}, "1", 1.0)


# --- hostile text ---


@pytest.mark.parametrize("task", each(CHECKS))
def test_hostile_text_is_judged_and_never_run(task: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    _, entry, _ = solved(task)[0]
    for answer in HOSTILE_ANSWERS.values():
        text = answer.replace("<marker>", str(marker))
        assert strict_score(task, entry, text, 1.0) in (0.0, 1.0)
        assert strict_score(task, entry, f"<answer>{text}</answer>", 1.0) in (0.0, 1.0)
    assert not marker.exists()


def test_an_item_of_composite_has_a_right_answer_if_it_has_one_where_it_comes_from() -> None:
    dataset = library.create_dataset("syllogism", seed=1, size=60)
    said = [has_right_answer("syllogism", dataset[index]) for index in range(60)]
    assert 0 < said.count(False) < 30
    for task in ("aiw", "mahjong_puzzle", "propositional_logic", "tsumego"):
        assert (
            0 < [has_right_answer(task, one) for one in library.create_dataset(task, seed=1, size=60)].count(False) < 30
        )
    assert [has_right_answer("composite", dataset[index]) for index in range(60)] == said
    for task in ("syllogism", "composite"):
        assert has_right_answer(task, {"question": "?", "answer": "Yes", "metadata": {}}), "grading names the fault"
