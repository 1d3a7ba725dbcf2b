"""The example that serves the generators of reasoning-core, with the real library in .venv-core."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reasoning_gym_environment.sampling.seeds import is_held_out
from testing.wheel import add_tests, fresh_environment, libraries_of, run

TASKS = (
    "core_graph_pathfinding",
    "core_logic_derivation",
    "core_planning",
    "core_grid_navigation",
    "core_set_expression",
    "core_table_statistics",
)
UNGUARDED = (
    "core_controlled_code_execution",
    "core_function_manipulation",
    "core_planar_geometry_relations",
)


@pytest.mark.libraries
def test_its_generators_are_tasks_like_others(wheel: Path, tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "environment", libraries_of(".venv-core"), wheel)
    add_tests(python)
    marker = tmp_path / "touched"
    module = "tests.integrations.reasoning_core_in_its_venv"
    reported = run(python, "-m", module, ",".join(TASKS), marker, cwd=tmp_path, PYTHONSAFEPATH="1")
    [results] = [line for line in reported.splitlines() if line.startswith('{"tasks"')]
    found = json.loads(results)
    assert found["tasks"].keys() == {*TASKS}
    for task, figures in found["tasks"].items():
        assert len(set(figures["questions"])) > 1, task
        assert figures["rewards"] == [[1.0, 0.0, 0.0]] * len(figures["questions"]), task
        assert not any(is_held_out(question) for question in figures["questions"])
        assert all(is_held_out(question) for question in figures["held_out"])
    assert not marker.exists()
    # These verifiers reach code that can evaluate text, so they need the user's permission.
    excluded = {task: reason for task, reason in found["excluded"].items() if task.startswith("core_")}
    assert sorted(excluded) == list(UNGUARDED)
    assert all("no guard covers" in reason for reason in excluded.values())
    assert len(found["served"]) == 30
    assert found["right"].keys() == {*found["served"], *UNGUARDED}
    assert {reward for rewards in found["right"].values() for reward in rewards} == {1.0}
