"""Which task and which level a draw gets: by fixed shares, or where the model gets better.

`task_sampling` and `complexity_mode` decide together (`build_choosers`, at the end):

                  task_sampling:  uniform, weighted     learnability
complexity_mode: none, random     fixed shares          by progress, over all levels of a task
                 curriculum       fixed shares          by progress at the level that the task is at

A choice is a function of (run seed, instance, index) and of what has been observed: the same observations give the same
choices.

`Curriculum` says which level a task is at. A group's scores go into the window of its level; its recent accuracy is
the mean over the window. If that is clearly above the target, the task goes one level up; if clearly below, one down;
and the window starts anew. "Clearly" is a band around the target, at least MARGIN wide on each side and wider while
there is little evidence: Z binomial standard errors of the completions seen. So luck alone seldom moves a task.

`LearnableTasks` watches, task by task, what the last groups brought. Rewards that differ within a group are needed to
learn from it, but are no sign that anything is learned: where a guess is right every fourth time they always differ. So
a task is worth what its accuracy moves with the groups spent on it, up or down (one that is being forgotten needs
groups):

    window ── the last groups, of one level where there is a curriculum
    slope ± error ── least squares of the groups' mean reward on their number; each level has a mean of its own
    progress = max(|slope| - LUCK · error, 0) + DOUBT · error                (so much may be luck; some may be there)
    signal = (groups whose rewards differ + 1) / (groups + 1)

    worth = min(1, progress / (ENOUGH · mean progress)) · min(1, signal / (ENOUGH · mean signal))²

    each (1 / floor)-th index ──> the next task of a shuffled round of all tasks      (nothing is starved)
    else ──> drawn with probability ∝ task weight · worth

A task that is not known yet has the mean progress. Whoever gets on at least half as well as the others is treated like
them: which of two tasks that learn comes first is mostly luck, what is slow now may be about to take off, and to draw
tasks in proportion to their signal taught a real model less (partial credit is a signal that never ends). So the draws
stay nearly uniform, which is hard to beat, unless some tasks stand still. A new level is a new window, with the benefit
of the doubt. Progress is compared with progress, so there is no scale to set: not for models, and not for the length of
a run.

Choosing by learning progress: teacher-student curriculum learning (arXiv 1707.00183), absolute learning progress
(1910.07224). Groups without a signal are those that DAPO throws away (2503.14476). Measured with a model that learns:
benchmarks/real_learning.py, docs/learning_signal.md.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, TypeAdapter

from ..settings import SamplingSettings
from ..tasks.difficulty_ladder import Ladder, Level
from .item_maker import derive_random, loading

logger = logging.getLogger(__name__)

Share: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]

WINDOW = 256
"""Groups of a task that its slope is taken from: enough to tell a rise of 0.1 over the window from luck."""

MIN_GROUPS = 12
"""With fewer a task's progress is not known yet."""

FLOOR = 0.12
"""The share of draws that is spread evenly over the tasks."""

LUCK, DOUBT = 2.0, 0.1
"""In standard errors of a slope: up to `LUCK` it is taken for none, and `DOUBT` counts all the same, as in bandits.
With less luck taken off, noise is progress, and tasks of noisy rewards are drawn for ever.
"""
ENOUGH = 0.5
"""Of the mean over all tasks: with so much progress, and so many groups with a signal, a task is like any other."""

LEAST_DEVIATION = 0.1
"""Of a group's mean reward from the line: a task with equal rewards so far is not known for certain."""


LevelOf: TypeAlias = Callable[[str], int]
"""Task -> the level that it is at."""


class WeightedTasks:
    """Draws tasks by fixed weights, whatever happens to their groups."""

    def __init__(self, weights: Mapping[str, float], seed: int) -> None:
        self._tasks = list(weights)
        self._weights = list(weights.values())
        self._seed = seed

    def choose(self, index: int, instance: str) -> str:
        choice = derive_random(self._seed, "task", "train", instance, index)
        return choice.choices(self._tasks, weights=self._weights)[0]

    def observe(self, task: str, level: int | None, reward: float, has_signal: bool) -> None:
        """Nothing is learned."""

    def skip(self, task: str) -> None:
        """Nothing is learned."""

    def metrics(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is no state."""


class LearnableTasks:
    """Prefers tasks whose rewards move with the groups spent on them, on top of their weights."""

    def __init__(
        self, weights: Mapping[str, float], seed: int, level_of: LevelOf | None = None, floor: float = FLOOR
    ) -> None:
        """`weights` are positive; `level_of` gives the level that a task is at, None where levels are drawn freely.

        `floor` is the share of draws spread evenly, in [0, 1].
        """
        self._tasks = list(weights)
        shares = np.array(list(weights.values()))
        self._weights = shares / shares.sum()
        self._seed = seed
        self._level_of = level_of
        self._floor = floor
        self._windows: dict[str, Window] = {task: deque(maxlen=WINDOW) for task in weights}
        self._progress: dict[str, float] = {}
        self._signal = dict.fromkeys(weights, 1.0)
        self._cumulated: list[float] | None = None

    def choose(self, index: int, instance: str) -> str:
        """The task of one index, given what has been observed so far."""
        visits = math.floor((index + 1) * self._floor)
        if visits > math.floor(index * self._floor):
            round_, place = divmod(visits - 1, len(self._tasks))
            order = list(self._tasks)
            derive_random(self._seed, "task round", "train", instance, round_).shuffle(order)
            return order[place]
        if self._cumulated is None:
            self._cumulated = list(itertools.accumulate(self._preferred().tolist()))
        choice = derive_random(self._seed, "task", "train", instance, index)
        return choice.choices(self._tasks, cum_weights=self._cumulated)[0]

    def observe(self, task: str, level: int | None, reward: float, has_signal: bool) -> None:
        """Take in one scored group: its mean reward, in [0, 1], and whether its rewards differ."""
        window, level = self._windows[task], level or 0
        if self._level_of is not None:
            # A group that was drawn before the curriculum moved on tells nothing of where the task is now.
            if level != self._level_of(task):
                return
            if window and window[-1].level != level:
                window.clear()
        # Rounded as it is saved, so that a run that goes on chooses like one that was never stopped.
        window.append(Group(level, round(float(reward), 4), bool(has_signal)))
        self._judge(task)

    def _judge(self, task: str) -> None:
        window = self._windows[task]
        self._progress.pop(task, None)
        if len(window) >= MIN_GROUPS:
            self._progress[task] = progress(window)
        self._signal[task] = (sum(group.has_signal for group in window) + 1.0) / (len(window) + 1.0)
        self._cumulated = None

    def skip(self, task: str) -> None:
        """A draw of this task gave no usable item: that teaches as little as a group of wrong answers.

        Otherwise a task that cannot be generated would stay unknown, and worth trying, for ever.
        """
        self.observe(task, self._level_of(task) if self._level_of else 0, 0.0, False)

    def shares(self) -> dict[str, float]:
        """Each task's share of the draws to come, floor included."""
        return dict(zip(self._tasks, self._mixed().tolist(), strict=True))

    def metrics(self) -> dict[str, float]:
        """What the draws to come look like: effective number of tasks, smallest share, mean progress per group."""
        mixed = self._mixed()
        known = list(self._progress.values())
        return {
            "task_choice/effective_tasks": effective_number(mixed),
            "task_choice/smallest_share": float(mixed.min()),
            "task_choice/known_tasks": float(len(known)),
            "task_choice/mean_progress": float(np.mean(known)) if known else 0.0,
        }

    def state_dict(self) -> dict[str, Any]:
        """The window of every task that has one, as JSON that is short, for there may be thousands of checkpoints."""
        return {"windows": {task: _packed(window) for task, window in self._windows.items() if window}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; an empty one starts afresh.

        Tasks that are not served here are ignored. Raises EnvironmentSetupError, and changes nothing, if the state is
        malformed.
        """
        with loading("task choice"):
            saved = {task: _SAVED.validate_python(window) for task, window in state.get("windows", {}).items()}
            windows = {task: _unpacked(window) for task, window in saved.items()}
        for task, window in self._windows.items():
            window.clear()
            window.extend(windows.get(task, []))
            self._judge(task)

    def _preferred(self) -> np.ndarray:
        """The distribution of the draws that are not spread evenly."""
        usual = np.mean(list(self._progress.values())) if self._progress else 1.0
        known = np.array([self._progress.get(task, usual) for task in self._tasks])
        signal = np.array([self._signal[task] for task in self._tasks])
        worth = np.minimum(1.0, known / (ENOUGH * usual))
        worth *= np.minimum(1.0, signal / (ENOUGH * float(self._weights @ signal))) ** 2
        raised = self._weights * worth
        return np.asarray(raised / raised.sum())

    def _mixed(self) -> np.ndarray:
        return self._floor / len(self._tasks) + (1.0 - self._floor) * self._preferred()


class Group(NamedTuple):
    """What is kept of one group of a task; `reward` is the mean."""

    level: int
    reward: float
    has_signal: bool


Window: TypeAlias = deque[Group]
"""The last groups of a task."""


def progress(window: Window) -> float:
    """How much the mean reward moves with every group, or may: see the head of this file. Positive.

    Least squares with a mean of its own for each level; the error is the usual one of a slope, with at least
    LEAST_DEVIATION as the deviation of a group.
    """
    levels, rewards = np.array([group.level for group in window]), np.array([group.reward for group in window])
    numbers = np.arange(float(len(window)))
    for level in np.unique(levels):
        at = levels == level
        numbers[at] -= numbers[at].mean()
        rewards[at] -= rewards[at].mean()
    reach = float(numbers @ numbers)
    if reach == 0.0:
        return LEAST_DEVIATION
    slope = float(numbers @ rewards) / reach
    deviation = math.sqrt(float(np.square(rewards - slope * numbers).sum()) / max(1, len(window) - 2))
    error = max(LEAST_DEVIATION, deviation) / math.sqrt(reach)
    return max(abs(slope) - LUCK * error, 0.0) + DOUBT * error


@dataclass
class _SavedWindow:
    """`levels` are those of the groups, or one number that is all of theirs; `signals` a digit for each."""

    levels: NonNegativeInt | list[NonNegativeInt]
    rewards: list[Share]
    signals: Annotated[str, Field(pattern="^[01]*$")]


_SAVED = TypeAdapter(_SavedWindow)


def _packed(window: Window) -> dict[str, Any]:
    return {
        "levels": [group.level for group in window],
        "rewards": [group.reward for group in window],
        "signals": "".join(str(int(group.has_signal)) for group in window),
    }


def _unpacked(saved: _SavedWindow) -> list[Group]:
    """Raises ValueError if a group lacks something."""
    levels = [saved.levels] * len(saved.rewards) if isinstance(saved.levels, int) else saved.levels
    rows = zip(levels, saved.rewards, saved.signals, strict=True)
    return [Group(level, reward, signal == "1") for level, reward, signal in rows]


def effective_number(shares: Sequence[float] | np.ndarray) -> float:
    """The exponential of the entropy of a distribution: how many equally frequent things are as diverse.

    `shares` are non-negative and need not sum to one; 0 for none.
    """
    positive = np.array([float(share) for share in shares if share > 0])
    positive /= positive.sum()
    return float(np.exp(-(positive * np.log(positive)).sum())) if len(positive) else 0.0


# --- levels: the curriculum

# For a target of 0.7 and groups of 8: a full window of 16 groups has a standard error of 0.04, or 0.07 if the
# completions of a group agree so much that they are worth three, so that a margin of 0.1 is 1.5 to 2.5 of them. After 3
# groups the standard error is 0.09, and the band two of them wide, capped at 0.85: a ladder that is too easy is climbed
# in 3 groups per level.
MARGIN, Z = 0.1, 2.0
LEVEL_WINDOW = 16
MIN_LEVEL_GROUPS, MIN_LEVEL_COMPLETIONS = 3, 16

Scores: TypeAlias = Annotated[deque[tuple[NonNegativeFloat, PositiveInt]], Field(max_length=LEVEL_WINDOW)]
"""(sum of scores, completions) of each of the last LEVEL_WINDOW groups."""


@dataclass
class _Standing:
    """One task; `window` has the groups at its current level."""

    level: NonNegativeInt = 0
    groups: NonNegativeInt = 0
    adjustments: NonNegativeInt = 0
    recent_accuracy: Share | None = None
    window: Scores = field(default_factory=lambda: deque(maxlen=LEVEL_WINDOW))


_SAVED_LEVELS = TypeAdapter(dict[str, _Standing])


class Curriculum:
    """Holds each task near `target_accuracy` by moving it along its ladder, one level at a time."""

    def __init__(self, *, target_accuracy: float = 0.7, ladder_sizes: Mapping[str, int]) -> None:
        """`ladder_sizes` has the number of levels of each task."""
        self.target_accuracy = target_accuracy
        self._ladder_sizes = dict(ladder_sizes)
        self._sizes = dict(ladder_sizes)
        self._tasks: dict[str, _Standing] = {}

    def observe(self, task: str, level: int, scores: Sequence[float]) -> None:
        """Take in the scores, each in [0, 1], of one group at `level`: once per group, before any filtering.

        There is at least one. A group at another level than the task's current one (drawn before a move) only counts.
        """
        progress = self._tasks.setdefault(task, _Standing())
        progress.groups += 1
        if level == progress.level:
            progress.window.append((float(sum(scores)), len(scores)))
            progress.recent_accuracy = _accuracy(progress.window)
            level = min(max(level + self._step(progress.window), 0), self._sizes[task] - 1)
            if level != progress.level:
                progress.level = level
                progress.adjustments += 1
                progress.window.clear()

    def level(self, task: str) -> int:
        """The task's current level, 0 before any observation."""
        return self._tasks[task].level if task in self._tasks else 0

    def end_below(self, task: str, level: int) -> None:
        """The ladder of `task` ends below `level` from here on: that level turned out to be unusable."""
        if 0 < level < self._sizes[task]:
            self._sizes[task] = level
            self._stay_on_ladder(task)

    def stats(self) -> dict[str, Any]:
        """Totals over the tasks observed so far (all 0 without any), and `tasks`: detail by task, sorted. Complexity is
        the level as a share of the ladder.

        `recent_accuracy` is that of the window, or right after a move the one that caused it; None, and
        not part of the average, for a task with no group at its current level yet.
        """
        tasks: dict[str, dict[str, Any]] = {
            task: {
                "level": progress.level,
                "complexity": progress.level / max(self._sizes[task] - 1, 1),
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
        return {"tasks": _SAVED_LEVELS.dump_python(dict(sorted(self._tasks.items())), mode="json")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; an empty one starts afresh.

        Tasks without a ladder here are ignored and a level above the ladder becomes its last, each with a
        log line. Raises EnvironmentSetupError, and changes nothing, if the state is malformed.
        """
        with loading("curriculum"):
            loaded = _SAVED_LEVELS.validate_python(state.get("tasks") if state else {})
        unknown = sorted(loaded.keys() - self._sizes.keys())
        if unknown:
            logger.warning("The saved curriculum of %s is ignored: not served in this run.", ", ".join(unknown))
        # The level limits, which are loaded next, end the ladders again.
        self._sizes = dict(self._ladder_sizes)
        self._tasks = {task: progress for task, progress in loaded.items() if task in self._sizes}
        for task, progress in self._tasks.items():
            progress.window = deque(progress.window, maxlen=LEVEL_WINDOW)
            self._stay_on_ladder(task)

    def _step(self, groups: Scores) -> int:
        """1 or -1 if these groups are clearly above or below the target, else 0."""
        completions = sum(count for _, count in groups)
        if len(groups) < MIN_LEVEL_GROUPS or completions < MIN_LEVEL_COMPLETIONS:
            return 0
        target, accuracy = self.target_accuracy, _accuracy(groups)
        reach = max(MARGIN, Z * math.sqrt(target * (1.0 - target) / completions))
        # Neither side reaches further than half the way to 0 or 1, or a high target could not be exceeded.
        lower, upper = target - min(reach, target / 2), target + min(reach, (1.0 - target) / 2)
        return int(accuracy > upper) - int(accuracy < lower)

    def _stay_on_ladder(self, task: str) -> None:
        top, progress = self._sizes[task] - 1, self._tasks.get(task)
        if progress is not None and progress.level > top:
            logger.warning("%s was at level %d and its ladder ends at %d: it goes on there.", task, progress.level, top)
            progress.level = top
            progress.window.clear()


def _accuracy(groups: Scores) -> float:
    return sum(total for total, _ in groups) / sum(count for _, count in groups)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


# --- both

TaskChooser: TypeAlias = WeightedTasks | LearnableTasks


LevelChooser: TypeAlias = Callable[[str, int], Level]
"""Task and index -> the difficulty of a draw."""


def build_choosers(
    settings: SamplingSettings,
    weights: Mapping[str, float],
    ladders: Mapping[str, Ladder],
    curriculum: Curriculum,
    task_floor: float = FLOOR,
) -> tuple[TaskChooser, LevelChooser | None]:
    """The task chooser and the level chooser; None means reasoning-gym's own defaults.

    `weights` has every served task; `uniform` ignores what they are, and says so if they differ.
    """
    seed, mode = settings.seed, settings.complexity_mode
    levels: LevelChooser | None = None
    if mode == "curriculum":
        levels = lambda task, index: ladders[task].levels[curriculum.level(task)]  # noqa: E731
    elif mode == "random":
        levels = lambda task, index: derive_random(seed, "level", task, index).choice(ladders[task].levels)  # noqa: E731
    elif isinstance(mode, (int, float)):
        levels = lambda task, index: ladders[task].at(mode)  # noqa: E731
    if settings.task_sampling == "learnability":
        return LearnableTasks(weights, seed, curriculum.level if mode == "curriculum" else None, task_floor), levels
    if settings.task_sampling == "uniform":
        if len(set(weights.values())) > 1:
            logger.warning("task_sampling is uniform: the task weights only leave out tasks of weight 0.")
        weights = dict.fromkeys(weights, 1.0)
    return WeightedTasks(weights, seed), levels
