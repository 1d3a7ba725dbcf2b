"""The reward function of OpenRLHF (`--remote_rm_url reward_func.py`): each label is the recipe of a row, as JSON."""

import json
from collections import defaultdict
from statistics import fmean
from typing import Any

import torch

from reasoning_gym_environment import Recipe, grade, report


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **_: Any) -> dict[str, Any]:
    """The rewards of completions. A query is a prompt with its completion."""
    groups: dict[Recipe, list[int]] = defaultdict(list)
    for number, label in enumerate(labels):
        groups[Recipe.of(json.loads(label))].append(number)
    rewards = [0.0] * len(labels)
    unscored = [0.0] * len(labels)
    for recipe, numbers in groups.items():
        texts = [queries[number].removeprefix(prompts[number]) for number in numbers]
        grades = grade(recipe, texts)
        report(recipe, [made.reward for made in grades])
        scored = [made.reward for made in grades if made.reward is not None]
        # OpenRLHF needs a number for each completion. The mean of its group gives an unscored completion no advantage.
        mean = fmean(scored) if scored else 0.0
        for number, made in zip(numbers, grades, strict=True):
            rewards[number] = mean if made.reward is None else made.reward
            unscored[number] = float(made.reward is None)
    found = torch.tensor(rewards)
    return {"rewards": found, "scores": found, "extra_logs": {"unscored": torch.tensor(unscored)}}
