"""Makes the package's data/published_students.json: python benchmarks/facts/reduce_published_scores.py SCORES.json

SCORES.json holds the zero-shot results of open-thought/reasoning-gym-eval (Apache-2.0) by model and task: mean scores
and how many items had k of n correct completions, at an easy and a hard config, and those configs. Kept of it are the
models with an easy run of three completions an item; added is where both configs lie on this project's ladders.

A config's place is the mean over the fields that vary along the ladder of the (fractional) level at which the field
has the config's value. Of a range min_x, max_x the middle counts, of a list of weights the mean index, of a list its
length; values between two levels are interpolated, in logarithms where the ladder grows more than tenfold, and values
beyond the ladder lie at most one level outside. Fields that do not vary along the ladder are not looked at.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import config_of
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder

SOURCE = "open-thought/reasoning-gym-eval at 5f09fecc, reasoninggym-paper-experiments/zero-shot, temperature 0.6"
OUTPUT = Path(__file__).resolve().parents[2] / "reasoning_gym_environment" / "data" / "published_students.json"
COMPLETIONS = 3
FARTHEST_OUTSIDE = 1.0


def number_of(value: Any) -> float | None:
    """A field's value as a number that grows with it, or None if it has none."""
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, (list, tuple)) and value:
        if all(isinstance(part, (int, float)) for part in value) and sum(value) > 0:
            return sum(index * part for index, part in enumerate(value)) / sum(value)
        return float(len(value))
    return None


def features(config: Mapping[str, Any]) -> dict[str, float]:
    """Field -> number, a pair min_x, max_x being one field `x` with the middle of the range."""
    found: dict[str, float] = {}
    for name, value in config.items():
        number = number_of(value)
        if number is None or (name.startswith("max_") and f"min_{name[4:]}" in config):
            continue
        if name.startswith("min_") and (upper := number_of(config.get(f"max_{name[4:]}"))) is not None:
            # In a symmetric range around zero, the lower end has no further information.
            found[name[4:]] = upper if number < 0 < upper else (number + upper) / 2
        else:
            found[name] = number
    return found


def place_of_value(value: float, rungs: Sequence[float]) -> float | None:
    """The fractional level at which a field has `value`; None for a field that does not change monotonously."""
    rising = rungs[-1] > rungs[0]
    ordered = [rung if rising else -rung for rung in rungs]
    if any(later < earlier for earlier, later in itertools.pairwise(ordered)):
        return None
    smallest, largest = min(*rungs, value), max(*rungs, value)
    scale = math.log if smallest > 0 and largest > 10 * smallest else float
    sign = 1.0 if rising else -1.0
    target, steps = sign * scale(value), [sign * scale(rung) for rung in rungs]
    # A field that stays the same over some levels stands at the first of them.
    corners = [(step, level) for level, step in enumerate(steps) if level == 0 or step > steps[level - 1]]
    for (low, level), (high, following) in itertools.pairwise(corners):
        if target <= high or following == corners[-1][1]:
            place = level + (following - level) * (target - low) / (high - low)
            return min(max(place, -FARTHEST_OUTSIDE), corners[-1][1] + FARTHEST_OUTSIDE)
    return None


def place(config: Mapping[str, Any], levels: Sequence[Mapping[str, Any]]) -> float | None:
    """Where a config lies on a ladder, in levels; None if none of its fields tells."""
    own, rungs = features(config), [features(level) for level in levels]
    places = [
        found
        for name, value in own.items()
        if all(name in rung for rung in rungs) and len({rung[name] for rung in rungs}) > 1
        if (found := place_of_value(value, [rung[name] for rung in rungs])) is not None
    ]
    return round(sum(places) / len(places), 2) if places else None


def counts(run: Mapping[str, Any], completions: int) -> list[int]:
    """The number of items with 0, 1, ... correct completions. Ignores items with another number of completions."""
    return [run["correct_per_item"].get(f"{correct}/{completions}", 0) for correct in range(completions + 1)]


def placed_task(task: str, scores: Mapping[str, Any]) -> dict[str, Any]:
    levels = [level.config for level in build_ladder(task).levels]
    default = config_of(task, {})
    runs = {
        kind: {**default, **scores["config"][kind][task]} for kind in scores["config"] if task in scores["config"][kind]
    }
    category = next(model[task]["category"] for model in scores["models"].values() if task in model)
    return {
        "category": category,
        "levels": len(levels),
        **{kind: place(config, levels) for kind, config in runs.items()},
    }


def reduced(model: Mapping[str, Any]) -> dict[str, Any]:
    """Per task: [items by correct of 3, mean score] at the easy config, the same of 1 at the hard one."""
    facts: dict[str, Any] = {}
    for task, runs in model.items():
        if "easy" not in runs:
            continue
        facts[task] = [[counts(runs["easy"], COMPLETIONS), runs["easy"]["mean_score"]]]
        if "hard" in runs:
            facts[task].append([counts(runs["hard"], 1), runs["hard"]["mean_score"]])
    return facts


def three_completions(model: Mapping[str, Any]) -> bool:
    return any(
        f"{COMPLETIONS}/{COMPLETIONS}" in runs.get("easy", {}).get("correct_per_item", {}) for runs in model.values()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scores", type=Path)
    scores = json.loads(parser.parse_args().scores.read_text(encoding="utf-8"))
    models = {name: reduced(model) for name, model in scores["models"].items() if three_completions(model)}
    tasks = sorted({task for facts in models.values() for task in facts} & set(library.registry()))
    with library.stdout_to_stderr():
        placed = {task: placed_task(task, scores) for task in tasks}
    write(placed, models)


def write(placed: Mapping[str, Any], models: Mapping[str, Any]) -> None:
    """One line per task of a model, so that the file can be read and compared."""
    head = {
        "source": SOURCE,
        "license": "Apache-2.0",
        "reduced": "mean scores and items by number of correct completions (score >= 0.5), for models with three "
        "completions an item; easy and hard are places on the ladder, in levels (0 the first)",
        "reasoning_gym": library.load().version,
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key, table in (("tasks", placed), *((f"models/{name}", facts) for name, facts in models.items())):
        rows = ",\n".join(
            f"  {json.dumps(task)}: {json.dumps(row, separators=(',', ':'))}" for task, row in table.items()
        )
        lines.append(f"{json.dumps(key)}: {{\n{rows}\n}}")
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
