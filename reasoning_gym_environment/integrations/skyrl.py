"""The tasks as an environment of SkyRL (docs/skyrl.md).

    a row of `export items` ── prompt ──> SkyRL's generator ──> completion ──┐
                              └─ extra_info: a recipe ──> the same item ───────┴── sandbox ──> reward, metadata
    a row of a store of levels (CurriculumPrompts) ── report ──> the store learns the reward

`register` makes the environment known to `skyrl_gym`. An episode is one completion. SkyRL calls `init` and `step` in
threads or in its event loop; both block until the workers have answered.

SkyRL requires a float as the reward of every completion. A completion that could not be scored has no reward, so the
environment returns NaN, and `mask_unscored` replaces it.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from .curriculum_rows import CurriculumRows, PromptLimit, report
from .item_formats import verl_row
from .recipe import Recipe, grader_for, metrics_of

__all__ = ["ENV_CLASS", "CurriculumPrompts", "ReasoningGymSkyRLEnv", "mask_unscored", "register"]

logger = logging.getLogger(__name__)

ENV_CLASS = "reasoning_gym"
"""The name of the environment in the configuration of SkyRL."""


def register(env_class: str = ENV_CLASS, *, thinking_opened: bool = False, **settings: Any) -> None:
    """Register the environment with `skyrl_gym`. Call this in the process that generates.

    `settings` are arguments of `Tasks` that concern grading: task_modules, allow_unguarded_tasks, verification,
    partial_credit, sandbox, numbers of workers, timeouts. Their values are JSON data. Set `thinking_opened` if the
    chat template has already opened `<think>` in the prompt. Raises skyrl_gym's RegistrationError if the name is
    registered already.
    """
    skyrl_gym.register(
        id=env_class,
        entry_point="reasoning_gym_environment.integrations.skyrl:ReasoningGymSkyRLEnv",
        kwargs={"settings": settings, "thinking_opened": thinking_opened},
    )


class ReasoningGymSkyRLEnv(BaseTextEnv):
    """The episode of one row: `extras["extra_info"]` has the recipe of its item.

    Raises EnvironmentSetupError if the row has no recipe.
    """

    def __init__(
        self,
        env_config: Any = None,
        extras: Mapping[str, Any] | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        thinking_opened: bool = False,
    ) -> None:
        super().__init__()
        self._row = (extras or {}).get("extra_info", {})
        self._recipe = Recipe.from_row(self._row)
        self._settings = settings or {}
        self._thinking_opened = thinking_opened
        self._metrics: dict[str, float] = {}

    def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:
        """Return the prompt unchanged. The first episode starts the workers.

        Raises EnvironmentSetupError if the workers do not start.
        """
        grader_for(self._settings)
        return prompt, {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Grade the completion, and end the episode.

        `metadata` has `task`, `level`, `outcome`, `unscored`, `score` (the verifier's) and `reason`. The reward of a
        completion without a score is NaN. Raises EnvironmentSetupError if the settings of `register` do not serve the
        task of the row.
        """
        self.turns += 1
        [grade] = grader_for(self._settings).grade(self._recipe, [action], thinking_opened=self._thinking_opened)
        report(self._row, grade.reward)
        score = grade.score
        self._metrics = metrics_of(grade)
        if grade.reward is None:
            logger.warning("%s: a completion has no score. %s: %s", self._recipe.task, score.outcome.value, score.why)
        metadata = {
            "task": self._recipe.task,
            "level": self._recipe.level,
            "outcome": score.outcome.value,
            "reason": score.why,
            "score": self._metrics.get("score"),
            "unscored": grade.reward is None,
        }
        reward = math.nan if grade.reward is None else grade.reward
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata=metadata)

    def get_metrics(self) -> dict[str, float]:
        """The metrics of this episode. SkyRL averages each metric over the episodes that report it."""
        return self._metrics


class CurriculumPrompts:
    """SkyRL's training dataset over a store of levels: the method `get_train_dataset` of an experiment returns it.

    An item is the prompt, the environment (None: the configured one), the row's other columns, and the row's name.
    Raises EnvironmentSetupError if there is no such store.
    """

    def __init__(self, path: str, tokenizer: Any, max_prompt_length: int) -> None:
        self._rows = CurriculumRows(path, PromptLimit(tokenizer, max_prompt_length))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> tuple[Any, None, dict[str, Any], str]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[tuple[Any, None, dict[str, Any], str]]:
        """The items of a batch. The workers make them in parallel."""
        items = []
        for row in self._rows.read(numbers):
            columns = verl_row(row.exported)
            prompt = columns.pop("prompt")
            items.append((prompt, None, columns, str(row.number)))
        return items

    def collate_fn(self, items: Sequence[tuple[Any, None, dict[str, Any], str]]) -> list[dict[str, Any]]:
        """A batch in SkyRL's form."""
        names = ("prompt", "env_class", "env_extras", "uid")
        return [dict(zip(names, item, strict=True)) for item in items]


def mask_unscored(batch: Mapping[str, Any], output: Mapping[str, Any]) -> dict[str, Any]:
    """Exclude completions without a score from training.

    `batch` is the argument of SkyRL's `generate`, and `output` is its result. The returned output has a loss mask of 0
    for each completion without a score. The reward of such a completion is the mean reward of the scored completions of
    its prompt, or of the whole batch if its prompt has none. So it does not change the mean reward, which the trainer
    subtracts from the other rewards. If no completion of the batch has a score, all rewards and loss masks are 0, and
    the function logs an error.
    """
    rewards = list(output["rewards"])
    masks = list(output["loss_masks"])
    totals = [_total(reward) for reward in rewards]
    scored: dict[str, list[float]] = defaultdict(list)
    prompts = _prompts(batch, output)
    for prompt, total in zip(prompts, totals, strict=True):
        if not math.isnan(total):
            scored[prompt].append(total)
    in_batch = [total for total in totals if not math.isnan(total)]
    if not in_batch:
        logger.error(
            "None of the %d completions of this batch has a score. All are masked. Earlier warnings have the reasons.",
            len(totals),
        )
    for row, total in enumerate(totals):
        if math.isnan(total):
            comparable = scored[prompts[row]] or in_batch or [0.0]
            rewards[row] = _with_total(rewards[row], fmean(comparable))
            masks[row] = [0] * len(masks[row])
    return {**output, "rewards": rewards, "loss_masks": masks}


def _prompts(batch: Mapping[str, Any], output: Mapping[str, Any]) -> list[str]:
    """The prompt of each completion. Without trajectories, all completions count as completions of one prompt."""
    trajectories = output.get("trajectory_ids") or batch.get("trajectory_ids")
    if trajectories is None:
        return [""] * len(output["rewards"])
    return [trajectory.instance_id for trajectory in trajectories]


def _total(reward: float | Sequence[float]) -> float:
    """The reward of a completion. SkyRL has either this number, or a number for each token; then their sum counts."""
    return sum(reward) if isinstance(reward, Sequence) else reward


def _with_total(reward: float | Sequence[float], total: float) -> float | list[float]:
    if not isinstance(reward, Sequence):
        return total
    return [0.0] * (len(reward) - 1) + [total]
