"""The level of each task: the curriculum moves it along the task's ladder, one level at a time.

The curriculum holds each task near a target accuracy. It counts one piece of evidence for each group, the group's mean
reward, and not one for each completion, because completions of the same item agree with each other: eight completions
of one item may be worth little more than one. It moves a task in two ways.

**The sequential test.** Two numbers hold the evidence since the last move. `x` is the mean reward of a group.

    evidence_up   <- (1 + evidence_up)   * x / target                  grows while x is mostly above the target
    evidence_down <- (1 + evidence_down) * (1 - x) / (1 - target)      grows while x is mostly below the target

The task moves when one of them reaches MOVE_AT. Each factor is the payoff of a bet at fair odds: if the accuracy is at
the target, the factor's expected value is 1, whatever the size of the groups and however much their completions agree.
The expected evidence after n groups is then n, and reaching MOVE_AT takes at least MOVE_AT groups in expectation. Two
numbers together take at least half as many. So a task at its target moves by chance at most twice in MOVE_AT groups in
the long run, although the test looks after every group. The bet comes from Waudby-Smith & Ramdas, "Estimating means of
bounded random variables by betting" (2020, arXiv 2010.09686), with the largest stake. The sum over starting points,
which is the `1 +`, is the Shiryaev-Roberts e-detector of Shin, Ramdas & Rinaldo, "E-detectors" (2022, arXiv
2203.03532). The evidence forgets old groups, so there is no window.

**The climb.** The sequential test needs 15 groups of right answers for a target of 0.7, too many for a ladder whose
first ten levels are too easy. Therefore a task climbs faster at the start of a run and after each upward move of the
test: three groups whose mean reward is more than half of the way from the target to 1 suffice. The climb ends at a
downward move, or when the mean reward is as far below the target. The sequential test decides alone from then on. TCP
increases its window in the same way, fast until the first loss. The climbs of a task that is at its target cost one or
two false moves in 300 groups, which the rate of the test leaves room for. A higher target needs more groups, so that a
task at its target is unlikely to have all of them right (`climbing_groups`).
docs/difficulty_and_sampling.md has figures of both.

**A level without items.** An item that is too long or too slow comes from an easier level, and its rewards are no
evidence about the level of the task. If UNMADE_ITEMS items in a row cannot be made at the level of the task, the task
moves down. It may climb again, which costs at most as many items.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import Field, NonNegativeFloat, NonNegativeInt, TypeAdapter

logger = logging.getLogger(__name__)

MOVE_AT = 500.0
"""Evidence that moves a task. A larger value makes false moves rarer and true moves slower."""

LEAST_CLIMBING_GROUPS = 3
"""A climb spends at least this many groups at each level."""

RECENT_GROUPS = 16
"""The mean reward at a level is a plain mean of up to this many groups. With more groups, it is a moving average."""

UNMADE_ITEMS = 3
"""A task moves down after this many items in a row that its level could not give."""

Share: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]


@dataclass(frozen=True)
class GroupResult:
    """The scored completions of one item."""

    task: str
    level: int | None
    """The level of the item, None for the task's default config."""
    rewards: tuple[float, ...]
    """The base reward of each scored completion, in [0, 1]. There is at least one."""

    @property
    def mean_reward(self) -> float:
        return sum(self.rewards) / len(self.rewards)


@dataclass
class TaskLevel:
    """The level of one task and the evidence since the last move."""

    level: NonNegativeInt = 0
    groups: NonNegativeInt = 0
    """All groups of the task."""
    adjustments: NonNegativeInt = 0
    """Moves so far."""
    is_climbing: bool = True
    groups_at_level: NonNegativeInt = 0
    """Groups since the last move."""
    recent_accuracy: Share | None = None
    """Mean reward of the groups since the last move; directly after a move, the mean that it was based on."""
    evidence_up: NonNegativeFloat = 0.0
    evidence_down: NonNegativeFloat = 0.0
    unmade: NonNegativeInt = 0
    """Items in a row that this level could not give."""

    def add(self, reward: float, target: float) -> None:
        """Count the mean reward, in [0, 1], of one group at this level."""
        if self.groups_at_level == 0 or self.recent_accuracy is None:
            self.recent_accuracy = 0.0
        self.groups_at_level += 1
        # This form never leaves [0, 1] by rounding.
        self.recent_accuracy += (reward - self.recent_accuracy) / min(self.groups_at_level, RECENT_GROUPS)
        payoff_up = reward / target
        payoff_down = (1.0 - reward) / (1.0 - target)
        self.evidence_up = (1.0 + self.evidence_up) * payoff_up
        self.evidence_down = (1.0 + self.evidence_down) * payoff_down

    def go_to(self, level: int) -> None:
        """Start without evidence at `level`."""
        self.level = level
        self.groups_at_level = 0
        self.evidence_up = 0.0
        self.evidence_down = 0.0
        self.unmade = 0


_SAVED_LEVELS = TypeAdapter(dict[str, TaskLevel])


def climbing_groups(target: float) -> int:
    """How many groups a climb needs at each level.

    A model that is exactly at the target has all of them right in less than half of the cases, even if all completions
    of an item agree.
    """
    return max(LEAST_CLIMBING_GROUPS, math.ceil(math.log(0.5) / math.log(target)))


def step_of(state: TaskLevel, target: float) -> int:
    """The move that the evidence calls for: 1, -1 or 0."""
    if state.evidence_up >= MOVE_AT:
        return 1
    if state.evidence_down >= MOVE_AT:
        return -1
    if state.is_climbing and _distance(state, target) > (1.0 - target) / 2:
        return 1
    return 0


def _distance(state: TaskLevel, target: float) -> float:
    """How far the accuracy at this level is above the target; 0 while there are too few groups for a climb."""
    if state.recent_accuracy is None or state.groups_at_level < climbing_groups(target):
        return 0.0
    return state.recent_accuracy - target


class Curriculum:
    """Holds each task near `target_accuracy` by moving it along its ladder."""

    def __init__(
        self,
        levels: Mapping[str, int],
        target_accuracy: float = 0.7,
    ) -> None:
        """`levels` has the number of levels of each task. `target_accuracy` is between 0 and 1."""
        self.target_accuracy = target_accuracy
        self._last_level = {task: count - 1 for task, count in levels.items()}
        self._tasks: dict[str, TaskLevel] = {}

    def level(self, task: str) -> int:
        """The task's current level, 0 before any observation."""
        if task not in self._tasks:
            return 0
        return min(self._tasks[task].level, self._last_level[task])

    def observe(self, result: GroupResult) -> None:
        """Learn from one group: once for each group, before any filtering.

        A group at another level than the task's current level dates from before a move. It counts as a group, but it is
        no evidence.
        """
        state = self._tasks.setdefault(result.task, TaskLevel())
        state.groups += 1
        top = self._last_level[result.task]
        if state.level > top:
            logger.warning(
                "%s was at level %d, and its last level is %d: it continues there.",
                result.task,
                state.level,
                top,
            )
            state.go_to(top)
        if result.level != state.level:
            return
        state.add(result.mean_reward, self.target_accuracy)
        step = step_of(state, self.target_accuracy)
        if step != 0:
            self._move(result.task, state, step, top)
        elif -_distance(state, self.target_accuracy) > (1.0 - self.target_accuracy) / 2:
            state.is_climbing = False

    def note_made(self, task: str, level: int) -> None:
        """An item of this level could be made."""
        state = self._tasks.get(task)
        if state is not None and state.level == level:
            state.unmade = 0

    def note_unmade(self, task: str, level: int) -> None:
        """An item of this level could not be made. The task moves down after UNMADE_ITEMS of them in a row."""
        state = self._tasks.get(task)
        if state is None or state.level != level or level == 0:
            return
        state.unmade += 1
        if state.unmade < UNMADE_ITEMS:
            return
        logger.info(
            "%s goes from level %d to level %d, because its last %d items could not be made.",
            task,
            level,
            level - 1,
            state.unmade,
        )
        state.adjustments += 1
        state.is_climbing = False
        state.go_to(level - 1)

    def _move(self, task: str, state: TaskLevel, step: int, top: int) -> None:
        """At an end of the ladder the task keeps its level, and the evidence starts again."""
        level = min(max(state.level + step, 0), top)
        if level != state.level:
            state.adjustments += 1
            logger.info(
                "%s goes from level %d to level %d, after %d groups with a mean reward of %.2f.",
                task,
                state.level,
                level,
                state.groups_at_level,
                state.recent_accuracy,
            )
        state.is_climbing = step > 0
        state.go_to(level)

    def stats(self) -> dict[str, Any]:
        """Totals over the tasks observed so far (0 without any), the target, and `tasks`: details by task, sorted.

        `complexity` is the level as a share of the ladder. `recent_accuracy` is None, and not part of the average, for
        a task that has no group at its level yet. `groups_processed`, `history_length` and `adjustable` are the
        original environment's names for all groups, the groups at this level, and whether these suffice for a climb.
        """
        details = {task: self._details(task, state) for task, state in sorted(self._tasks.items())}
        complexities = [detail["complexity"] for detail in details.values()]
        accuracies = [detail["recent_accuracy"] for detail in details.values()]
        return {
            "total_tasks_tracked": len(details),
            "tasks_with_adjustments": sum(detail["adjustments"] > 0 for detail in details.values()),
            "target_accuracy": self.target_accuracy,
            "avg_complexity": _mean(complexities),
            "min_complexity": min(complexities, default=0.0),
            "max_complexity": max(complexities, default=0.0),
            "avg_recent_accuracy": _mean([accuracy for accuracy in accuracies if accuracy is not None]),
            "tasks": details,
        }

    def _details(self, task: str, state: TaskLevel) -> dict[str, Any]:
        level = self.level(task)
        return {
            "level": level,
            "complexity": level / max(self._last_level[task], 1),
            "recent_accuracy": state.recent_accuracy,
            "adjustments": state.adjustments,
            "groups": state.groups,
            "groups_processed": state.groups,
            "history_length": state.groups_at_level,
            "adjustable": state.groups_at_level >= climbing_groups(self.target_accuracy),
        }

    def metrics(self) -> dict[str, float]:
        """The totals of `stats()` for the log."""
        return {f"curriculum/{name}": total for name, total in self.stats().items() if name != "tasks"}

    def state_dict(self) -> dict[str, Any]:
        """The state of every observed task, as JSON."""
        return {"tasks": _SAVED_LEVELS.dump_python(dict(sorted(self._tasks.items())), mode="json")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the state by a saved one. An empty mapping is the state of a new curriculum.

        Tasks without a ladder in this run are ignored with a log line. A task whose saved level is above its ladder
        continues at its last level. Raises ValueError if the state is malformed.
        """
        loaded = _SAVED_LEVELS.validate_python(state.get("tasks", {}))
        served = {task: level for task, level in loaded.items() if task in self._last_level}
        ignored = sorted(loaded.keys() - served.keys())
        if ignored:
            names = ", ".join(ignored)
            logger.warning(
                "The saved curriculum of %s is ignored: not served in this run.",
                names,
            )
        self._tasks = served


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
