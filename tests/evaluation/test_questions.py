"""The held-out set: chosen tasks, at a chosen difficulty, always the same, named by a hash."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from reasoning_gym_environment.errors import GenerationError
from reasoning_gym_environment.evaluation.questions import EvalSet, build_eval_set, choose_tasks
from reasoning_gym_environment.sampling.item_maker import ItemAddress, ItemMaker
from reasoning_gym_environment.sampling.seeds import is_held_out
from reasoning_gym_environment.settings.components import EvaluationSettings
from reasoning_gym_environment.tasks.catalog import Catalog, Task

CATALOG = Catalog((Task("chain_sum", "arithmetic"), Task("gcd", "arithmetic")))
MANY = Catalog(tuple(Task(f"task_{number:02}", "even" if number % 2 == 0 else "odd") for number in range(50)))


ONE = Catalog(CATALOG.tasks[:1])


class FakeGenerator:
    """Fails for every second item of gcd, or for every one."""

    def __init__(self, every: int = 2) -> None:
        self._every = every

    async def generate(self, task: str, seed: int, config: Any, **_: Any) -> dict[str, Any]:
        if task == "gcd" and (seed + 1) % self._every == 0:
            raise GenerationError("a seed without an item")
        return {"question": f"{task} {seed}", "answer": "5", "metadata": {}}


async def build(
    catalog: Catalog = CATALOG, generator: Any = None, per_task: int = 4, seed: int = 7, complexity: Any = None
) -> EvalSet:
    settings = EvaluationSettings(
        eval_tasks=["all"], num_eval_samples_per_task=per_task, eval_seed=seed, eval_complexity=complexity
    )
    return await build_eval_set(ItemMaker(catalog, generator or FakeGenerator()), settings)


async def test_a_set_has_the_first_held_out_items_of_every_task_by_its_seed() -> None:
    made = await build(ONE, per_task=3)
    assert [(item.task, item.split) for item in made] == [("chain_sum", "eval")] * 3
    drawn = [await ItemMaker(ONE, FakeGenerator()).make(ItemAddress("chain_sum", i, "eval", 7)) for i in range(100)]
    assert made.problems == [problem for problem in drawn if is_held_out(problem.library_question)][:3]
    assert (await build()).manifest == (await build()).manifest != (await build(seed=8)).manifest


class Few(FakeGenerator):
    """Asks 60 different questions of a task."""

    async def generate(self, task: str, seed: int, config: Any, **_: Any) -> dict[str, Any]:
        return {"question": f"{task} {seed % 60}", "answer": "5", "metadata": {}}


def test_one_question_in_ten_is_held_out_by_a_rule_that_never_changes() -> None:
    assert sum(is_held_out(f"question {number}") for number in range(10_000)) == 1038
    assert [number for number in range(40) if is_held_out(f"What is {number}?")] == [3, 4, 13, 36, 37]


async def test_a_task_with_too_few_held_out_questions_is_named_and_asks_none_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = await build(ONE, Few(), per_task=20)
    assert 0 < len(made) < 20 and len({problem.question for problem in made}) == len(made)
    reason = made.describe()["left_out"]["chain_sum"]
    assert reason.startswith(f"{20 - len(made)} of 20 questions are missing: ")
    assert f"Left out of the evaluation: chain_sum, {reason}." in caplog.messages


async def test_seeds_that_give_no_item_are_passed_over_and_a_task_of_which_none_does_is_named() -> None:
    made = await build(per_task=10)
    assert Counter(problem.task for problem in made) == {"chain_sum": 10, "gcd": 10}
    assert all(problem.seed % 2 == 0 for problem in made if problem.task == "gcd")
    broken = await build(generator=FakeGenerator(every=1))
    assert broken.describe()["left_out"] == {"gcd": "4 of 4 items could not be made (10 seeds in a row gave none)"}


def test_a_number_samples_tasks_by_the_seed_and_selectors_name_them() -> None:
    chosen = choose_tasks(MANY, ["20"], 123)
    assert len(set(chosen)) == 20
    assert chosen == sorted(chosen) != choose_tasks(MANY, ["20"], 124)
    for gone in MANY.names:
        without = choose_tasks(MANY.without({gone: "gone"}), ["20"], 123)
        assert len(set(chosen) - set(without)) == (gone in chosen), "at most one changes"
    assert choose_tasks(MANY, ["100"], 1) == choose_tasks(MANY, ["all"], 1) == MANY.names
    assert choose_tasks(MANY, ["task_03", "category:even"], 1) == sorted(["task_03", *MANY.names[::2]])


async def test_a_complexity_is_the_level_nearest_to_it() -> None:
    made = await build(ONE, complexity=1.0)
    assert {(problem.complexity, problem.config["max_terms"]) for problem in made} == {(1.0, 12)}


async def test_the_manifest_changes_with_every_question_config_and_release_and_not_with_the_order() -> None:
    made = await build(ONE)
    first, *rest = made.problems
    assert EvalSet([*rest, first], version=made.version).manifest == made.manifest
    changes = ({"seed": 1}, {"task": "gcd"}, {"config": {"max_terms": 99}}, {"entry": {"question": "another"}})
    others = [EvalSet([replace(first, **changed), *rest], version=made.version) for changed in changes]
    others += [EvalSet(rest, version=made.version), EvalSet(made.problems, version="9.9")]
    assert len({changed_set.manifest for changed_set in (made, *others)}) == 7
