"""Episodes of the real skyrl-gym; run by test_skyrl.py, which passes completions and reads the results as JSON.

    {"rows": [extra_info, ...], "completions": [[text, ...], ...], "settings": {...}}
        ──> {"steps": [[{"reward": ..., "metadata": ..., "metrics": ...}, ...], ...], "items": ..., "refused": ...}

NaN is written as null.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import skyrl_gym

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.integrations import skyrl
from reasoning_gym_environment.skyrl import ENV_CLASS, register


def episode(row: dict[str, Any], completion: str) -> dict[str, Any]:
    """One episode, as SkyRL's generator makes it."""
    env = skyrl_gym.make(ENV_CLASS, env_config={}, extras={"extra_info": row, "max_turns": 1})
    prompt, _ = env.init([{"role": "user", "content": "the question"}])
    assert prompt == [{"role": "user", "content": "the question"}]
    output = env.step(completion)
    assert output["done"] and output["observations"] == []
    reward = output["reward"]
    env.close()
    return {
        "reward": None if math.isnan(reward) else reward,
        "metadata": output["metadata"],
        "metrics": env.get_metrics(),
    }


async def in_an_event_loop(row: dict[str, Any], completion: str) -> dict[str, Any]:
    """SkyRL may also call the methods in its event loop."""
    return episode(row, completion)


def refusal(extras: dict[str, Any]) -> str:
    try:
        skyrl_gym.make(ENV_CLASS, env_config={}, extras=extras)
    except EnvironmentSetupError as error:
        return str(error)
    return ""


def main() -> None:
    given = json.loads(sys.stdin.read())
    settings = given["settings"]
    register(**settings)
    steps = []
    with ThreadPoolExecutor(16) as threads:
        for row, completions in zip(given["rows"], given["completions"], strict=True):
            rows = [row] * len(completions)
            steps.append(list(threads.map(episode, rows, completions)))
    items = skyrl._items_for(json.dumps(settings, sort_keys=True)).tasks.metrics()["generation/items"]
    again = asyncio.run(in_an_event_loop(given["rows"][0], given["completions"][0][0]))
    refused = [refusal({"extra_info": {"index": 3}}), refusal({})]
    results = {"steps": steps, "items": items, "again": again, "refused": refused}
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
