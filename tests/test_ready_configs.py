"""The files of settings that come with the package: the command line takes them."""

from __future__ import annotations

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
