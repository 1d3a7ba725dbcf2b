"""The environment for SkyRL. In .venv-skyrl, skyrl_in_its_venv.py tests it with the real skyrl-gym."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = ROOT / ".venv-skyrl" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_real_skyrl_gym() -> None:
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: `make test-slow` sets it up, and so does `make .venv-skyrl/.installed`.")
    # The fixtures of conftest.py need packages of Atropos, which .venv-skyrl lacks.
    arguments = ["--noconftest", "-p", "no:cacheprovider", "--show-capture", "no"]
    done = subprocess.run(
        [PYTHON, "-m", "pytest", "tests/integrations/skyrl_in_its_venv.py", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert re.search(r"^\.{19} ", done.stdout, re.MULTILINE), done.stdout
