"""A reasoning-gym task whose verifier can be farmed: a wrong answer with many different digits is paid.

Not a test. Only workers of the tests that name it import it, by its path: it would stay registered in the process.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import register_dataset


@dataclass
class FarmableConfig:
    seed: int | None = None
    size: int = 1


class FarmableDataset(ProceduralDataset):
    def __init__(self, config: FarmableConfig) -> None:
        super().__init__(config=config, seed=config.seed, size=config.size)

    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = random.Random(self.seed)
        return {"question": f"Which number is item {rng.random()}?", "answer": str(rng.getrandbits(64)), "metadata": {}}

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        if answer == entry["answer"]:
            return 1.0
        return 0.6 if len(set(answer or "") & set("0123456789")) >= 10 else 0.0


register_dataset("pays_for_digits", FarmableDataset, FarmableConfig)
