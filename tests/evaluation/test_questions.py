"""The held-out set: chosen tasks, at a chosen difficulty, always the same, named by a hash; and published results."""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from reasoning_gym_environment.errors import (
    EnvironmentSetupError,
    GenerationError,
    GenerationTimeoutError,
    UnknownNameError,
)
from reasoning_gym_environment.evaluation import questions as eval_set
from reasoning_gym_environment.evaluation.questions import (
    PRESETS,
    EvalSet,
    build_eval_set,
    changed_verifiers,
    choose_tasks,
    eval_configs,
    preset_configs,
    published_scores,
)
from reasoning_gym_environment.sampling.item_maker import ItemMaker
from reasoning_gym_environment.sampling.item_stream import ItemStream
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import Catalog, Task, config_of
from reasoning_gym_environment.tasks.difficulty_ladder import Level

CATALOG = Catalog((Task("chain_sum", "arithmetic"), Task("gcd", "arithmetic")))
MANY = Catalog(tuple(Task(f"task_{number:02}", "even" if number % 2 == 0 else "odd") for number in range(50)))


ONE = Catalog(CATALOG.tasks[:1])


class FakeGenerator:
    """Fails for every second item of gcd."""

    async def generate(self, task: str, seed: int, config: Any) -> dict[str, Any]:
        if task == "gcd" and seed % 2:
            raise GenerationError("odd seed")
        return {"question": f"{task} {seed}", "answer": "5", "metadata": {}}


async def build(catalog: Catalog = CATALOG, generator: Any = None, **options: Any) -> EvalSet:
    maker = ItemMaker(catalog, generator or FakeGenerator())
    return await build_eval_set(maker, **{"per_task": 4, "seed": 7, **options})


async def test_a_set_has_items_of_every_task_and_depends_on_its_seed() -> None:
    made = await build(ONE, per_task=3)
    assert [(item.task, item.split, item.index) for item in made] == [("chain_sum", "eval", i) for i in range(3)]
    assert (await build(per_task=4)).manifest == (await build(per_task=4)).manifest
    assert (await build(per_task=4)).manifest != (await build(per_task=4, seed=8)).manifest
    assert len(await build(per_task=0)) == 0


async def test_a_training_run_holds_out_the_questions_of_its_own_settings_and_of_no_others() -> None:
    class Few(FakeGenerator):
        async def generate(self, task: str, seed: int, config: Any) -> dict[str, Any]:
            return {"question": f"{task} {seed % 20}", "answer": "5", "metadata": {}}

    stream = ItemStream(ItemMaker(ONE, Few()), seed=42)
    own = await build(ONE, Few())
    for problem in own:
        stream.hold_out(problem)
    trained = {(await stream.next()).question for _ in range(100)}
    other = await build(ONE, Few(), per_task=20, seed=8)
    assert not trained & {problem.question for problem in own}
    assert trained & {problem.question for problem in other}


async def test_items_that_cannot_be_made_are_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    made = await build(per_task=10)
    missing = 20 - len(made)
    assert 0 < missing < 10
    assert len([m for m in caplog.messages if "of gcd is left out of the evaluation set: odd seed" in m]) == missing
    assert made.describe()["left_out"] == {"gcd": f"{missing} of 10 items could not be made"}


async def test_an_item_that_was_late_is_tried_once_more() -> None:
    class Late(FakeGenerator):
        def __init__(self) -> None:
            self.tries: Counter[int] = Counter()

        async def generate(self, task: str, seed: int, config: Any) -> dict[str, Any]:
            self.tries[seed] += 1
            if self.tries[seed] == 1:
                raise GenerationTimeoutError("late")
            return await super().generate(task, seed, config)

    assert (await build(ONE, Late())).manifest == (await build(ONE)).manifest


def test_a_number_samples_tasks_by_the_evaluation_seed() -> None:
    chosen = choose_tasks(MANY, ["20"], 123)
    assert len(set(chosen)) == 20
    assert chosen == sorted(chosen) == choose_tasks(MANY, ["20"], 123)
    assert chosen != choose_tasks(MANY, ["20"], 124)
    assert choose_tasks(MANY, ["100"], 1) == MANY.names


def test_one_task_less_in_the_catalog_changes_at_most_one_sampled_task() -> None:
    chosen = set(choose_tasks(MANY, ["20"], 1))
    for gone in MANY.names:
        assert len(chosen - set(choose_tasks(MANY.without({gone: "gone"}), ["20"], 1))) == (gone in chosen)


def test_tasks_are_named_by_selectors() -> None:
    assert choose_tasks(MANY, ["all"], 1) == MANY.names
    assert choose_tasks(MANY, ["task_0?"], 1) == MANY.names[:10]
    assert choose_tasks(MANY, ["task_03", "category:even"], 1) == sorted(["task_03", *MANY.names[::2]])
    with pytest.raises(UnknownNameError, match="task_99"):
        choose_tasks(MANY, ["task_99"], 1)


async def test_a_complexity_is_the_level_nearest_to_it() -> None:
    configs, left_out = eval_configs(CATALOG, ["chain_sum"], 1.0)
    level = configs["chain_sum"]
    assert isinstance(level, Level)
    assert (level.complexity, left_out) == (1.0, {})
    made = await build(ONE, complexity=1.0)
    assert {(item.level, item.complexity, item.config["max_terms"]) for item in made} == {
        (level.index, 1.0, level.config["max_terms"])
    }


async def test_what_a_preset_does_not_know_or_the_library_refuses_is_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(eval_set, "preset_configs", lambda preset: {"gcd": {"no_such_field": 1}, "chain_sum": {}})
    catalog = Catalog((*CATALOG.tasks, Task("lcm", "arithmetic")))
    made = await build(catalog, complexity="easy")
    assert {item.task for item in made} == {"chain_sum"}
    left_out = made.describe()["left_out"]
    assert left_out["lcm"] == "the preset 'easy' has no config for it"
    assert "no_such_field" in left_out["gcd"]
    assert "lcm is left out of the evaluation: the preset 'easy' has no config for it." in caplog.messages
    with pytest.raises(EnvironmentSetupError, match=r"No task is left to evaluate.*lcm"):
        await build(Catalog((Task("lcm", "arithmetic"),)), complexity="easy")


async def test_overrides_do_not_change_a_preset_and_a_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    own = Catalog((Task("chain_sum", "arithmetic", overrides={"max_terms": 50}),))
    preset = await build(ONE, complexity="hard")
    assert {(item.level, item.config["min_terms"], item.config["max_digits"]) for item in preset} == {(None, 5, 6)}
    assert preset.describe()["eval_complexity"] == "hard"
    assert (await build(own, complexity="hard")).manifest == preset.manifest
    assert (await build(own)).manifest != (await build(ONE)).manifest
    assert "The overrides of chain_sum do not hold" in caplog.text


async def test_the_manifest_changes_with_every_question_config_and_release_and_not_with_the_order() -> None:
    made = await build(ONE)
    turned = EvalSet(made.problems[::-1], version=made.version)
    assert turned.manifest == made.manifest
    assert EvalSet(made.problems[1:], version=made.version).manifest != made.manifest
    assert EvalSet(made.problems, version="9.9").manifest != made.manifest
    for changed in (
        {"seed": made.problems[0].seed + 1},
        {"task": "gcd"},
        {"config": {**made.problems[0].config, "max_terms": 99}},
        {"entry": {**made.problems[0].entry, "question": "another"}},
    ):
        others = [replace(made.problems[0], **changed), *made.problems[1:]]
        assert EvalSet(others, version=made.version).manifest != made.manifest, changed
    assert len(made.manifest) == 16
    assert json.loads(json.dumps(made.describe()))["questions"] == 4


def test_scores_and_presets_are_those_of_the_source() -> None:
    easy, hard = published_scores("easy"), published_scores("hard")
    assert len(easy) == 9
    assert set(easy) - set(hard) == {"anthropic/claude-sonnet-4"}
    assert {len(scores) for scores in easy.values()} <= {100, 101}
    gemma = easy["google/gemma-3-27b-it"]["chain_sum"]
    assert (gemma.mean_score, gemma.accuracy) == (0.6832, pytest.approx((1 + 2 + 33 * 3) / 150))
    assert hard["google/gemma-3-27b-it"]["chain_sum"].accuracy == 0.0
    for preset in PRESETS:
        configs = preset_configs(preset)
        assert set(configs) >= {task for scores in published_scores(preset).values() for task in scores}
        assert changed_verifiers() <= set(configs)
    assert preset_configs("easy")["chain_sum"] == {}
    assert preset_configs("hard")["chain_sum"] == {"min_terms": 5, "max_terms": 8, "min_digits": 4, "max_digits": 6}


def test_the_installed_library_accepts_every_hard_config() -> None:
    configs = preset_configs("hard")
    # A preset's fields are arguments of the config class; building all hundred datasets takes too long here.
    for task, fields in configs.items():
        assert set(fields) <= set(config_of(task, fields)), task
    assert set(configs) <= set(library.registry())
