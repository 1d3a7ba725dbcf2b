"""A recipe makes the same item again, also after it was a line of JSON, and its completions earn what they earn."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, cast

import pandas
import pytest

from reasoning_gym_environment import PromptedProblem, Recipe, Tasks, grade
from reasoning_gym_environment import recipes as module
from reasoning_gym_environment.errors import EnvironmentSetupError, GenerationError, UnknownNameError
from reasoning_gym_environment.recipes import RecipeItems
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
    make = module.make_item

    async def counted(runtime: Any, task: str, seed: int, config: Any, **options: Any) -> PromptedProblem:
        seeds.append(seed)
        # Another caller comes meanwhile.
        await asyncio.sleep(0)
        return await make(runtime, task, seed, config, **options)

    monkeypatch.setattr(module, "make_item", counted)
    return seeds


def right(problem: PromptedProblem) -> str:
    return f"<answer>{problem.entry['answer']}</answer>"


@pytest.mark.parametrize(("task", "level"), [("arc_agi", None), ("complex_arithmetic", None), ("rearc", 1)])
async def test_a_recipe_makes_the_same_item_again(tasks_in_process: Tasks, task: str, level: int | None) -> None:
    problem = await asyncio.to_thread(tasks_in_process.draw, task, 5, level)
    row = json.loads(json.dumps(Recipe.of(problem).as_row()))
    again = await asyncio.to_thread(tasks_in_process.problem, row)
    assert again.entry == problem.entry
    assert again.config == problem.config


@pytest.mark.parametrize("level", [None, 3])
def test_a_table_of_pandas_has_the_same_recipe(level: int | None) -> None:
    recipe = Recipe("gcd", seed=7, config="{}", level=level, question_digest="0" * 16)
    [row] = pandas.DataFrame([recipe.as_row()]).astype({"level": "float64"}).to_dict("records")
    assert Recipe.of(row) == recipe


async def test_another_question_is_not_graded(tasks_in_process: Tasks, problem: PromptedProblem) -> None:
    with pytest.raises(GenerationError, match=r"chain_sum, seed 7.*same release"):
        await asyncio.to_thread(tasks_in_process.problem, replace(Recipe.of(problem), seed=7))


@pytest.mark.parametrize(("made", "graded"), [("strict", "native"), ("native", "strict")])
def test_a_recipe_of_a_clarified_question_is_graded_under_the_other_verification(
    made: str, graded: str, in_process_workers: None
) -> None:
    with Tasks("coin_flip", verification=made) as tasks, Tasks("coin_flip", verification=graded) as others:
        problem = tasks.draw("coin_flip", 3)
        [earned] = others.grade(Recipe.of(problem).as_row(), [right(problem)])
    assert earned.reward == 1.0


def test_strict_verification_grades_no_recipe_of_an_item_without_a_right_answer(in_process_workers: None) -> None:
    with Tasks("simple_geometry", verification="native") as native:
        drawn = (native.draw("simple_geometry", seed) for seed in range(100))
        problem = next(problem for problem in drawn if not is_sound(problem.task, problem.entry))
        row = Recipe.of(problem).as_row()
        [by_library] = native.grade(row, [right(problem)])
    with Tasks("simple_geometry") as strict:
        [made] = strict.grade(row, [right(problem)])
    assert by_library.reward == 1.0
    assert made.reward is None and "Grade it with verification native" in made.score.why


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
        Recipe.of(incomplete)


# --- the grader of recipes


async def test_completions_that_come_one_by_one_share_their_item(
    tasks_in_process: Tasks, problem: PromptedProblem, made: list[int]
) -> None:
    texts = [right(problem), "<answer>x</answer>"] * 8
    grading = [asyncio.to_thread(tasks_in_process.grade, Recipe.of(problem), [text]) for text in texts]
    graded = await asyncio.gather(*grading)
    assert [made.reward for [made] in graded] == [1.0, 0.0] * 8
    assert len(made) == 1


async def test_after_a_failure_the_next_caller_tries_again(make_problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr(Recipe, "make", make)
    items = RecipeItems(cast(Any, None))
    cancelled = asyncio.ensure_future(items.problem(recipe))
    sharing = asyncio.ensure_future(items.problem(recipe))
    await is_called.wait()
    cancelled.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(GenerationError):
        await sharing
    assert attempts == 1
    made = await items.problem(recipe)
    assert made == problem and await items.problem(recipe) is made
    assert attempts == 2


@pytest.mark.parametrize("answer_format", AnswerFormat)
def test_a_row_is_graded_in_the_answer_format_of_its_prompt(
    tasks_in_process: Tasks, problem: PromptedProblem, answer_format: AnswerFormat
) -> None:
    recipe = Recipe.of(replace(problem, answer_format=answer_format))
    answer = problem.entry["answer"]
    completions = [write_answer(answer, form) for form in AnswerFormat]
    grades = tasks_in_process.grade(recipe.as_row(), completions)
    own = write_answer(answer, answer_format)
    # Markup around an answer that is text does not count against it.
    assert [made.reward for made in grades if made.score.answer == answer] == [1.0]
    assert grades[completions.index(own)].reward == 1.0


# --- what cannot be graded


def test_an_item_that_cannot_be_made_is_unscored(
    tasks_in_process: Tasks, problem: PromptedProblem, caplog: pytest.LogCaptureFixture
) -> None:
    good = Recipe.of(problem)
    other_release = replace(good, question_digest="0" * 16)
    impossible = replace(good, config='{"min_terms": 5, "max_terms": 2}')
    for recipe, reason in ((other_release, "another question in this process"), (impossible, "chain_sum")):
        [made] = tasks_in_process.grade(recipe, [right(problem)])
        assert made.reward is None and reason in made.score.why
        assert made.metrics == {"unscored": 1.0}
    assert "1 completions are unscored" in caplog.text
    with pytest.raises(UnknownNameError, match="gcd"):
        tasks_in_process.grade({**good.as_row(), "task": "gcd"}, ["x"])


def test_the_settings_of_the_workers_are_json(problem: PromptedProblem) -> None:
    with pytest.raises(EnvironmentSetupError, match="Expected settings that are texts and numbers"):
        grade(problem, ["x"], task_modules=cast(Any, object()))
