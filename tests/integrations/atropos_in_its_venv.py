"""Python, exported rows, the grader over HTTP, and Atropos give the same rewards.

Run by test_real_libraries.py, from the wheel.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from reasoning_gym_environment import Recipe, RowRewards, Tasks
from reasoning_gym_environment.api import Row
from reasoning_gym_environment.integrations.item_formats import nemo_row
from reasoning_gym_environment.integrations.servers import build_app
from reasoning_gym_environment.records import to_json
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from testing.env_support import rollout
from testing.hostile_answers import ATTACK_MODULE, ATTACK_TASK
from tests.integrations.completions import SETTINGS, TASKS, Group, all_groups, in_each_format


@in_each_format
async def test_a_completion_earns_the_same_from_python_over_http_and_in_atropos(
    tmp_path: Path, own_datasets: None, make_real_env: Callable[..., Any], answer_format: str
) -> None:
    marker = tmp_path / "touched"
    with Tasks([*TASKS, ATTACK_TASK], **SETTINGS, answer_format=answer_format) as tasks:
        groups = await asyncio.to_thread(all_groups, tasks, marker)
        client = TestClient(build_app(tasks), headers={"content-type": "application/json"})
        for group in groups:
            rewards = list(group.rewards.values())
            grades = await asyncio.to_thread(tasks.grade, group.problem, group.completions)
            assert [grade.reward for grade in grades] == rewards
            row = Recipe.of(group.problem).as_row()
            graded_rows = await asyncio.to_thread(tasks.grade, row, group.completions)
            assert [grade.reward for grade in graded_rows] == rewards
            columns = {name: [value] * len(rewards) for name, value in row.items()}
            function = RowRewards(**SETTINGS)
            assert await asyncio.to_thread(function, completions=group.completions, **columns) == rewards
            for found in graded_over_http(client, group):
                assert [grade["reward"] for grade in found] == rewards
                assert all(grade["reason"] for grade in found if grade["reward"] is None)
            assert verified_over_http(client, group) == rewards
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


def graded_over_http(client: TestClient, group: Group) -> list[list[dict[str, Any]]]:
    """The replies of /grade to the seed and config of an item, and to the item itself."""
    problem = group.problem
    recipe = {"seed": problem.seed, "config": to_json(dict(problem.config))}
    item = {"item": to_json(problem.entry)}
    requests = [{"task": problem.task, "completions": group.completions, **given} for given in (recipe, item)]
    replies: list[list[dict[str, Any]]] = client.post("/grade", content=json.dumps(requests)).json()
    return replies


def verified_over_http(client: TestClient, group: Group) -> list[float | None]:
    """The rewards that /verify gives to a row of `export items --format nemo-gym`."""
    problem = group.problem
    row = nemo_row(Row(0, problem, Recipe.of(problem), "eval"))
    rewards = []
    for completion in group.completions:
        response = {"output": [{"type": "message", "content": [{"type": "output_text", "text": completion}]}]}
        body = {**row, "response": response, "id": 3}
        reply = client.post("/verify", content=json.dumps(body)).json()
        assert (reply["task_name"], reply["id"]) == (group.problem.task, 3)
        is_unscored = reply["score"] is None
        assert reply["mask_sample"] == is_unscored == bool(reply["failure_reason"])
        assert reply["reward"] == (0.0 if is_unscored else reply["score"])
        rewards.append(reply["score"])
    return rewards


async def scored_in_atropos(env: Any, group: Group) -> list[float | None]:
    """The rewards that Atropos sends to a trainer. A completion with an override has none."""
    problem = group.problem
    dataset = library.create_dataset(problem.task, seed=0, size=1, **problem.config)
    item = (problem.messages, problem.entry, dataset)
    conversations = [[*problem.messages, {"role": "assistant", "content": text}] for text in group.completions]
    scored = await env.score([rollout(item, "", messages=messages) for messages in conversations])
    pairs = zip(scored["scores"], scored["overrides"], strict=True)
    return [None if override else score for score, override in pairs]
