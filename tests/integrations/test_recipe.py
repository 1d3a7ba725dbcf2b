"""A recipe makes the same item again, also after it was a line of JSON, and its completions earn what they earn."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pandas
import pytest

from reasoning_gym_environment import Grade, PromptedProblem, RowRewards, Tasks, grade_rows
from reasoning_gym_environment.errors import EnvironmentSetupError, GenerationError, UnknownNameError
from reasoning_gym_environment.integrations import recipe as module
from reasoning_gym_environment.integrations import trl_rows
from reasoning_gym_environment.integrations.recipe import Recipe, RecipeGrader
from reasoning_gym_environment.records import AnswerFormat
from reasoning_gym_environment.sampling.seeds import question_digest
from reasoning_gym_environment.scoring.extraction import write_answer
from reasoning_gym_environment.verification.questions import is_sound


@pytest.fixture
def problem(tasks_in_process: Tasks) -> PromptedProblem:
    return tasks_in_process.draw("chain_sum", 1)


@pytest.fixture
def made(tasks_in_process: Tasks, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of the items that were made again."""
    seeds: list[int] = []
    make = tasks_in_process._make

    async def counted(task: str, seed: int, config: Any, **options: Any) -> PromptedProblem:
        seeds.append(seed)
        # Another caller comes meanwhile.
        await asyncio.sleep(0)
        return await make(task, seed, config, **options)

    monkeypatch.setattr(tasks_in_process, "_make", counted)
    return seeds


def right(problem: PromptedProblem) -> str:
    return f"<answer>{problem.entry['answer']}</answer>"


def columns_of(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The rows as TRL passes them to a reward function, with columns of the trainer's own."""
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in rows[0]}
    return {**columns, "prompts": [[]] * len(rows), "pass_rate": [None] * len(rows)}


@pytest.mark.parametrize(("task", "level"), [("arc_agi", None), ("complex_arithmetic", None), ("rearc", 1)])
async def test_a_recipe_makes_the_same_item_again(tasks_in_process: Tasks, task: str, level: int | None) -> None:
    problem = await asyncio.to_thread(tasks_in_process.draw, task, 5, level)
    row = json.loads(json.dumps(Recipe.of(problem).as_row()))
    again = await Recipe.from_row(row).make(tasks_in_process)
    assert again.entry == problem.entry
    assert again.config == problem.config


@pytest.mark.parametrize("level", [None, 3])
def test_a_table_of_pandas_has_the_same_recipe(level: int | None) -> None:
    recipe = Recipe("gcd", seed=7, config="{}", level=level, question_digest="0" * 16)
    [row] = pandas.DataFrame([recipe.as_row()]).astype({"level": "float64"}).to_dict("records")
    assert Recipe.from_row(row) == recipe


async def test_another_question_is_not_graded(tasks_in_process: Tasks, problem: PromptedProblem) -> None:
    with pytest.raises(GenerationError, match=r"chain_sum, seed 7.*same release"):
        await replace(Recipe.of(problem), seed=7).make(tasks_in_process)


@pytest.mark.parametrize(("made", "graded"), [("strict", "native"), ("native", "strict")])
def test_a_recipe_of_a_clarified_question_is_graded_under_the_other_verification(
    made: str, graded: str, in_process_workers: None
) -> None:
    with Tasks("coin_flip", verification=made) as tasks, Tasks("coin_flip", verification=graded) as others:
        problem = tasks.draw("coin_flip", 3)
        [earned] = grade_rows(others, [Recipe.of(problem).as_row()], [right(problem)])
    assert earned.reward == 1.0


def test_strict_verification_grades_no_recipe_of_an_item_without_a_right_answer(in_process_workers: None) -> None:
    with Tasks("simple_geometry", verification="native") as native:
        drawn = (native.draw("simple_geometry", seed) for seed in range(100))
        problem = next(problem for problem in drawn if not is_sound(problem.task, problem.entry))
        row = Recipe.of(problem).as_row()
        [by_library] = grade_rows(native, [row], [right(problem)])
    with Tasks("simple_geometry") as strict:
        [grade] = grade_rows(strict, [row], [right(problem)])
    assert by_library.reward == 1.0
    assert grade.reward is None and "Grade it with verification native" in grade.score.why


@pytest.mark.parametrize(
    "change",
    [
        {"seed": None},
        {"seed": float("inf")},
        {"config": "[]"},
        {"config": {}},
        {"config": "[" * 100_000},
        {"task": ...},
    ],
)
def test_a_row_without_a_recipe_is_refused(change: dict[str, object]) -> None:
    row = {"task": "chain_sum", "seed": 1, "config": "{}", "level": None, "question_digest": "", **change}
    incomplete = {name: value for name, value in row.items() if value is not ...}
    with pytest.raises(EnvironmentSetupError, match="export items"):
        Recipe.from_row(incomplete)


# --- the grader of recipes


async def test_completions_that_come_one_by_one_share_their_item(
    tasks_in_process: Tasks, problem: PromptedProblem, made: list[int]
) -> None:
    grader = RecipeGrader(tasks_in_process)
    texts = [right(problem), "<answer>x</answer>"] * 8
    grading = [asyncio.to_thread(grader.grade, Recipe.of(problem), [text]) for text in texts]
    graded = await asyncio.gather(*grading)
    assert [grade.reward for [grade] in graded] == [1.0, 0.0] * 8
    assert len(made) == 1


async def test_after_a_failure_the_next_caller_tries_again(make_problem: Any) -> None:
    problem = make_problem(entry={"question": "1 + 1?", "answer": "2"})
    recipe = Recipe("chain_sum", 1, "{}", None, question_digest(problem.question))
    is_called, may_end = asyncio.Event(), asyncio.Event()
    attempts = 0

    async def make(*_: Any, **__: Any) -> Any:
        nonlocal attempts
        attempts += 1
        is_called.set()
        await may_end.wait()
        if attempts == 1:
            raise GenerationError("too late")
        return problem

    served = {"chain_sum": SimpleNamespace(name="chain_sum")}
    tasks: Any = SimpleNamespace(catalog=served, _make=make, _thread=None)
    grader = RecipeGrader(tasks)
    cancelled = asyncio.ensure_future(grader._item(recipe))
    sharing = asyncio.ensure_future(grader._item(recipe))
    await is_called.wait()
    cancelled.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(GenerationError):
        await sharing
    assert attempts == 1
    made = await grader._item(recipe)
    assert made == problem and await grader._item(recipe) is made
    assert attempts == 2


@pytest.mark.parametrize("answer_format", AnswerFormat)
def test_a_row_is_graded_in_the_answer_format_of_its_prompt(
    tasks_in_process: Tasks, problem: PromptedProblem, answer_format: AnswerFormat
) -> None:
    recipe = Recipe.of(replace(problem, answer_format=answer_format))
    answer = problem.entry["answer"]
    completions = [write_answer(answer, form) for form in AnswerFormat]
    grades = grade_rows(tasks_in_process, [recipe.as_row()] * 3, completions)
    own = write_answer(answer, answer_format)
    # Markup around an answer that is text does not count against it.
    assert [grade.reward for grade in grades if grade.score.answer == answer] == [1.0]
    assert [grade.reward == 1.0 for grade in grades][completions.index(own)]


# --- rows


def test_grades_are_in_the_order_of_the_rows(tasks_in_process: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [tasks_in_process.draw("chain_sum", seed) for seed in (1, 2, 1, 3)]
    rows = [Recipe.of(problem).as_row() for problem in problems]
    answers = [right(problem) for problem in problems]
    wrong = [answers[0], "<answer>x</answer>", "<answer>x</answer>", answers[3]]
    assert rewards_of(grade_rows(tasks_in_process, rows, answers)) == [1.0] * 4
    assert rewards_of(grade_rows(tasks_in_process, rows, wrong)) == [1.0, 0.0, 0.0, 1.0]
    function = row_rewards(tasks_in_process, monkeypatch)
    assert function.__name__ == "reasoning_gym"
    conversations = [[{"role": "assistant", "content": text}] for text in wrong]
    for completions in (wrong, conversations):
        assert function(completions=completions, **columns_of(rows)) == [1.0, 0.0, 0.0, 1.0]


def row_rewards(tasks: Tasks, monkeypatch: pytest.MonkeyPatch, **options: Any) -> RowRewards:
    """The reward function with these tasks instead of workers of its own."""
    monkeypatch.setattr(trl_rows, "grader_for", lambda settings: RecipeGrader(tasks))
    return RowRewards(**options)


def rewards_of(grades: list[Grade]) -> list[float | None]:
    return [grade.reward for grade in grades]


@pytest.mark.parametrize(("opened", "reward"), [(False, 1.0), (True, 0.0)])
def test_the_thinking_that_the_prompt_opened_is_not_the_answer(
    tasks_in_process: Tasks,
    problem: PromptedProblem,
    monkeypatch: pytest.MonkeyPatch,
    opened: bool,
    reward: float,
) -> None:
    rewards = row_rewards(tasks_in_process, monkeypatch, thinking_opened=opened)
    assert rewards(completions=[right(problem)], **columns_of([Recipe.of(problem).as_row()])) == [reward]


def test_an_item_that_cannot_be_made_is_unscored_and_the_others_are_graded(
    tasks_in_process: Tasks, problem: PromptedProblem, caplog: pytest.LogCaptureFixture
) -> None:
    good = Recipe.of(problem)
    other_release = replace(good, question_digest="0" * 16)
    impossible = replace(good, config='{"min_terms": 5, "max_terms": 2}')
    rows = [recipe.as_row() for recipe in (other_release, good, impossible)]
    grades = grade_rows(tasks_in_process, rows, [right(problem)] * 3)
    assert rewards_of(grades) == [None, 1.0, None]
    assert "another question in this process" in grades[0].score.why
    assert "chain_sum" in grades[2].score.why
    assert "1 completions are unscored" in caplog.text


def test_a_row_that_the_user_must_change_is_an_error(
    tasks_in_process: Tasks, problem: PromptedProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Recipe.of(problem).as_row()
    with pytest.raises(UnknownNameError, match="gcd"):
        grade_rows(tasks_in_process, [{**row, "task": "gcd"}], ["x"])
    with pytest.raises(EnvironmentSetupError, match="export items"):
        row_rewards(tasks_in_process, monkeypatch)(completions=["x"], prompts=[[]], task=["chain_sum"])
    with pytest.raises(ValueError, match="a completion for each of 1 rows, got 2"):
        grade_rows(tasks_in_process, [row], ["x", "y"])


def test_the_settings_of_the_workers_are_json() -> None:
    with pytest.raises(EnvironmentSetupError, match="Expected settings that are texts and numbers"):
        module.grader_for(cast(Any, {"task_modules": object()}))
