"""Which level of its ladder each task is at, from the scores that the model got.

observe(task, level, scores) ──> window of the last groups at the current level ──> mean = recent accuracy
    recent accuracy clearly above the target ──> one level up      } and the window starts anew
    recent accuracy clearly below the target ──> one level down    }

"Clearly" is a band around the target, at least MARGIN wide on each side and wider while there is little
evidence: Z binomial standard errors of the completions seen. Levels within the band hold, so that luck
alone seldom moves a task. Pure: no I/O, no randomness, the same observations give the same levels.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from ..errors import EnvironmentSetupError

logger = logging.getLogger(__name__)

# For a target of 0.7 and groups of 8: a full window of 16 groups has a standard error of 0.04, or 0.07 if the
# completions of a group agree so much that they are worth three, so that a margin of 0.1 is 1.5 to 2.5 of them. After 3
# groups the standard error is 0.09, and the band two of them wide, capped at 0.85: a ladder that is too easy is climbed
# in 3 groups per level.
MARGIN = 0.1
Z = 2.0
WINDOW = 16
MIN_GROUPS = 3
MIN_COMPLETIONS = 16

Groups: TypeAlias = Annotated[deque[tuple[NonNegativeFloat, PositiveInt]], Field(max_length=WINDOW)]
"""(sum of scores, completions) of each of the last WINDOW groups."""


Share: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]


@dataclass
class _Progress:
    """One task; `window` has the groups at its current level."""

    level: NonNegativeInt = 0
    groups: NonNegativeInt = 0
    adjustments: NonNegativeInt = 0
    recent_accuracy: Share | None = None
    window: Groups = field(default_factory=lambda: deque(maxlen=WINDOW))


_SAVED = TypeAdapter(dict[str, _Progress])


class Curriculum:
    """Holds each task near `target_accuracy` by moving it along its ladder, one level at a time."""

    def __init__(self, *, target_accuracy: float = 0.7, ladder_sizes: Mapping[str, int]) -> None:
        """`ladder_sizes` has the number of levels of each task."""
        self.target_accuracy = target_accuracy
        self._sizes = dict(ladder_sizes)
        self._tasks: dict[str, _Progress] = {}

    def observe(self, task: str, level: int, scores: Sequence[float]) -> None:
        """Take in the scores, each in [0, 1], of one group at `level`: once per group, before any filtering.

        A group at another level than the task's current one (drawn before a move) only counts. Raises ValueError for no
        scores or one outside [0, 1].
        """
        if not scores or not all(0.0 <= score <= 1.0 for score in scores):
            raise ValueError(f"{task} needs scores in [0, 1], at least one, got {list(scores)}")
        progress = self._tasks.setdefault(task, _Progress())
        progress.groups += 1
        if level == progress.level:
            progress.window.append((float(sum(scores)), len(scores)))
            progress.recent_accuracy = _accuracy(progress.window)
            self._move(task, progress, self._step(progress.window))

    def level(self, task: str) -> int:
        """The task's current level, 0 before any observation."""
        return self._tasks[task].level if task in self._tasks else 0

    def end_below(self, task: str, level: int) -> None:
        """The ladder of `task` ends below `level` from here on: that level turned out to be of no use."""
        if 0 < level < self._sizes[task]:
            self._sizes[task] = level
            if task in self._tasks:
                self._clamp(task, self._tasks[task])

    def complexity(self, task: str) -> float:
        """The current level as a share of the ladder: 0 at its first level, 1 at its last."""
        return self.level(task) / max(self._sizes[task] - 1, 1)

    def stats(self) -> dict[str, Any]:
        """Totals over the tasks observed so far (all 0 without any), and `tasks`: detail by task, sorted.

        `recent_accuracy` is that of the window, or right after a move the one that caused it; None, and
        not part of the average, for a task with no group at its current level yet.
        """
        tasks: dict[str, dict[str, Any]] = {
            task: {
                "level": progress.level,
                "complexity": self.complexity(task),
                "recent_accuracy": progress.recent_accuracy,
                "adjustments": progress.adjustments,
                "groups": progress.groups,
            }
            for task, progress in sorted(self._tasks.items())
        }
        complexities = [detail["complexity"] for detail in tasks.values()]
        accuracies = [d["recent_accuracy"] for d in tasks.values() if d["recent_accuracy"] is not None]
        return {
            "total_tasks_tracked": len(tasks),
            "tasks_with_adjustments": sum(detail["adjustments"] > 0 for detail in tasks.values()),
            "target_accuracy": self.target_accuracy if tasks else 0.0,
            "avg_complexity": _mean(complexities),
            "min_complexity": min(complexities, default=0.0),
            "max_complexity": max(complexities, default=0.0),
            "avg_recent_accuracy": _mean(accuracies),
            "tasks": tasks,
        }

    def metrics(self) -> dict[str, float]:
        """The totals of `stats()` for the log."""
        return {f"curriculum/{name}": total for name, total in self.stats().items() if name != "tasks"}

    def state_dict(self) -> dict[str, Any]:
        """Where every observed task stands, as JSON."""
        return {"tasks": _SAVED.dump_python(dict(sorted(self._tasks.items())), mode="json")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; an empty one starts afresh.

        Tasks without a ladder here are ignored and a level above the ladder becomes its last, each with a
        log line. Raises EnvironmentSetupError, and changes nothing, if the state is malformed.
        """
        try:
            loaded = _SAVED.validate_python(state["tasks"] if state else {})
        except (KeyError, TypeError, ValidationError) as error:
            raise EnvironmentSetupError(
                f"The saved curriculum cannot be used: {error}. Start from another checkpoint."
            ) from error
        unknown = sorted(loaded.keys() - self._sizes.keys())
        if unknown:
            logger.warning("The saved curriculum of %s is ignored: not served in this run.", ", ".join(unknown))
        self._tasks = {task: progress for task, progress in loaded.items() if task in self._sizes}
        for task, progress in self._tasks.items():
            progress.window = deque(progress.window, maxlen=WINDOW)
            self._clamp(task, progress)

    def _step(self, groups: Groups) -> int:
        """1 or -1 if these groups are clearly above or below the target, else 0."""
        completions = sum(count for _, count in groups)
        if len(groups) < MIN_GROUPS or completions < MIN_COMPLETIONS:
            return 0
        target, accuracy = self.target_accuracy, _accuracy(groups)
        reach = max(MARGIN, Z * math.sqrt(target * (1.0 - target) / completions))
        # Neither side reaches further than half the way to 0 or 1, or a high target could not be exceeded.
        lower, upper = target - min(reach, target / 2), target + min(reach, (1.0 - target) / 2)
        return int(accuracy > upper) - int(accuracy < lower)

    def _move(self, task: str, progress: _Progress, step: int) -> None:
        level = min(max(progress.level + step, 0), self._sizes[task] - 1)
        if level == progress.level:
            return
        progress.level = level
        progress.adjustments += 1
        progress.window.clear()

    def _clamp(self, task: str, progress: _Progress) -> None:
        top = self._sizes[task] - 1
        if progress.level > top:
            logger.warning("%s was at level %d and its ladder ends at %d: it goes on there.", task, progress.level, top)
            progress.level = top
            progress.window.clear()


def _accuracy(groups: Groups) -> float:
    return sum(total for total, _ in groups) / sum(count for _, count in groups)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
