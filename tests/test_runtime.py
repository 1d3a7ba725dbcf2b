"""From settings to tasks, workers, samplers and held-out questions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from reasoning_gym_environment import runtime as made
from reasoning_gym_environment.errors import EnvironmentSetupError, NoTasksError
from reasoning_gym_environment.records import Group, Outcome, Problem, Score
from reasoning_gym_environment.runtime import Runtime
from reasoning_gym_environment.sampling.item_stream import ItemSource
from reasoning_gym_environment.settings.components import EvaluationSettings, SamplingSettings
from testing.in_process import InProcessGenerator, InProcessGrader

CURRICULUM = {"complexity_mode": "curriculum", "include_tasks": "chain_sum"}


class Settings(SamplingSettings, EvaluationSettings):
    """Those of the environment, without Atropos' own."""


def settings(**fields: Any) -> Settings:
    return Settings(**{"include_tasks": "chain_sum,gcd", "num_eval_samples_per_task": 2, **fields})


@pytest.fixture
async def start(in_process_workers: None) -> AsyncIterator[Callable[..., Awaitable[Runtime]]]:
    """`await start(**settings)`: a Runtime that generates and grades in this process."""
    started: list[Runtime] = []

    async def make(**fields: Any) -> Runtime:
        runtime = Runtime(settings(**fields))
        await runtime.start()
        started.append(runtime)
        return runtime

    yield make
    for runtime in started:
        await runtime.close()


@pytest.fixture
def draw(start: Any) -> Any:
    """`await draw(**settings)`: a item_source over such a Runtime."""

    async def make(**fields: Any) -> ItemSource:
        return (await start(**fields)).item_source(settings(**fields))

    return make


def group_of(make_group: Any, problem: Problem, *values: float) -> Group:
    group: Group = make_group(list(values))
    return replace(group, problem=problem)


def unscored(group: Group, outcome: Outcome) -> Group:
    return replace(group, rollouts=[replace(rollout, score=Score(0.0, outcome)) for rollout in group.rollouts])


async def test_the_curriculum_sees_the_credit_of_scored_training_groups_only(draw: Any, make_group: Any) -> None:
    item_source = await draw(**CURRICULUM)
    problem = await item_source.stream.next()
    group = group_of(make_group, problem, 1.0, 1.0)
    lost = unscored(group, Outcome.TIMEOUT)
    for other in (replace(group, problem=replace(problem, split="eval")), make_group([1.0, 0.0], task="other"), lost):
        item_source.observe_group(other)
    assert item_source.curriculum.stats()["total_tasks_tracked"] == 0
    # One that is rewarded less for its length, and one that we could not score.
    item_source.observe_group(replace(group, rollouts=[replace(group.rollouts[0], reward=0.1), lost.rollouts[1]]))
    assert item_source.curriculum.stats()["tasks"]["chain_sum"]["recent_accuracy"] == 1.0


async def test_an_item_teaches_until_it_is_finished(draw: Any, make_group: Any) -> None:
    item_source = await draw(**CURRICULUM)
    group = group_of(make_group, await item_source.stream.next(), 1.0, 0.0)
    # What could not be scored was not observed.
    item_source.observe_group(unscored(group, Outcome.CRASHED))
    item_source.observe_group(group)
    before = item_source.curriculum.stats()
    assert before["tasks"]["chain_sum"]["groups"] == 1
    item_source.stream.pending.finish(group.problem)
    item_source.observe_group(group)
    assert item_source.curriculum.stats() == before


async def test_tasks_with_an_unguarded_verifier_are_served_only_by_name(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made.eval_guards, "unguarded_tasks", lambda: {"gcd": "it evaluates text"})
    refused = await start()
    assert refused.catalog.names == ["chain_sum"]
    assert refused.catalog.excluded["gcd"] == "it evaluates text"
    allowed = await start(allow_unguarded_tasks="gcd", task_weights={"chain_sum": 0})
    assert allowed.catalog.names == ["gcd"]
    with pytest.raises(NoTasksError, match="it evaluates text"):
        await start(include_tasks="gcd")


async def test_a_start_that_fails_leaves_no_worker(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closes = [AsyncMock(), AsyncMock()]
    for kind, close in zip((InProcessGenerator, InProcessGrader), closes, strict=True):
        monkeypatch.setattr(kind, "close", close)
    with pytest.raises(EnvironmentSetupError, match="Did you mean chain_sum"):
        await start(include_tasks="chain_sun")
    assert [close.await_count for close in closes] == [1, 1]
