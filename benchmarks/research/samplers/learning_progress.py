"""How fast a task's mean reward changes: the figure behind the task choice by learnability."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

SIGNIFICANCE = 2.0
"""Standard errors of a slope that are treated as noise. A smaller value keeps drawing tasks with noisy rewards."""

EXPLORATION = 0.1
"""Standard errors of a slope that always count as progress, so that a little-known task is tried."""

LEAST_DEVIATION = 0.1
"""Least standard deviation of a group's mean reward. Equal rewards so far do not make a slope certain."""


class Group(NamedTuple):
    """What the policy keeps of a group."""

    level: int
    reward: float
    has_signal: bool


def progress(groups: Collection[Group]) -> float:
    """The change of the mean reward from one group to the next, in either direction. Positive.

    `groups` is not empty, and the oldest group comes first. The slope comes from least squares, with an intercept for
    each level, so that a harder level does not look like a loss. A slope within SIGNIFICANCE standard errors is treated
    as zero, and EXPLORATION standard errors are added.
    """
    levels = np.array([group.level for group in groups])
    rewards = np.array([group.reward for group in groups])
    numbers = np.arange(float(len(groups)))
    for level in np.unique(levels):
        is_at_level = levels == level
        numbers[is_at_level] -= numbers[is_at_level].mean()
        rewards[is_at_level] -= rewards[is_at_level].mean()
    spread = float(numbers @ numbers)
    if spread == 0.0:
        return LEAST_DEVIATION
    slope = float(numbers @ rewards) / spread
    residuals = rewards - slope * numbers
    variance = float(residuals @ residuals) / max(1, len(groups) - 2)
    deviation = max(LEAST_DEVIATION, math.sqrt(variance))
    error = deviation / math.sqrt(spread)
    significant = max(0.0, abs(slope) - SIGNIFICANCE * error)
    return significant + EXPLORATION * error
