"""Held-out questions, how they are asked and graded, what the results say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..sampling.seeds import Rule
from ..tasks.difficulty_ladder import Ranges


@dataclass(frozen=True)
class EvaluationSettings:
    """What is asked and how; the fields are settings, and described there (config.py)."""

    eval_tasks: Sequence[str]
    num_eval_samples_per_task: int
    eval_seed: int
    eval_complexity: float | str | None
    difficulty_range: Ranges
    eval_completions: int
    eval_temperature: float
    hold_out: Rule
