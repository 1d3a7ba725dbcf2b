"""The files of settings that come with the package: the command line takes them, SLURM and the package have them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from reasoning_gym_environment.config import ReasoningGymEnvConfig

from .support import parsed_command_line

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "reasoning_gym_environment" / "configs"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_every_ready_config_is_accepted(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    config, _ = parsed_command_line(["serve", "--config", str(path)], monkeypatch)
    written = yaml.safe_load(path.read_text())["env"]
    assert written and isinstance(config, ReasoningGymEnvConfig)


def test_bash_and_slurm_can_read_the_script() -> None:
    script = FOLDER / "slurm.sbatch"
    assert subprocess.run(["bash", "-n", str(script)], capture_output=True, check=True).stderr == b""
    lines = script.read_text(encoding="utf-8").splitlines()
    first = next(number for number, text in enumerate(lines) if text and not text.startswith("#"))
    directives = [number for number, text in enumerate(lines) if text.startswith("#SBATCH")]
    assert directives and max(directives) < first, "SLURM reads no directive after the first command"
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", lines[number]) for number in directives)
