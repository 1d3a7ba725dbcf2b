"""Difficulty ladders: for each task the distinct configs that work, from easiest to hardest.

    data/levels.json, or the task's own curriculum ── overrides ──> config class ──> Ladder

The levels of reasoning-gym's tasks are data, which benchmarks/facts/levels.py writes: it knows which levels of a
curriculum yield usable items, and which an answer without work solves. A task of the user's own has the levels of its
curriculum: level n sets every attribute to its n-th value. A task without a curriculum has a single level, its default
config.

The user's overrides hold at every level. A level is excluded if its config does not validate, which an override or
another release of reasoning-gym may cause. Equal neighbours become a single level.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from ..errors import EnvironmentSetupError
from . import reasoning_gym_source as library
from .catalog import PER_ITEM, Task, config_class_of, fields_of, is_of_library, typed_overrides
from .measured_data import TaskLevels, load_levels

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Level:
    """A level of a ladder. `complexity` runs from 0 (easiest) to 1 (hardest) in equal steps along the ladder.

    `config` holds every field of the dataset's config except seed and size, so that
    `library.create_dataset(task, seed=s, size=1, **config)` creates the dataset. Do not change it.
    """

    index: int
    complexity: float
    config: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Ladder:
    """The levels of a task, easiest first. There is at least one level."""

    task: str
    levels: tuple[Level, ...]
    excluded: tuple[tuple[int, str], ...] = ()
    """The levels that are not served: their number in the data or in the curriculum, and the reason."""
    constant_answer: str = ""
    """Why an answer without work earns too much at every level, or "". Such a ladder keeps its levels."""
    note: str = ""
    """What else there is to know about the levels, or ""."""

    def __len__(self) -> int:
        return len(self.levels)

    def at(self, complexity: float) -> Level:
        """The level nearest to `complexity`. If two levels are equally near, it is the easier level."""
        return min(self.levels, key=lambda level: abs(level.complexity - complexity))

    def down_from(self, index: int) -> list[Level]:
        """The level `index` and all easier levels, the hardest first. An index above the ladder is its last level."""
        return list(reversed(self.levels[: index + 1]))


def build_ladder(task: str, *, overrides: Mapping[str, Any] | None = None) -> Ladder:
    """The ladder of `task`. `overrides` are config fields that hold at every level.

    Raises EnvironmentSetupError if an override names no config field, or if no level is usable.
    """
    pinned = typed_overrides(task, overrides or {})
    known = _known_levels(task)
    makers = _curriculum_levels(task) if known is None else _levels_of_data(task, known)
    configs: list[dict[str, Any]] = []
    invalid: list[tuple[int, str]] = []
    for number, make in enumerate(makers):
        # The curriculum and the config class may be the user's own code, and another release may lack a field, so this
        # may raise anything. The error becomes the reason why this level is excluded.
        try:
            config = _validated(task, {**make(), **pinned})
        except Exception as error:  # noqa: BLE001
            reason = library.explain(error)
            logger.info("Level %d of %s is excluded: %s.", number, task, reason)
            invalid.append((number, reason))
            continue
        if not configs or configs[-1] != config:
            configs.append(config)
    levels = _levels(configs or [_default_config(task, pinned)])
    if known is None:
        return Ladder(task, levels, tuple(invalid))
    # With other parameters, another share of the items may have the constant answer.
    constant_answer = "" if pinned else known.constant_answer
    return Ladder(task, levels, known.excluded + tuple(invalid), constant_answer, known.note)


def build_ladders(tasks: Iterable[Task]) -> dict[str, Ladder]:
    """The ladder of each task, with the task's overrides."""
    return {task.name: build_ladder(task.name, overrides=task.overrides) for task in tasks}


def describe(ladders: Mapping[str, Ladder]) -> str:
    """A line for the log: how many levels the tasks have, and which have a single level."""
    sizes = [len(ladder) for ladder in ladders.values()]
    line = f"levels of a task: {min(sizes)} to {max(sizes)}"
    single = sorted(task for task, ladder in ladders.items() if len(ladder) == 1)
    return f"{line}; one level only: {', '.join(single)}" if single else line


def _levels(configs: Sequence[dict[str, Any]]) -> tuple[Level, ...]:
    top = max(len(configs) - 1, 1)
    return tuple(Level(index, index / top, config) for index, config in enumerate(configs))


# --- where levels come from


_LevelMaker: TypeAlias = Callable[[], Mapping[str, Any]]
"""Returns the fields of a level's config, and may raise anything."""


def _known_levels(task: str) -> TaskLevels | None:
    """The levels of the data. A task of the user's own has none, even if it has the name of another task."""
    return load_levels().get(task) if is_of_library(task) else None


def _levels_of_data(task: str, known: TaskLevels) -> list[_LevelMaker]:
    return [partial(typed_overrides, task, fields) for fields in known.levels]


def _curriculum_levels(task: str) -> list[_LevelMaker]:
    """The levels of the task's curriculum, or its default config."""
    if not library.has_curriculum(task):
        return [dict]
    # A curriculum may be the user's own code, which may raise anything.
    try:
        attributes = library.create_curriculum(task).attributes.values()
        # get_max_level() of reasoning-gym returns the current level, and not the last level.
        size = max((len(attribute.levels) for attribute in attributes), default=0)
    except Exception as error:
        raise EnvironmentSetupError(f"The curriculum of {task} cannot be made: {library.explain(error)}.") from error
    return [partial(_curriculum_level, task, number) for number in range(size)]


def _curriculum_level(task: str, number: int) -> dict[str, Any]:
    """Every attribute has its value of this number, or its last value if it has fewer."""
    curriculum = library.create_curriculum(task)
    from reasoning_gym.coaching.base_curriculum import DefaultCurriculumContext, RangeAttributeMode

    curriculum.set_global_level(number)
    # A range, such as min_terms to max_terms, has the values of this level only.
    context = DefaultCurriculumContext(mode=RangeAttributeMode.UPPER_BOUND)
    return fields_of(curriculum.generate_configuration(context=context))


def _validated(task: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The complete config with these fields. Raises what reasoning-gym raises for an invalid config."""
    config = config_class_of(task)(**copy.deepcopy(dict(fields)), **PER_ITEM)
    if hasattr(config, "validate"):
        config.validate()
    return fields_of(config)


def _default_config(task: str, pinned: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _validated(task, pinned)
    # The config class may be the user's own code, which may raise anything.
    except Exception as error:
        given = f" with the overrides {dict(pinned)!r}" if pinned else ""
        raise EnvironmentSetupError(
            f"No level of {task} can be served{given}: {library.explain(error)}. Change its overrides, or exclude the "
            "task."
        ) from error
