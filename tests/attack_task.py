"""A reasoning-gym task whose verifier executes the answer: what a sandbox has to hold without any guard.

Not a test. Scoring workers import it by its path; `ATTACK_TASK` is its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS, register_dataset

ATTACK_TASK = "executes_answers"
RIGHT = "right"
ENTRY = {"question": "?", "answer": RIGHT, "metadata": {}}


@dataclass
class AttackConfig:
    seed: int | None = None
    size: int = 1


class AttackDataset(ProceduralDataset):
    """1.0 for the right answer; anything else is executed and gets 0.25."""

    def __init__(self, config: AttackConfig) -> None:
        super().__init__(config=config, seed=config.seed, size=config.size)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(ENTRY)

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        if answer == entry["answer"]:
            return 1.0
        if answer is not None and not answer.startswith("<answer>"):
            exec(answer, {"verifier": self, "entry": entry, "AttackDataset": AttackDataset})
        return 0.25


if ATTACK_TASK not in DATASETS:
    register_dataset(ATTACK_TASK, AttackDataset, AttackConfig)
