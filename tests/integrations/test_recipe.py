"""A recipe makes the same item again, also after it was a line of JSON."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pandas
import pytest

from reasoning_gym_environment import HeldOut, Tasks
from reasoning_gym_environment.api import PromptedProblem
from reasoning_gym_environment.errors import EnvironmentSetupError, GenerationError
from reasoning_gym_environment.integrations.recipe import RecentItems, Recipe
from reasoning_gym_environment.sampling.seeds import question_digest

# Items with tuples, keys that are no texts, and a config with nested objects.
TASKS = "arc_agi,complex_arithmetic,countdown,composite,rearc"


async def test_a_recipe_makes_the_same_item_again() -> None:
    with Tasks(TASKS, complexity_mode=0.5) as tasks:
        held_out = HeldOut(tasks, per_task=1, complexity=0.5)
        for problem in held_out:
            row = json.loads(json.dumps(Recipe.of(problem).as_row()))
            made = await Recipe.from_row(row).make_async(tasks)
            assert made.entry == problem.entry
            assert made.config == problem.config


@pytest.mark.parametrize("level", [None, 3])
def test_a_table_of_pandas_has_the_same_recipe(level: int | None) -> None:
    recipe = Recipe("gcd", seed=7, config="{}", level=level, question_digest="0" * 16)
    [row] = pandas.DataFrame([recipe.as_row()]).astype({"level": "float64"}).to_dict("records")
    assert Recipe.from_row(row) == recipe


def test_another_question_is_not_graded() -> None:
    with Tasks("chain_sum") as tasks:
        recipe = Recipe.of(tasks.draw("chain_sum", 1))
        with pytest.raises(GenerationError, match=r"chain_sum, seed 7.*same release"):
            replace(recipe, seed=7).make(tasks)


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
    with pytest.raises(EnvironmentSetupError, match="export --items"):
        Recipe.from_row(incomplete)


async def test_a_failure_that_nobody_waited_for_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Future[Any]] = []

    def begin(recipe: Recipe, tasks: Tasks) -> Future[Any]:
        made.append(Future())
        return made[-1]

    monkeypatch.setattr(Recipe, "begin", begin)
    problem = cast(PromptedProblem, SimpleNamespace(question="1 + 1?"))
    recipe = Recipe("chain_sum", 1, "{}", None, question_digest(problem.question))
    items = RecentItems(cast(Tasks, None))
    stopped = asyncio.ensure_future(items.get_async(recipe))
    await asyncio.sleep(0)
    stopped.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopped
    made[0].set_exception(GenerationError("too late"))
    made_again = asyncio.ensure_future(items.get_async(recipe))
    await asyncio.sleep(0)
    made[1].set_result(problem)
    assert await made_again is problem
    assert items.get(recipe) is problem
    assert len(made) == 2
