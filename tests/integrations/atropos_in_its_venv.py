"""Python and Atropos give the same rewards. Run by test_real_libraries.py, from the wheel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reasoning_gym_environment import Recipe, Tasks
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from testing.env_support import rollout
from testing.hostile_answers import ATTACK_MODULE, ATTACK_TASK
from tests.integrations.completions import SETTINGS, TASKS, Group, all_groups, in_each_format


@in_each_format
async def test_a_completion_earns_the_same_in_python_and_in_atropos(
    tmp_path: Path, own_datasets: None, make_real_env: Callable[..., Any], answer_format: str
) -> None:
    marker = tmp_path / "touched"
    with Tasks([*TASKS, ATTACK_TASK], **SETTINGS, answer_format=answer_format) as tasks:
        groups = await asyncio.to_thread(all_groups, tasks, marker)
        for group in groups:
            grades = await asyncio.to_thread(tasks.grade, Recipe.of(group.problem).as_row(), group.completions)
            assert [grade.reward for grade in grades] == list(group.rewards.values())
    env = make_real_env(
        include_tasks=",".join([*TASKS, ATTACK_TASK]),
        eval_tasks="chain_sum",
        partial_credit="exact",
        answer_format=answer_format,
        task_modules=ATTACK_MODULE,
        allow_unguarded_tasks=ATTACK_TASK,
    )
    await env.setup()
    for group in groups:
        assert await scored_in_atropos(env, group) == list(group.rewards.values())
    assert not marker.exists()


async def scored_in_atropos(env: Any, group: Group) -> list[float | None]:
    """The rewards that Atropos sends to a trainer. A completion with an override has none."""
    problem = group.problem
    dataset = library.create_dataset(problem.task, seed=0, size=1, **problem.config)
    item = (problem.messages, problem.entry, dataset)
    conversations = [[*problem.messages, {"role": "assistant", "content": text}] for text in group.completions]
    scored = await env.score([rollout(item, "", messages=messages) for messages in conversations])
    pairs = zip(scored["scores"], scored["overrides"], strict=True)
    return [None if override else score for score, override in pairs]
