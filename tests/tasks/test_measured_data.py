"""The measurements belong to the installed release, and name the tasks to draw less often."""

from __future__ import annotations

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import Task
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladders
from reasoning_gym_environment.tasks.measured_data import load_facts, low_entropy_note


def test_the_shipped_facts_are_of_every_task_of_the_installed_release() -> None:
    facts = load_facts(library.load().version)
    assert set(facts) == set(library.registry()) - {"composite"}
    assert all(task.default.draws > 90 and task.default.chars > 0 for task in facts.values())
    ladders = build_ladders([Task(name, "") for name in facts])
    assert {name: len(task.levels) for name, task in facts.items()} == {name: len(ladders[name]) for name in facts}


def test_tasks_that_repeat_themselves_are_named_with_the_line_that_avoids_them() -> None:
    facts = load_facts(library.load().version)
    note = low_entropy_note(["chain_sum", "tower_of_hanoi", "coin_flip", "my_own"], facts, with_levels=False)
    assert note.startswith("coin_flip, tower_of_hanoi repeat the same")
    assert "task_weights: 'coin_flip=0.2,tower_of_hanoi=0.2'" in note
    assert low_entropy_note(["chain_sum", "my_own"], facts, with_levels=False) == ""
    # With levels a task counts if most of them repeat themselves.
    assert low_entropy_note(["coin_flip", "chain_sum"], facts, with_levels=True).startswith("coin_flip repeat the same")
