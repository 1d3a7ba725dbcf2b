"""The package's public names load on first use, and nothing heavy before."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import reasoning_gym_environment

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"aiohttp", "atroposlib", "matplotlib", "numpy", "pydantic", "reasoning_gym", "rich", "tokenizers"}
HEAVY |= {"transformers", "wandb"}


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split()) & HEAVY


@pytest.mark.parametrize(
    "statement",
    [
        "import reasoning_gym_environment",
        "import reasoning_gym_environment; dir(reasoning_gym_environment); reasoning_gym_environment.__version__",
        "from reasoning_gym_environment import system_prompt",
        "import reasoning_gym_environment.workers",
        "import reasoning_gym_environment.verification.grade",
        "import reasoning_gym_environment.records, reasoning_gym_environment.scoring.scorer",
        "import reasoning_gym_environment.cli",
        "import reasoning_gym_environment.reasoning_gym_environment",
    ],
)
def test_light_imports_load_nothing_heavy(statement: str) -> None:
    assert loaded_after(statement) == set()


def test_the_parents_side_of_the_generation_workers_loads_no_reasoning_gym() -> None:
    assert loaded_after("import reasoning_gym_environment.workers.generator") == set()


def test_the_launcher_imported_as_a_main_module_loads_nothing() -> None:
    statement = "import runpy; runpy.run_path('reasoning_gym_environment.py', run_name='__mp_main__')"
    assert loaded_after(statement) == set()


def test_public_names_are_listed() -> None:
    assert dir(reasoning_gym_environment) == sorted(reasoning_gym_environment.__all__)
    assert {"ReasoningGymEnv", "ReasoningGymEnvConfig", "system_prompt"} <= set(reasoning_gym_environment.__all__)


def test_config_class_is_the_one_of_its_module() -> None:
    from reasoning_gym_environment.config import ReasoningGymEnvConfig

    assert reasoning_gym_environment.ReasoningGymEnvConfig is ReasoningGymEnvConfig


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'ReasoningGym'"):
        reasoning_gym_environment.ReasoningGym  # noqa: B018


def test_version_is_that_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(rf'^version = "{re.escape(reasoning_gym_environment.__version__)}"$', text, re.MULTILINE)
