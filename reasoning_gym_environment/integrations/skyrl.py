"""The tasks as an environment of SkyRL (docs/trainers.md). An episode is one completion of a row with a recipe.

SkyRL requires a float as the reward of every completion. A completion that could not be scored has the reward NaN,
which examples/skyrl/train_reasoning.py masks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from ..api import PromptLimit, Recipe, Rows, grade, report
from .item_formats import verl_row

__all__ = ["CurriculumPrompts", "ReasoningGymSkyRLEnv", "register"]


def register(env_class: str = "reasoning_gym", **options: Any) -> None:
    """Register the environment with `skyrl_gym`, in the process that generates.

    `options` are `thinking_opened` and the settings of `grade`.
    """
    entry_point = f"{__name__}:{ReasoningGymSkyRLEnv.__name__}"
    skyrl_gym.register(id=env_class, entry_point=entry_point, kwargs={"options": options})


class ReasoningGymSkyRLEnv(BaseTextEnv):
    """The episode of one row. Raises EnvironmentSetupError if its `extra_info` has no recipe."""

    def __init__(self, env_config: Any, extras: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        super().__init__()
        self._recipe = Recipe.of(extras.get("extra_info", {}))
        self._options = options
        self._metrics: dict[str, float] = {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Grade the completion, and end the episode."""
        self.turns += 1
        [made] = grade(self._recipe, [action], **self._options)
        report(self._recipe, [made.reward])
        self._metrics = made.metrics
        reward = math.nan if made.reward is None else made.reward
        metadata = {"task": self._recipe.task, "outcome": made.score.outcome.kind, "reason": made.score.why}
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata=metadata)

    def get_metrics(self) -> dict[str, float]:
        """SkyRL averages each metric over the episodes that report it."""
        return self._metrics


class CurriculumPrompts:
    """SkyRL's training dataset over a store of levels: the method `get_train_dataset` of an experiment returns it."""

    def __init__(self, path: str, tokenizer: Any, max_prompt_length: int) -> None:
        self._rows = Rows(path, PromptLimit(tokenizer, max_prompt_length))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The prompts of a batch, whose items the workers make in parallel."""
        batch = []
        for row in self._rows.read(numbers):
            extras = verl_row(row)
            batch.append(
                {"prompt": extras.pop("prompt"), "env_class": None, "env_extras": extras, "uid": str(row.number)}
            )
        return batch

    def collate_fn(self, batch: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """A batch in SkyRL's form."""
        return list(batch)
