"""What ships of every task's levels: python benchmarks/facts/ladders.py [-o FILE] [TASK ...]

Tries every config that the tasks' curricula offer, as a start would have to. Written as
reasoning_gym_environment/data/ladders.json, it is what a start takes instead, as long as reasoning-gym's files are the
same; run it again for another release, and after a change of what makes a level usable.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import enum
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import COMPOSITE, PER_ITEM
from reasoning_gym_environment.tasks.difficulty_ladder import Ranges, find_rungs


def encoded(value: Any) -> Any:
    """As JSON; `measured_data.decoded` reads it. Raises TypeError for a value that it could not."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [encoded(one) for one in value]
    if kind is dict:
        if value.keys() == {"of", "is"} or not all(type(key) is str for key in value):
            raise TypeError(f"expected keys of text, got {value!r}")
        return {key: encoded(one) for key, one in value.items()}
    if kind is tuple:
        content: Any = [encoded(one) for one in value]
    elif isinstance(value, enum.Enum):
        content = encoded(value.value)
    elif kind in (datetime.date, datetime.time):
        content = value.isoformat()
    elif dataclasses.is_dataclass(value):
        content = {one.name: encoded(getattr(value, one.name)) for one in dataclasses.fields(value)}
    else:
        raise TypeError(f"{value!r} has no form in JSON")
    return {"of": f"{kind.__module__}:{kind.__qualname__}", "is": content}


def of_task(task: str) -> dict[str, Any]:
    """What ships of one task."""
    dataset_class, config_class = library.registry()[task]
    fields: list[str] | None = None
    ladders = {}
    for ranges in get_args(Ranges) if task != COMPOSITE else ():
        rungs = find_rungs(task, ranges, {})
        fields = fields or list(rungs.configs[0])
        if any(list(config) != fields for config in rungs.configs):
            raise EnvironmentSetupError(f"The configs of {task} differ in their fields.")
        configs = [[encoded(one) for one in config.values()] for config in rungs.configs]
        ladders[ranges] = {**vars(rungs), "configs": configs}
    if fields is None:
        fields = [one.name for one in dataclasses.fields(config_class) if one.init and one.name not in PER_ITEM]
    # A property that asks for the class's module only.
    category = str(object.__new__(dataset_class).category)
    return {"category": category, "fields": fields, "ladders": ladders}


def document(tasks: Iterable[str]) -> dict[str, Any]:
    """What ships of these tasks."""
    found = library.load()
    return {
        "source": "made by benchmarks/facts/ladders.py",
        "reasoning_gym_version": found.version,
        "digest": library.digest(found),
        "tasks": {task: of_task(task) for task in tasks},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", metavar="TASK")
    parser.add_argument("-o", "--output", type=Path, help="default: standard output")
    options = parser.parse_args()
    made = document(tqdm(options.tasks or sorted(library.registry()), desc="ladders", unit="task", disable=None))
    # A line for each task.
    tasks = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in made.pop("tasks").items())
    text = f'{json.dumps(made)[:-1]}, "tasks": {{\n{tasks}\n}}}}\n'
    options.output.write_text(text, encoding="utf-8") if options.output else sys.stdout.write(text)


if __name__ == "__main__":
    main()
