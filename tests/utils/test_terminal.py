"""Tables show any text, and a place that cannot be written is named before the work."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.table import Table

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.utils.terminal import (
    Output,
    check_file,
    check_folder,
    print_table,
)

# --- a place that cannot be written is named before the work, and nothing that is there is touched


def test_asking_changes_no_file_and_makes_none(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("kept")
    check_file("--json", old)
    check_file("--json", tmp_path / "new.json", inputs=[old, tmp_path / "other"])
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    assert old.read_text() == "kept"
    for _ in range(2):
        check_folder("--dumps", tmp_path / "a" / "b")
    assert not list((tmp_path / "a" / "b").iterdir())


def test_what_cannot_be_written_is_named_with_its_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for check, names in (
        (check_file, ["", "folder", "file/x.json", "nowhere/x.json"]),
        (check_folder, ["", "file", "file/x"]),
    ):
        for name in names:
            with pytest.raises(EnvironmentSetupError, match=f"^--here: .*{name}"):
                check("--here", name)


def test_an_input_is_not_replaced_under_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text("data")
    (tmp_path / "link").symlink_to("in.jsonl")
    for name in ("in.jsonl", "./in.jsonl", tmp_path / "in.jsonl", "link"):
        with pytest.raises(EnvironmentSetupError, match="would be replaced"):
            check_file("--output", name, inputs=["in.jsonl"])
    with pytest.raises(EnvironmentSetupError, match="would be replaced"):
        check_file("--output", "to/../new", inputs=["new"])


def test_brackets_and_colons_in_tables_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", title="[red]title")
    table.add_row("[/tmp] [bold] :x:", style="bold")
    output = Output()
    print_table(output, table)
    output.print("[/tmp] [bold] :x:")
    assert capsys.readouterr().out.count("[/tmp] [bold] :x:") == 2
