"""The integration of TRL. Its trainer and torch have a virtual environment of their own, .venv-trl (see Makefile)."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
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
def test_the_real_trainer_draws_grades_learns_resumes_and_evaluates() -> None:
    told = run(
        "-m", "pytest", "tests/integrations/trl_in_its_venv.py", "-p", "no:cacheprovider", "--show-capture", "no"
    )
    assert re.search(r"^\.{9} ", told, re.MULTILINE), told


@pytest.mark.slow
def test_the_example_trains_a_tiny_model(tmp_path: Path) -> None:
    told = run(ROOT / "examples" / "trl_grpo.py", tmp_path / "out", cwd=tmp_path)
    assert re.search(r"^before: +\d+\.\d% .*\nafter: +\d+\.\d% \[.*\]$", told, re.MULTILINE), told
    assert (tmp_path / "out" / "checkpoint-20" / "trainer_state.json").exists()


def test_without_trl_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    for name in ("trl", "integrations.trl"):
        monkeypatch.delitem(sys.modules, f"reasoning_gym_environment.{name}", raising=False)
    with pytest.raises(ImportError, match=r"pip install \"\.\[trl\]\""):
        importlib.import_module("reasoning_gym_environment.trl")
