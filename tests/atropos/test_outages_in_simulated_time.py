"""`serve` while inference servers refuse, break off, hang or crash, in simulated time: no innocent item is lost."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasoning_gym_environment.inference.chat_tokenizer import Prompt
from reasoning_gym_environment.ledger import GIVEN_UP
from reasoning_gym_environment.sampling.pending_items import MAX_FAILURES
from testing.simulation import World

from .test_serve_in_simulated_time import Event, quick, serves

few = settings(quick, max_examples=2)

TIMEOUT_S = 70.0
"""A server is silent after 60 s."""

OPTIONS: dict[str, Any] = {
    "worker_timeout": TIMEOUT_S,
    "batch_size": 1024,
    "inference": lambda: 3.0,
    "trainer_step_s": 1.0,
    # The servers count training items only.
    "num_eval_samples_per_task": 0,
}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture, few_polls: None) -> None:
    """Little log output."""
    caplog.set_level(logging.WARNING, "reasoning_gym_environment")


def refuse(world: World, seconds: float) -> None:
    world.crash(seconds)


def hang(world: World, seconds: float) -> None:
    world.is_hung = True


def break_off(world: World, seconds: float) -> None:
    world.fails = 10**9


def recover(world: World) -> None:
    """What happens to a server in an outage: it is restarted."""
    world.fails = 0
    world.crash(0.5)


def outages_of(world: World) -> float:
    return world.inference.metrics().get("inference/server_outages", 0.0)


def is_item(*numbers: int) -> Callable[[Prompt], bool]:
    """Whether a prompt is one of these items that a server sees, counted from 0."""
    seen: dict[str, int] = {}
    return lambda prompt: seen.setdefault(prompt.text, len(seen)) in numbers


@pytest.mark.parametrize("workers", [1, 6])
@pytest.mark.parametrize("begin", [refuse, hang, break_off])
def test_a_server_that_fails_in_any_way_is_unavailable_by_name_and_costs_no_item(
    begin: Callable[[World, float], None], workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    lasts_s = 5 * TIMEOUT_S
    unavailable: list[bool] = []

    def plan(world: World) -> list[Event]:
        return [
            (10.0, lambda: begin(world, lasts_s)),
            (9.0 + lasts_s, lambda: unavailable.append(world.inference.servers.unavailable_since() is not None)),
            (10.0 + lasts_s, lambda: recover(world)),
        ]

    world = serves(
        70.0 + lasts_s,
        plan,
        workers=workers,
        **OPTIONS,
    )
    assert unavailable == [True]
    assert outages_of(world) == 1.0
    assert "The inference server http://fake/v1 is unavailable" in caplog.text
    assert world.dropped == 0
    assert world.started[-1] > 60.0 + lasts_s, "it serves again"
    world.check_nothing_is_lost()


def test_one_item_that_is_never_answered_is_no_outage_and_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    def plan(world: World) -> list[Event]:
        world.hangs_on = is_item(3)
        return []

    options = {**OPTIONS, "workers": 4, "inference": lambda: 15.0}
    world = serves((MAX_FAILURES + 3) * TIMEOUT_S, plan, **options)
    assert outages_of(world) == 0.0
    assert (world.dropped, world.run.failures.counts[GIVEN_UP]) == (1, 1)
    assert re.search(r"Item given up, no completions: item \d+, .*, after 3 failures: ", caplog.text)
    assert world.run.failures.metrics("train/failures")["train/failures_item_given_up"] == 1.0
    world.check_nothing_is_lost()


@pytest.mark.parametrize(
    ("workers", "inference_s"),
    [(1, 3.0), (2, 8.0), pytest.param(8, 6.0, marks=pytest.mark.slow), pytest.param(16, 3.0, marks=pytest.mark.slow)],
)
def test_an_item_that_crashes_the_server_is_given_up_after_three_crashes(
    workers: int, inference_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    def plan(world: World) -> list[Event]:
        world.crashes_on = is_item(5)
        return []

    options = {**OPTIONS, "workers": workers, "inference": lambda: inference_s}
    world = serves(500.0, plan, **options)
    # The items in flight at each of the crashes may be the cause as well.
    assert 1 <= world.run.failures.counts[GIVEN_UP] == world.dropped <= workers
    assert re.search(r"Item given up, no completions: item \d+, .*, after 3 failures: ", caplog.text)
    assert world.crashes == MAX_FAILURES
    assert world.started[-1] > 470.0
    assert min(row[0] for row in world.run.stream.state_dict()["pending"]) > 5 + workers, "no innocent item waits"
    world.check_nothing_is_lost()


@few
@given(seed=st.integers(0, 2**32))
def test_an_outage_of_any_kind_is_at_most_one_failure_of_an_item(seed: int) -> None:
    """Outages follow each other faster than a completion takes."""
    random = Random(seed)

    def plan(world: World) -> list[Event]:
        events: list[Event] = []
        at = 5.0
        for _ in range(MAX_FAILURES - 1):
            begin = random.choice([refuse, hang, break_off])
            lasts_s = random.uniform(1.0, 30.0)
            events.append((at, lambda begin=begin, lasts_s=lasts_s: begin(world, lasts_s)))
            at += lasts_s
            events.append((at, lambda: recover(world)))
            at += random.uniform(0.1, 10.0)
        return events

    options = {**OPTIONS, "workers": random.choice([1, 4, 20]), "inference": lambda: random.uniform(0.1, 15.0)}
    world = serves(200.0, plan, **options)
    assert outages_of(world) >= 1
    assert world.dropped == 0
    assert world.started[-1] > 150.0
    world.check_nothing_is_lost()
