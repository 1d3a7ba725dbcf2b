"""Starts the original environment in a run that was planned for this project."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from .phase import PATHS

MODULE = "original_environment"


def original_process(
    checkout: Path,
    folder: Path,
    arguments: Sequence[str],
) -> tuple[str, list[str], dict[str, str]]:
    """The module, the arguments and the environment variables of the original's `serve`, converted from ours.

    `checkout` has its reasoning_gym_environment.py, which is copied to `folder` under another name.
    """
    shutil.copy(checkout / "reasoning_gym_environment.py", folder / f"{MODULE}.py")
    command, *ours = arguments
    left_out = ("--env.include_tasks", "--env.data_dumps_dir")
    flags = {name: value for name, value in zip(ours[::2], ours[1::2], strict=True) if name not in left_out}
    flags["--env.num_eval_samples_per_task"] = "1"
    flags["--openai.tokenizer_name"] = flags["--env.tokenizer_name"]
    if flags["--env.complexity_mode"] == "none":
        # Which no flag can say.
        del flags["--env.complexity_mode"]
        config = folder / "original.yaml"
        config.write_text("env:\n  complexity_mode: null\n")
        flags["--config"] = str(config)
    path = os.pathsep.join([str(folder), PATHS["PYTHONPATH"]])
    return MODULE, [command, *(text for pair in flags.items() for text in pair)], {"PYTHONPATH": path}
