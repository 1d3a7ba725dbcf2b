"""Rows of a store of levels: the items of a run, whoever reads them, at the levels that the rewards ask for."""

from __future__ import annotations

import json
import pickle
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import HeldOut, ItemStream, Rows, Tasks, new_store
from reasoning_gym_environment.api import PromptLimit, Row, report
from reasoning_gym_environment.commands import levels
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.sampling import item_stream
from reasoning_gym_environment.sampling.curriculum import UNMADE_ITEMS
from reasoning_gym_environment.sampling.level_store import LevelStore
from testing.in_process import InProcessGrader
from testing.level_student import GROUP_SIZE, TASKS, rewards

pytestmark = pytest.mark.usefixtures("in_process_workers")


@pytest.fixture
def store(tmp_path: Path, in_process_workers: None) -> LevelStore:
    return new_store(tmp_path / "levels.sqlite", group_size=GROUP_SIZE, include_tasks=TASKS, seed=3, rows=5000)


def answer(row: Row) -> None:
    """Report the rewards of the student."""
    for reward in rewards(row.recipe.task, row.recipe.level, row.number):
        report(row.recipe, [reward])


def execute(store: LevelStore, statement: str) -> list[Any]:
    with closing(sqlite3.connect(store.path)) as database, database:
        return database.execute(statement).fetchall()


def levels_of(store: LevelStore) -> dict[str, int]:
    return {task.task: task.level for task in store.summary().tasks}


def test_the_rows_are_the_items_of_a_run(store: LevelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # The stream chooses a level some items before it hands the item out.
    monkeypatch.setattr(item_stream, "PREFETCH", 0)
    rows = Rows(store.path)
    with Tasks(TASKS, complexity_mode="curriculum") as tasks:
        stream = ItemStream(tasks, seed=3)
        for number in range(60):
            row = rows[number]
            problem = stream.next()
            assert (row.problem.question, row.recipe.level) == (problem.question, problem.level)
            assert row.problem.messages == problem.messages
            answer(row)
            stream.observe(problem, rewards(problem.task, problem.level, problem.index))
        state = stream.state_dict()["curriculum"]["tasks"]
    saved = execute(store, "SELECT task, state FROM tasks")
    assert {task: json.loads(own) for task, own in saved} == state
    assert min(levels_of(store).values()) >= 1


def test_a_row_stays_what_its_first_reader_got(store: LevelStore) -> None:
    readers = [Rows(store.path), pickle.loads(pickle.dumps(Rows(store.path)))]
    first = readers[0].read(range(40))
    for row in first:
        answer(row)
    assert max(levels_of(store).values()) > 0
    for reader in readers:
        again = reader.read(range(39, -1, -1))
        for row, other in zip(reversed(first), again, strict=True):
            assert (row.recipe, row.problem.entry) == (other.recipe, other.problem.entry)
    assert Counter(row.recipe.level for row in first) == {0: 40}
    assert max(row.recipe.level or 0 for row in readers[1].read(range(40, 60))) > 0


class WordTokenizer:
    """One token for each word."""

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> list[str]:
        assert options == {"add_generation_prompt": True, "tokenize": True, "return_dict": False, "thinks": True}
        return " ".join(message["content"] for message in messages).split()


def test_a_prompt_that_is_too_long_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {"group_size": 1, "system_prompt": None, "rows": 500}
    store = new_store(tmp_path / "levels.sqlite", include_tasks=["chain_sum", "knights_knaves"], **settings)
    limit = PromptLimit(WordTokenizer(), 40, {"thinks": True})
    rows = Rows(store.path, limit).read(range(20))
    # The questions of knights_knaves have more words at every level.
    assert {row.recipe.task for row in rows} == {"chain_sum"}
    assert len({row.recipe.seed for row in rows}) == 20
    assert len(re.findall(r"knights_knaves \(prompt_too_long\): the prompt has \d+ tokens", caplog.text)) == 1
    none = Rows(store.path, PromptLimit(WordTokenizer(), 3, {"thinks": True}))
    with pytest.raises(EnvironmentSetupError, match=r"Row 20: .* draws in a row"):
        none[20]


def test_a_task_goes_down_from_a_level_whose_prompts_are_too_long(tmp_path: Path) -> None:
    store = new_store(tmp_path / "levels.sqlite", include_tasks="chain_sum", group_size=1, system_prompt=None)
    unlimited = Rows(store.path)
    for number in range(12):
        report(unlimited[number].recipe, [1.0])
    reached = levels_of(store)["chain_sum"]
    assert reached > 1
    shortest = len(unlimited[0].problem.question.split())
    limited = Rows(store.path, PromptLimit(WordTokenizer(), shortest, {"thinks": True}))
    for number in range(12, 12 + UNMADE_ITEMS):
        assert (limited[number].recipe.level or 0) < reached
    assert levels_of(store)["chain_sum"] < reached
    assert (unlimited[20].recipe.level or 0) < reached


def test_what_is_wrong_is_said_in_a_sentence(store: LevelStore, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match="no such file"):
        Rows(tmp_path / "missing.sqlite")
    with pytest.raises(EnvironmentSetupError, match="group_size: expected a whole number from 1, got 0"):
        new_store(tmp_path / "other.sqlite", group_size=0)
    with pytest.raises(EnvironmentSetupError, match="the file exists"):
        new_store(store.path, group_size=4)
    for number in (5000, -5001):
        with pytest.raises(IndexError, match="there are the rows 0 to 4999"):
            Rows(store.path)[number]
    with pytest.raises(EnvironmentSetupError, match="Expected a recipe"):
        report({"task": "chain_sum"}, [1.0])
    execute(store, "UPDATE tasks SET levels = 2 WHERE task = 'chain_sum'")
    with pytest.raises(EnvironmentSetupError, match="another release"):
        Rows(store.path)[0]


# --- rows without a store


def test_fixed_rows_are_the_items_of_a_stream_in_any_order() -> None:
    rows = Rows.fixed(12, seed=5, include_tasks=TASKS, complexity_mode="random")
    with Tasks(TASKS, complexity_mode="random") as tasks:
        stream = ItemStream(tasks, seed=5)
        drawn = [stream.next() for _ in range(12)]
    read = pickle.loads(pickle.dumps(rows)).read(range(11, -1, -1))
    assert [row.problem.entry for row in reversed(read)] == [problem.entry for problem in drawn]
    assert [row.number for row in rows[2:4]] == [2, 3]
    assert (rows[-1].number, [row.number for row in rows[-2:]]) == (11, [10, 11]), "as in any sequence"
    report(read[0].recipe, [1.0])
    with pytest.raises(EnvironmentSetupError, match="need a store of levels"):
        Rows.fixed(3, complexity_mode="curriculum")


def test_held_out_rows_are_the_questions_of_an_evaluation() -> None:
    rows = Rows.held_out(include_tasks=TASKS, num_eval_samples_per_task=2)
    with Tasks(TASKS) as tasks:
        held_out = HeldOut(tasks, num_eval_samples_per_task=2)
        assert [row.problem.entry for row in rows] == [problem.entry for problem in held_out]
        [grade] = tasks.grade(rows[3].recipe.as_row(), [f"<answer>{rows[3].answer}</answer>"])
    assert grade.reward == 1.0 and {row.split for row in rows} == {"eval"}


def test_held_out_rows_are_of_all_tasks_unless_the_caller_chooses() -> None:
    # The command `evaluate` asks a sample of 20 tasks by default. `HeldOut` and the rows of verifiers have all.
    tasks = "category:arithmetic,spell_backward,word_sorting,letter_counting,number_sorting"
    rows = Rows.held_out(include_tasks=tasks, num_eval_samples_per_task=1)
    with Tasks(tasks) as served:
        assert {row.problem.task for row in rows} == set(served.names)


def test_reading_rows_starts_no_grading_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InProcessGrader, "start", None)
    assert len(Rows.fixed(3, include_tasks=TASKS)[:3]) == 3


def test_the_answer_of_a_row_without_a_key_is_the_colouring_that_an_export_has() -> None:
    [row] = Rows.fixed(1, include_tasks="graph_color")
    assert row.answer == json.dumps(row.problem.entry["metadata"]["possible_answer"])


# --- the command


def test_the_command_makes_a_store_and_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "levels.sqlite")
    arguments = ["--tasks", "chain_sum,leg_counting", "--group-size", "2", "--rows", "100"]
    assert levels.main(["create", path, *arguments]) == 0
    assert "2 tasks with" in capsys.readouterr().out
    rows = Rows(path)
    for number in range(10):
        for _ in range(2):
            report(rows[number].recipe, [1.0])
    report(rows[10].recipe.as_row(), [None])
    assert levels.main(["show", path]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"chain_sum +\d+ +\d+ +\d+ +\d+ +1\.00", shown)
    assert "rows read: 11; groups counted: 10\n" in shown
    assert "without a score: 1" in shown
    assert levels.main(["show", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["complete"] == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "--group-size", "2", "--curriculum-target-accuracy", "0"], "curriculum_target_accuracy"),
        (["create", "--group-size", "2", "--curriculum-target-accuracy", "1"], "curriculum_target_accuracy"),
        (["create", "--group-size", "2", "--tasks", "chain_sun"], "Did you mean chain_sum"),
        (["show"], "no such file"),
    ],
)
def test_mistakes_in_the_arguments_are_named(tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=message):
        levels.main([*arguments, str(tmp_path / "levels.sqlite")])
