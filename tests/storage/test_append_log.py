"""One writer, whole lines, the same settings; nothing that was accepted is lost, whatever the disk does."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.storage.append_log import AppendLog, BrokenLineError, read_object

SETTINGS = {"model": "a", "seed": 1}


def opened(path: Path, settings: dict[str, Any] | None = None, **options: Any) -> AppendLog:
    return AppendLog(path, settings, key=lambda record: record["n"], keep=lambda record: record.get("v"), **options)


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "log.jsonl"


def test_records_are_there_at_once_and_a_resumed_log_knows_which_are_done(path: Path) -> None:
    log = opened(path)
    for n in (2, 1):
        log.append({"n": n, "v": f"text {n}\n\u2028\ud800"})
        assert numbers(path)[-1] == n
    log.close()
    log.close()
    resumed = opened(path)
    assert log.done == {} and resumed.done == {2: "text 2\n\u2028\ud800", 1: "text 1\n\u2028\ud800"}
    resumed.append({"n": 0})
    assert (resumed.count, resumed.size) == (3, path.stat().st_size)
    resumed.close()
    assert numbers(path) == [2, 1, 0] and list(path.parent.iterdir()) == [path]
    with pytest.raises(ValueError, match="closed"):
        resumed.append({"n": 3})


def test_other_settings_are_refused_with_what_differs_and_the_file_is_left_alone(path: Path) -> None:
    log = opened(path, SETTINGS)
    log.append({"n": 1, "settings": SETTINGS})
    log.close()
    before = path.read_bytes()
    assert opened(path, {"seed": 1}).done == {1: None}, "only what is given now is compared"
    expected = f"{path} was made with other settings: model a (now b), t unknown (now 0.5). Do something."
    with pytest.raises(EnvironmentSetupError, match=re.escape(expected)):
        opened(path, {"model": "b", "seed": 1, "t": 0.5}, remedy="Do something.")
    assert path.read_bytes() == before


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


def test_a_second_writer_is_refused(path: Path) -> None:
    log = opened(path)
    log.append({"n": 0})
    refused = rf"{path}: another run writes there\."
    with pytest.raises(EnvironmentSetupError, match=refused):
        opened(path)
    log.close()
    assert list(opened(path).done) == [0]


def test_an_interrupt_anywhere_in_an_append_never_costs_a_record(tmp_path: Path) -> None:
    def interrupt_at(line: int) -> Any:
        steps = 0

        def trace(frame: Any, event: str, argument: Any) -> Any:
            nonlocal steps
            if frame.f_code is not AppendLog.append.__code__:
                return None
            steps += event == "line"
            if event == "line" and steps == line:
                raise KeyboardInterrupt
            return trace

        return trace

    for line in range(1, 40):
        path = tmp_path / f"{line}.jsonl"
        log = opened(path)
        before = sys.gettrace()
        sys.settrace(interrupt_at(line))
        try:
            log.append({"n": 1})
            was_interrupted = False
        except KeyboardInterrupt:
            was_interrupted = True
        finally:
            sys.settrace(before)
        log.append({"n": 2})
        log.close()
        resumed = opened(path)
        assert 2 in resumed.done and resumed.size == path.stat().st_size
        resumed.close()
        if not was_interrupted:
            return
    raise AssertionError("expected an append of fewer lines")


_WRITE_FOR_EVER = """
log = AppendLog(Path(sys.argv[1]))
for n in range(10**9):
    log.append({"n": n, "text": "x" * 20000})
    print(n, flush=True)
"""


def test_kill_9_at_any_moment_loses_no_record_that_was_accepted(path: Path) -> None:
    moments = random.Random(1)
    for _ in range(3):
        path.unlink(missing_ok=True)
        code = f"import sys\nfrom {AppendLog.__module__} import *\n{_WRITE_FOR_EVER}"
        child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(moments.uniform(0.0, 0.1))
        os.kill(child.pid, signal.SIGKILL)
        accepted = 1 + len(child.stdout.read().splitlines())
        child.wait()
        found = list(opened(path).done)
        # Nobody may have lived to print the last one.
        assert found in (list(range(accepted)), list(range(accepted + 1)))


def test_what_is_wrong_with_a_broken_line_is_named() -> None:
    no_json = (b"", b"text", b"\xff\xfe", b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}")
    for line, fault in [(b"[]", "no JSON object"), *((line, "no JSON") for line in no_json)]:
        with pytest.raises(BrokenLineError, match=fault):
            read_object(line)
