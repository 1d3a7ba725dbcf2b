"""Any sequence of calls, completions, failures, cancellations and restarts: the item stream loses and repeats nothing.

The stream runs on a private event loop, one turn at a time, with a clock that moves only when a rule says so. A fake
generator finishes an item only when a rule says so. Whether an item fails, is too long or is held out depends on the
item alone, as in reasoning-gym, so a repeated draw must give the same item.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reasoning_gym_environment.errors import GenerationCrashedError, GenerationError, GenerationTimeoutError
from reasoning_gym_environment.records import Problem
from reasoning_gym_environment.sampling.curriculum import Curriculum, GroupResult
from reasoning_gym_environment.sampling.item_maker import REDRAWS, SEEDS_TRIED, ItemAddress, ItemMaker
from reasoning_gym_environment.sampling.item_stream import LevelChooser, ProblemStream
from reasoning_gym_environment.sampling.pending_items import MAX_FAILURES
from reasoning_gym_environment.sampling.seeds import derive_seed
from reasoning_gym_environment.tasks.catalog import Catalog, Task
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level
from reasoning_gym_environment.workers.pool import PoolClosedError
from testing.virtual_time import VirtualLoop

TASKS = ("chain_sum", "gcd", "lcm")
LEVELS = 4
SETTLED = 40
"""Turns of the event loop after which nothing moves any more without another event."""


class StillLoop(VirtualLoop):
    """Its clock moves only when the loop would sleep."""

    def settle(self) -> None:
        """Run what can run now."""
        self.run_until_complete(_turns(SETTLED))

    def pass_time(self, seconds: float) -> None:
        self.run_until_complete(asyncio.sleep(seconds))
        self.settle()


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def chance(share: float, *parts: str | int) -> bool:
    """True for this share of all parts, always the same for the same parts."""
    return derive_seed(*parts) < share * 2**32


@dataclass(eq=False)
class Request:
    """An item that the fake generator has been asked for."""

    task: str
    seed: int
    level: int
    reply: asyncio.Future[dict[str, Any]]

    def finish(self) -> None:
        """Finish as this item always finishes."""
        if self.reply.done():
            return
        if chance(0.1, "fails", self.seed, self.level):
            self.reply.set_exception(GenerationError("no such item"))
        elif self.level > 0 and chance(0.15, "late", self.seed, self.level):
            self.reply.set_exception(GenerationTimeoutError("too late"))
        else:
            question = f"{self.task} {self.seed} {self.level}"
            self.reply.set_result({"question": question, "answer": "a", "metadata": {}})

    def break_down(self, error: Exception) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)


class HeldGenerator:
    """Finishes items only on request."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.is_closed = False

    async def generate(self, task: str, seed: int, config: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        if self.is_closed:
            raise PoolClosedError
        request = Request(task, seed, config.get("level", 0), asyncio.get_running_loop().create_future())
        self.requests.append(request)
        try:
            return await request.reply
        finally:
            self.requests.remove(request)

    def close(self) -> None:
        self.is_closed = True
        for request in self.requests:
            request.break_down(PoolClosedError())


def is_held_out_by_chance(question: str) -> bool:
    return chance(0.1, "held out", question)


@dataclass(frozen=True)
class Options:
    """Settings under which a stream starts."""

    tasks: tuple[str, ...]
    mode: str
    prefetch: int


OPTIONS = st.builds(
    Options,
    tasks=st.sampled_from([TASKS, TASKS[:2], TASKS[1:]]),
    mode=st.sampled_from(["none", "random", "curriculum"]),
    prefetch=st.integers(0, 3),
)


@dataclass
class Saved:
    """A state, with what the model knew when the stream saved it."""

    state: dict[str, Any]
    finished: set[int]
    items: dict[int, tuple[str, int, int | None]]


@dataclass
class Model:
    """What must be true of the stream."""

    finished: set[int] = field(default_factory=set)
    """Indices whose items callers finished, or the stream skipped."""
    held: dict[int, Problem] = field(default_factory=dict)
    """The problems that callers hold."""
    failures: dict[int, int] = field(default_factory=dict)
    """Counted failures by index."""
    failed_in_outage: set[int] = field(default_factory=set)
    """The items that wait until a problem gets its completions."""
    items: dict[int, tuple[str, int, int | None]] = field(default_factory=dict)
    """Task, seed and level of every item that was handed out, by index."""
    skips: int = 0


class StreamMachine(RuleBasedStateMachine):
    @initialize(options=OPTIONS)
    def begin(self, options: Options) -> None:
        self.loop = StillLoop(noop_cycles=0)
        self.saved: list[Saved] = []
        self.waiter: asyncio.Task[Problem] | None = None
        self.start(options)

    def start(self, options: Options) -> None:
        self.options = options
        self.model = Model()
        self.generator = HeldGenerator()
        self.is_broken = False
        catalog = Catalog(tuple(Task(name, "arithmetic") for name in options.tasks))
        levels = tuple(Level(index, index / (LEVELS - 1), {"level": index}) for index in range(LEVELS))
        self.ladders = {name: Ladder(name, levels) for name in options.tasks}
        self.curriculum = Curriculum(dict.fromkeys(options.tasks, LEVELS))
        self.stream = ProblemStream(
            ItemMaker(
                catalog,
                self.generator,  # type: ignore[arg-type]
                too_long=self.too_long,
                is_held_out=is_held_out_by_chance,
            ),
            seed=1,
            levels=self.level_chooser(),
            ladders=self.ladders,
            curriculum=self.curriculum if options.mode == "curriculum" else None,
            prefetch=options.prefetch,
        )

    def level_chooser(self) -> LevelChooser | None:
        if self.options.mode == "curriculum":
            return lambda task, index: self.ladders[task].levels[self.curriculum.level(task)]
        if self.options.mode == "random":
            return lambda task, index: self.ladders[task].levels[derive_seed("level", task, index) % LEVELS]
        return None

    def too_long(self, question: str) -> str:
        if self.is_broken:
            self.is_broken = False
            raise ValueError("the tokenizer failed once")
        level = int(question.split()[-1])
        return "it is long" if chance(0.05 + 0.1 * level, "long", question) else ""

    # --- the caller

    @precondition(lambda self: self.waiter is None)
    @rule()
    def ask(self) -> None:
        self.waiter = self.loop.create_task(self.stream.next())
        self.look()

    @precondition(lambda self: self.waiter is not None)
    @rule()
    def cancel(self) -> None:
        assert self.waiter is not None
        self.waiter.cancel()
        self.look()
        assert self.waiter is None

    @precondition(lambda self: self.waiter is not None and self.generator.requests)
    @rule(data=st.data(), turns=st.integers(0, 8))
    def cancel_soon_after_an_item_is_made(self, data: st.DataObject, turns: int) -> None:
        self.any_request(data).finish()
        self.loop.run_until_complete(_turns(turns))
        assert self.waiter is not None
        self.waiter.cancel()
        self.look()

    @precondition(lambda self: self.model.held)
    @rule(data=st.data(), score=st.sampled_from([0.0, 0.5, 1.0]))
    def finish(self, data: st.DataObject, score: float) -> None:
        problem = self.any_held(data)
        self.stream.pending.note_completions()
        self.model.failed_in_outage.clear()
        if problem.level is not None:
            self.curriculum.observe(GroupResult(problem.task, problem.level, (score,) * 8))
        self.end(problem)

    @precondition(lambda self: self.model.held)
    @rule(data=st.data(), in_outage=st.booleans())
    def requeue_counted(self, data: st.DataObject, in_outage: bool) -> None:
        problem = self.any_held(data)
        failures = self.model.failures.get(problem.index, 0) + 1
        is_requeued = self.stream.pending.requeue(problem, is_failure=True, in_outage=in_outage)
        assert is_requeued == (failures < MAX_FAILURES)
        if is_requeued:
            self.model.failures[problem.index] = failures
            if in_outage:
                self.model.failed_in_outage.add(problem.index)
            del self.model.held[problem.index]
        else:
            self.end(problem)

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def requeue_uncounted(self, data: st.DataObject) -> None:
        problem = self.any_held(data)
        assert self.stream.pending.requeue(problem)
        del self.model.held[problem.index]

    # --- the generator

    @precondition(lambda self: self.generator.requests)
    @rule(data=st.data())
    def item_is_made(self, data: st.DataObject) -> None:
        self.any_request(data).finish()
        self.look()

    @precondition(lambda self: self.generator.requests)
    @rule(data=st.data())
    def generator_raises_an_unexpected_error(self, data: st.DataObject) -> None:
        self.any_request(data).break_down(TypeError("no code expects this"))
        self.look()

    @precondition(lambda self: self.generator.requests)
    @rule(data=st.data())
    def workers_die_of_an_item(self, data: st.DataObject) -> None:
        """The item then comes from an easier level, so a repeated draw may give another item."""
        request = self.any_request(data)
        for index in list(self.model.items):
            address = ItemAddress(request.task, index, "train", 1, "0")
            seeds = {address.item_seed(retry) for retry in range(SEEDS_TRIED + REDRAWS)}
            if request.seed in seeds:
                del self.model.items[index]
        request.break_down(GenerationCrashedError("2 workers died of it"))
        self.look()

    @precondition(lambda self: not self.is_broken)
    @rule()
    def tokenizer_will_fail_once(self) -> None:
        self.is_broken = True

    @precondition(lambda self: self.waiter is None)
    @rule(count=st.integers(1, 12))
    def take(self, count: int) -> None:
        for _ in range(count):
            self.ask()
            if self.waiter is not None:
                self.everything_is_made()

    @precondition(lambda self: self.waiter is not None)
    @rule()
    def everything_is_made(self) -> None:
        """The waiter gets an item if the generator finishes every item."""
        for _ in range(200):
            for request in list(self.generator.requests):
                request.finish()
            self.look()
            if self.waiter is None:
                return
        pytest.fail("The waiter hangs although every item is made.")

    # --- save, load, restart

    @rule()
    def save(self) -> None:
        state = {"curriculum": self.curriculum.state_dict(), "item_stream": self.stream.state_dict()}
        items = {index: self.model.items[index] for index in self.model.items if index not in self.model.finished}
        self.saved.append(Saved(json.loads(json.dumps(state)), set(self.model.finished), items))

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        self.load_into_stream(data.draw(st.sampled_from(self.saved)))

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), options=OPTIONS)
    def restart(self, data: st.DataObject, options: Options) -> None:
        saved = data.draw(st.sampled_from(self.saved))
        self.stop()
        self.start(options)
        self.load_into_stream(saved)

    @rule(options=OPTIONS)
    def close_the_workers_and_restart(self, options: Options) -> None:
        """The stream hands out the items that are ready, and then ends. A restart repeats the others."""
        self.generator.close()
        while not self.has_ended():
            self.look()
        self.waiter = None
        self.note_skips()
        self.save()
        self.stop()
        self.start(options)
        self.load_into_stream(self.saved[-1])

    def has_ended(self) -> bool:
        self.waiter = self.waiter or self.loop.create_task(self.stream.next())
        self.loop.settle()
        assert self.waiter.done(), "The waiter hangs although the workers are closed."
        return isinstance(self.waiter.exception(), PoolClosedError)

    @rule()
    def stop_making_ahead(self) -> None:
        self.loop.run_until_complete(self.stream.close())
        self.look()

    def load_into_stream(self, saved: Saved) -> None:
        has_levels = self.options.mode != "none"
        self.curriculum.load_state_dict(saved.state["curriculum"])
        self.stream.load_state_dict(saved.state["item_stream"])
        pending = saved.state["item_stream"]["pending"]
        dropped = {index for index, task, _ in pending if task not in self.options.tasks}
        self.model = Model(finished=saved.finished | dropped)
        self.model.skips = self.stream.skipped.total()
        for index, item in saved.items.items():
            # Without levels, an item of a level is another item, at the task's default config.
            if index not in dropped and (has_levels or item[2] is None):
                self.model.items[index] = item
        expected = [index for index, *_ in pending if index not in dropped]
        assert [draw.index for draw in self.stream.pending.waiting] == expected, "the unfinished items come first"
        assert not self.stream.pending.handed_out
        assert has_levels or all(draw.level is None for draw in self.stream.pending.waiting)
        assert self.stream.state_dict()["index"] == saved.state["item_stream"]["index"]
        assert self.stream.replaced == saved.state["item_stream"]["replaced"]
        self.look()

    # --- what must hold

    def look(self) -> None:
        """Run what can run now, and take what the waiter got."""
        index = self.stream.state_dict()["index"]
        queue = self.queue()
        self.loop.settle()
        if self.stream.state_dict()["index"] > index:
            waiting = {draw.index for draw in self.stream.pending.waiting}
            assert waiting <= self.model.failed_in_outage, "the stream draws a new index only if no other item waits"
        self.note_skips()
        if self.waiter is None or not self.waiter.done():
            return
        waiter = self.waiter
        self.waiter = None
        if waiter.cancelled():
            return
        problem = waiter.result()
        assert problem.index not in self.model.held
        assert problem.index not in self.model.finished
        if problem.index in queue:
            before = queue[: queue.index(problem.index)]
            passed = [index for index in before if index not in self.model.failed_in_outage]
            assert self.model.finished.issuperset(passed), "items come in the order of their draws"
        item = (problem.task, problem.seed, problem.level)
        assert self.model.items.setdefault(problem.index, item) == item, "a repeated draw gives the same item"
        self.model.held[problem.index] = problem

    def note_skips(self) -> None:
        """The stream may drop an index only if it counts a skip."""
        skips = self.stream.skipped.total()
        handed_out = set(self.stream.pending.handed_out)
        drawn = set(range(self.stream.state_dict()["index"]))
        missing = drawn - set(self.queue()) - handed_out - self.model.finished
        assert len(missing) == skips - self.model.skips
        self.model.finished |= missing
        self.model.skips = skips

    def queue(self) -> list[int]:
        """Indices whose items the stream hands out next."""
        ahead = [item.draw.index for item in self.stream._ahead]
        return ahead + [draw.index for draw in self.stream.pending.waiting]

    @invariant()
    def every_index_is_in_exactly_one_place(self) -> None:
        places = [*self.queue(), *self.stream.pending.handed_out]
        assert len(places) == len(set(places))
        assert set(self.stream.pending.handed_out) == set(self.model.held)
        state = self.stream.state_dict()
        assert sorted(places) == [index for index, *_ in state["pending"]]
        assert set(range(state["index"])) == set(places) | self.model.finished
        assert not set(places) & self.model.finished
        # Nothing is kept of a finished item, in a run of millions of items.
        pending = self.stream.pending
        assert {*pending._failures, *pending._failed_in_outage} <= set(places)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.stop()
            self.loop.close()

    # --- helpers

    def any_request(self, data: st.DataObject) -> Request:
        return data.draw(st.sampled_from(self.generator.requests))

    def any_held(self, data: st.DataObject) -> Problem:
        return self.model.held[data.draw(st.sampled_from(sorted(self.model.held)))]

    def end(self, problem: Problem) -> None:
        self.stream.pending.finish(replace(problem, split="eval"))
        self.stream.pending.finish(problem)
        self.stream.pending.finish(problem)
        del self.model.held[problem.index]
        self.model.finished.add(problem.index)

    def stop(self) -> None:
        if self.waiter is not None:
            self.waiter.cancel()
            self.waiter = None
        self.loop.run_until_complete(self.stream.close())
        self.loop.settle()


StreamMachine.TestCase.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestItemStream = StreamMachine.TestCase
