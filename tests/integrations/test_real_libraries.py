"""Each integration from the installed wheel, with the real library that it serves (testing/wheel.py).

`make test-libraries` sets up the environments of the libraries. The tests of test_verifiers.py and
test_reasoning_core.py install the wheel too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from testing.wheel import ROOT, fresh_environment, libraries_of, run, run_tests

pytestmark = pytest.mark.timeout(1800)

# The fixtures of conftest.py need packages of Atropos, which .venv-skyrl lacks.
WITHOUT_FIXTURES = ("--noconftest",)


@pytest.mark.libraries
@pytest.mark.parametrize(
    ("libraries", "extras", "file", "options"),
    [
        (".venv-trl", "trl", "trl_in_its_venv.py", ()),
        (".venv-trl", "openenv", "openenv_in_its_venv.py", ()),
        (".venv-verl", "", "verl_in_its_venv.py", ()),
        (".venv-skyrl", "skyrl", "skyrl_in_its_venv.py", WITHOUT_FIXTURES),
    ],
)
def test_the_library_and_the_wheel(
    libraries: str, extras: str, file: str, options: tuple[str, ...], wheel: Path, tmp_path: Path
) -> None:
    python = fresh_environment(tmp_path / "environment", libraries_of(libraries), wheel, extras=extras)
    run_tests(python, [file], tmp_path, *options)


@pytest.mark.slow
def test_python_and_atropos_and_the_wheel(wheel: Path, tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "environment", Path(sys.prefix), wheel, extras="atropos")
    run_tests(python, ["atropos_in_its_venv.py"], tmp_path)


@pytest.mark.libraries
def test_the_example_for_trl_trains_a_tiny_model(wheel: Path, tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "environment", libraries_of(".venv-trl"), wheel, extras="trl")
    reported = run(python, ROOT / "examples" / "trl" / "train.py", tmp_path / "out", cwd=tmp_path)
    assert re.search(r"^before: \d+\.\d%\nafter: \d+\.\d%$", reported, re.MULTILINE), reported
    assert (tmp_path / "out" / "checkpoint-20" / "trainer_state.json").exists()
