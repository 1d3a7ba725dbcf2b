"""SkyRL's library of environments, with a batch at a time as its generator runs them.

SkyRL itself is not installed. A shuffled data loader decides the order of the rows, as in SkyRL's build_dataloader.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from random import Random
from typing import Any

import skyrl_gym

from reasoning_gym_environment.integrations.skyrl import CurriculumPrompts, register
from testing import level_student

PROMPTS = 4
"""Prompts of a step."""


class Words:
    """A tokenizer with one token for each word, because transformers is not installed beside skyrl-gym."""

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> list[str]:
        return " ".join(message["content"] for message in messages).split()


def batches(path: str) -> Iterator[list[dict[str, Any]]]:
    prompts = CurriculumPrompts(path, Words(), 4096)
    order = list(range(len(prompts)))
    Random(11).shuffle(order)
    for start in range(0, len(order), PROMPTS):
        yield prompts.collate_fn(prompts.__getitems__(order[start : start + PROMPTS]))


def answer(prompt: dict[str, Any]) -> None:
    """The episodes of a group."""
    info = prompt["env_extras"]["extra_info"]
    key = prompt["env_extras"]["reward_model"]["ground_truth"]
    for reward in level_student.rewards(info["task"], info["level"], info["row"]):
        env = skyrl_gym.make(prompt["env_class"] or "reasoning_gym", env_config={}, extras=prompt["env_extras"])
        env.init(prompt["prompt"])
        assert env.step(level_student.completion(key, reward))["reward"] == reward
        env.close()


def run(path: str, groups: int) -> None:
    with ThreadPoolExecutor(PROMPTS) as threads:
        for batch in islice(batches(path), groups // PROMPTS):
            list(threads.map(answer, batch))


if __name__ == "__main__":
    register()
    run(sys.argv[1], int(sys.argv[2]))
