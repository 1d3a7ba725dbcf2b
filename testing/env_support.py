"""What the tests of the environment in this process share: a student, and rollouts as `score` takes them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reasoning_gym_environment import ReasoningGymEnv

MakeEnv = Callable[..., "ReasoningGymEnv"]
ReadyEnv = Callable[..., Awaitable["ReasoningGymEnv"]]

RIGHT = "<think>I work it out.</think><answer>{answer}</answer>"
WRONG = "<think>I guess, and wrong.</think><answer>no idea</answer>"
SILENT = "<think>I never get to the end of it"

SERVE_ITEMS = """
import asyncio
from atroposlib.envs.base import APIServerConfig
from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig

async def main():
    settings = {"include_tasks": "chain_sum,gcd", "complexity_mode": "curriculum", "num_eval_samples_per_task": 1}
    config = ReasoningGymEnvConfig(tokenizer_name="none", use_wandb=False, **settings)
    server = APIServerConfig(base_url="http://127.0.0.1:9/v1", model_name="none", api_key="x", server_type="openai")
    env = ReasoningGymEnv(config, [server])
    await env.setup()
    print(len(env.task_names))
    messages, entry, dataset = await env.get_next_item()
    rollout = {"rg_item": entry, "dataset_obj": dataset, "finish_reason": "stop"}
    rollout |= {"tokens": list(range(20)), "masks": [-100, *range(1, 20)]}
    answers = (entry["answer"], "none of these")
    replies = [{"role": "assistant", "content": f"<answer>{answer}</answer>"} for answer in answers]
    group = await env.score([{**rollout, "messages": [*messages, reply]} for reply in replies])
    print(group["scores"])
    await env.close()

asyncio.run(main())
"""
"""A program that serves an item with real workers. It prints the number of tasks, and a right and a wrong score."""


class Student:
    """Replies according to the entries of `plan`, in order, with the answers of the items that it has seen."""

    def __init__(self) -> None:
        self.follow(RIGHT, WRONG)
        self.answers: dict[str, str] = {}

    def follow(self, *plan: str) -> None:
        self.plan = itertools.cycle(plan)

    def learn(self, *entries: dict[str, Any]) -> None:
        self.answers.update({entry["question"]: entry["answer"] for entry in entries})

    def __call__(self, prompt: str) -> str:
        question = prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        return next(self.plan).format(answer=self.answers.get(question, "?"))


def rollout(item: Any, text: str, *, prompt: int = 3, length: int = 20, **fields: Any) -> dict[str, Any]:
    """A rollout dict as `score` takes it, with a prompt of `prompt` and a completion of `length` tokens."""
    messages, entry, dataset = item
    ids = list(range(100, 100 + length))
    return {
        "messages": [*messages, {"role": "assistant", "content": text.format(answer=entry["answer"])}],
        "rg_item": entry,
        "dataset_obj": dataset,
        "finish_reason": "stop",
        "tokens": [1] * prompt + ids,
        "masks": [-100] * prompt + ids,
        "logprobs": [1.0] * prompt + [-0.5] * length,
        **fields,
    }


def dumped(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob(pattern)) for line in path.open(encoding="utf-8")]
