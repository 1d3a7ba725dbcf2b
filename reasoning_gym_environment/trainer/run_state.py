"""The changing state of a run, including the facts that it learns from its trainer. Its settings do not change."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class RunState:
    """The trainer's limits and progress.

    `batch_size` and `total_steps` begin as the settings' values. The trainer's batch size replaces the first, and
    its number of steps replaces the second if that is -1. `trainer_steps` is the trainer's number in any case, or -1 if
    it has none. `max_token_len` is the trainer's limit for a whole sequence, in tokens; there is none if it is not
    positive. `repeated_steps` counts the steps that a restarted trainer has taken once more. `groups_written` counts
    the groups of `process`, which has no trainer. `env_id` is the number that run-api gave to this environment, and
    `successor_mark` lets the next process of this run find out whether the number is still valid (transport.py).
    """

    group_size: int
    batch_size: int
    total_steps: int
    trainer_steps: int = -1
    max_token_len: int = -1
    env_id: int | None = None
    successor_mark: str = ""
    step: int = 0
    repeated_steps: int = 0
    groups_written: int = 0
    metrics_prefix: str | None = None
    checkpoint_dir: str = ""
    checkpoint_interval: int = -1

    @property
    def ends_before_trainer(self) -> bool:
        """Whether the trainer makes more steps than this run has."""
        return self.total_steps < self.trainer_steps

    @property
    def log_step(self) -> int:
        """The step of wandb, which never goes back: it drops what is below its last step."""
        return self.groups_written or self.step + self.repeated_steps


class SubclassState:
    """Values that a subclass may use and change: a random generator, and the lead of its `iter` over the item stream.

    Checkpoints keep both. The generator is only saved once it has been used, and only if it is a `random.Random`.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.iter_shift = 0
        self._unused = self.rng.getstate()

    def state_dict(self) -> dict[str, Any]:
        """`rng` is the state of the generator, or None if it has not been used."""
        saved = None
        if isinstance(self.rng, random.Random) and self.rng.getstate() != self._unused:
            version, numbers, gauss = self.rng.getstate()
            saved = [version, list(numbers), gauss]
        return {"iter_shift": self.iter_shift, "rng": saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. Raises TypeError or ValueError if it is malformed."""
        self.iter_shift = int(state["iter_shift"])
        self.rng.setstate(self._unused)
        if state["rng"] is not None:
            version, numbers, gauss = state["rng"]
            next_gauss = None if gauss is None else float(gauss)
            self.rng.setstate((version, tuple(numbers), next_gauss))
