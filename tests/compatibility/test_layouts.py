"""Copies of the package and of the whole repository work in the folder `environments` of a tree of Atropos."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from testing.env_support import SERVE_ITEMS
from testing.support import run

ROOT = Path(__file__).resolve().parents[2]
NAME = "reasoning_gym_environment"
LONG_NAME = f"environments.{NAME}"
CHECK_IMPORTS = """
import importlib, pickle, sys
names = sys.argv[1:]
package = importlib.import_module(names[0])
assert "atroposlib" not in sys.modules
classes = [importlib.import_module(name).ReasoningGymEnv for name in names]
assert classes == [classes[0]] * len(names), classes
assert pickle.loads(pickle.dumps(classes[0])) is classes[0]
print(sys.modules[classes[0].__module__].__file__)
importlib.import_module(names[0] + ".no_such_module")
"""


def copy_of_package(folder: Path) -> Path:
    return Path(shutil.copytree(ROOT / NAME, folder, ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture
def package(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of the package in a tree of Atropos at `tmp_path/atropos`. The tree has the package, or all of us."""
    copy = tmp_path / "atropos" / "environments" / NAME
    if request.param == "package":
        return copy_of_package(copy)
    copy.mkdir(parents=True)
    for path in ROOT.glob("*.py"):
        shutil.copy(path, copy)
    for folder in ("tests", "data_dumps"):
        (copy / folder).mkdir()
    return copy_of_package(copy / NAME)


def run_in_tree(folder: Path, *arguments: str) -> CompletedProcess[str]:
    """Run Python in a folder of the tree, without the installation of this checkout, which is in a .pth file."""
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    return run(["-S", *arguments], folder, PYTHONPATH=os.pathsep.join([str(folder), *libraries]))


OF_PACKAGE = [LONG_NAME, f"{LONG_NAME}.{NAME}", f"{LONG_NAME}.env"]
OF_REPOSITORY = [f"atropos.{LONG_NAME}.{NAME}", f"atropos.{LONG_NAME}", f"atropos.{LONG_NAME}.env"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "names"), [("package", OF_PACKAGE), ("repository", OF_REPOSITORY)], indirect=["package"]
)
def test_under_every_name_that_a_tree_of_atropos_gives_it_the_class_is_the_same(
    package: Path, names: list[str]
) -> None:
    [tree] = [parent for parent in package.parents if parent.name == "atropos"]
    folder = tree.parent if names[0].startswith("atropos.") else tree
    done = run_in_tree(folder, "-c", CHECK_IMPORTS, *names)
    assert done.stdout.strip() == str(package / "env.py"), done.stderr
    assert f"No module named '{names[0]}.no_such_module'" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("package", ["package", "repository"], indirect=True)
def test_a_tree_of_atropos_starts_the_commands_and_serves_items(package: Path) -> None:
    [tree] = [parent for parent in package.parents if parent.name == "atropos"]
    for start in (f"environments/{NAME}/{NAME}.py", f"-m {LONG_NAME}.{NAME}", f"-m {LONG_NAME}"):
        done = run_in_tree(tree, *start.split(), "serve", "--help")
        assert "--env.group_size" in done.stdout, done.stderr
    script = SERVE_ITEMS.replace(f"from {NAME} import", f"from {LONG_NAME}.{NAME} import")
    done = run_in_tree(tree, "-c", script)
    assert done.stdout.splitlines()[-2:] == ["2", "[1.0, 0.0]"], done.stderr
