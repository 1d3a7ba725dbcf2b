"""`serve` under delays, restarts, failures and evaluations, in simulated time: testing/simulation.py."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reasoning_gym_environment.atropos import loop, serve_loop
from reasoning_gym_environment.atropos.run_watch import STUCK_S
from reasoning_gym_environment.atropos.serve_loop import TICK_S
from reasoning_gym_environment.trainer import run_api as trainer_api
from reasoning_gym_environment.utils.clock import now
from testing.simulation import GROUP_SIZE, World
from testing.virtual_time import run_virtually

quick = settings(
    max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
Event = tuple[float, Callable[[], Any]]

WATCH_S = TICK_S / 4
"""The precision of the time for which no group starts."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "reasoning_gym_environment")


def serves(seconds: float, plan: Callable[[World], list[Event]] = lambda world: [], **options: Any) -> World:
    """A world that has served for so long. `plan` gives what happens meanwhile."""

    async def go() -> World:
        world = World(**options)
        await world.serve(seconds, *plan(world))
        return world

    return run_virtually(go())


@pytest.mark.parametrize(
    "latency", [*(pytest.param(slow, marks=pytest.mark.slow) for slow in (0.0, 0.1, 0.5, 1.0)), 2.0]
)
def test_groups_come_at_the_same_rate_whatever_the_latency_of_run_api(latency: float) -> None:
    # As many groups as a batch of the default settings has.
    world = serves(30.0, latency=lambda: latency, workers=4, batch_size=128 * GROUP_SIZE, watch_s=WATCH_S)
    # Four groups a second, once this environment is registered.
    assert len(world.api.accepted) >= 0.9 * 4 * (30.0 - world.started[0])
    assert world.longest_wait_s <= TICK_S
    world.check_nothing_is_lost()


@quick
@given(seed=st.integers(0, 2**32), most_s=st.sampled_from([0.1, 0.5, 2.0]), inference_s=st.sampled_from([0.4, 4.0]))
def test_a_group_starts_within_a_tick_while_there_is_room(seed: int, most_s: float, inference_s: float) -> None:
    random = Random(seed)
    world = serves(
        12.0,
        latency=lambda: random.uniform(0.0, most_s),
        inference=lambda: random.expovariate(1 / inference_s),
        batch_size=random.choice([8, 64]),
        trainer_step_s=random.choice([0.1, 3.0]),
        watch_s=WATCH_S,
    )
    assert world.longest_wait_s <= TICK_S
    assert world.most_sampling <= 4
    world.check_nothing_is_lost()


@pytest.mark.parametrize("blocked_s", [40.0, 80.0])
def test_groups_start_and_none_is_sent_twice_while_run_api_encodes_a_batch(blocked_s: float) -> None:
    world = serves(
        120.0,
        lambda world: [(20.0, lambda: world.api.block(blocked_s))],
        inference=lambda: 2.0,
        workers=2,
        batch_size=1024,
    )
    assert len(world.started) >= 0.9 * 120.0
    assert len(world.api.accepted) == len(set(world.api.accepted)) >= 0.9 * 118.0
    world.check_nothing_is_lost()


def test_a_trainer_that_takes_no_batch_and_a_silent_run_api_are_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, few_polls: None
) -> None:
    monkeypatch.setattr(serve_loop, "FULL_S", 60.0)
    serves(2.5 * 60.0, trainer_step_s=1e6)
    [line] = caplog.messages
    assert "ALARM queue_full: " in line and "the trainer has made no step for" in line
    caplog.clear()
    serves(160.0, lambda world: [(10.0, lambda: world.api.block(145.0))], workers=1, batch_size=1024)
    [seconds] = re.findall(r"has not answered for (\d+) s", caplog.text)
    assert 60 <= int(seconds) <= 70
    caplog.clear()
    # A slow trainer, which takes a batch now and then, is no reason for a warning. run-api may step by three at once.
    serves(150.0, trainer_step_s=15.0, latency=lambda: 0.5)
    assert not caplog.messages


@quick
@given(seed=st.integers(0, 2**32))
def test_the_queue_is_never_filled_further_than_its_limit(seed: int) -> None:
    random = Random(seed)
    batch = random.choice([8, 16, 64])
    latency = random.choice([0.0, 0.3, 2.0])
    largest = [0]

    def plan(world: World) -> list[Event]:
        def look() -> None:
            largest[0] = max(largest[0], len(world.api.queue))

        return [(at / 20, look) for at in range(400)]

    world = serves(20.0, plan, latency=lambda: latency, inference=lambda: 0.2, workers=50, batch_size=batch,
                   trainer_step_s=random.choice([1.0, 5.0]), max_batches_offpolicy=2)  # fmt: skip
    assert largest[0] <= 2 * batch // 2
    assert world.api.step > 0
    world.check_nothing_is_lost()


def test_pauses_of_the_process_leave_no_entry_at_run_api(monkeypatch: pytest.MonkeyPatch) -> None:
    lost_s = [0.0]
    monkeypatch.setattr(serve_loop, "now", lambda: now() + lost_s[0])

    def stand_still() -> None:
        lost_s[0] += 5.0

    world = serves(30.0, lambda world: [(10.05 + number, stand_still) for number in range(10)])
    assert len(world.api.environments) == 4, "two marks, the registration, and one look at the mark at shutdown"
    world.check_nothing_is_lost()


def events_until(end_s: float, random: Random, world: World) -> list[Event]:
    """Restarts, failures and evaluations in any order until then, and some at once."""
    events: list[Event] = []
    at = 2.0
    while at < end_s:
        number = random.randint(1, 9)
        begins = [
            partial(setattr, world.api, "loses_answers", number),
            partial(setattr, world, "fails", number),
            partial(world.api.block, 2.0 * number),
            partial(world.loop.begin_evaluation, 0),
            world.api.stop,
        ]
        begin = random.choice(begins)
        events.append((at, begin))
        if begin == world.api.stop:
            at += random.choice([0.01, 1.0, 8.0])
            events.append((at, world.api.start))
            at += random.choice([0.01, 0.5, 4.0])
            events.append((at, world.api.register_trainer))
        at += random.expovariate(0.2)
    return events


@quick
@given(seed=st.integers(0, 2**32))
def test_nothing_is_lost_by_any_order_of_events_nor_by_a_resume_after_them(seed: int) -> None:
    random = Random(seed)
    latency = random.choice([0.0, 0.05, 0.5, 3.0])
    sampling = random.choice([0.4, 1.0, 5.0])
    options: dict[str, Any] = {
        "latency": lambda: random.uniform(0.0, latency),
        "inference": lambda: random.expovariate(1.0 / sampling),
        "workers": random.choice([2, 10]),
        "batch_size": random.choice([4, 16, 64]),
        "trainer_step_s": random.choice([0.1, 3.0]),
        "slow_s": random.choice([0.0, 5.0]),
        "hook_s": random.choice([0.0, 0.5]),
        "eval_handling": random.choice(["STOP_TRAIN", "LIMIT_TRAIN", "NONE"]),
        "eval_limit_ratio": 0.5,
        "steps_per_eval": random.choice([-1, 1, 5]),
        "max_staleness_steps": random.choice([-1, 0, 2]),
        "worker_timeout": random.choice([600.0, 2.0]),
        "min_batch_allocation": random.choice([None, 0.1]),
    }
    world = serves(45.0, partial(events_until, 40.0, random), **options)
    world.check_nothing_is_lost()
    resumed = serves(30.0, resumes=world, **options)
    resumed.check_nothing_is_lost()
    assert resumed.started[-1] > 15.0


class Careless(World):
    """A subclass that catches, raises, and gives items back at random."""

    behaviour = Random(0)

    async def collect_trajectories(self, item: Any) -> tuple[Any, list[Any]]:
        kind = self.behaviour.choice(["catches", "raises", "is cancelled", "gives back", "returns a list", "", "", ""])
        if kind == "raises":
            raise ValueError("an error of a subclass")
        if kind == "gives back":
            return None, [item]
        try:
            found, backlog = await super().collect_trajectories(item)
        except BaseException:
            if kind == "catches":
                return None, []
            raise
        if kind == "is cancelled":
            raise asyncio.CancelledError
        return ([None, found], backlog) if kind == "returns a list" else (found, backlog)


@quick
@given(seed=st.integers(0, 2**32))
def test_nothing_is_lost_by_a_careless_subclass(seed: int) -> None:
    random = Random(seed)
    options: dict[str, Any] = {
        "inference": lambda: random.expovariate(1.0),
        "workers": random.choice([2, 10]),
        "batch_size": random.choice([4, 16]),
        "hook_s": random.choice([0.0, 0.5]),
        "eval_handling": random.choice(["STOP_TRAIN", "NONE"]),
        "steps_per_eval": random.choice([-1, 2]),
    }

    async def go(resumes: World | None) -> World:
        world = Careless(resumes=resumes, **options)
        world.behaviour = Random(seed)
        await world.serve(random.uniform(5.0, 25.0), *events_until(20.0, random, world))
        world.check_nothing_is_lost()
        outcomes = world.run.telemetry.outcomes.totals()
        assert outcomes.get("dropped", 0) == 0, "a cancelled attempt was taken for one without a group"
        assert outcomes.get("fault", 0) >= world.run.failures.counts["error_in_the_environment"]
        return world

    first = run_virtually(go(None))
    run_virtually(go(first))


def test_stop_train_gives_the_servers_to_the_evaluation_and_limit_train_a_share() -> None:
    for handling, share in (("STOP_TRAIN", 0), ("LIMIT_TRAIN", 2), ("NONE", 4)):
        seen: list[int] = []

        def plan(world: World, seen: list[int] = seen) -> list[Event]:
            world.loop._has_begun = True
            return [(10.0, partial(world.loop.begin_evaluation, 0)), (19.0, lambda: seen.append(world.sampling))]

        world = serves(30.0, plan, evaluation_s=10.0, eval_handling=handling, eval_limit_ratio=0.5)
        assert seen == [share], handling
        assert world.started[-1] >= 29.0, handling
        world.check_nothing_is_lost()


def test_groups_that_are_being_graded_survive_any_number_of_evaluations() -> None:
    graded: list[float] = []

    def plan(world: World) -> list[Event]:
        score = world.score

        async def score_slowly(rollouts: Any) -> Any:
            await asyncio.sleep(3.0)
            graded.append(now())
            return await score(rollouts)

        world.score = score_slowly  # type: ignore[method-assign]
        # The groups are graded from 1.0 to 4.0 s.
        world.loop._has_begun = True
        begin = partial(world.loop.begin_evaluation, 0)
        return [(1.5, begin), (2.5, begin)]

    world = serves(4.5, plan, workers=32, batch_size=256, eval_handling="STOP_TRAIN", evaluation_s=0.3)
    assert world.evaluations == 2
    assert len(world.api.accepted) == 32 and max(graded[:32]) < 4.1
    world.check_nothing_is_lost()


def test_a_run_begins_with_an_evaluation_unless_it_was_resumed() -> None:
    assert serves(20.0, steps_per_eval=10**6, num_eval_samples_per_task=2).evaluations == 1

    def resume(world: World) -> list[Event]:
        world.loop._has_begun = True
        return []

    assert serves(20.0, resume, steps_per_eval=10**6, num_eval_samples_per_task=2).evaluations == 0
    assert serves(20.0, steps_per_eval=1, num_eval_samples_per_task=0).evaluations == 0


def test_the_trainer_makes_no_step_before_the_untrained_model_is_evaluated(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "reasoning_gym_environment")
    seen: list[tuple[int, int, int]] = []

    def plan(world: World) -> list[Event]:
        def look() -> None:
            seen.append((world.run.state.step, len(world.api.accepted), world.run.api.in_delivery))

        return [(29.0, look), (60.0, look)]

    options = {"steps_per_eval": 5, "num_eval_samples_per_task": 2, "eval_handling": "NONE"}
    world = serves(61.0, plan, evaluation_s=30.0, batch_size=16, **options)
    (step, accepted, waiting), (later_step, later_accepted, _) = seen
    assert (step, accepted) == (0, 0)
    assert waiting >= 8, "groups are made meanwhile"
    assert later_step > 0 and later_accepted > waiting
    assert "No group is delivered to the trainer before its completions are sampled" in caplog.text
    world.check_nothing_is_lost()


def test_a_long_evaluation_of_the_untrained_model_is_no_reason_for_an_alarm(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, few_polls: None
) -> None:
    monkeypatch.setattr(serve_loop, "FULL_S", 60.0)

    def plan(world: World) -> list[Event]:
        async def score_nothing(rollouts: Any) -> Any:
            return None

        world.score = score_nothing  # type: ignore[method-assign]
        return []

    options = {"steps_per_eval": 5, "num_eval_samples_per_task": 2, "eval_handling": "NONE"}
    world = serves(150.0, plan, evaluation_s=1e6, **options)
    assert outcomes_of(world)["dropped"] > 100
    waiting = serves(150.0, evaluation_s=1e6, batch_size=16, **options)
    assert not waiting.api.accepted
    assert "ALARM" not in caplog.text


def test_an_evaluation_that_is_left_out_is_named(caplog: pytest.LogCaptureFixture) -> None:
    options = {"steps_per_eval": 5, "num_eval_samples_per_task": 2, "eval_handling": "NONE"}
    serves(60.0, evaluation_s=20.0, batch_size=16, **options)
    [skipped, *_] = [message for message in caplog.messages if message.startswith("Skipped the evaluation")]
    assert re.fullmatch(
        r"Skipped the evaluation of step 10, because the evaluation of step 5 is still running\.", skipped
    )


def test_an_evaluation_that_the_end_of_the_run_stops_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    def plan(world: World) -> list[Event]:
        world.run.state.total_steps = 10
        return []

    world = serves(
        600.0, plan, steps_per_eval=5, eval_handling="NONE", batch_size=16, trainer_step_s=5.0, evaluation_s=60.0
    )
    assert world.run.state.step < 10, "the last batches are in the queue"
    assert world.evaluations == 2, "of the untrained model, and of step 5"
    assert "The run ends before its last evaluation has finished" in caplog.text


def test_an_item_whose_group_is_cancelled_before_its_first_step_is_requeued() -> None:
    def plan(world: World) -> list[Event]:
        start = world.loop._start

        def start_and_evaluate(item: Any) -> None:
            start(item)
            if len(world.started) == 10 and not world.evaluations:
                world.loop.begin_evaluation(0)

        world.loop._start = start_and_evaluate  # type: ignore[method-assign]
        return []

    world = serves(20.0, plan, evaluation_s=2.0, eval_handling="STOP_TRAIN")
    assert world.evaluations >= 1 and world.started[-1] > 15.0
    world.check_nothing_is_lost()


def test_a_loop_that_starts_nothing_although_there_is_room_says_what_it_waits_for(
    caplog: pytest.LogCaptureFixture, few_polls: None
) -> None:
    world = serves(5 * STUCK_S, slow_s=1e6, include_tasks="lcm", task_weights={"gcd": 0})
    assert world.run.telemetry.alarms.on == ["nothing_sent"]
    assert "The run waits for the next item (in progress: lcm)." in caplog.text


def test_a_group_that_came_to_nothing_makes_room_at_once() -> None:
    world = serves(10.0, lambda world: [(0.5, lambda: setattr(world, "fails", 10**6))], latency=lambda: 2.0,
                   inference=lambda: 0.01, watch_s=WATCH_S)  # fmt: skip
    assert world.longest_wait_s <= TICK_S
    world.check_nothing_is_lost()


def outcomes_of(world: World) -> dict[str, float]:
    return {name.removeprefix("groups/"): count for name, count in world.run.telemetry.outcomes.metrics().items()}


@pytest.mark.parametrize("hook", ["collect_trajectories", "postprocess_histories"])
def test_groups_that_a_subclass_drops_are_finished_and_counted(hook: str) -> None:
    def plan(world: World) -> list[Event]:
        original = getattr(world, hook)

        async def drop_every_second(given: Any) -> Any:
            returned = await original(given)
            if len(world.started) % 2:
                return returned
            return (None, []) if hook == "collect_trajectories" else None

        setattr(world, hook, drop_every_second)
        return []

    world = serves(20.0, plan, workers=1)
    assert outcomes_of(world)["dropped"] >= 9
    world.check_nothing_is_lost()


def test_an_error_in_cleanup_does_not_count_the_group_once_more() -> None:
    def plan(world: World) -> list[Event]:
        async def fail() -> None:
            raise ValueError("cannot clean up")

        world.cleanup = fail  # type: ignore[method-assign]
        return []

    world = serves(20.0, plan)
    assert outcomes_of(world).keys() == {"sent", "cancelled"}
    assert world.run.failures.counts["error_in_cleanup"] >= len(world.api.accepted) > 0
    world.check_nothing_is_lost()


@pytest.mark.parametrize("hook_s", [loop.GRACE_S / 4, 4 * loop.GRACE_S])
def test_at_shutdown_a_slow_hook_of_a_subclass_neither_delays_the_end_nor_repeats_a_group(hook_s: float) -> None:
    async def go() -> tuple[World, float]:
        world = World(workers=64, batch_size=256, inference=lambda: 1.0, hook_s=hook_s)
        served_s = 1.5 * hook_s + 2.0
        began = now()
        await world.serve(served_s)
        assert not world.loop.tasks, "a group would use the workers and the API client after they are closed"
        return world, now() - began - served_s

    world, closing_s = run_virtually(go())
    assert closing_s <= loop.GRACE_S + trainer_api.CLOSE_S + 1.0
    world.check_nothing_is_lost()
    pending = {row[0] for row in world.run.stream.state_dict()["pending"]}
    assert world.run.stream.state_dict()["index"] - len(pending) == len(world.api.accepted) > 0
