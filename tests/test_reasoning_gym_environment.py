"""The package's public names load on first use, and nothing heavy before."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import reasoning_gym_environment

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"aiohttp", "atroposlib", "matplotlib", "numpy", "pydantic", "reasoning_gym", "rich", "tokenizers"}
HEAVY |= {"transformers", "wandb"}


@pytest.mark.parametrize(
    "statement",
    [
        "import reasoning_gym_environment; dir(reasoning_gym_environment); reasoning_gym_environment.__version__",
        "import reasoning_gym_environment.workers.generator, reasoning_gym_environment.verification.grade",
        "import reasoning_gym_environment.cli",
        "import runpy; runpy.run_path('reasoning_gym_environment.py', run_name='__mp_main__')",
    ],
)
def test_light_imports_load_nothing_heavy(statement: str) -> None:
    code = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(done.stdout.split()) & HEAVY == set()


def test_public_names_are_listed_and_others_refused() -> None:
    assert dir(reasoning_gym_environment) == sorted(reasoning_gym_environment.__all__)
    assert {"ReasoningGymEnv", "ReasoningGymEnvConfig", "system_prompt"} <= set(reasoning_gym_environment.__all__)
    with pytest.raises(AttributeError, match="no attribute 'ReasoningGym'"):
        reasoning_gym_environment.ReasoningGym  # noqa: B018


def test_no_module_hides_a_public_name() -> None:
    package = reasoning_gym_environment.__name__
    assert {"Rows", "grade", "report"} <= set(reasoning_gym_environment.__all__)
    hidden = [name for name in reasoning_gym_environment.__all__ if importlib.util.find_spec(f"{package}.{name}")]
    assert hidden == []
