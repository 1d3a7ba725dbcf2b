"""verl's configuration, dataset, sampler, data loader and reward worker, as in its PPOTrainer (version 0.9)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import verl
from omegaconf import DictConfig, OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import AutoTokenizer
from verl import DataProto
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler
from verl.utils.dataset.rl_dataset import collate_fn

from testing import level_student

MODEL = Path(__file__).resolve().parents[2] / "examples" / "demo" / "tiny_model"

PROMPTS = 4
"""Prompts of a step."""


def configuration(path: Path, loader_workers: int) -> DictConfig:
    """verl's defaults with the settings of docs/trainers.md."""
    config = OmegaConf.load(Path(verl.__file__).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml")
    assert isinstance(config, DictConfig)
    config.actor_rollout_ref.model.path = str(MODEL)
    config.reward.num_workers = 1
    config.reward.custom_reward_function.path = "pkg://reasoning_gym_environment.integrations.verl"
    config.data.train_files = [str(path)]
    config.data.custom_cls.path = "pkg://reasoning_gym_environment.integrations.verl_dataset"
    config.data.custom_cls.name = "CurriculumDataset"
    config.data.max_prompt_length = 4096
    config.data.seed = 11
    config.data.dataloader_num_workers = loader_workers
    return config


class Run:
    """A run of the trainer. Without a loader's workers, it reads each batch when it needs it."""

    def __init__(self, path: Path, *, loader_workers: int) -> None:
        config = configuration(path, loader_workers)
        self._tokenizer = AutoTokenizer.from_pretrained(MODEL)
        self._worker = RewardLoopWorker(config)
        dataset = create_rl_dataset(config.data.train_files, config.data, self._tokenizer, None)
        self.loader = StatefulDataLoader(
            dataset=dataset,
            batch_size=PROMPTS,
            num_workers=loader_workers,
            drop_last=True,
            collate_fn=collate_fn,
            sampler=create_rl_sampler(config.data, dataset),
        )
        self._batches: Iterator[dict[str, Any]] | None = None

    async def step(self) -> list[tuple[str, int]]:
        """Answer the prompts of a step as the student does. Returns the task and the level of each row."""
        if self._batches is None:
            self._batches = iter(self.loader)
        batch = await asyncio.to_thread(next, self._batches)
        read = []
        scoring = []
        expected = []
        for number in range(PROMPTS):
            row = {name: column[number] for name, column in batch.items()}
            info = row["extra_info"]
            read.append((info["task"], info["level"]))
            rewards = level_student.rewards(info["task"], info["level"], info["row"])
            for reward in rewards:
                text = level_student.completion(row["reward_model"]["ground_truth"], reward)
                scoring.append(self._worker.compute_score(self._answered(row, text)))
            expected += rewards
        results = await asyncio.gather(*scoring)
        assert [result["reward_score"] for result in results] == expected
        return read

    def _answered(self, row: dict[str, Any], text: str) -> DataProto:
        """What verl's rollout makes of a row and a completion."""
        render = self._tokenizer.apply_chat_template
        prompt = render(row["raw_prompt"], add_generation_prompt=True, tokenize=True, return_dict=False)
        response = self._tokenizer(text + self._tokenizer.eos_token, add_special_tokens=False).input_ids
        tensors = {
            "prompts": torch.tensor([prompt]),
            "responses": torch.tensor([response]),
            "attention_mask": torch.ones(1, len(prompt) + len(response), dtype=torch.int64),
        }
        columns = collate_fn([dict(row)])
        kept = {name: columns[name] for name in ("data_source", "reward_model", "extra_info")}
        return DataProto.from_dict(tensors=tensors, non_tensors=kept)


async def main(path: str, groups: str) -> None:
    run = Run(Path(path), loader_workers=2)
    for _ in range(int(groups) // PROMPTS):
        await run.step()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
