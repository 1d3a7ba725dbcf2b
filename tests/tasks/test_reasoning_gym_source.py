from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import types
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
requires = ["hatchling"]
version = "1.1.1"
[project]
name = "reasoning_gym"  # with an underscore
version = "9.8.7"
dependencies = ["other"]
[tool.other]
version = "2.2.2"
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of this project whose submodule folder is empty; a process of its own imports from it."""
    target = tmp_path / "reasoning_gym_environment"
    (target / "tasks").mkdir(parents=True)
    for name in ("__init__.py", "errors.py", "tasks/__init__.py", "tasks/reasoning_gym_source.py"):
        shutil.copy(PACKAGE / name, target / name)
    (tmp_path / "reasoning-gym").mkdir()
    return tmp_path


def fill(checkout: Path, init: str = "", pyproject: str | None = PYPROJECT) -> Path:
    package = checkout / "reasoning_gym"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(init)
    if pyproject is not None:
        (checkout / "pyproject.toml").write_text(pyproject)
    return checkout


def run(clone: Path, script: str = LOAD, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", f"import sys; sys.path.insert(0, {str(clone)!r})\n{script}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        cwd=clone,
    )


def installed_location() -> Path:
    return Path(str(importlib.metadata.distribution("reasoning-gym").locate_file("reasoning_gym"))).resolve()


@pytest.mark.slow
def test_empty_submodule_folder_leaves_the_installed_package_in_use(clone: Path) -> None:
    result = run(clone)
    version = importlib.metadata.version("reasoning-gym")
    assert result.stdout.strip() == f"package {version} {installed_location()}"
    assert "LOG" not in result.stderr


def test_a_checkout_wins_over_the_installed_package_and_the_inner_one_over_the_outer(clone: Path) -> None:
    # What it prints is for stderr, and what the compiler has against its code for nobody.
    beside = fill(clone / "reasoning-gym", init="print('chatter')\nassert () is ()")
    result = run(clone, LOAD + "\nprint(sys.path[0])")
    assert result.stdout.splitlines() == [f"submodule 9.8.7 {beside}", str(beside)]
    assert result.stderr.splitlines() == ["chatter"]
    imported_before = run(clone, f"sys.path.insert(0, {str(beside)!r})\nimport reasoning_gym\n{LOAD}")
    assert imported_before.stdout.splitlines()[-1] == f"submodule 9.8.7 {beside}"
    assert "LOG" not in imported_before.stderr
    inside = fill(
        clone / "reasoning_gym_environment" / "reasoning-gym", pyproject='[project]\nname = "reasoning-gym"\n'
    )
    assert run(clone).stdout.strip() == f"submodule unknown version {inside}"


def test_checkout_with_a_missing_dependency_is_an_error_and_not_replaced(clone: Path) -> None:
    checkout = fill(clone / "reasoning-gym", init="import reasoning_gym.part\nimport not_installed_anywhere")
    (checkout / "reasoning_gym" / "part.py").touch()
    after = "print(str(library.CHECKOUTS[1]) in sys.path, 'reasoning_gym.part' in sys.modules)"
    lines = run(clone, LOAD + after).stdout.splitlines()
    assert lines[0].startswith(f"ERROR The reasoning-gym checkout at {checkout} cannot be imported: Module")
    assert "not_installed_anywhere" in lines[0]
    assert lines[1] == "False False"


def test_what_cannot_be_imported_is_one_line_that_says_why(clone: Path) -> None:
    without_packages = "-S"
    output = run(clone, LOAD, without_packages).stdout
    assert output.startswith("ERROR reasoning-gym was not found") and len(output.splitlines()) == 1
    assert "`git submodule update --init`" in output and '`pip install "reasoning-gym>=0.1.25"`' in output
    broken = clone / "installed" / "reasoning_gym"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("import not_installed_anywhere")
    output = run(clone, f"sys.path.insert(0, {str(broken.parent)!r})\n{LOAD}").stdout
    assert output.startswith("ERROR The installed reasoning-gym cannot be imported: ModuleNotFoundError")
    (clone / "reasoning_gym").mkdir()
    output = run(clone, LOAD, without_packages).stdout
    assert output.startswith("ERROR reasoning_gym at ") and "without an __init__.py" in output
    fill(clone / "reasoning-gym", init="raise ZeroDivisionError('first line\\nsecond line')")
    assert "ZeroDivisionError: first line second line" in run(clone).stdout


@pytest.mark.slow
def test_library_imported_before_from_elsewhere_is_kept_with_one_warning(clone: Path) -> None:
    checkout = fill(clone / "reasoning-gym")
    result = run(clone, f"import reasoning_gym\n{LOAD}")
    assert result.stdout.startswith("package ")
    warnings = [line for line in result.stderr.splitlines() if line.startswith("LOG")]
    assert len(warnings) == 1
    assert str(checkout) in warnings[0] and str(installed_location()) in warnings[0]


@pytest.mark.slow
def test_matplotlib_waits_until_somebody_plots(clone: Path) -> None:
    script = f"""{LOAD}
import sys
assert not [name for name in sys.modules if name.partition(".")[0] in ("matplotlib", "mpl_toolkits")]
import cellpylib
assert callable(cellpylib.ca_functions2d.plt.figure)
import matplotlib.pyplot
assert cellpylib.ca_functions2d.plt.figure is matplotlib.pyplot.figure
"""
    run(clone, script)


def test_a_registry_that_cannot_be_read_is_an_error_and_else_it_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    library.registry().clear()
    dataset_class, config_class = library.registry()["chain_sum"]
    assert (dataset_class.__name__, config_class.__name__) == ("ChainSumDataset", "ChainSumConfig")
    with monkeypatch.context() as patch:
        for factory in (types.SimpleNamespace(), types.SimpleNamespace(DATASETS={})):
            patch.setattr(library, "_factory", lambda factory=factory: factory)
            with pytest.raises(library.RegistryError, match="DATASETS"):
                library.registry()
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(library.RegistryError, match=r"reasoning_gym\.factory cannot be imported"):
        library.registry()


def test_release_without_curricula_has_none_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert library.has_curriculum("chain_sum") and not library.has_curriculum("acre")
    monkeypatch.setattr(library, "_factory", lambda: types.SimpleNamespace())
    library._warn_no_curricula.cache_clear()
    assert not library.has_curriculum("chain_sum") and not library.has_curriculum("lcm")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_task_module_is_imported_from_a_file_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my-tasks.py").write_text("print('imported')\n")
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    library.import_modules(["my-tasks.py", str(tmp_path / "my-tasks.py")])
    added = {name for name in set(sys.modules) - before if name.startswith("task_module_my_tasks_")}
    assert len(added) == 1
    captured = capsys.readouterr()
    assert captured.err.count("imported") == 1 and captured.out == ""
    monkeypatch.delitem(sys.modules, added.pop())


def test_a_task_module_is_imported_by_its_dotted_name_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dotted_task_module.py").write_text("marker = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    library.import_modules(["dotted_task_module"])
    assert sys.modules["dotted_task_module"].marker == 1
    monkeypatch.delitem(sys.modules, "dotted_task_module")
    with pytest.raises(EnvironmentSetupError, match=r"'no\.such_module' cannot be imported"):
        library.import_modules(["no.such_module"])


def test_failing_task_module_is_named_with_its_cause(tmp_path: Path) -> None:
    path, before = tmp_path / "broken.py", set(sys.modules)
    for text, cause in (
        (None, "FileNotFoundError"),
        ("import not_installed_anywhere", "ModuleNotFoundError: No module named 'not_installed_anywhere'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def", "SyntaxError"),
    ):
        if text is not None:
            path.write_text(text)
        with pytest.raises(EnvironmentSetupError) as caught:
            library.import_modules([str(path)])
        assert str(path) in str(caught.value) and cause in str(caught.value)
    assert not [name for name in set(sys.modules) - before if name.startswith("task_module_")]


def test_explanation_of_an_error_is_one_line() -> None:
    assert library.explain(ValueError("a\n  b.\n")) == "ValueError: a b", "a sentence goes on after it"
    assert library.explain(AssertionError()) == "AssertionError"
    long = library.explain(ValueError("word " * 1000))
    assert len(long) <= len("ValueError: ") + 300 and long.endswith(" ...")
