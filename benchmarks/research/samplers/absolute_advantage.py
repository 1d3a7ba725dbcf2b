"""Mean absolute advantage as the reward of a bandit: self-evolving curriculum (SEC, arXiv 2505.14970).

The value of a task is an exponential average of the mean absolute advantage of its groups. The advantage is
GRPO's: the reward minus the group's mean, divided by the group's standard deviation. The policy draws tasks by a
softmax of their values. For rewards of 0 and 1 the mean absolute advantage is highest at an accuracy of one half, and 0
when all rewards are equal. A new task has the highest value.
"""

from __future__ import annotations

import math
import statistics

from reasoning_gym_environment.sampling.curriculum import GroupResult

from .preferences import PreferredTasks

LEARNING_RATE = 0.1
"""Share of the newest group in the value of its task."""

TEMPERATURE = 0.3
"""Temperature of the softmax. The policy draws a task of value 1 about 28 times as often as a task of value 0."""


class AbsoluteAdvantageTasks(PreferredTasks):
    START = 1.0

    def updated(self, figure: float, result: GroupResult) -> float:
        return figure + LEARNING_RATE * (mean_absolute_advantage(result.rewards) - figure)

    def preference(self, figure: float) -> float:
        return math.exp(figure / TEMPERATURE)


def mean_absolute_advantage(rewards: tuple[float, ...]) -> float:
    """In [0, 1]; 0 for equal rewards."""
    deviation = statistics.pstdev(rewards)
    if deviation == 0.0:
        return 0.0
    mean = statistics.fmean(rewards)
    return statistics.fmean(abs(reward - mean) for reward in rewards) / deviation
