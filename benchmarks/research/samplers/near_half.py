"""Success near one half: prompt curriculum learning (PCL, arXiv 2510.01135), for tasks instead of prompts.

PCL predicts the success rate of each prompt with a value model, and trains on prompts near one half. Here the predicted
success of a task is an exponential average of the mean rewards of its groups, and its preference is the variance of a
completion, 4 * p * (1 - p), which is 1 at one half. A new task has the prediction one half.
"""

from __future__ import annotations

from reasoning_gym_environment.sampling.curriculum import GroupResult

from .preferences import PreferredTasks

LEARNING_RATE = 0.1
"""Share of the newest group in the predicted success."""

LEAST_PREFERENCE = 0.05
"""Of a task that is never or always solved."""


class NearHalfTasks(PreferredTasks):
    START = 0.5

    def updated(self, figure: float, result: GroupResult) -> float:
        return figure + LEARNING_RATE * (result.mean_reward - figure)

    def preference(self, figure: float) -> float:
        return max(LEAST_PREFERENCE, 4.0 * figure * (1.0 - figure))
