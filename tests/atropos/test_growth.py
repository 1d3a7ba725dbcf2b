"""While no group is sent, there is no log step for days. Nothing may grow with the number of groups meanwhile."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from reasoning_gym_environment.atropos.evaluate import evaluate_at_step
from reasoning_gym_environment.atropos.serve_loop import ServeLoop
from reasoning_gym_environment.inference import servers
from reasoning_gym_environment.records import Completion
from reasoning_gym_environment.telemetry import alarms, telemetry
from testing.env_support import ReadyEnv

WRONG = "<think>no</think><answer>not a number</answer>"
OUR_MODULES = ("reasoning_gym_environment", "atroposlib", "testing", "tests")
CONTAINERS = (list, dict, set, deque, tuple)
FULL = 40
"""In this test, lists that are bounded keep this many values."""

GROUPS = 200


def sizes(root: Any) -> Counter[str]:
    """The number of elements of all containers that are reachable from `root`, by the attributes that lead to them."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    # Keeps temporary objects alive, whose identities would be used again.
    waiting: list[tuple[str, Any]] = [("env", root)]
    visited: list[Any] = []
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        visited.append(value)
        if isinstance(value, CONTAINERS):
            found[path] += len(value)
        waiting.extend(_parts(path, value))
    return found


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, element in list(value.items()):
            yield f"{path}[]", key
            yield f"{path}[]", element
    elif isinstance(value, CONTAINERS):
        for element in list(value):
            yield f"{path}[]", element
    elif not isinstance(value, type) and type(value).__module__.startswith(OUR_MODULES):
        names = [*getattr(value, "__dict__", {}), *getattr(type(value), "__slots__", ())]
        for name in names:
            yield f"{path}.{name}", getattr(value, name, None)


async def test_no_container_grows_while_no_group_is_sent(ready_env: ReadyEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "MOST_VALUES", FULL)
    monkeypatch.setattr(servers, "MOST_TIMINGS", FULL)
    monkeypatch.setattr(alarms, "RECENT", FULL)
    env = await ready_env(num_eval_samples_per_task=1, group_size=2)
    server = env.inference.adapters[0]

    async def complete(prompt: Any, sampling: Any, **_: Any) -> list[Completion]:
        for split in ("train", "eval"):
            server.note_duration(split, 1.0)
        reply = list(WRONG.encode())
        masks = [-100] * len(prompt.tokens) + reply
        return [Completion(WRONG, [*prompt.tokens, *reply], masks, None, "stop") for _ in range(sampling.n)]

    monkeypatch.setattr(env.inference, "complete", complete)
    loop = ServeLoop(env)

    async def make_groups() -> None:
        for number in range(GROUPS):
            item = await env.get_next_item()
            await loop._make_group(item)
            # As if the group had been sent, but no step of the trainer had followed.
            group = {"tokens": [[1, 2]] * 2, "masks": [[-100, 2]] * 2, "scores": [0.0, 1.0]}
            await env.handle_send_to_api(group, item, do_send_to_api=False)
            if number % 10 == 0:
                await evaluate_at_step(env)

    await make_groups()
    before = sizes(env)
    await make_groups()
    after = sizes(env)
    assert {"env.task_duration", "env.failed_task_duration", "env.completion_lengths"} <= before.keys()
    assert before["env.task_duration"] == FULL
    grown = {path: (before[path], size) for path, size in after.items() if size > before[path] + GROUPS // 4}
    assert not grown
    lists = (env.task_duration, env.completion_lengths, env.percent_correct_buffer, env.eval_metrics)
    assert all(type(values) is list for values in lists)
