"""The command `serve` with tasks chosen by benchmarks/samplers/thompson.py: serve_with_thompson.py serve OPTIONS."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.samplers.thompson import ThompsonTasks
from reasoning_gym_environment.cli import main
from reasoning_gym_environment.sampling import item_stream
from reasoning_gym_environment.settings import SamplingSettings


def build_thompson(settings: SamplingSettings, weights: Mapping[str, float], *_: Any) -> ThompsonTasks:
    return ThompsonTasks(weights, settings.seed)


if __name__ == "__main__":
    item_stream.build_task_policy = build_thompson  # type: ignore[assignment]
    sys.exit(main())
