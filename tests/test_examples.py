"""The examples, run as a reader would run them: from another folder, without the repository on the path."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

PRINTED = {
    "grade_answers": r"1\.0  correct  \d+\n0\.0  wrong  about 40\n0\.0  wrong  __import__.*\n" * 2,
    "training_loop": r"(\d (chain_sum|leg_counting) level 0 \[.*\]\n){6}",
    "evaluate_a_model": r"(\w+ +\d+\.\d% \[.*%\]\n){4}the same questions elsewhere: \w{16}\n",
    "several_at_once": r"(\d (chain_sum|leg_counting) [01]\.0\n){8}",
    "own_task": r"It is .* minutes later\?.*\n1\.0 \d\d:\d\d\n0\.0 12:00\n0\.0 noon\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs_and_prints_what_it_says(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(PRINTED[name], done.stdout), done.stdout
    # What the hostile answer would have made.
    assert not list(tmp_path.iterdir())
