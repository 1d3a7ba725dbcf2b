"""The program inside Atropos' repository; who reads from it gets the whole truth, or ends it quietly."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testing.mock_dialects import ThreadedMockServer
from testing.support import PATIENCE_S, AddingStudent, flags, run

pytestmark = pytest.mark.slow
PACKAGE = Path(__file__).resolve().parents[2] / "reasoning_gym_environment"
MODULE = ["-m", "reasoning_gym_environment"]


def test_the_folder_works_inside_atropos_environments(tmp_path: Path, tokenizer_dir: Path, byte_tokenizer: Any) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "environments" / "reasoning_gym_environment", ignore=ignored)
    code = (
        "import sys; sys.path.insert(0, '')\n"
        "from environments.reasoning_gym_environment import ReasoningGymEnv\n"
        "from environments.reasoning_gym_environment.reasoning_gym_environment import ReasoningGymEnv as same\n"
        "assert ReasoningGymEnv is same and ReasoningGymEnv.__module__.startswith('environments.')\n"
        "assert 'reasoning_gym_environment' not in sys.modules\n"
        "ReasoningGymEnv.cli()"
    )
    with ThreadedMockServer(AddingStudent(wrong_every=0), byte_tokenizer) as server:
        result = run(["-c", code, "evaluate", *flags(tokenizer_dir, server.base_url)], tmp_path)
    assert result.returncode == 0, result.stderr
    assert "mean_score 100.0%" in result.stderr, "its workers score answers"
    launcher = "environments/reasoning_gym_environment/reasoning_gym_environment.py"
    result = run([launcher, "tasks", "--tasks", "countdown"], tmp_path)
    assert result.returncode == 0, result.stderr
    assert "tasks: 1\ncategories: games\n" in result.stdout


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        command = [sys.executable, *MODULE, "tasks", "--tasks", "gcd"]
        ended = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, cwd=tmp_path, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stderr) == (141, b"")
