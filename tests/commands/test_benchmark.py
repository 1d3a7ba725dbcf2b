"""The held-out questions that `export` wrote are made again, and a check finds each difference."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow
import pyarrow.parquet
import pytest

from reasoning_gym_environment import cli
from reasoning_gym_environment.commands import benchmark, export
from reasoning_gym_environment.commands.dataset_folder import CARD
from reasoning_gym_environment.errors import EnvironmentSetupError

TASKS = "chain_sum,spell_backward"
CHOICE = ("--items", "eval", "--tasks", TASKS, "--eval-tasks", "all", "--per-task", "2")


def exported(folder: Path, *options: str) -> Path:
    assert export.main(["--to", str(folder), *CHOICE, *options]) == 0
    return folder


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(folder / benchmark.QUESTIONS).to_pylist()
    return rows


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / benchmark.QUESTIONS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("benchmark") / "set", "--eval-complexity", "0.5")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of the set, which a test may change."""
    copy = tmp_path / "set"
    shutil.copytree(made, copy)
    return copy


def test_a_check_accepts_what_export_wrote(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["--check", str(made)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("All 4 questions are the same here: manifest ")
    manifest = said.rstrip(".\n").split()[-1]
    assert f"**Manifest**: `{manifest}`" in (made / CARD).read_text(encoding="utf-8")


@pytest.mark.usefixtures("in_process_workers")
def test_a_check_finds_what_differs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(folder)
    rows[0]["question_digest"] = "0" * 16
    rows[3]["config"] = '{"letters": 3}'
    write(folder, rows)
    assert benchmark.main(["--check", str(folder)]) == 1
    told = capsys.readouterr()
    assert told.out.startswith("3 differences. This machine has reasoning-gym ")
    prompt, chain_sum, spell_backward = told.err.splitlines()[-3:]
    assert prompt.startswith("chain_sum, seed ") and "the prompt and the digest do not match" in prompt
    assert chain_sum.startswith("chain_sum, seed ") and "another question" in chain_sum
    assert "'letters'" in spell_backward


@pytest.mark.usefixtures("in_process_workers")
def test_a_prompt_that_was_edited_is_a_difference(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(folder)
    rows[1]["prompt"][-1]["content"] += " "
    write(folder, rows)
    assert benchmark.main(["--check", str(folder)]) == 1
    assert capsys.readouterr().out.startswith("1 differences.")


@pytest.mark.usefixtures("in_process_workers")
def test_a_question_that_is_missing_changes_the_manifest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(folder)
    write(folder, rows[1:])
    assert benchmark.main(["--check", str(folder)]) == 1
    assert "but a different manifest in" in capsys.readouterr().err


def test_a_file_without_questions_is_refused(folder: Path) -> None:
    [row, *_] = rows_of(folder)
    recipe = {name: value for name, value in row.items() if name != "prompt"}
    for rows in ([{"question": "1 or 2?"}], [recipe], [{**row, "prompt": []}], [{**row, "config": "[]"}]):
        write(folder, rows)
        with pytest.raises(EnvironmentSetupError, match=r"export --items"):
            benchmark.main(["--check", str(folder)])
    (folder / benchmark.QUESTIONS).write_text("torn")
    with pytest.raises(EnvironmentSetupError, match=r"expected held-out questions of `export --items eval`"):
        benchmark.main(["--check", str(folder)])


def test_a_check_of_another_folder_says_what_it_expected(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match="expected held-out questions of `export --items eval`"):
        benchmark.main(["--check", str(tmp_path)])


def test_a_missing_library_is_reported_in_one_line(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SystemExit) as end:
        cli.main(["benchmark", "--check", str(made)])
    assert end.value.code == 2
    assert "benchmark needs pyarrow" in capsys.readouterr().err


def test_the_current_folder_is_not_meant_by_an_empty_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.main(["--check="])
    assert "argument --check: expected the name of a file or a folder, got ''" in capsys.readouterr().err


def test_every_error_of_pyarrow_about_a_damaged_file_is_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Random damage of a file causes each of them. It might also crash pyarrow, and the tests with it.
    for error in (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, pyarrow.ArrowTypeError, UnicodeDecodeError):
        arguments = ("utf-8", b"", 0, 1, "damaged") if error is UnicodeDecodeError else ("damaged",)
        monkeypatch.setattr(pyarrow.parquet, "read_table", Mock(side_effect=error(*arguments)))
        with pytest.raises(EnvironmentSetupError, match="they cannot be read"):
            benchmark.main(["--check", str(folder)])
