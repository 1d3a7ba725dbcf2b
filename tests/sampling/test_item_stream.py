"""An index is all the state: the same index gives the same problem, and no two streams share a seed."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from reasoning_gym_environment.errors import (
    EnvironmentSetupError,
    GenerationError,
    NoRightAnswerError,
)
from reasoning_gym_environment.records import Problem
from reasoning_gym_environment.sampling.curriculum import Curriculum
from reasoning_gym_environment.sampling.item_maker import ItemAddress, ItemMaker
from reasoning_gym_environment.sampling.item_stream import MAX_CONSECUTIVE_FAILURES, ItemSource, ProblemStream
from reasoning_gym_environment.tasks.catalog import Catalog, Task
from reasoning_gym_environment.utils.saved_state import load_into
from reasoning_gym_environment.verification.questions import is_sound

TASKS = Catalog((Task("chain_sum", "arithmetic"), Task("gcd", "arithmetic"), Task("spell_backward", "algorithmic")))


class FakeGenerator:
    """Makes `{"question": "task seed level"}`; `broken` tasks raise GenerationError, others what `fails` gives."""

    def __init__(
        self,
        broken: tuple[str, ...] = (),
        fails: Callable[[int, int], Exception | None] = lambda level, seed: None,
        is_slow: bool = False,
    ) -> None:
        self.broken, self.fails, self.is_slow = broken, fails, is_slow
        self.calls: list[tuple[str, int, Mapping[str, Any]]] = []

    async def generate(self, task: str, seed: int, config: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        self.calls.append((task, seed, config))
        for _ in range(seed % 7 if self.is_slow else 0):
            await asyncio.sleep(0)
        level = config.get("level", 0)
        if error := GenerationError(f"{task} is broken") if task in self.broken else self.fails(level, seed):
            raise error
        return {"question": f"{task} {seed} {level}", "answer": "a", "metadata": {}}


def item_source(generator: Any = None, *, catalog: Catalog = TASKS, seed: int = 42, **options: Any) -> ProblemStream:
    of_maker = {name: options.pop(name) for name in ("too_long", "is_held_out", "strict") if name in options}
    return ProblemStream(ItemMaker(catalog, generator or FakeGenerator(), **of_maker), seed=seed, **options)


async def take(source: ProblemStream, count: int) -> list[Problem]:
    return [await source.next() for _ in range(count)]


async def test_an_item_is_a_function_of_its_place() -> None:
    problems = await take(item_source(), 300)
    assert problems == await take(item_source(), 300)
    other = item_source()
    await other.maker.make(ItemAddress("gcd", 3, "eval", 1))
    for problem in problems[9::-1]:
        assert await other.maker.make(ItemAddress(problem.task, problem.index, "train", 42, "0")) == problem
    assert await take(other, 5) == problems[:5], "drawing something else before does not matter"


async def test_no_two_streams_share_a_seed_and_none_repeats_one() -> None:
    streams = [await take(item_source(**options), 300) for options in ({}, {"instance": "1"}, {"seed": 43})]
    streams.append([await item_source().maker.make(ItemAddress("gcd", i, "eval", 42)) for i in range(50)])
    assert len({problem.seed for problems in streams for problem in problems}) == 950


def test_tasks_are_drawn_in_proportion_to_their_weights() -> None:
    often = Catalog((Task("chain_sum", "arithmetic", weight=2.0), *TASKS.tasks[1:]))
    stream = item_source(catalog=often)
    drawn = Counter(stream.choose_task(index) for index in range(4000))
    for task in often.tasks:
        assert drawn[task.name] / 4000 == pytest.approx(task.weight / 4, abs=0.03)


async def test_an_item_whose_question_is_held_out_is_made_again_with_the_next_seed() -> None:
    plain = await take(item_source(), 5)
    source = item_source(is_held_out=lambda question: question in (plain[0].question, plain[3].question))
    drawn = await take(source, 5)
    assert [problem.index for problem in drawn] == list(range(5)) and {problem.task for problem in drawn} <= set(
        TASKS.names
    )
    assert [problem == other for problem, other in zip(drawn, plain, strict=True)] == [False, True, True, False, True]
    again = await source.maker.make(ItemAddress(plain[0].task, 0, "train", 42, "0"), retry=1)
    assert drawn[0] == again
    assert source.metrics() == {"train/redrawn_held_out": 2.0}


async def test_an_item_whose_own_answer_is_wrong_is_made_again_under_strict_checks() -> None:
    class OftenWrong(FakeGenerator):
        async def generate(
            self, task: str, seed: int, config: Any, *, refuses: bool = False, **_: Any
        ) -> dict[str, Any]:
            if refuses and seed % 2:
                raise NoRightAnswerError(f"{seed}")
            return {"question": f"{seed}", "answer": "AË"[seed % 2], "metadata": {"source_dataset": task}}

    caesar = Catalog((Task("caesar_cipher", "cognition"),))
    plain = await take(item_source(OftenWrong(), catalog=caesar), 40)
    source = item_source(OftenWrong(), catalog=caesar, strict=True)
    drawn = await take(source, 40)
    assert all(is_sound(problem.task, problem.entry) for problem in drawn)
    wrong = [problem.index for problem in plain if not is_sound(problem.task, problem.entry)]
    assert wrong == [problem.index for problem, other in zip(plain, drawn, strict=True) if problem != other]
    assert source.metrics()["train/redrawn_wrong_answer"] >= len(wrong) > 0


async def test_items_that_cannot_be_generated_are_skipped_with_a_counter(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    source = item_source(FakeGenerator(broken=("gcd",)))
    problems = await take(source, 30)
    plain = await take(item_source(), source.index)
    assert problems == [problem for problem in plain if problem.task != "gcd"], "the rest of the stream is not shifted"
    skipped = source.index - 30
    assert source.metrics() == {"train/skipped_generation_failed": float(skipped)}
    assert source.skipped == {"generation_failed": skipped} and skipped > 1
    assert len(caplog.messages) == 1 and "gcd is broken" in caplog.text


async def test_nothing_but_unusable_items_ends_in_an_error_that_names_the_reason() -> None:
    source = item_source(FakeGenerator(broken=("gcd",)), catalog=Catalog((Task("gcd", "arithmetic"),)))
    with pytest.raises(EnvironmentSetupError, match=r"200 draws in a row .*generation_failed"):
        await source.next()
    assert source.index == MAX_CONSECUTIVE_FAILURES


@pytest.mark.parametrize(
    ("part", "states"),
    [
        (item_source(), [{}, {"index": -1}, {"index": "3"}, {"index": 5, "pending": [[0, "gcd", -1]]}]),
        (item_source(), [{"index": 5, "skipped": skipped} for skipped in (["a"], {"a": "many"})]),
        (item_source(), [{"index": 5, "replaced": replaced} for replaced in ("abc", {"held_out": -1}, {"unknown": 1})]),
        (Curriculum({}), [{"tasks": [1]}, {"tasks": {"gcd": {"level": -1}}}]),
    ],
)
def test_a_damaged_state_is_refused(part: Any, states: list[Any]) -> None:
    for state in states:
        with pytest.raises(EnvironmentSetupError, match="the state of part is missing or malformed"):
            load_into({"part": part}, {"part": state})


# --- drawing ahead, and what is not done


def test_pending_items_of_tasks_no_longer_served_are_dropped_by_name(caplog: pytest.LogCaptureFixture) -> None:
    source = item_source()
    source.load_state_dict({"index": 5, "pending": [[2, "gone", None], [3, "gcd", None]]})
    assert source.index == 3
    assert "Pending items of gone are dropped" in caplog.text


class Learned(ItemSource):
    """Notes what the curriculum would learn."""

    tasks: list[str]

    def learn(self, task: str, level: int | None, credits: Sequence[float]) -> None:
        self.tasks.append(task)


def learned(stream: ProblemStream) -> Learned:
    source = Learned(stream, Curriculum({}), follows_curriculum=True)
    source.tasks = []
    return source


async def test_an_item_teaches_the_curriculum_once_also_if_it_is_repeated_or_the_process_is_killed() -> None:
    source = learned(item_source())
    first, second = await take(source.stream, 2)
    for _ in range(2):
        source.observe(first, [1.0])
    assert source.stream.pending.requeue(first)
    resumed = learned(item_source())
    resumed.stream.load_state_dict(source.stream.state_dict())
    for running in (source, resumed):
        [again] = [problem for problem in await take(running.stream, 2) if problem.index == first.index]
        running.observe(again, [1.0])
    assert source.tasks == [first.task] and not resumed.tasks
    source.observe(second, [1.0])
    assert source.tasks == [first.task, second.task]
