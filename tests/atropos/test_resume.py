"""A resumed run is the same run: its next items, and all that its parts know, equal those of one that never stopped."""

from __future__ import annotations

import asyncio
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos.checkpoints import KEY, load_into, state_of
from reasoning_gym_environment.atropos.conversions import problem_of
from reasoning_gym_environment.sampling.seeds import derive_seed

from ..env_support import RIGHT, WRONG, MakeEnv, rollout

TASKS = "chain_sum,gcd,lcm,products,spell_backward,number_sorting"
BEFORE, IN_FLIGHT, AFTER = 40, 3, 50


async def score(env: ReasoningGymEnv, item: Any) -> None:
    """Score a group of the item; how many of it are right is a function of the item."""
    right = derive_seed(7, problem_of(*item[1:]).seed) % 5
    group = await env.score([rollout(item, RIGHT if number < right else WRONG) for number in range(4)])
    if group is not None:
        # As if the trajectory API had taken it.
        env.components.stream.ledger.done(problem_of(*item[1:]))


async def go_on(env: ReasoningGymEnv, in_flight: list[Any], count: int) -> list[Any]:
    """Finish what is in flight, then draw and score one item after the other; returns all items in order."""
    items = list(in_flight)
    for item in in_flight:
        await score(env, item)
    for _ in range(count):
        items.append(await env.get_next_item())
        await score(env, items[-1])
    return [entry for _, entry, _ in items]


def known(env: ReasoningGymEnv) -> Any:
    """All that its parts know, but for the names of the dumps."""
    return json.loads(
        json.dumps(state_of({name: part for name, part in env.checkpoints.parts.items() if name != "dumps"}))
    )


QUICK = [(4, "uniform", None), (0, "weighted", "random"), (4, "learnability", "curriculum")]
"""Each value of each setting once; all of their combinations are the slow tier's."""
ALL = product((0, 4), ("uniform", "weighted", "learnability"), (None, "random", "curriculum"))


@pytest.mark.parametrize(
    ("prefetch", "sampling", "mode"),
    [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in ALL if one not in QUICK)],
)
async def test_the_next_fifty_items_and_all_state_are_those_of_the_run_that_went_on(
    make_env: MakeEnv, tmp_path: Path, mode: str | None, sampling: str, prefetch: int
) -> None:
    def make() -> ReasoningGymEnv:
        env = make_env(
            include_tasks=TASKS,
            task_weights="gcd=3" if sampling == "weighted" else "",
            complexity_mode=mode,
            task_sampling=sampling,
            prefetch_items=prefetch,
            instance_id="a",
        )
        env.checkpoint_dir, env.curr_step = str(tmp_path), 5
        return env

    env, resumed = make(), make()
    await asyncio.gather(env.setup(), resumed.setup())
    env.components.name_instance("a")
    await go_on(env, [], BEFORE)
    in_flight = [await env.get_next_item() for _ in range(IN_FLIGHT)]
    env.save_checkpoint(5, {"more": "data"})
    expected = await go_on(env, in_flight, AFTER)
    env.checkpoints.leave()

    resumed.load_checkpoint()
    again = [await resumed.get_next_item() for _ in range(IN_FLIGHT)]
    assert [entry for _, entry, _ in again] == [entry for _, entry, _ in in_flight], "what was in flight comes first"
    assert await go_on(resumed, again, AFTER) == expected
    assert known(resumed) == known(env)
    path = tmp_path / "env_checkpoints/run-seed42-a/step-5.json"
    assert json.loads(path.read_text()).keys() == {"more", KEY}


SETTINGS = [(mode, sampling) for mode in (None, "random", "curriculum") for sampling in ("weighted", "learnability")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(*both, marks=[pytest.mark.slow] * (both[1] != SETTINGS[-1 - number]))
        for number, before in enumerate(SETTINGS)
        for both in product([before], SETTINGS)
    ],
)
async def test_a_run_goes_on_under_other_settings(make_env: MakeEnv, before: Any, after: Any) -> None:
    def make(settings: Any, tasks: str) -> ReasoningGymEnv:
        mode, sampling = settings
        return make_env(include_tasks=tasks, complexity_mode=mode, task_sampling=sampling, num_eval_samples_per_task=0)

    env, resumed = make(before, "chain_sum,gcd,acre"), make(after, "chain_sum,gcd,lcm")
    await asyncio.gather(env.setup(), resumed.setup())
    await go_on(env, [], 12)
    first = env.components.stream.index
    load_into(resumed.checkpoints.parts, json.loads(json.dumps(state_of(env.checkpoints.parts))))
    indices = [problem_of(*(await resumed.get_next_item())[1:]).index for _ in range(12)]
    assert indices == sorted(indices) and indices[0] >= first
