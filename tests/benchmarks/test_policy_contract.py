"""The contract of every task policy, and what a sampler tells its policy."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any, TypeAlias

import pytest

from benchmarks.samplers.absolute_advantage import AbsoluteAdvantageTasks, mean_absolute_advantage
from benchmarks.samplers.learnability import WINDOW, LearnableTasks
from benchmarks.samplers.near_half import NearHalfTasks
from benchmarks.samplers.policy import TaskPolicy
from benchmarks.samplers.sampler_with_policy import SamplerWithPolicy, build_sampler_with
from benchmarks.samplers.thompson import ThompsonTasks
from benchmarks.samplers.weighted import WeightedTasks
from reasoning_gym_environment.errors import EnvironmentSetupError, GenerationError
from reasoning_gym_environment.sampling.curriculum import GroupResult
from reasoning_gym_environment.sampling.item_maker import ItemMaker
from reasoning_gym_environment.settings.components import SamplingSettings
from reasoning_gym_environment.tasks.catalog import Catalog, Task
from reasoning_gym_environment.utils.saved_state import load_into, state_of

WEIGHTS = {"never": 1.0, "half": 1.0, "always": 1.0, "often": 2.0}
RATES = {"never": 0.0, "half": 0.5, "always": 1.0, "often": 0.8}
"""Accuracy of the simulated model."""
NewPolicy: TypeAlias = Callable[[dict[str, float], int], TaskPolicy]
POLICIES = [WeightedTasks, LearnableTasks, ThompsonTasks, AbsoluteAdvantageTasks, NearHalfTasks]


@pytest.fixture(params=POLICIES, ids=lambda kind: str(kind.__name__))
def new_policy(request: pytest.FixtureRequest) -> NewPolicy:
    kind: NewPolicy = request.param
    return kind


def teach(policy: TaskPolicy, groups: int, seed: int = 1) -> TaskPolicy:
    """Groups of all tasks in turn, each with its rate of RATES."""
    rng = Random(seed)
    for _ in range(groups):
        for task, rate in RATES.items():
            rewards = tuple(float(rng.random() < rate) for _ in range(8))
            policy.observe(GroupResult(task, None, rewards))
    return policy


def choices(policy: TaskPolicy, instance: str = "0", count: int = 1000) -> list[str]:
    return [policy.choose(index, instance) for index in range(count)]


def test_a_choice_depends_on_seed_instance_index_and_observations_alone(new_policy: NewPolicy) -> None:
    first = teach(new_policy(WEIGHTS, 7), 40)
    drawn = choices(first)
    second = teach(new_policy(WEIGHTS, 7), 40)
    assert [second.choose(index, "0") for index in reversed(range(1000))] == drawn[::-1]
    assert choices(second, "1") != drawn
    assert choices(teach(new_policy(WEIGHTS, 8), 40)) != drawn


def test_a_resumed_policy_continues_like_the_uninterrupted_one(new_policy: NewPolicy) -> None:
    whole = teach(new_policy(WEIGHTS, 7), 20)
    whole.note_failure("half")
    resumed = teach(new_policy(WEIGHTS, 7), 3, seed=5)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    for policy in (whole, resumed):
        teach(policy, 20, seed=2)
        policy.note_failure("often")
    assert choices(resumed) == choices(whole)
    assert resumed.state_dict() == whole.state_dict()
    resumed.load_state_dict({})
    assert choices(resumed) == choices(new_policy(WEIGHTS, 7))


def test_weighted_tasks_follow_their_weights_whatever_happens_to_their_groups() -> None:
    policy = WeightedTasks(WEIGHTS, 7)
    before = choices(policy, count=4000)
    for _ in range(50):
        policy.note_failure("half")
    assert choices(teach(policy, 40), count=4000) == before
    for task, weight in WEIGHTS.items():
        assert before.count(task) / 4000 == pytest.approx(weight / 5, abs=0.03)
    assert policy.state_dict() == {}


def test_learnability_prefers_a_task_that_improves() -> None:
    policy = LearnableTasks(dict.fromkeys(("rises", "guessed", "never"), 1.0), 7, floor=0.0)
    rng = Random(1)
    for number in range(WINDOW):
        for task, rate in (("rises", 0.1 + 0.6 * number / WINDOW), ("guessed", 0.25), ("never", 0.0)):
            rewards = tuple(float(rng.random() < rate) for _ in range(8))
            policy.observe(GroupResult(task, None, rewards))
    shares = policy.shares()
    assert shares["rises"] > 2 * max(shares["guessed"], shares["never"])


def test_a_state_of_other_tasks_is_ignored(new_policy: NewPolicy) -> None:
    state = teach(new_policy(WEIGHTS, 7), 20).state_dict()
    few = new_policy({"half": 1.0, "new": 1.0}, 7)
    few.load_state_dict(state)
    assert set(choices(few)) == {"half", "new"}


def test_failures_lower_the_share_of_their_task_or_leave_it(new_policy: NewPolicy) -> None:
    policy = teach(new_policy(WEIGHTS, 7), 40)
    before = Counter(choices(policy, count=4000))["half"]
    shares = [before]
    for _ in range(3):
        for _ in range(30):
            policy.note_failure("half")
        shares.append(Counter(choices(policy, count=4000))["half"])
    noise = 60
    assert all(after <= share + noise for share, after in pairwise(shares))
    assert shares[-1] < before / 2 or isinstance(policy, WeightedTasks)


@pytest.mark.parametrize("kind", [ThompsonTasks, AbsoluteAdvantageTasks, NearHalfTasks])
def test_a_candidate_prefers_groups_with_a_signal(kind: NewPolicy) -> None:
    policy = kind(WEIGHTS, 7)
    shares = Counter(choices(policy, count=4000))
    assert shares["often"] / shares["half"] == pytest.approx(2.0, rel=0.2), "by weight alone at first"
    shares = Counter(choices(teach(policy, 60), count=4000))
    assert shares["half"] > 3 * max(shares["never"], shares["always"])


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (ThompsonTasks, {"counts": {"half": [1.0]}}),
        (AbsoluteAdvantageTasks, {"figures": {"half": "much"}}),
        (NearHalfTasks, {"failures": {"half": -1}}),
        (LearnableTasks, {"groups": {"half": [[0, 2.0, 1]]}}),
        (LearnableTasks, {"groups": {"half": [[0, 1.0]]}}),
        (LearnableTasks, {"failures": {"half": -1}}),
    ],
)
def test_a_damaged_state_is_refused(kind: NewPolicy, state: dict[str, object]) -> None:
    policy = teach(kind(WEIGHTS, 7), 5)
    before = policy.state_dict()
    with pytest.raises(EnvironmentSetupError, match="The saved task choice cannot be used"):
        policy.load_state_dict(state)
    assert policy.state_dict() == before


def test_the_mean_absolute_advantage_is_highest_at_one_half() -> None:
    values = [mean_absolute_advantage((1.0,) * right + (0.0,) * (8 - right)) for right in range(9)]
    assert values == pytest.approx(values[::-1])
    assert values[:5] == sorted(values[:5])
    assert (values[0], values[4]) == (0.0, 1.0)


SERVED = {"chain_sum": 1.0, "gcd": 1.0, "lcm": 2.0}


class OneTaskFails:
    """Makes items of every task but gcd."""

    async def generate(self, task: str, seed: int, config: Any, **_: Any) -> dict[str, Any]:
        if task == "gcd":
            raise GenerationError("gcd is broken")
        return {"question": f"{task} {seed}", "answer": "a", "metadata": {}}


def sampler_with(name: str) -> SamplerWithPolicy:
    catalog = Catalog(tuple(Task(task, "arithmetic", weight) for task, weight in SERVED.items()))
    maker = ItemMaker(catalog, OneTaskFails())  # type: ignore[arg-type]
    return build_sampler_with(name, SamplingSettings(seed=7), maker, {})


@pytest.mark.parametrize(("name", "kind"), [("thompson", ThompsonTasks), ("learnability", LearnableTasks)])
async def test_a_sampler_tells_its_policy_what_became_of_each_item(name: str, kind: NewPolicy) -> None:
    sampler = sampler_with(name)
    expected = kind(SERVED, 7)
    problems = [await sampler.stream.next() for _ in range(40)]
    await sampler.stream.close()
    for _ in range(sampler.stream.skipped["generation_failed/gcd"]):
        expected.note_failure("gcd")
    for problem in problems[:20]:
        sampler.observe(problem, [])
        expected.note_failure(problem.task)
    for problem in problems[20:]:
        sampler.observe(problem, [0.0, 1.0])
        sampler.observe(problem, [0.0, 1.0])
        expected.observe(GroupResult(problem.task, None, (0.0, 1.0)))
    assert sampler.policy.state_dict() == expected.state_dict()
    assert [sampler.stream.choose_task(index) for index in range(1000)] == choices(expected)
    resumed = sampler_with(name)
    load_into(resumed.stateful, json.loads(json.dumps(state_of(sampler.stateful))))
    assert [resumed.stream.choose_task(index) for index in range(1000)] == choices(expected)
