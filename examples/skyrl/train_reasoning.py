"""Train with SkyRL on rows of `export items --format verl`, or on a store of levels (docs/trainers.md).

    python train_reasoning.py environment.env_class=reasoning_gym data.train_data="['rows/train.parquet']" ...

LEVEL_STORE=levels.sqlite trains on the rows of a store, whose levels follow the rewards.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import wraps
from statistics import fmean
from typing import Any

import ray
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp, validate_cfg
from skyrl.train.utils import initialize_ray

from reasoning_gym_environment.integrations.skyrl import CurriculumPrompts, register

logger = logging.getLogger(__name__)


class Experiment(BasePPOExp):
    """The experiment of SkyRL, which leaves unscored completions out of the loss."""

    def get_train_dataset(self) -> Any:
        if "LEVEL_STORE" not in os.environ:
            return super().get_train_dataset()
        return CurriculumPrompts(os.environ["LEVEL_STORE"], self.tokenizer, self.cfg.trainer.max_prompt_length)

    def get_generator(self, *arguments: Any) -> Any:
        generator = super().get_generator(*arguments)
        generate = generator.generate

        @wraps(generate)
        async def generate_and_mask(batch: Any, **options: Any) -> Any:
            output = await generate(batch, **options)
            return mask_unscored(batch, output)

        generator.generate = generate_and_mask
        return generator


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


@ray.remote(num_cpus=1)
def train(config: Any) -> None:
    register(num_scoring_workers=4)
    Experiment(config).run()


if __name__ == "__main__":
    config = SkyRLTrainConfig.from_cli_overrides(sys.argv[1:])
    validate_cfg(config)
    initialize_ray(config)
    ray.get(train.remote(config))
