"""Stands in for a trainer: python -m tests.slurm.trainer FOLDER

It registers with run-api at $ATROPOS_URL, and takes batches until it is ended. FOLDER keeps a line for each batch.
These lines are also the trainer's checkpoint: a second start continues after its last step.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from testing.support import answers, next_batch, register_trainer, wait_for

GROUP_SIZE = 4
GROUPS_PER_BATCH = 4
PACE_S = 1.0
"""The trainer waits this long after each batch, so that the environments see each of its steps."""


def train(url: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    batches = folder / "batches.txt"
    batches.touch()
    wait_for(lambda: answers(url), "run-api")
    register_trainer(
        url,
        batch_size=GROUP_SIZE * GROUPS_PER_BATCH,
        max_token_len=8192,
        checkpoint_dir=str(folder / "checkpoints"),
        save_checkpoint_interval=1,
        starting_step=len(batches.read_text().splitlines()),
    )
    while True:
        next_batch(url)
        with batches.open("a") as file:
            file.write("a batch\n")
        time.sleep(PACE_S)


if __name__ == "__main__":
    train(os.environ["ATROPOS_URL"], Path(sys.argv[1]))
