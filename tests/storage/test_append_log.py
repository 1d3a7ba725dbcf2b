"""One writer, whole lines, the same settings; nothing that was accepted is lost, whatever the disk does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.storage.append_log import AppendLog, BrokenLineError, read_object


def opened(path: Path, settings: dict[str, Any] | None = None, **options: Any) -> AppendLog:
    return AppendLog(path, settings, key=lambda record: record["n"], keep=lambda record: record.get("v"), **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "log.jsonl"


OWN = '{"n": 1, "settings": {"seed": 1}}\n'


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ('{"n": 1, "settings": 3}\n', "line 1 does not say how it was made"),
        (f"{OWN}not json\n{OWN}", "line 2: no JSON"),
        (f"{OWN}not json\n", "line 2: no JSON"),
        ("the notes of somebody", "line 1: no JSON"),
        ("the notes of somebody\n", "line 1: no JSON"),
    ],
)
def test_files_of_others_are_refused_and_left_alone(path: Path, lines: str, reason: str) -> None:
    path.parent.mkdir()
    path.write_text(lines)
    with pytest.raises(EnvironmentSetupError, match=f"cannot be resumed: {reason}"):
        opened(path, {"seed": 1})
    assert path.read_text() == lines


def test_what_is_wrong_with_a_broken_line_is_named() -> None:
    no_json = (b"", b"text", b"\xff\xfe", b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}")
    for line, fault in [(b"[]", "no JSON object"), *((line, "no JSON") for line in no_json)]:
        with pytest.raises(BrokenLineError, match=fault):
            read_object(line)
