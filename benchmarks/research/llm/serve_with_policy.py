"""The command `serve` with another choice of tasks: serve_with_policy.py thompson|learnability serve OPTIONS.

The policies are in benchmarks/research/samplers.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.research.samplers.sampler_with_policy import build_sampler_with
from reasoning_gym_environment import runtime
from reasoning_gym_environment.cli import main

if __name__ == "__main__":
    policy_name = sys.argv.pop(1)
    if policy_name not in ("thompson", "learnability"):
        sys.exit(f"Expected thompson or learnability as the first argument, got {policy_name}.")
    runtime.build_item_source = partial(build_sampler_with, policy_name)
    sys.exit(main())
