"""The search: it finds what pays without work, and says so only where it does."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reasoning_gym_environment.audit import main as audit_main
from reasoning_gym_environment.audit import search
from reasoning_gym_environment.audit.main import main
from reasoning_gym_environment.audit.search import Searched, Searcher, is_right, levels_of
from reasoning_gym_environment.audit.strategies import View, described, first_strategies, offspring
from reasoning_gym_environment.records import Verdict
from reasoning_gym_environment.tasks import difficulty_ladder
from reasoning_gym_environment.tasks.catalog import Task
from reasoning_gym_environment.tasks.measured_data import Constant, Farming

from ..in_process import InProcessGenerator, InProcessGrader

HERE = Path(__file__).parent
Pays = Callable[[str, str], float]


class Generator:
    def __init__(self, answers: Callable[[random.Random], str]) -> None:
        self._answers = answers

    async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._answers(random.Random(seed))
        return {"question": f"What is item {seed}?", "answer": answer, "metadata": {"answer": answer, "hint": "kxq"}}


class Grader(InProcessGrader):
    def __init__(self, pays: Pays) -> None:
        self._pays, self.seen = pays, set[str]()

    async def grade(
        self, task: str, config: Mapping[str, Any], entry: dict[str, Any], answers: Sequence[str]
    ) -> list[Verdict]:
        self.seen |= set(answers)
        values = [1.0 if answer == entry["answer"] else self._pays(answer, entry["answer"]) for answer in answers]
        return [Verdict(value, bare=value) for value in values]


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by itself whenever it is read, so that every machine searches equally far."""
    ticks = itertools.count()
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: next(ticks) * 0.01))


def unguessable(rng: random.Random) -> str:
    return f"{rng.getrandbits(80):x}"


async def searched(
    answers: Callable[[random.Random], str], pays: Pays, seconds: float = 0.3
) -> tuple[Searched, Grader]:
    grader = Grader(pays)
    searcher = Searcher(Generator(answers), grader, seconds=seconds, seed=1)
    return await searcher.search(Task("own", "none"), None, {}), grader


@pytest.mark.usefixtures("ticking")
async def test_partial_credit_for_many_digits_is_found_and_confirmed() -> None:
    found, _ = await searched(unguessable, lambda text, _: 0.6 if len(set(text) & set("0123456789")) == 10 else 0.0)
    assert found.is_farmable and not found.is_solved_by_constant
    assert (found.wrong, found.pay, found.in_full) == (found.items, pytest.approx(0.6), 0.0)
    assert set("0123456789") <= set(found.example)


@pytest.mark.usefixtures("ticking")
async def test_nothing_is_found_where_only_the_right_answer_is_paid_for_no_strategy_sees_it_or_the_metadata() -> None:
    found, grader = await searched(unguessable, lambda *_: 0.0)
    assert (found.pay, found.right, found.constant, found.is_farmable) == (0.0, 0.0, "", False)
    assert found.strategies > 100
    assert not any("kxq" in text for text in grader.seen)


@pytest.mark.usefixtures("ticking")
async def test_a_constant_that_is_mostly_right_solves_the_level_and_is_not_called_wrong() -> None:
    found, _ = await searched(lambda rng: "-1" if rng.random() < 0.8 else str(rng.random()), lambda *_: 0.0)
    assert (found.constant, found.constant_items) == ("-1", search.CONSTANT_DRAWS)
    assert found.is_solved_by_constant and not found.is_farmable
    assert found.constant_low < 0.8 < found.constant_low + 0.1
    half, _ = await searched(lambda rng: rng.choice(("True", "False")), lambda *_: 0.0)
    assert 0.4 < half.constant_share < 0.6 and not half.is_solved_by_constant


async def test_a_level_of_which_too_few_items_can_be_made_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MIN_ITEMS", 31)
    found, _ = await searched(unguessable, lambda *_: 1.0)
    assert (found.items, found.strategies, found.is_farmable) == (0, 0, False)


def test_the_same_seed_tries_the_same_strategies() -> None:
    view = View("Is 4 in [1, 2]?\n1 _ 3\n4 5 _", (("Is 5 in [5]?", "yes"), ("Is 6 in [7]?", "no")))

    def tried() -> list[str]:
        rng = random.Random(3)
        first = first_strategies(view, rng)
        return [described(one) for one in [*first, *(offspring(first, view, rng) for _ in range(500))]]

    assert tried() == tried()
    answers = {view.answer(one) for one in first_strategies(view, random.Random(3))}
    assert {"yes", "1 1 3\n4 5 1", "4", "-1", "[1, 2]", None} <= answers


def test_an_answer_is_right_whatever_stands_around_it_and_a_hedge_is_not() -> None:
    words = {"true", "false"}
    for text in (
        "True",
        "true.",
        "\\boxed{True}",
        "The answer is True",
        "True, True",
        "Surely True!",
        "+True/",
        "True 1",
    ):
        assert is_right(text, "True", words), text
    for text in ("TrueFalse", "True False", "not True", "¬True", "", "x"):
        assert not is_right(text, "True", words), text
    for text, reference in (
        ("12.0", "12"),
        ("1/4", "0.25"),
        ("0.333", "1/3"),
        ("= 5", "5"),
        ("0,", "0.0"),
        ("1e-9", "0.0"),
        ("856,229,068.281", "856229068.2809999"),
        (",4.460895106030000e+08", "446089510.603"),
    ):
        assert is_right(text, reference), text
    for text, reference in (
        ("-12", "12"),
        ("1001", "1000"),
        ("1 2 3", "2"),
        ("1,2", "12"),
        ("0.3", "1/3"),
        ("x", None),
        ("x", "[]"),
    ):
        assert not is_right(text, reference), text
    for text, reference in (("P ∨ Q", "P ∧ Q"), ("A# #A", "#A A#"), ("3 - 4", "3 + 4"), ("P ∧ Q", "P")):
        assert not is_right(text, reference, {"q", "#", "a"}), text


def test_levels_are_those_asked_for_each_once_also_those_that_a_ladder_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = Task("gcd", "arithmetic")
    top = levels_of(task, ["3"])[3]
    farming = Farming(constants={"gcd": [Constant(dict(top), "1", 0.9)]})
    monkeypatch.setattr(difficulty_ladder, "load_farming", lambda version: farming)
    assert len(difficulty_ladder.build_ladder("gcd")) == 3
    assert list(levels_of(task, ["easiest", "0", "hardest", "default", "99"])) == [0, 3, None]
    assert list(levels_of(task, ["all"])) == [0, 1, 2, 3]


FOUND = [
    Searched("chain_sum", None, items=30, strategies=9, gradings=90, grading_s=0.5),
    Searched("gcd", 3, {"x": 1}, items=30, constant="1", constant_share=0.9, constant_low=0.85, constant_items=200),
    Searched("gcd", None, items=30, strategy="'<a|b>'", example="<a|b>", wrong=20, pay=0.25, in_full=0.1),
]


def test_another_solution_by_luck_is_no_farming_where_the_verifier_works_the_answer_out() -> None:
    for task, pay, in_full, is_farmable in (
        ("gcd", 0.2, 0.2, True),
        ("graph_color", 0.2, 0.2, False),
        ("graph_color", 0.35, 0.2, True),
    ):
        assert Searched(task, None, wrong=30, pay=pay, in_full=in_full).is_farmable is is_farmable


def test_the_command_prints_writes_and_fails_on_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fake:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        async def search(self, task: Task, level: int | None, config: Mapping[str, Any]) -> Searched:
            return next(
                (one for one in FOUND if (one.task, one.level) == (task.name, level)), Searched(task.name, level)
            )

    for name, stand_in in (
        ("Searcher", Fake),
        ("ProcessGenerator", InProcessGenerator),
        ("SandboxGrader", InProcessGrader),
    ):
        monkeypatch.setattr(audit_main, name, stand_in)
    document, page, data = tmp_path / "a.json", tmp_path / "a.md", tmp_path / "farming.json"
    arguments = ["gcd", "chain_sum", "--search", "--levels", "hardest,default"]
    written = ["--json", str(document), "--markdown", str(page), "--write-data", str(data)]
    assert main([*arguments, *written, "--fail-on", "farmable"]) == 1
    printed = capsys.readouterr()
    assert printed.err.strip().endswith("gcd, default: farmable, wrong answers such as '<a|b>' earn 0.25")
    assert "What wrong answers earn without work" in printed.out
    assert "| gcd | FARMABLE, 0.25 (default) | 0.10 | '&lt;a\\|b>' |" in page.read_text()
    assert [one["farmable"] for one in json.loads(document.read_text())["searched"]] == [False, False, True, False]
    shipped = json.loads(data.read_text())
    assert [(one["level"], one["answer"], one["config"]) for one in shipped["constants"]["gcd"]] == [(3, "1", {"x": 1})]
    assert shipped["farmable"]["gcd"]["pay"] == 0.25
    assert main(["chain_sum", *arguments[2:], "--fail-on", "farmable,solved-by-constant"]) == 0


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["gcd", "--fail-on", "farmable"], "got 'farmable' (with --search)"),
        (["gcd", "--search", "--fail-on", "broken"], "got 'broken' (without --search)"),
        (
            ["gcd", "--search", "--levels", "top"],
            "--levels expects some of easiest, middle, hardest, default, all or n",
        ),
        (["gcd", "--write-data", "x.json"], "--write-data is of a search: add --search."),
        (["gcd", "--search", "--write-data", "/nowhere/x.json"], "--write-data: cannot write /nowhere/x.json"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_hole_in_a_task_of_one_s_own_is_found_by_real_workers(capsys: pytest.CaptureFixture[str]) -> None:
    modules = ["--task-modules", str(HERE.parent / "farmable_task.py")]
    limits = ["--search", "--levels", "default", "--seconds", "2", "--fail-on", "farmable"]
    assert main(["pays_for_digits", *modules, *limits]) == 1
    assert "pays_for_digits, default: farmable" in capsys.readouterr().err
