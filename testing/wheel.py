"""The wheel of this checkout, installed in fresh environments that borrow their libraries from other environments.

Not a test. No network is needed.

    .venv, .venv-trl, ... (make) ── libraries ──┐
    build_wheel ── the wheel ───────────────────┴──> fresh_environment ──> run_tests: its package is the wheel's
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .support import child_environment

ROOT = Path(__file__).resolve().parents[1]
NAME = "reasoning_gym_environment"
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """The output of a process that must succeed."""
    environment = child_environment(PYTHONPATH="", **variables)
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout + done.stderr


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the package, because a build writes beside its sources."""
    source = folder / "source"
    shutil.copytree(ROOT / NAME, source / NAME, ignore=shutil.ignore_patterns("__pycache__"))
    for name in SOURCES:
        shutil.copy(ROOT / name, source / name)
    # With isolation it would ask an index for setuptools.
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, source, cwd=folder)
    [wheel] = folder.glob("*.whl")
    return wheel


def libraries_of(name: str) -> Path:
    """The environment beside .venv that has a tested library. Fails the test if `make` has not set it up."""
    home = ROOT / name
    if not (home / ".installed").exists():
        pytest.fail(f"{home} is missing: `make test-libraries` sets it up, and so does `make {name}/.installed`.")
    return home


def fresh_environment(home: Path, libraries: Path, *wheels: Path, extras: str = "") -> Path:
    """The Python of a new environment that has these wheels, and finds their dependencies in another environment.

    Fails unless that environment has all that these extras of the package require.
    """
    run(libraries / "bin" / "python", "-m", "venv", "--without-pip", home, cwd=home.parent)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    run(*pip, "--no-deps", *wheels, cwd=home)
    [packages] = home.glob("lib/python*/site-packages")
    [theirs] = libraries.glob("lib/python*/site-packages")
    # Python does not read the .pth file of an editable install in a folder that a .pth file names.
    (packages / "libraries.pth").write_text(f"{theirs}\n")
    run(*pip, f"reasoning-gym-environment[{extras}]", cwd=home)
    return python


def add_tests(python: Path) -> None:
    """Let a fresh environment import the tests of the checkout. The package of the wheel comes first."""
    [packages] = python.parents[1].glob("lib/python*/site-packages")
    # Some libraries have a module of the same name. Python reads .pth files by name.
    (packages / "checkout.pth").write_text(f"{ROOT}\n")


def run_tests(python: Path, files: list[str], cwd: Path, *options: str) -> None:
    """Run files of tests/integrations in a fresh environment, on the package of the wheel.

    Fails unless all tests pass, without any that is skipped.
    """
    add_tests(python)
    paths = [ROOT / "tests" / "integrations" / name for name in (*files, "wheel_in_its_venv.py")]
    # Neither pytest nor Python may put the checkout before the wheel.
    arguments = ["--import-mode", "append", "-p", "no:cacheprovider", "--show-capture", "no", *options]
    quiet = {"TRL_EXPERIMENTAL_SILENCE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    reported = run(python, "-m", "pytest", *paths, *arguments, cwd=cwd, PYTHONSAFEPATH="1", **quiet)
    assert re.search(r"^\d+ passed(, \d+ warnings?)? in ", reported, re.MULTILINE), reported
