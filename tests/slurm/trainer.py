"""Stands in for a trainer: python -m tests.slurm.trainer FOLDER STEPS EXIT_CODE

It registers with run-api at $ATROPOS_URL, takes a batch for each of STEPS steps, and ends with EXIT_CODE. FOLDER keeps
one line of JSON with the step for each batch. It is also the trainer's checkpoint: a second start continues after its
last step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import requests

from testing.support import next_batch, register_trainer, wait_for

GROUP_SIZE = 4
GROUPS_PER_BATCH = 4
PACE_S = 1.0
"""The trainer waits this long after each batch, so that the environments see each of its steps."""


def register(url: str, folder: Path, first_step: int, steps: int) -> None:
    """Register as soon as run-api answers."""

    def answers() -> bool:
        with suppress(requests.ConnectionError):
            return requests.get(url, timeout=60).ok
        return False

    wait_for(answers, "run-api")
    register_trainer(
        url,
        batch_size=GROUP_SIZE * GROUPS_PER_BATCH,
        max_token_len=8192,
        checkpoint_dir=str(folder / "checkpoints"),
        save_checkpoint_interval=1,
        starting_step=first_step,
        num_steps=steps,
    )


def train(url: str, folder: Path, steps: int) -> None:
    batches = folder / "batches.jsonl"
    batches.touch()
    first_step = len(batches.read_text().splitlines())
    register(url, folder, first_step, steps)
    for step in range(first_step, steps):
        next_batch(url)
        with batches.open("a") as file:
            file.write(json.dumps({"step": step}) + "\n")
        time.sleep(PACE_S)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    where.mkdir(parents=True, exist_ok=True)
    train(os.environ["ATROPOS_URL"], where, int(sys.argv[2]))
    sys.exit(int(sys.argv[3]))
