"""The environment for SkyRL, with the real skyrl-gym in .venv-verifiers, and what becomes of unscored completions."""

from __future__ import annotations

import json
import math
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import PromptedProblem, Tasks
from reasoning_gym_environment.integrations.recipe import Recipe

from ..hostile_answers import ATTACK_MODULE, ATTACK_TASK
from ..support import PATIENCE_S, child_environment
from .completions import TASKS, expected, expected_of_attacks

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-verifiers" / "bin" / "python"
SETTINGS = {"modules": ATTACK_MODULE, "allow_unguarded": ATTACK_TASK}

MASK = """
import json, math, sys
from dataclasses import dataclass
from reasoning_gym_environment.skyrl import mask_unscored

@dataclass
class Trajectory:
    instance_id: str

given = json.loads(sys.stdin.read())
trajectories = None if given["prompts"] is None else [Trajectory(name) for name in given["prompts"]]
output = {"rewards": given["rewards"], "loss_masks": given["loss_masks"], "response_ids": [[1]]}
masked = mask_unscored({"trajectory_ids": trajectories}, output)
assert masked["response_ids"] == [[1]] and output["rewards"] == given["rewards"]
print(json.dumps([masked["rewards"], masked["loss_masks"]]))
"""


def in_the_venv(*arguments: str, given: dict[str, Any]) -> tuple[Any, str]:
    """What the script prints, as JSON, and its log."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: `make test-slow` sets it up, and so does `make .venv-verifiers/.installed`.")
    done = subprocess.run(
        [PYTHON, *arguments],
        input=json.dumps(given),
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def row_of(problem: PromptedProblem) -> dict[str, Any]:
    """`extra_info` of a row of `export --format verl`."""
    return {"split": "train", "index": 0, **Recipe.of(problem).as_row()}


@pytest.mark.slow
def test_a_completion_earns_here_what_it_earns_elsewhere_and_an_unscored_one_is_nan(tmp_path: Path) -> None:
    marker = tmp_path / "touched"
    with Tasks([*TASKS, ATTACK_TASK], modules=[ATTACK_MODULE], allow_unguarded=[ATTACK_TASK]) as tasks:
        problems = [tasks.draw(task, 7) for task in (*TASKS, ATTACK_TASK)]
    wanted = [expected(problem.entry["answer"], marker) for problem in problems[:-1]]
    wanted.append(expected_of_attacks(marker))
    # The library's text has no lone surrogates.
    for number, table in enumerate(wanted):
        wanted[number] = {text: reward for text, reward in table.items() if text.isascii()}
    given = {
        "rows": [row_of(problem) for problem in problems],
        "completions": [[*table] for table in wanted],
        "settings": SETTINGS,
    }
    found, log = in_the_venv("-m", "tests.integrations.skyrl_in_its_venv", given=given)
    for table, steps in zip(wanted, found["steps"], strict=True):
        assert {text: step["reward"] for text, step in zip(table, steps, strict=True)} == table
        for step in steps:
            is_unscored = step["reward"] is None
            assert step["metadata"]["unscored"] == is_unscored == bool(step["metrics"]["unscored"])
            assert step["metadata"]["reason"] or not is_unscored
    assert not marker.exists()
    # The completions of a row share its item, although 16 threads grade them.
    assert found["items"] == len(problems)
    assert found["again"]["reward"] == 1.0
    assert all("export --items" in sentence for sentence in found["refused"])
    assert f"{ATTACK_TASK}: a completion has no score. timeout" in log


@dataclass(frozen=True)
class MaskCase:
    prompts: list[str] | None
    rewards: list[Any]
    expected_rewards: list[Any]
    expected_masks: list[list[int]]


MASK_CASES = {
    "the mean of its prompt": MaskCase(
        ["a", "a", "a", "b"], [1.0, math.nan, 0.0, 1.0], [1.0, 0.5, 0.0, 1.0], [[1], [0], [1], [1]]
    ),
    "a reward for each token": MaskCase(
        ["a", "a"], [[0.0, 1.0], [0.0, math.nan]], [[0.0, 1.0], [0.0, 1.0]], [[1], [0]]
    ),
    "a prompt without a score": MaskCase(["a", "b", "b"], [1.0, math.nan, math.nan], [1.0, 1.0, 1.0], [[1], [0], [0]]),
    "no score at all": MaskCase(["a", "b"], [math.nan, math.nan], [0.0, 0.0], [[0], [0]]),
    "prompts unknown": MaskCase(None, [1.0, math.nan], [1.0, 1.0], [[1], [0]]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MASK_CASES)
def test_unscored_completions_are_masked_and_do_not_move_the_mean(name: str) -> None:
    case = MASK_CASES[name]
    given = {
        "prompts": case.prompts,
        "rewards": case.rewards,
        "loss_masks": [[1]] * len(case.rewards),
    }
    masked, log = in_the_venv("-c", MASK, given=given)
    assert masked == [case.expected_rewards, case.expected_masks]
    assert ("None of the 2 completions of this batch has a score" in log) == (name == "no score at all")
