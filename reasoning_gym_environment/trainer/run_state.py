"""What a run learns from its trainer, and what changes while it runs. The settings of a run do not change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RunState:
    """The trainer's limits and progress.

    `batch_size` and `total_steps` begin as the settings' values. The trainer's batch size replaces the first, and its
    number of steps replaces the second if that is -1. `max_token_len` is the trainer's limit for a whole sequence, in
    tokens; there is none if it is not positive. `repeated_steps` counts the steps that a restarted trainer has taken
    once more.
    """

    group_size: int
    batch_size: int
    total_steps: int
    max_token_len: int = -1
    env_id: int | None = None
    step: int = 0
    repeated_steps: int = 0
    metrics_prefix: str | None = None
    checkpoint_dir: str = ""
    checkpoint_interval: int = -1
