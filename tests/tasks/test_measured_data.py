"""The measurements belong to the installed release."""

from __future__ import annotations

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import Task
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladders
from reasoning_gym_environment.tasks.measured_data import load_facts


def test_the_shipped_facts_are_of_every_task_of_the_installed_release() -> None:
    facts = load_facts(library.load().version)
    assert set(facts) == set(library.registry()) - {"composite"}
    defaults = [task["default"] for task in facts.values()]
    assert all(default["draws"] > 90 and default["chars"] > 0 for default in defaults)
    ladders = build_ladders([Task(name, "") for name in facts])
    assert {name: len(task["levels"]) for name, task in facts.items()} == {name: len(ladders[name]) for name in facts}
