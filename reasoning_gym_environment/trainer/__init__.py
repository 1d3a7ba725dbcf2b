"""The other side of a training run: the trajectory API, what it says of the trainer, and the checkpoints of the run."""
