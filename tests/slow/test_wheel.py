"""`python -m build` makes an sdist and a wheel, both whole, and the wheel works without the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from ..support import PATIENCE_S, child_environment

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
NAME = "reasoning_gym_environment"
FOLDERS = (".github", "benchmarks", "docs", "examples", "tests", NAME)
FILES = ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md", "mkdocs.yml")
FILES += ("pyproject.toml", f"{NAME}.py", "CITATION.cff", ".ci/run", "data_dumps/.gitkeep")
FILES += tuple(path.name for path in ROOT.glob("requirements*.txt"))
JUNK = {"build/lib/" + NAME + "/old.py", "site/index.html", "tests/__pycache__/old.pyc"}


def run(*command: str | Path, cwd: Path) -> str:
    environment = child_environment(PYTHONPATH="")
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is under version control, for a build writes beside its sources, and junk of a used one."""
    tree = tmp_path_factory.mktemp("tree")
    for name in FILES:
        (tree / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in JUNK:
        (tree / name).parent.mkdir(parents=True)
        (tree / name).touch()
    return tree


@pytest.fixture(scope="module")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, and the wheel that was built from the unpacked sdist."""
    folder = tmp_path_factory.mktemp("built")
    # With isolation it would ask an index for setuptools.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, cwd=tree)
    return folder


def test_the_sdist_holds_all_that_is_tracked_and_no_junk(tree: Path, built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    assert files_of(tree) - held == JUNK


def test_the_wheel_holds_the_package_and_nothing_else(tree: Path, built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == {f"{NAME}/{path}" for path in files_of(tree / NAME)}


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an empty environment in which the wheel is installed, and which finds the dependencies in ours."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
    run(*pip, next(built.glob("*.whl")), cwd=home)
    (packages,) = home.glob("lib/python*/site-packages")
    ours = sysconfig.get_paths()
    # Lines of paths: the .pth file of an editable install in there is not read.
    (packages / "dependencies.pth").write_text(f"{ours['purelib']}\n{ours['platlib']}\n")
    return python.parent


def test_the_installed_wheel_works_far_from_the_repository(installed: Path, tree: Path, tmp_path: Path) -> None:
    names = f"import {NAME} as package; print(package.__file__, *(getattr(package, name) for name in package.__all__))"
    assert run(installed / "python", "-c", names, cwd=tmp_path).startswith(f"{installed.parent}{os.sep}lib")
    program = installed / "reasoning-gym-env"
    assert "grade-server" in run(program, "--help", cwd=tmp_path)
    assert "countdown" in run(program, "tasks", cwd=tmp_path)
    assert "countdown (games)" in run(program, "tasks", "countdown", cwd=tmp_path)
    for example in ("grade_answers.py", "training_loop.py"):
        assert run(installed / "python", tree / "examples" / example, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
