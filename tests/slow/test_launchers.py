"""Every way to start the program runs the same program."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from ..mock_dialects import ThreadedMockServer
from ..support import AddingStudent, flags, run

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "reasoning_gym_environment"
SCRIPT = Path(sys.executable).with_name("reasoning-gym-env")

FORMS = {
    "launcher at the root": [str(ROOT / "reasoning_gym_environment.py")],
    "launcher in the package": [str(PACKAGE / "reasoning_gym_environment.py")],
    "module": ["-m", "reasoning_gym_environment"],
    "console script": [str(SCRIPT)],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_serve_reaches_the_environment_s_own_checks(form: list[str], tmp_path: Path, tokenizer_dir: Path) -> None:
    arguments = ["serve", "--openai.server_type", "openai", "--env.tokenizer_name", str(tokenizer_dir)]
    result = run([*form, *arguments], tmp_path)
    assert result.returncode == 2
    assert "serve needs token ids" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["process", "evaluate", "demo", "tasks", "dumps"])
def test_every_command_explains_itself(command: str, tmp_path: Path) -> None:
    result = run(["-m", "reasoning_gym_environment", command, "--help"], tmp_path)
    assert result.returncode == 0
    assert ("--env.complexity_mode" if command in ("process", "evaluate") else "usage:") in result.stdout


def test_without_arguments_the_commands_are_listed(tmp_path: Path) -> None:
    result = run(["-m", "reasoning_gym_environment"], tmp_path)
    assert result.returncode == 0
    assert all(
        f"\n  {command} " in result.stdout for command in ("demo", "tasks", "serve", "process", "evaluate", "dumps")
    )


def test_an_unknown_command_names_the_known_ones(tmp_path: Path) -> None:
    result = run(["-m", "reasoning_gym_environment", "train"], tmp_path)
    assert result.returncode == 2
    assert "'train'" in result.stderr
    assert "serve" in result.stderr


@pytest.fixture
def atropos_checkout(tmp_path: Path) -> Path:
    """A folder laid out like Atropos' repository, with the package copied into `environments/`."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "environments" / "reasoning_gym_environment", ignore=ignored)
    return tmp_path


def test_the_folder_works_inside_atropos_environments(atropos_checkout: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, '')\n"
        "from environments.reasoning_gym_environment import ReasoningGymEnv\n"
        "from environments.reasoning_gym_environment.reasoning_gym_environment import ReasoningGymEnv as same\n"
        "assert ReasoningGymEnv is same and ReasoningGymEnv.__module__.startswith('environments.')\n"
        "assert 'reasoning_gym_environment' not in sys.modules\n"
        "print(ReasoningGymEnv.config_init()[0].group_size)"
    )
    result = run(["-c", code], atropos_checkout)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "8"


def test_the_copied_launcher_runs(atropos_checkout: Path) -> None:
    launcher = "environments/reasoning_gym_environment/reasoning_gym_environment.py"
    result = run([launcher, "tasks", "--include", "countdown"], atropos_checkout)
    assert result.returncode == 0, result.stderr
    assert "1 task, categories: games" in result.stdout


def test_the_copied_package_scores_answers_in_its_workers(
    atropos_checkout: Path, tokenizer_dir: Path, byte_tokenizer: Any
) -> None:
    code = (
        "import sys; sys.path.insert(0, '')\n"
        "from environments.reasoning_gym_environment import ReasoningGymEnv\n"
        "ReasoningGymEnv.cli()"
    )
    with ThreadedMockServer(AddingStudent(wrong_every=0), byte_tokenizer) as server:
        result = run(["-c", code, "evaluate", *flags(tokenizer_dir, server.base_url)], atropos_checkout)
    assert result.returncode == 0, result.stderr
    assert "mean score 1.0000" in result.stderr
