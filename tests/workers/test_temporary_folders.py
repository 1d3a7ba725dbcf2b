"""Temporary folders end with their process, or with the next start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from reasoning_gym_environment.workers.generator import TemporaryFolder

ROOT = Path(__file__).resolve().parents[2]


def test_the_folders_of_processes_that_are_gone_are_removed_by_the_next_start_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import os, tempfile; from reasoning_gym_environment.workers.generator import TemporaryFolder\n"
        "folder = TemporaryFolder('items'); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    living = TemporaryFolder("run")
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, check=False, timeout=300)
    (tmp_path / "reasoning-gym-demo-x").mkdir()
    (tmp_path / "reasoning-gym-link").symlink_to(living.name)
    [dead] = tmp_path.glob("reasoning-gym-items-*")
    assert (dead / ".lock").exists()
    other = TemporaryFolder("items")
    assert not dead.exists()
    names = {"reasoning-gym-demo-x", "reasoning-gym-link", Path(living.name).name, Path(other.name).name}
    assert {path.name for path in tmp_path.iterdir()} == names
    for folder in (living, other, living):
        folder.cleanup()
    assert {path.name for path in tmp_path.iterdir()} == {"reasoning-gym-demo-x", "reasoning-gym-link"}
