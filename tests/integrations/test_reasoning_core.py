"""The example that serves the generators of reasoning-core, with the real library in .venv-core."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from reasoning_gym_environment.sampling.item_maker import is_held_out

from ..support import PATIENCE_S, child_environment

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-core" / "bin" / "python"
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


@pytest.mark.slow
def test_its_generators_are_tasks_like_others(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: `make test-slow` sets it up, and so does `make .venv-core/.installed`.")
    marker = tmp_path / "touched"
    done = subprocess.run(
        [PYTHON, "-m", "tests.integrations.reasoning_core_in_its_venv", ",".join(TASKS), str(marker)],
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tasks"].keys() == {*TASKS}
    for task, figures in found["tasks"].items():
        # The same seed makes the same item again in a worker process.
        assert figures["again"] == figures["questions"], task
        assert len(set(figures["questions"])) > 1, task
        assert figures["rewards"] == [[1.0, 0.0, 0.0]] * len(figures["questions"]), task
        assert figures["levels"] == [0, 5], task
        assert not any(is_held_out(question) for question in figures["questions"])
        assert all(is_held_out(question) for question in figures["held_out"])
    assert not marker.exists()
    # These verifiers reach code that can evaluate text, so they need the user's permission.
    excluded = {task: reason for task, reason in found["excluded"].items() if task.startswith("core_")}
    assert sorted(excluded) == list(UNGUARDED)
    assert all("no guard covers" in reason for reason in excluded.values())
    assert len(found["served"]) == 31
    assert found["right"] == dict.fromkeys([*found["served"], *UNGUARDED], 1.0)
    assert found["audit_code"] == 0
    assert TASKS[0] in found["audit"]
