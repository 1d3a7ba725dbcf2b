"""The command `serve` with another choice of tasks: serve_with_policy.py thompson|learnability serve OPTIONS.

The policies are those of benchmarks/samplers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.samplers.learnability import LearnableTasks
from benchmarks.samplers.thompson import ThompsonTasks
from reasoning_gym_environment import runtime
from reasoning_gym_environment.cli import main
from reasoning_gym_environment.sampling.item_maker import ItemMaker
from reasoning_gym_environment.sampling.item_stream import Sampler, build_sampler
from reasoning_gym_environment.sampling.task_policy import TaskPolicy
from reasoning_gym_environment.settings import SamplingSettings


def sampler_with(name: str, settings: SamplingSettings, maker: ItemMaker, *args: Any, **options: Any) -> Sampler:
    """What `build_sampler` returns, with the policy of this name."""
    sampler = build_sampler(settings, maker, *args, **options)
    weights = {task.name: task.weight for task in maker.catalog.tasks}
    policy: TaskPolicy
    if name == "thompson":
        policy = ThompsonTasks(weights, settings.seed)
    else:
        policy = LearnableTasks(weights, settings.seed, sampler.curriculum.level)
    sampler.stream.task_policy = policy
    return sampler


if __name__ == "__main__":
    policy_name = sys.argv.pop(1)
    if policy_name not in ("thompson", "learnability"):
        sys.exit(f"Expected thompson or learnability as the first argument, got {policy_name}.")
    runtime.build_sampler = lambda *args, **options: sampler_with(policy_name, *args, **options)
    sys.exit(main())
