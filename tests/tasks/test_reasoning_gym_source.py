from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.tasks import reasoning_gym_source as library

PACKAGE = Path(library.__file__).parent.parent
LOAD = """
import logging
logging.basicConfig(format="LOG %(message)s")
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.errors import LibraryNotFoundError
try:
    found = library.load()
except LibraryNotFoundError as error:
    print("ERROR", error)
else:
    assert library.load() is found
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
    checkout = fill(clone / "reasoning-gym", init="import not_installed_anywhere")
    output = run(clone).stdout
    assert output.startswith(f"ERROR The reasoning-gym checkout at {checkout} cannot be imported: Module")
    assert "not_installed_anywhere" in output


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
