"""An index is all the state: the same index gives the same problem, and no two streams share a seed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from reasoning_gym_environment.atropos.conversions import ProblemDataset
from reasoning_gym_environment.errors import EnvironmentSetupError, GenerationError, GenerationTimeoutError
from reasoning_gym_environment.records import Problem
from reasoning_gym_environment.sampling.item_maker import ItemMaker, Place
from reasoning_gym_environment.sampling.item_stream import MAX_CONSECUTIVE_FAILURES, ItemStream
from reasoning_gym_environment.sampling.level_limits import LevelLimits
from reasoning_gym_environment.sampling.task_bandit import LearnableTasks, SignalBandit
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import Catalog, Task
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level

TASKS = Catalog((Task("chain_sum", "arithmetic"), Task("gcd", "arithmetic"), Task("spell_backward", "algorithmic")))


class FakeGenerator:
    """Makes `{"question": "task seed"}`, or `question(task, seed)`; raises GenerationError for tasks in `broken`."""

    def __init__(self, broken: tuple[str, ...] = (), question: Any = None) -> None:
        self.broken = broken
        self.question = question or (lambda task, seed: f"{task} {seed}")
        self.calls: list[tuple[str, int, Mapping[str, Any]]] = []

    async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
        self.calls.append((task, seed, config))
        if task in self.broken:
            raise GenerationError(f"{task} is broken")
        return {"question": self.question(task, seed), "answer": "a", "metadata": {}}


def sampler(generator: Any = None, *, catalog: Catalog = TASKS, seed: int = 42, **options: Any) -> ItemStream:
    too_long = {"too_long": options.pop("too_long")} if "too_long" in options else {}
    return ItemStream(ItemMaker(catalog, generator or FakeGenerator(), **too_long), seed=seed, **options)


async def take(source: ItemStream, count: int) -> list[Problem]:
    return [await source.next() for _ in range(count)]


async def test_indices_count_up_and_the_task_is_that_of_its_index() -> None:
    source = sampler()
    problems = await take(source, 20)
    assert [problem.index for problem in problems] == list(range(20))
    assert [problem.task for problem in problems] == [source.task_at(index) for index in range(20)]
    assert source.index == 20
    assert {problem.split for problem in problems} == {"train"}


async def test_two_samplers_with_the_same_names_draw_the_same_problems() -> None:
    assert await take(sampler(), 30) == await take(sampler(), 30)


async def test_a_drawn_problem_can_be_drawn_again_from_its_index_alone() -> None:
    problems = await take(sampler(), 10)
    other = sampler()
    for problem in reversed(problems):
        assert await other.maker.make(Place(problem.task, problem.index, "train", 42, "0")) == problem


async def test_the_order_of_draws_does_not_matter() -> None:
    plain, disturbed = sampler(), sampler()
    await disturbed.maker.make(Place("gcd", 3, "eval", 1))
    disturbed.task_at(99)
    assert await take(plain, 5) == await take(disturbed, 5)


@pytest.mark.parametrize("options", [{"instance": "1"}, {"seed": 43}])
async def test_other_instances_and_other_seeds_share_no_item_seed(options: dict[str, Any]) -> None:
    one, other = await take(sampler(), 300), await take(sampler(**options), 300)
    assert not {problem.seed for problem in one} & {problem.seed for problem in other}


async def test_one_stream_repeats_no_seed() -> None:
    seeds = [problem.seed for problem in await take(sampler(), 500)]
    assert len(set(seeds)) == len(seeds)


async def test_evaluation_items_are_the_same_on_every_instance_and_never_training_seeds() -> None:
    one, other = sampler(), sampler(instance="7")
    evaluation = [await one.maker.make(Place("gcd", i, "eval", 42)) for i in range(50)]
    assert evaluation == [await other.maker.make(Place("gcd", i, "eval", 42)) for i in range(50)]
    training = [await one.maker.make(Place("gcd", i, "train", 42, "0")) for i in range(50)]
    assert not {problem.seed for problem in evaluation} & {problem.seed for problem in training}


async def test_recipe_of_a_problem_gives_its_entry_again() -> None:
    class RealGenerator:
        async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
            entry: dict[str, Any] = library.create_dataset(task, seed=seed, size=1, **config)[0]
            return entry

    catalog = Catalog((Task("chain_sum", "arithmetic", overrides={"max_terms": 3}), Task("gcd", "arithmetic")))
    for problem in await take(sampler(RealGenerator(), catalog=catalog), 6):
        assert "seed" not in problem.config
        assert "size" not in problem.config
        assert problem.category == "arithmetic"
        assert problem.config.get("max_terms", 3) == 3
        again = library.create_dataset(problem.task, seed=problem.seed, size=1, **problem.config)[0]
        assert again == problem.entry


async def test_tasks_are_drawn_by_weight() -> None:
    catalog = Catalog((Task("chain_sum", "a", weight=3.0), Task("gcd", "a", weight=1.0)))
    source = sampler(catalog=catalog)
    counts = Counter(source.task_at(index) for index in range(2000))
    assert 1400 < counts["chain_sum"] < 1600


def ladders(size: int = 3) -> dict[str, Ladder]:
    rungs = tuple(Level(index, index / max(size - 1, 1), {"level": index}) for index in range(size))
    return {task.name: Ladder(task.name, rungs, "a test") for task in TASKS}


def at_level(index: int, size: int = 3, **options: Any) -> dict[str, Any]:
    """Options of a sampler whose every draw is planned at this level."""
    made = ladders(size)
    levels = SimpleNamespace(choose=lambda task, number: made[task].level(index))
    return {"levels": levels, "limits": LevelLimits(made, **options)}


async def test_levels_decide_the_config_and_are_recorded() -> None:
    generator = FakeGenerator()
    [problem] = await take(sampler(generator, **at_level(1)), 1)
    assert (problem.level, problem.complexity, problem.config) == (1, 0.5, {"level": 1})
    assert generator.calls[0][2] == {"level": 1}


async def test_level_of_a_task_does_not_change_which_seed_its_item_has() -> None:
    plain, levelled = await take(sampler(), 10), await take(sampler(**at_level(0)), 10)
    assert [problem.seed for problem in plain] == [problem.seed for problem in levelled]
    assert {problem.level for problem in levelled} == {0}


async def test_held_out_questions_are_skipped_with_a_counter() -> None:
    plain = await take(sampler(), 5)
    source = sampler()
    source.hold_out(plain[0])
    source.hold_out(plain[3])
    assert await take(source, 3) == [plain[1], plain[2], plain[4]]
    assert source.metrics() == {"train/skipped_in_eval_set": 2.0}


async def test_items_that_cannot_be_generated_are_skipped_with_a_counter(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    source = sampler(FakeGenerator(broken=("gcd",)))
    problems = await take(source, 30)
    assert "gcd" not in {problem.task for problem in problems}
    skipped = source.index - 30
    assert skipped > 1
    assert source.metrics() == {"train/skipped_generation_failed": float(skipped)}
    assert source.skipped == {"generation_failed/gcd": skipped}
    assert len(caplog.messages) == 1
    assert "gcd is broken" in caplog.text


async def test_items_that_take_too_long_are_counted_apart_from_those_that_fail() -> None:
    class SlowGenerator(FakeGenerator):
        async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
            if task == "spell_backward":
                raise GenerationTimeoutError(f"{task} takes too long")
            return await super().generate(task, seed, config)

    source = sampler(SlowGenerator(broken=("gcd",)))
    assert {problem.task for problem in await take(source, 20)} == {"chain_sum"}
    tasks = Counter(source.task_at(index) for index in range(source.index))
    assert source.skipped == {
        "generation_failed/gcd": tasks["gcd"],
        "generation_timed_out/spell_backward": tasks["spell_backward"],
    }
    assert source.metrics()["train/skipped_generation_timed_out"] == tasks["spell_backward"] > 0


async def test_a_failure_does_not_shift_the_rest_of_the_stream() -> None:
    plain = await take(sampler(), 40)
    with_gaps = await take(sampler(FakeGenerator(broken=("gcd",))), 20)
    assert with_gaps == [problem for problem in plain if problem.task != "gcd"][:20]


@pytest.mark.parametrize("reason", ["generation_failed", "in_eval_set"])
async def test_nothing_but_unusable_items_ends_in_an_error_that_names_the_reason(reason: str) -> None:
    catalog = Catalog((Task("gcd", "arithmetic"),))
    source = sampler(
        FakeGenerator(broken=("gcd",) if reason == "generation_failed" else (), question=lambda task, seed: "same"),
        catalog=catalog,
    )
    if reason == "in_eval_set":
        source.hold_out(await source.maker.make(Place("gcd", 0, "eval", 1)))
    with pytest.raises(EnvironmentSetupError, match=f"200 draws in a row .*{reason}/gcd"):
        await source.next()
    assert source.index == MAX_CONSECUTIVE_FAILURES


async def test_saved_state_continues_the_same_stream() -> None:
    whole = await take(sampler(instance="3"), 40)
    first = sampler(FakeGenerator(broken=()), instance="3")
    for problem in await take(first, 25):
        first.ledger.done(problem)
    first.skip("prompt_too_long", "gcd", "long")
    state = json.loads(json.dumps(first.state_dict()))
    resumed = sampler()
    resumed.load_state_dict(state)
    assert await take(resumed, 15) == whole[25:]
    assert resumed.instance == "3"
    assert resumed.metrics() == {"train/skipped_prompt_too_long": 1.0}


@pytest.mark.parametrize("state", [{}, {"index": -1}, {"index": "3"}, {"index": None}, {"index": 1.0}])
def test_state_without_a_usable_index_is_refused(state: dict[str, Any]) -> None:
    source = sampler()
    with pytest.raises(EnvironmentSetupError, match="non-negative integer index"):
        source.load_state_dict(state)
    assert source.index == 0


async def test_dataset_handle_scores_with_the_recipe_of_its_problem() -> None:
    entry = library.create_dataset("chain_sum", seed=5, size=1, max_terms=3)[0]
    problem = Problem("chain_sum", "arithmetic", "train", 0, 5, {"max_terms": 3}, entry)
    dataset = ProblemDataset(problem)
    assert (dataset.name, dataset.config) == ("chain_sum", {"max_terms": 3})
    assert dataset.score_answer(entry["answer"], entry) == 1.0
    assert dataset.score_answer(answer="nonsense", entry=entry) < 0.5


async def test_questions_with_lone_surrogates_can_be_held_out() -> None:
    source = sampler(FakeGenerator(question=lambda task, seed: f"\ud800{seed}"))
    source.hold_out(await sampler(FakeGenerator(question=lambda task, seed: f"\ud800{seed}")).next())
    assert (await source.next()).index == 1


async def test_a_given_chooser_decides_the_tasks_and_hears_of_draws_that_gave_nothing() -> None:
    names = [task.name for task in TASKS.tasks]
    tasks = LearnableTasks(dict.fromkeys(names, 1.0), 42, SignalBandit(dict.fromkeys(names, 1)))
    source = sampler(FakeGenerator(broken=("gcd",)), tasks=tasks)
    assert source.task_at(7) == tasks.choose(7, "0")
    assert {problem.task for problem in await take(source, 40)} == {"chain_sum", "spell_backward"}
    skipped = source.skipped["generation_failed/gcd"]
    assert skipped > 0
    assert tasks.shares()["gcd"] < tasks.shares()["chain_sum"]


async def test_a_draw_cancelled_in_the_moment_its_item_is_ready_is_the_next_one() -> None:
    class Waits(FakeGenerator):
        async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
            await go_on.wait()
            return await super().generate(task, seed, config)

    go_on = asyncio.Event()
    source = sampler(Waits(), prefetch=4)
    drawing = asyncio.create_task(source.next())
    await asyncio.sleep(0)
    items = [task for task in asyncio.all_tasks() if "make_at_first_of" in repr(task)]
    for task in items:
        task.add_done_callback(lambda _: drawing.cancel())
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await drawing
    assert [problem.index for problem in await take(source, 8)] == list(range(8))
