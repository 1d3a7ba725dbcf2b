"""Write the levels of every task: python benchmarks/facts/levels.py [--check]

reasoning_gym_environment/data/levels.json has the levels that training may ask, easiest first, and the levels that are
excluded, with the reasons. A level is written as the fields in which its config differs from the default config.
`--check` compares the file with what this script would write. Run this script again for another release of
reasoning-gym, and after benchmarks/questions/guessable.py.

A level comes from the task's own curriculum in reasoning-gym. Level n sets every attribute of the curriculum to its
n-th value, or to its last value if it has fewer. A level is unusable if its config does not validate, if its dataset
cannot be built, or if it is known to yield no usable item (UNUSABLE). Equal neighbours become a single level.

A curriculum can be read in two ways. A range of a config, such as `min_terms` to `max_terms`, has either the values of
level n only, or the values of all levels up to n. The first way is used. If that gives fewer than two levels, the
second way is used. If that gives fewer than two levels too, the ranges of the default config are cut into parts. A task
without a curriculum has a single level, its default config.

At the end, the levels at which an answer without work earns too much are excluded: a constant, a copy, or what a cheap
rule makes of the question (guessable.json). A level with a share above 0.3 is kept only if all levels have such a
share, and a level with a share above 0.55 only if all levels have that.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import COMPOSITE, PER_ITEM, config_class_of, defaults_of, fields_of
from reasoning_gym_environment.verification.validators import VALIDATORS

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "reasoning_gym_environment" / "data" / "levels.json"
GUESSABLE = ROOT / "benchmarks" / "questions" / "guessable.json"

OWN_RANGE_PARTS = 3
"""The ranges of the default config are cut into this many levels. Some ranges are too short for more levels."""

NOTES = {"self_reference": "its generator never reads its difficulty, so every level asks the same questions"}
"""Tasks whose levels have different configs but ask the same questions, with the reason."""

RANGES = {"level": "upper_bound", "cumulative": "inclusive"}
"""The two ways to read a curriculum, in order of preference, with reasoning-gym's names for them.

A "level" range has the values of one level. A "cumulative" range also has the values of all easier levels. puzzle24
needs it, because four numbers of a single level are too close together.
"""


@dataclass(frozen=True)
class Source:
    """A source of levels. `make(n)` returns the n-th config object of `size`, and may raise anything."""

    name: str
    size: int
    make: Callable[[int], Any]


@dataclass
class Levels:
    """The levels of a task by their number in the source, and the excluded numbers with the reason."""

    configs: dict[int, dict[str, Any]] = field(default_factory=dict)
    excluded: list[tuple[int, str]] = field(default_factory=list)
    constant_answer: str = ""
    """Why an answer without work earns too much at every level, or "". Then all levels are kept."""


# --- where levels come from


def sources(task: str) -> Iterator[Source]:
    """The sources in order of preference. A source is used only if all sources before it give fewer than two levels."""
    if library.has_curriculum(task):
        for ranges in RANGES:
            yield curriculum_source(task, ranges)
        yield Source("the default config's ranges in parts", OWN_RANGE_PARTS, lambda n: own_ranges(task, n))
    yield Source("the default config", 1, lambda _: config_class_of(task)())


def curriculum_source(task: str, ranges: str) -> Source:
    attributes = library.create_curriculum(task).attributes.values()
    # get_max_level() of reasoning-gym returns the current level, and not the last level.
    size = max(len(attribute.levels) for attribute in attributes)
    return Source(f"the curriculum with {ranges} ranges", size, lambda n: curriculum_config(task, ranges, n))


def curriculum_config(task: str, ranges: str, number: int) -> Any:
    from reasoning_gym.coaching.base_curriculum import DefaultCurriculumContext, RangeAttributeMode

    curriculum = library.create_curriculum(task)
    curriculum.set_global_level(number)
    context = DefaultCurriculumContext(mode=RangeAttributeMode(RANGES[ranges]))
    return curriculum.generate_configuration(context=context)


def own_ranges(task: str, number: int) -> Any:
    """The default config, in which each range that the curriculum changes is cut to its `number`-th part.

    Numbers count from 0, the easiest part.
    """
    config = config_class_of(task)()
    for attribute in library.create_curriculum(task).attributes.values():
        if not hasattr(attribute, "lower_field_name"):
            continue
        low = getattr(config, attribute.lower_field_name)
        high = getattr(config, attribute.upper_field_name)
        is_harder_when_lower = attribute.levels[-1] < attribute.levels[0]
        part = OWN_RANGE_PARTS - 1 - number if is_harder_when_lower else number
        setattr(config, attribute.lower_field_name, cut(low, high, part))
        setattr(config, attribute.upper_field_name, cut(low, high, part + 1))
    return config


def cut(low: float, high: float, part: int) -> float:
    """The number at which a part begins, if OWN_RANGE_PARTS equal parts run from `low` to `high`."""
    if isinstance(low, int) and isinstance(high, int):
        return low + (high - low) * part // OWN_RANGE_PARTS
    return low + (high - low) * part / OWN_RANGE_PARTS


# --- what makes a level usable


def usable_levels(task: str) -> Levels:
    """The levels of the first source with several levels, and the unusable levels of all sources that were tried."""
    best: dict[int, dict[str, Any]] = {}
    excluded: list[tuple[int, str]] = []
    for source in sources(task):
        found, unusable = configs_of(task, source)
        excluded += unusable
        if not best or len(found) > max(len(best), 1):
            best = found
        if len(best) > 1:
            break
    assert best, f"no level of {task} can be used: {excluded}"
    return Levels(best, excluded)


def configs_of(task: str, source: Source) -> tuple[dict[int, dict[str, Any]], list[tuple[int, str]]]:
    """The source's usable configs without equal neighbours, by their number, and (number, reason) for the others."""
    configs: dict[int, dict[str, Any]] = {}
    unusable: list[tuple[int, str]] = []
    for number in range(source.size):
        # A curriculum, a config or a dataset may raise anything. The error is the reason why the level is excluded.
        try:
            made = fields_of(source.make(number))
            config = {**made, **adjusted(task, made)}
            dataset = library.create_dataset(task, **PER_ITEM, **copy.deepcopy(config))
        except Exception as error:  # noqa: BLE001
            unusable.append((number, f"{source.name}: {library.explain(error)}"))
            continue
        reason = why_unusable(task, config, dataset)
        if reason:
            unusable.append((number, f"{source.name}: {reason}"))
        elif config not in list(configs.values())[-1:]:
            configs[number] = config
    return configs, unusable


def adjusted(task: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a level that get another value, because hardly any item of the level would be sound."""
    if task != "simple_geometry" or "min_sides" not in config:
        return {}
    # With angles from 10 to 170 degrees, most polygons of many sides are not convex. These angles leave about 90
    # degrees for the last angle of a polygon with an average number of sides.
    sides = (config["min_sides"] + config["max_sides"]) / 2
    mean = (180 * (sides - 2) - 90) / (sides - 1)
    largest = 179
    return {"min_angle": max(config["min_angle"], int(2 * mean) - largest), "max_angle": largest}


MAX_PRINTED_CELLS = 1000
"""numpy abbreviates larger arrays when it prints them (`threshold` of numpy.set_printoptions)."""

NEEDS_WORDS = ("letter_jumble", "spell_backward")
"""Tasks whose levels are usable only if the word list has enough words."""


def why_unusable(task: str, config: Mapping[str, Any], dataset: Any) -> str:
    """Why a config yields no usable items although it validates, or ""."""
    if task in NEEDS_WORDS:
        needed = config.get("max_words", 1)
        if len(dataset.words) < needed:
            return f"the word list has {len(dataset.words)} words of this length, and the task needs {needed}"
    if task in UNUSABLE:
        applies, reason = UNUSABLE[task]
        return reason if applies(config) else ""
    return ""


UNUSABLE: dict[str, tuple[Callable[[Mapping[str, Any]], bool], str]] = {
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
"""A condition on the config of a task, and the reason why such a config is unusable in reasoning-gym 0.1.25: most
seeds fail, most seeds take over five seconds, some seeds never end, or the question cannot be answered."""


# --- levels that an answer without work solves


MANY_SOLUTIONS, ONE_SOLUTION = 0.05, 0.3
"""The share of the items that an answer without work may solve, in tasks with many right answers and with one."""
YES_OR_NO = 0.55
"""The same if all levels of a task are above ONE_SOLUTION. A constant is right on about half of the questions that ask
for yes or no, and they are worth asking."""
KEPT = ("coin_flip", "products")
"""Tasks that keep all levels, as they have no other easy one. For three coins, 0.125 is right on 34 % of the items.
Of the products of two digits, 34 % are seven times the smaller digit, but such a rule already multiplies."""
DECISIVE_ITEMS = 100
"""A share of fewer items excludes no level, because chance moves it too much."""


def served_levels(task: str) -> Levels:
    """The usable levels without those at which an answer without work earns too much."""
    levels = usable_levels(task)
    if task in KEPT:
        return levels
    least = MANY_SOLUTIONS if task in VALIDATORS else ONE_SOLUTION
    most = MANY_SOLUTIONS if task in VALIDATORS else YES_OR_NO
    guessed = {}
    for number, config in levels.configs.items():
        found = answer_without_work(task, config)
        if found["share"] > least and found["items"] >= DECISIVE_ITEMS:
            guessed[number] = found
    useless = {number: found for number, found in guessed.items() if found["share"] > most}
    if len(useless) == len(levels.configs):
        levels.constant_answer = reason_of(next(iter(useless.values())))
        return levels
    if len(guessed) == len(levels.configs):
        guessed = useless
    for number, found in guessed.items():
        del levels.configs[number]
        levels.excluded.append((number, reason_of(found)))
    return levels


def answer_without_work(task: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The best answer without work at this config, as guessable.py has measured it."""
    plain = json.loads(json.dumps(changed_fields(task, config)))
    found: dict[str, Any] = next(level for level in measured_answers()[task] if level["config"] == plain)
    return found


@functools.cache
def measured_answers() -> Mapping[str, list[dict[str, Any]]]:
    """The best answer without work at each level of each task."""
    measured: dict[str, list[dict[str, Any]]] = json.loads(GUESSABLE.read_text(encoding="utf-8"))["tasks"]
    return measured


def reason_of(found: Mapping[str, Any]) -> str:
    answer = found["answer"] if found.get("is_rule") else f"{found['answer']!r:.40}"
    return f"an answer without work earns too much: {answer} is right on {found['share']:.0%} of its items"


# --- the file


def entry_of(task: str) -> dict[str, Any]:
    """The levels of a task, as the file has them."""
    served = served_levels(task)
    entry: dict[str, Any] = {"levels": [changed_fields(task, config) for config in served.configs.values()]}
    if served.excluded:
        entry["excluded"] = [list(row) for row in served.excluded]
    if served.constant_answer:
        entry["constant_answer"] = served.constant_answer
    if task in NOTES:
        entry["note"] = NOTES[task]
    return entry


def changed_fields(task: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields in which a config differs from the default config of its task."""
    default = defaults_of(task)
    # The text of a value also tells 1 from 1.0, and a tuple from a list.
    return {name: value for name, value in config.items() if repr(value) != repr(default[name])}


def text_of(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """The file, with one line for each level."""
    parts = []
    for task, entry in entries.items():
        lines = []
        for name, value in entry.items():
            if isinstance(value, list):
                rows = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in value)
                lines.append(f'   "{name}": [\n{rows}\n   ]')
            else:
                lines.append(f'   "{name}": {json.dumps(value, ensure_ascii=False)}')
        parts.append(f'  "{task}": {{\n' + ",\n".join(lines) + "\n  }")
    head = {"source": "benchmarks/facts/levels.py", "reasoning_gym_version": library.load().version}
    return json.dumps(head, indent=1)[:-2] + ',\n "tasks": {\n' + ",\n".join(parts) + "\n }\n}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the file would change")
    options = parser.parse_args()
    with library.stdout_to_stderr():
        text = text_of({task: entry_of(task) for task in sorted(library.registry().keys() - {COMPOSITE})})
    if not options.check:
        FILE.write_text(text, encoding="utf-8")
        return 0
    is_current = FILE.read_text(encoding="utf-8") == text
    print("the levels are up to date" if is_current else f"{FILE} differs from what this script writes")
    return 0 if is_current else 1


if __name__ == "__main__":
    sys.exit(main())
