"""Difficulty ladders: for each task the distinct configs that work, from easiest to hardest.

A ladder comes from the task's own reasoning-gym curriculum. Level n sets every attribute of the curriculum to its n-th
value, or to its last value if it has fewer. A level is unusable if its config does not validate, if its dataset cannot
be built, or if the level is known to yield no usable item. Equal neighbours become a single level.

The curriculum can be read in two ways. A range of a config, such as `min_terms` to `max_terms`, has either the values
of level n only, or the values of all levels up to n. The ladder uses the first way. If that gives fewer than two
levels, the ladder uses the second way. If that gives fewer than two levels too, the ladder cuts the ranges of the
default config into parts. A task without a curriculum has a single level, its default config.

At the end, the ladder excludes the levels at which an answer without work earns too much: a constant, a copy, or what a
cheap rule makes of the question. The ladder keeps a level with a share above 0.3 only if all levels have such a
share, and a level with a share above a half only if all levels have that.

Each start of the program computes all ladders, because configs hold types that a data file cannot. This takes about
0.2 s for the measured release of reasoning-gym. In this release, every config that validates is known to build,
except for two tasks (NEEDS_WORDS), so no dataset is built. A ladder builds datasets only for tasks with overrides, for
the user's own tasks and with other releases.
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
from .measured_data import AnswerWithoutWork, answer_without_work

logger = logging.getLogger(__name__)

OWN_RANGE_PARTS = 3
"""The ranges of the default config are cut into this many levels. Some ranges are too short for more levels."""

WITHOUT_EFFECT = {"self_reference": "its generator never reads its difficulty, so every level asks the same questions"}
"""Tasks of reasoning-gym 0.1.25 whose levels have different configs but ask the same questions, with the reason."""

_RANGES = {"level": "upper_bound", "cumulative": "inclusive"}
"""The two ways to read a curriculum, in order of preference, with reasoning-gym's names for them.

A "level" range has the values of one level. A "cumulative" range also has the values of all easier levels. puzzle24
needs it, because four numbers of a single level are too close together.
"""


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
    """The levels of a task, easiest first. There is at least one level.

    `source` says where the levels come from. `excluded` has the number and the reason of each excluded level. Its first
    entries are the unusable levels of all sources that were tried. The rest are the levels that a constant answer
    solves.
    """

    task: str
    levels: tuple[Level, ...]
    source: str
    excluded: tuple[tuple[int, str], ...] = ()
    constant_answer_levels: tuple[int, ...] = ()
    """The numbers of the excluded levels that a constant answer solves. Only otherwise usable levels are counted."""
    constant_answer: str = ""
    """Why a constant answer earns too much at every level, or "". Such a ladder keeps its levels."""

    def __len__(self) -> int:
        return len(self.levels)

    def at(self, complexity: float) -> Level:
        """The level nearest to `complexity`. If two levels are equally near, it is the easier level."""
        return min(self.levels, key=lambda level: abs(level.complexity - complexity))


@dataclass(frozen=True)
class _Source:
    """A source of levels. `make(n)` returns the n-th config object of `size`, and may raise anything.

    A `last_resort` keeps a level that is known to be unusable, with a warning.
    """

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
    EnvironmentSetupError if an override names no config field, or if no level is usable.
    """
    pinned = typed_overrides(task, overrides or {})
    configs, source, excluded = _configs_of_best_source(task, pinned)
    answers: list[AnswerWithoutWork | None] = [None] * len(configs)
    if not keep_constant_answer_levels:
        version = library.load().version
        answers = [answer_without_work(version, task, config) for config in configs]
    constant_answer = ""
    if all(answer is not None and answer.teaches_nothing for answer in answers):
        assert answers[0] is not None
        constant_answer = answers[0].reason
        answers = [None] * len(configs)
    elif all(answers):
        answers = [answer if answer is not None and answer.teaches_nothing else None for answer in answers]
    solved = [(number, answer.reason) for number, answer in enumerate(answers) if answer is not None]
    kept = [config for config, answer in zip(configs, answers, strict=True) if answer is None]
    return Ladder(
        task,
        _levels(kept),
        source,
        excluded=tuple(excluded + solved),
        constant_answer_levels=tuple(number for number, _ in solved),
        constant_answer=constant_answer,
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
    excluded: list[tuple[int, str]] = []
    for candidate in _sources(task, pinned):
        found, rejected = _distinct_configs(task, candidate, pinned)
        excluded += rejected
        if not configs or len(found) > max(len(configs), 1):
            configs = found
            source = candidate.name
        if len(configs) > 1:
            break
    if not configs:
        raise EnvironmentSetupError(_why_none(task, pinned, excluded))
    return configs, source, excluded


def build_ladders(tasks: Iterable[Task]) -> dict[str, Ladder]:
    """The ladder of each task, with the task's overrides. The debug log names the excluded levels."""
    ladders = {}
    for task in tasks:
        ladder = build_ladder(task.name, overrides=task.overrides)
        ladders[task.name] = ladder
        for level, reason in ladder.excluded:
            logger.debug("Level %d of %s is excluded: %s.", level, task.name, reason)
    return ladders


def describe(ladders: Mapping[str, Ladder]) -> str:
    """A line for the log: how many levels the tasks have, which have a single level, and which levels teach nothing."""
    sizes = [len(ladder) for ladder in ladders.values()]
    remarks = [f"levels of a task: {min(sizes)} to {max(sizes)}"]
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
    default = "the default config"
    if library.has_curriculum(task):
        for ranges in _RANGES:
            yield _curriculum_source(task, ranges)
        yield _Source(
            "the default config's ranges in parts",
            OWN_RANGE_PARTS,
            lambda n: _own_ranges(task, n),
        )
    else:
        default += ": the task has no curriculum"
    yield _Source(
        default,
        1,
        lambda _: _default_config(task, overrides),
        last_resort=True,
    )


def _curriculum_source(task: str, ranges: str) -> _Source:
    try:
        attributes = library.create_curriculum(task).attributes.values()
    # A curriculum may be the user's own code, which may raise anything.
    except Exception as error:
        raise EnvironmentSetupError(f"The curriculum of {task} cannot be made: {library.explain(error)}.") from error
    return _Source(
        f"the curriculum with {ranges} ranges",
        # get_max_level() of reasoning-gym returns the current level, and not the last level.
        max((len(attribute.levels) for attribute in attributes), default=0),
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
    """The default config, in which each range that the curriculum changes is cut to its `number`-th part.

    Numbers count from 0, the easiest part.
    """
    config = _default_config(task, {})
    for attribute in library.create_curriculum(task).attributes.values():
        if not hasattr(attribute, "lower_field_name"):
            continue
        low = getattr(config, attribute.lower_field_name)
        high = getattr(config, attribute.upper_field_name)
        is_harder_when_lower = attribute.levels[-1] < attribute.levels[0]
        part = OWN_RANGE_PARTS - 1 - number if is_harder_when_lower else number
        setattr(config, attribute.lower_field_name, _cut(low, high, part))
        setattr(config, attribute.upper_field_name, _cut(low, high, part + 1))
    return config


def _cut(low: float, high: float, part: int) -> float:
    """The number at which a part begins, if OWN_RANGE_PARTS equal parts run from `low` to `high`."""
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
        dataset = None
        # The curriculum, the config and the dataset may be the user's own code, so they may raise anything. The error
        # becomes the reason why this level is excluded.
        try:
            made = fields_of(source.make(number))
            config = {**made, **_adjusted(task, made), **copy.deepcopy(overrides)}
            if needs_dataset:
                dataset = library.create_dataset(task, **PER_ITEM, **copy.deepcopy(config))
            else:
                _validate(task, config)
        except Exception as error:  # noqa: BLE001
            rejected.append((number, f"{source.name}: {library.explain(error)}"))
            continue
        reason = _unusable(task, config, dataset)
        if reason and source.last_resort:
            logger.warning("%s is served with its overrides, although %s.", task, reason)
        elif reason:
            rejected.append((number, f"{source.name}: {reason}"))
            continue
        if not configs or configs[-1] != config:
            configs.append(config)
    return configs, rejected


def _adjusted(task: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a level that get another value, because hardly any item of the level would be sound."""
    if task != "simple_geometry" or "min_sides" not in config:
        return {}
    # With angles from 10 to 170 degrees, most polygons of many sides are not convex. These angles leave about 90
    # degrees for the last angle of a polygon with an average number of sides.
    sides = (config["min_sides"] + config["max_sides"]) / 2
    mean = (180 * (sides - 2) - 90) / (sides - 1)
    largest = 179
    return {"min_angle": max(config["min_angle"], int(2 * mean) - largest), "max_angle": largest}


def _validate(task: str, config: Mapping[str, Any]) -> None:
    """Validate a config without building its dataset. Raises what reasoning-gym raises for an invalid config."""
    made = config_class_of(task)(**copy.deepcopy(dict(config)), **PER_ITEM)
    if hasattr(made, "validate"):
        made.validate()


# --- configs that reasoning-gym 0.1.25 accepts, but that are unusable: most seeds fail, most seeds take over five
# --- seconds, some seeds never end, or the question cannot be answered ---

MAX_PRINTED_CELLS = 1000
"""numpy abbreviates larger arrays when it prints them (`threshold` of numpy.set_printoptions)."""


NEEDS_WORDS = ("letter_jumble", "spell_backward")
"""Tasks whose levels are usable only if the word list has enough words. Only the dataset knows its words."""


def _unusable(task: str, config: Mapping[str, Any], dataset: Any) -> str:
    """Why a config yields no usable items although it validates, or "". `dataset` is None if it was not built."""
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
        "five of six seeds fail, because numbers of 200 and more rarely make a target of 5000 or more",
    ),
    "game_of_life_halting": (
        lambda c: c["grid_size_x"] * c["grid_size_y"] > MAX_PRINTED_CELLS,
        f"the question abbreviates a board of over {MAX_PRINTED_CELLS} cells to dots",
    ),
    "jugs": (
        lambda c: c["num_jugs"] >= 5 and c["difficulty"] >= 15,
        "at least one item in three takes over 5 s to generate",
    ),
    "knight_swap": (
        lambda c: 2 * c["min_pieces"] >= c["min_nodes"],
        "the knights can fill the board, and then no knight can move",
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
    return f"the word list has {len(words)} words of this length, and the task needs {needed}"
