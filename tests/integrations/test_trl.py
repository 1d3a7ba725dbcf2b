"""The integrations of TRL and OpenEnv, whose libraries have a virtual environment, .venv-trl (see Makefile)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = ROOT / ".venv-trl" / "bin" / "python"


def run(*arguments: str | Path, cwd: Path = ROOT) -> str:
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: `make test-slow` sets it up, and so does `make .venv-trl/.installed`.")
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        [PYTHON, *arguments], cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("file", "tests"), [("trl_in_its_venv.py", 11), ("openenv_in_its_venv.py", 8)])
def test_the_real_trainer_and_the_real_client_of_openenv(file: str, tests: int) -> None:
    told = run("-m", "pytest", f"tests/integrations/{file}", "-p", "no:cacheprovider", "--show-capture", "no")
    assert re.search(rf"^\.{{{tests}}} ", told, re.MULTILINE), told


@pytest.mark.slow
def test_the_example_trains_a_tiny_model(tmp_path: Path) -> None:
    told = run(ROOT / "examples" / "trl_grpo.py", tmp_path / "out", cwd=tmp_path)
    assert re.search(r"^before: +\d+\.\d% .*\nafter: +\d+\.\d% \[.*\]$", told, re.MULTILINE), told
    assert (tmp_path / "out" / "checkpoint-20" / "trainer_state.json").exists()
