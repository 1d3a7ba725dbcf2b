"""A reasoning-gym task whose verifier executes the answer: what a sandbox has to hold without any guard.

Not a test. Only scoring workers import it, by its path: it would stay registered in the process of the tests.
The names beside it are in hostile_answers.py.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Any

from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import register_dataset


@dataclass
class AttackConfig:
    breaks: str = ""
    """The exception that the constructor of the dataset raises, by its name."""
    keeps: int = 0
    """The bytes that the dataset keeps."""
    seed: int | None = None
    size: int = 1


class AttackDataset(ProceduralDataset):
    """1.0 for the right answer; anything else is executed and gets 0.25."""

    def __init__(self, config: AttackConfig) -> None:
        super().__init__(config=config, seed=config.seed, size=config.size)
        self.kept = bytearray(config.keeps)
        if config.breaks:
            raise getattr(builtins, config.breaks)("as the test wants it")

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"question": "?", "answer": "right", "metadata": {}}

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        if answer == entry["answer"]:
            return 1.0
        if answer is not None and not answer.startswith("<answer>"):
            exec(answer, {"verifier": self, "entry": entry, "AttackDataset": AttackDataset})
        return 0.25


register_dataset("executes_answers", AttackDataset, AttackConfig)
