"""What the demo has seen so far, as numbers for the display and the summary."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from ..records import CORRECT_THRESHOLD
from ..sampling.task_choice import effective_number

STAGES = 4
"""Parts of the run that the summary compares."""

RATE_WINDOW_S = 5.0


@dataclass
class CategoryTally:
    """Scored completions of one category."""

    groups: int = 0
    with_signal: int = 0
    completions: int = 0
    total_score: float = 0.0

    @property
    def accuracy(self) -> float:
        return self.total_score / self.completions if self.completions else 0.0


@dataclass(frozen=True)
class Seen:
    """One scored group, as the summary needs it."""

    task: str
    complexity: float
    accuracy: float
    signal: bool


@dataclass(frozen=True)
class Part:
    """One part of the run: its groups, and averages over them."""

    groups: int
    accuracy: float
    complexity: float
    signal_share: float
    effective_tasks: float


@dataclass
class Tally:
    """Counts of one demo run. `total_steps` is where it ends."""

    total_steps: int
    stage: str = "starting"
    step: int = 0
    sequences_trained: int = 0
    ready: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, float] = field(default_factory=dict)
    dumps: list[str] = field(default_factory=list)
    funnel: str = ""
    seen: list[Seen] = field(default_factory=list)
    categories: dict[str, CategoryTally] = field(default_factory=lambda: defaultdict(CategoryTally))
    tasks_seen: set[str] = field(default_factory=set)
    levels: dict[str, int] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    training_started: float | None = None
    _recent: deque[float] = field(default_factory=deque)

    def add_group(self, event: dict[str, Any]) -> None:
        """Count one scored group."""
        scores = event["scores"]
        category = self.categories[event["category"]]
        category.groups += 1
        category.with_signal += event["signal"]
        category.completions += len(scores)
        category.total_score += sum(scores)
        self.tasks_seen.add(event["task"])
        correct = sum(score >= CORRECT_THRESHOLD for score in scores) / len(scores)
        self.seen.append(Seen(event["task"], event["complexity"] or 0.0, correct, event["signal"]))
        if event["level"] is not None:
            self.levels[event["task"]] = event["level"]
        now = time.monotonic()
        self._recent.append(now)
        while self._recent and now - self._recent[0] > RATE_WINDOW_S:
            self._recent.popleft()

    @property
    def effective_tasks(self) -> float:
        """How many equally frequent tasks would be as diverse as the groups so far."""
        return effective_number(list(Counter(seen.task for seen in self.seen).values()))

    def parts(self) -> list[Part]:
        """The run in a few parts of as many groups each, first to last; none before there are enough groups."""
        size = len(self.seen) // STAGES
        return [_part(self.seen[number * size : (number + 1) * size]) for number in range(STAGES if size else 0)]

    @property
    def groups(self) -> int:
        return sum(category.groups for category in self.categories.values())

    @property
    def signal_share(self) -> float:
        return sum(category.with_signal for category in self.categories.values()) / max(1, self.groups)

    @property
    def accuracy(self) -> float:
        completions = sum(category.completions for category in self.categories.values())
        return sum(category.total_score for category in self.categories.values()) / max(1, completions)

    @property
    def recent_rate(self) -> float:
        """Groups per second over the last seconds."""
        if len(self._recent) < 2:
            return 0.0
        return (len(self._recent) - 1) / max(1e-6, self._recent[-1] - self._recent[0])

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def _part(seen: list[Seen]) -> Part:
    return Part(
        groups=len(seen),
        accuracy=sum(group.accuracy for group in seen) / len(seen),
        complexity=sum(group.complexity for group in seen) / len(seen),
        signal_share=sum(group.signal for group in seen) / len(seen),
        effective_tasks=effective_number(list(Counter(group.task for group in seen).values())),
    )
