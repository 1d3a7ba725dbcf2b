from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from testing.env_support import SERVE_ITEMS
from testing.support import run as run_process

PACKAGE = Path(library.__file__).parent.parent
LOAD = """
import logging
logging.basicConfig(format="LOG %(message)s")
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.errors import LibraryNotFoundError
try:
    expected = library.find()
    found = library.load()
except LibraryNotFoundError as error:
    print("ERROR", error)
else:
    assert library.load() is found
    assert found == expected == library.find()
    print(found.source, found.version, found.location)
"""
PYPROJECT = """
[build-system]
version = "1.1.1"
[project]
name = "reasoning_gym"  # with an underscore
version = "9.8.7"
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of this project whose submodule folder is empty; a separate process imports from it."""
    target = tmp_path / "reasoning_gym_environment"
    (target / "tasks").mkdir(parents=True)
    modules = ("reasoning_gym_source.py", "measured_data.py", "__init__.py")
    for name in ("__init__.py", "errors.py", *(f"tasks/{module}" for module in modules)):
        shutil.copy(PACKAGE / name, target / name)
    (tmp_path / "reasoning-gym").mkdir()
    return tmp_path


def fill(checkout: Path, init: str = "", pyproject: str = PYPROJECT) -> Path:
    package = checkout / "reasoning_gym"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(init)
    (checkout / "pyproject.toml").write_text(pyproject)
    return checkout


def run(clone: Path, script: str = LOAD) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(clone)!r})\n{script}"]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True, timeout=600)


def test_a_checkout_wins_over_the_installed_package_and_the_inner_one_over_the_outer(clone: Path) -> None:
    # Its prints go to stderr. Warnings of the compiler about its code are suppressed.
    beside = fill(clone / "reasoning-gym", init="print('chatter')\nassert () is ()")
    result = run(clone, LOAD + "\nprint(sys.path[0])")
    assert result.stdout.splitlines() == [f"submodule 9.8.7 {beside}", str(beside)]
    assert result.stderr.splitlines() == ["chatter"]
    pyproject = '[project]\nname = "reasoning-gym"\n'
    inside = fill(clone / "reasoning_gym_environment" / "reasoning-gym", pyproject=pyproject)
    assert run(clone).stdout.strip() == f"submodule unknown version {inside}"


def test_checkout_with_a_missing_dependency_is_an_error_and_not_replaced(clone: Path) -> None:
    checkout = fill(clone / "reasoning-gym", init="import reasoning_gym.part\nimport not_installed_anywhere")
    (checkout / "reasoning_gym" / "part.py").touch()
    after = "print(str(library.CHECKOUTS[1]) in sys.path, 'reasoning_gym.part' in sys.modules)"
    lines = run(clone, LOAD + after).stdout.splitlines()
    assert lines[0].startswith(f"ERROR The reasoning-gym checkout at {checkout} cannot be imported: Module")
    assert "not_installed_anywhere" in lines[0]
    assert lines[1] == "False False"


def test_the_registry_is_a_copy() -> None:
    library.registry().clear()
    dataset_class, config_class = library.registry()["chain_sum"]
    assert (dataset_class.__name__, config_class.__name__) == ("ChainSumDataset", "ChainSumConfig")


@pytest.fixture
def without_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A reasoning-gym whose registry has another name in its module."""
    monkeypatch.setattr(library, "_factory", lambda: SimpleNamespace(TASKS={}))
    yield
    library._tasks_by_name.cache_clear()


def test_without_a_registry_the_tasks_are_found_by_name(
    without_registry: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create_dataset = library.create_dataset

    def create(task: str, **config: Any) -> Any:
        if task in ("lcm", "gcd"):
            raise ValueError("Dataset not registered")
        return create_dataset(task, **config)

    monkeypatch.setattr(library, "create_dataset", create)
    expected = dict(sys.modules["reasoning_gym.factory"].DATASETS)
    for name in ("composite", "lcm", "gcd"):
        del expected[name]
    assert library.registry() == expected == library.registry()
    warning, missing = caplog.messages
    assert "cannot be read (AttributeError: " in warning and "the names of the 105 tasks of release 0.1.25" in warning
    assert missing == "2 of the 105 tasks cannot be built and are not available: gcd, lcm."


def test_without_a_registry_and_tasks_the_error_says_what_to_do(
    without_registry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "create_dataset", Mock(side_effect=NameError("DATASETS")))
    expected = r"none of its 105 known tasks can be built \(ab: NameError: DATASETS\)\. Reinstall reasoning-gym\."
    with pytest.raises(EnvironmentSetupError, match=expected):
        library.registry()


@pytest.mark.slow
def test_an_environment_serves_a_reasoning_gym_without_a_registry(tmp_path: Path) -> None:
    library_copy = tmp_path / "reasoning_gym"
    shutil.copytree(library.load().location, library_copy)
    factory = library_copy / "factory.py"
    factory.write_text(factory.read_text().replace("DATASETS", "TASKS"))
    done = run_process(["-c", SERVE_ITEMS], tmp_path, PYTHONPATH=str(tmp_path))
    assert done.stdout.split("\n")[-3:] == ["2", "[1.0, 0.0]", ""], done.stderr
    assert done.stderr.count("The registry of reasoning-gym cannot be read") == 1


def test_a_task_module_is_imported_once_from_a_file_or_by_its_dotted_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, own_datasets: None
) -> None:
    for name in ("my-tasks.py", "dotted_task_module.py"):
        (tmp_path / name).write_text("print('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    library.import_modules(["my-tasks.py", str(tmp_path / "my-tasks.py"), "dotted_task_module"])
    captured = capsys.readouterr()
    assert captured.err.count("imported") == 2 and captured.out == ""
    assert "dotted_task_module" in sys.modules


def test_an_exception_is_explained_in_one_line_with_the_start_of_its_message() -> None:
    assert library.explain(ValueError("two\n  lines.\n")) == "ValueError: two lines"
    assert library.explain(MemoryError()) == "MemoryError"
    for message in ("x" * 400, "word " * 100):
        explained = library.explain(ValueError(message))
        assert explained == f"ValueError: {message[:300]} ..."


def test_failing_task_module_is_named_with_its_cause(tmp_path: Path, own_datasets: None) -> None:
    (tmp_path / "broken.py").write_text("raise SystemExit(3)")
    before = set(sys.modules)
    for module, cause in (
        (str(tmp_path / "missing.py"), r"missing\.py.*FileNotFoundError"),
        (str(tmp_path / "broken.py"), r"broken\.py.*SystemExit: 3"),
        ("no.such_module", r"'no\.such_module' cannot be imported"),
    ):
        with pytest.raises(EnvironmentSetupError, match=cause):
            library.import_modules([module])
    assert not [name for name in set(sys.modules) - before if name.startswith("task_module_")]
