"""Difficulty ladders: for each task the distinct configs that work, from easiest to hardest.

A ladder comes from the task's own reasoning-gym curriculum: level n sets every attribute to its n-th value (or its
last), with ranges of that level only or from the first level up to it. A ladder excludes a level if its config does not
validate, if its dataset cannot be built, if it is known to yield no usable item, or if a constant answer solves it.
Equal neighbours become a single level. If fewer than two levels remain, the ladder uses the second kind of ranges, or
the ranges of the default config, cut into parts. A task without a curriculum has a single level, its defaults.

A start computes all ladders anew, which takes about 0.2 s, because configs hold types that a data file cannot. That is
fast because the tasks of the measured release need no datasets for it: for them, every valid config builds. Tasks with
overrides, the user's own tasks and other releases do need the datasets.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import EnvironmentSetupError
from . import reasoning_gym_source as library
from .catalog import (
    PER_ITEM,
    Task,
    builds_if_valid,
    config_class_of,
    fields_of,
    typed_overrides,
)
from .measured_data import solved_by_constant

logger = logging.getLogger(__name__)

OWN_RANGE_PARTS = 3
"""The default config's ranges are cut into this many levels. More would leave some levels without a range."""

WITHOUT_EFFECT = {"self_reference": "its generator never reads its difficulty, so every level asks the same questions"}
"""Tasks whose levels differ in their config and in nothing else, in reasoning-gym 0.1.25."""

_RANGES = {"level": "upper_bound", "cumulative": "inclusive"}
"""The two kinds of parameter ranges in order of preference, with the names that reasoning-gym has for them.

A level range is the range of one level. A cumulative range also holds the ranges of all easier levels. puzzle24 needs
it: four numbers of a single level are too close together.
"""


@dataclass(frozen=True)
class Level:
    """A rung of the ladder. `complexity` runs from 0 (easiest) to 1 (hardest) in equal steps along the ladder.

    `config` holds every field of the dataset's config but seed and size, so that
    `library.create_dataset(task, seed=s, size=1, **config)` is the whole recipe; it must not be changed.
    """

    index: int
    complexity: float
    config: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Ladder:
    """The levels of a task, easiest first; there is at least one.

    `source` names the origin of the levels. `excluded` has the number and the reason of each excluded level, also for
    sources that were tried and not used.
    """

    task: str
    levels: tuple[Level, ...]
    source: str
    excluded: tuple[tuple[int, str], ...] = ()
    constant_answer_levels: tuple[int, ...] = ()
    """The excluded levels that a constant answer solves, numbered among the levels that are usable otherwise."""
    constant_answer: str = ""
    """Why a constant answer earns too much at every level, or "". Such a ladder keeps its levels."""

    def __len__(self) -> int:
        return len(self.levels)

    def at(self, complexity: float) -> Level:
        """The level nearest to `complexity`, the easier one of two equally near."""
        return min(self.levels, key=lambda level: abs(level.complexity - complexity))


@dataclass(frozen=True)
class _Source:
    """A source of levels. `make(n)` returns the n-th config object and may raise anything."""

    name: str
    size: int
    make: Callable[[int], Any]
    last_resort: bool = False


def build_ladder(
    task: str,
    *,
    overrides: Mapping[str, Any] | None = None,
    keep_constant_answer_levels: bool = False,
) -> Ladder:
    """The ladder of `task`. `overrides` are config fields that hold at every level.

    With `keep_constant_answer_levels` the ladder keeps the levels that a constant answer solves. Raises
    EnvironmentSetupError if an override names no config field, or if no level can be built.
    """
    pinned = typed_overrides(task, overrides or {})
    configs, source, excluded = _configs_of_best_source(task, pinned)
    reasons = [""] * len(configs)
    if not keep_constant_answer_levels:
        version = library.load().version
        reasons = [solved_by_constant(version, task, config) for config in configs]
    if all(reasons):
        return Ladder(
            task,
            _levels(configs),
            source,
            tuple(excluded),
            constant_answer=reasons[0],
        )
    solved = [(number, reason) for number, reason in enumerate(reasons) if reason]
    kept = [config for config, reason in zip(configs, reasons, strict=True) if not reason]
    return Ladder(
        task,
        _levels(kept),
        source,
        excluded=tuple(excluded + solved),
        constant_answer_levels=tuple(number for number, _ in solved),
    )


def _levels(configs: Sequence[dict[str, Any]]) -> tuple[Level, ...]:
    top = max(len(configs) - 1, 1)
    return tuple(Level(index, index / top, config) for index, config in enumerate(configs))


def _configs_of_best_source(
    task: str, pinned: dict[str, Any]
) -> tuple[list[dict[str, Any]], str, list[tuple[int, str]]]:
    """The configs of the first source with several levels, its name, and the excluded levels of all sources tried."""
    configs: list[dict[str, Any]] = []
    source = ""
    tried: list[str] = []
    excluded: list[tuple[int, str]] = []
    for candidate in _sources(task, pinned):
        found, rejected = _distinct_configs(task, candidate, pinned)
        tried.append(candidate.name)
        excluded += rejected
        if not configs or len(found) > max(len(configs), 1):
            configs = found
            source = candidate.name
        if len(configs) > 1:
            break
    if not configs:
        raise EnvironmentSetupError(_why_none(task, pinned, excluded))
    if source != tried[0]:
        logger.info(
            "%s: its levels come from %s, because %s gives fewer than two.",
            task,
            source,
            tried[0],
        )
    return configs, source, excluded


def build_ladders(tasks: Iterable[Task]) -> dict[str, Ladder]:
    """The ladder of each task, its overrides included. The debug log has the excluded levels."""
    ladders = {}
    for task in tasks:
        ladder = build_ladder(task.name, overrides=task.overrides)
        ladders[task.name] = ladder
        for level, reason in ladder.excluded:
            logger.debug("Level %d of %s is excluded: %s.", level, task.name, reason)
    return ladders


def describe(ladders: Mapping[str, Ladder]) -> str:
    """A line on the numbers of levels, the tasks with a single level, and the levels that teach nothing."""
    sizes = [len(ladder) for ladder in ladders.values()]
    remarks = [f"{len(ladders)} tasks with {min(sizes)} to {max(sizes)} levels"]
    single = sorted(task for task, ladder in ladders.items() if len(ladder) == 1)
    if single:
        remarks.append(f"one level only: {', '.join(single)}")
    solved = []
    for task, ladder in sorted(ladders.items()):
        if ladder.constant_answer_levels:
            numbers = ", ".join(map(str, ladder.constant_answer_levels))
            solved.append(f"{task} {numbers}")
    if solved:
        remarks.append(f"excluded, because a constant answer earns too much there: {'; '.join(solved)}")
    remarks += [f"{task}: {reason}" for task, reason in WITHOUT_EFFECT.items() if task in ladders]
    return "; ".join(remarks)


def _why_none(task: str, overrides: dict[str, Any], excluded: list[tuple[int, str]]) -> str:
    reasons = "; ".join(dict.fromkeys(reason for _, reason in excluded))
    given = f" with the overrides {overrides!r}" if overrides else ""
    return f"No level of {task} can be served{given}: {reasons}. Change its overrides, or exclude the task."


# --- where levels can come from ---


def _sources(task: str, overrides: dict[str, Any]) -> Iterator[_Source]:
    """The sources in order of preference. A source is used only if all sources before it give fewer than two levels."""
    if library.has_curriculum(task):
        for ranges in _RANGES:
            yield _curriculum_source(task, ranges)
        yield _Source(
            "the default config's ranges in parts",
            OWN_RANGE_PARTS,
            lambda n: _own_ranges(task, n),
        )
        yield _Source(
            "the default config",
            1,
            lambda _: _default_config(task, overrides),
            last_resort=True,
        )
    else:
        yield _Source(
            "the default config: the task has no curriculum",
            1,
            lambda _: _default_config(task, overrides),
        )


def _curriculum_source(task: str, ranges: str) -> _Source:
    attributes = library.create_curriculum(task).attributes.values()
    # get_max_level() returns the level that is set at present, not the last level.
    sizes = [len(attribute.levels) for attribute in attributes]
    size = max(sizes, default=0)
    return _Source(
        f"the curriculum with {ranges} ranges",
        size,
        lambda n: _curriculum_config(task, ranges, n),
    )


def _curriculum_config(task: str, ranges: str, number: int) -> Any:
    curriculum = library.create_curriculum(task)
    from reasoning_gym.coaching.base_curriculum import (
        DefaultCurriculumContext,
        RangeAttributeMode,
    )

    curriculum.set_global_level(number)
    context = DefaultCurriculumContext(mode=RangeAttributeMode(_RANGES[ranges]))
    return curriculum.generate_configuration(context=context)


def _own_ranges(task: str, number: int) -> Any:
    """The default config with the `number`-th part of each range that the curriculum would move."""
    config = _default_config(task, {})
    for attribute in library.create_curriculum(task).attributes.values():
        if not hasattr(attribute, "lower_field_name"):
            continue
        low = getattr(config, attribute.lower_field_name)
        high = getattr(config, attribute.upper_field_name)
        falls = attribute.levels[-1] < attribute.levels[0]
        part = OWN_RANGE_PARTS - 1 - number if falls else number
        setattr(config, attribute.lower_field_name, _cut(low, high, part))
        setattr(config, attribute.upper_field_name, _cut(low, high, part + 1))
    return config


def _cut(low: float, high: float, part: int) -> float:
    if isinstance(low, int) and isinstance(high, int):
        return low + (high - low) * part // OWN_RANGE_PARTS
    return low + (high - low) * part / OWN_RANGE_PARTS


def _default_config(task: str, overrides: dict[str, Any]) -> Any:
    return config_class_of(task)(**copy.deepcopy(overrides))


# --- what makes a level usable ---


def _distinct_configs(
    task: str, source: _Source, overrides: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """The source's usable configs without equal neighbours, and (number, reason) for the unusable ones."""
    needs_dataset = task in NEEDS_WORDS or not builds_if_valid(task, overrides)
    configs: list[dict[str, Any]] = []
    rejected: list[tuple[int, str]] = []
    for number in range(source.size):
        # A curriculum, a config and a dataset may raise anything, because they may be the user's own. The error is the
        # reason why this level is excluded.
        try:
            config = {
                **fields_of(source.make(number)),
                **copy.deepcopy(overrides),
            }
            if needs_dataset:
                dataset = library.create_dataset(task, **PER_ITEM, **copy.deepcopy(config))
            else:
                dataset = None
                _validate(task, config)
        except Exception as error:  # noqa: BLE001
            rejected.append((number, f"{source.name}: {library.explain(error)}"))
            continue
        reason = _unusable(task, config, dataset)
        if reason and source.last_resort:
            logger.warning("%s is served as its overrides ask, although %s.", task, reason)
        elif reason:
            rejected.append((number, f"{source.name}: {reason}"))
            continue
        if not configs or configs[-1] != config:
            configs.append(config)
    return configs, rejected


def _validate(task: str, config: Mapping[str, Any]) -> None:
    """Raises what reasoning-gym raises for an invalid config, without building the dataset."""
    made = config_class_of(task)(**copy.deepcopy(dict(config)), **PER_ITEM)
    if hasattr(made, "validate"):
        made.validate()


# --- configs that reasoning-gym 0.1.25 accepts although it cannot serve them: most seeds fail or take over
# --- five seconds, some never end, or the question cannot be answered ---

MAX_PRINTED_CELLS = 1000
"""numpy abbreviates larger arrays when it prints them (`threshold` of numpy.set_printoptions)."""


NEEDS_WORDS = ("letter_jumble", "spell_backward")
"""Tasks whose levels are usable only if the word list has enough words. Only the dataset knows its words."""


def _unusable(task: str, config: Mapping[str, Any], dataset: Any) -> str:
    """Why a config that validates and builds yields no usable items, or "". `dataset` is None if it was not built."""
    if task in _MEASURED:
        applies, reason = _MEASURED[task]
        return reason if applies(config) else ""
    if task in NEEDS_WORDS:
        return _too_few_words(dataset.words, config.get("max_words", 1))
    return ""


_Measured = tuple[Callable[[Mapping[str, Any]], bool], str]
"""A condition on the config, and the reason why such a config is unusable."""

_MEASURED: dict[str, _Measured] = {
    "countdown": (
        lambda c: c["min_value"] >= 200 and c["min_target"] >= 5000,
        "five of six seeds fail, as numbers from 200 on seldom make a target from 5000 on",
    ),
    "game_of_life_halting": (
        lambda c: c["grid_size_x"] * c["grid_size_y"] > MAX_PRINTED_CELLS,
        f"the question abbreviates a board of over {MAX_PRINTED_CELLS} cells to dots",
    ),
    "jugs": (
        lambda c: c["num_jugs"] >= 7 and c["difficulty"] >= 20,
        "no seed gives an item within a minute",
    ),
    "knight_swap": (
        lambda c: 2 * c["min_pieces"] >= c["min_nodes"],
        "the knights may fill the board, and then none can move",
    ),
    "number_format": (
        lambda c: c["max_delta"] <= 1e-6,
        "all candidates are printed as the same number",
    ),
    "number_sequence": (
        lambda c: c["max_terms"] > 12,
        "up to one seed in six squares its terms until time or memory runs out (over 20 s, over 1 GB)",
    ),
    "propositional_logic": (
        lambda c: c["max_complexity"] <= 1,
        "premises without a connective leave no conclusion that earns the full reward",
    ),
    "puzzle24": (
        lambda c: c["max_value"] - c["min_value"] < 3,
        "hardly any four numbers so close together make 24, and without a solution the generator never ends",
    ),
    "sokoban": (
        lambda c: max(c["max_w"], c["max_h"]) <= 6,
        "most items take 5 to 50 s to generate",
    ),
    "zebra_puzzles": (
        lambda c: c["num_people"] >= 7 and c["num_characteristics"] >= 7,
        "every item takes 6 to 10 s to generate",
    ),
}


def _too_few_words(words: list[str], needed: int) -> str:
    if len(words) >= needed:
        return ""
    return f"the word list has {len(words)} words of such a length, and {needed} are needed"
