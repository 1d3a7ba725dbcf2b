"""What a killed run left behind is completed at the next start; what a living one is writing is left alone."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.training_log.dump_files import hold, recover_parts
from reasoning_gym_environment.training_log.dumps import FILE_STEM, RolloutWriter

LINE = b'{"item_id": "gcd"}\n'
NAME = f"{FILE_STEM}_rollouts_run_0000.jsonl"


def part(folder: Path, data: bytes, name: str = NAME) -> Path:
    path = folder / f"{name}.part"
    path.write_bytes(data)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_part_of_whole_lines_gets_its_final_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    part(tmp_path, LINE * 3)
    [final] = recover_parts(tmp_path)
    assert names(tmp_path) == [NAME]
    assert final.read_bytes() == LINE * 3
    assert "3 groups of a run that was killed" in caplog.text


@pytest.mark.parametrize("torn", [b'{"item_id": "g', b'{"item_id": "g\n', b"\x00\x00\n"])
def test_a_torn_last_line_is_set_aside_and_not_invented(tmp_path: Path, torn: bytes) -> None:
    part(tmp_path, LINE * 2 + torn)
    [final] = recover_parts(tmp_path)
    assert final.read_bytes() == LINE * 2
    assert (tmp_path / f"{NAME}.torn").read_bytes() == torn


def test_a_file_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"older\n")
    part(tmp_path, LINE)
    [final] = recover_parts(tmp_path)
    assert (tmp_path / NAME).read_bytes() == b"older\n"
    assert (final.name, final.read_bytes()) == (NAME.replace("0000", "0000_1"), LINE)


def test_other_files_and_empty_parts_are_left_alone(tmp_path: Path) -> None:
    part(tmp_path, b"")
    part(tmp_path, LINE, name="somebody_else.jsonl")
    before = names(tmp_path)
    assert recover_parts(tmp_path) == []
    assert recover_parts(tmp_path / "missing") == []
    assert names(tmp_path) == before


def test_the_part_of_a_living_writer_is_left_alone(tmp_path: Path, make_group: Any) -> None:
    writer = RolloutWriter(tmp_path, "run", kind="rollouts", threshold=5, version="0")
    writer.add(make_group([1.0, 0.0]))
    assert recover_parts(tmp_path) == []
    writer.add(make_group([1.0, 0.0]))
    writer.close()
    assert [len((tmp_path / name).read_text().splitlines()) for name in names(tmp_path)] == [2]


def test_a_start_that_looks_at_a_new_part_does_not_leave_its_writer_without_a_lock(tmp_path: Path) -> None:
    path = part(tmp_path, b"")
    with path.open("ab") as new, path.open("rb") as other:
        fcntl.flock(other.fileno(), fcntl.LOCK_EX)
        holding = threading.Thread(target=hold, args=(new,))
        holding.start()
        time.sleep(0.05)
        fcntl.flock(other.fileno(), fcntl.LOCK_UN)
        holding.join()
        with pytest.raises(BlockingIOError):
            fcntl.flock(other.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_part_that_cannot_be_completed_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / f"{NAME}.part").mkdir()
    assert recover_parts(tmp_path) == []
    assert "could not be completed" in caplog.text


_WRITE_FOR_EVER = """
import sys
from pathlib import Path
from reasoning_gym_environment.records import Completion, Outcome, Problem, Rollout, RolloutGroup, Score
from reasoning_gym_environment.training_log.dumps import RolloutWriter
problem = Problem("gcd", "arithmetic", "train", 0, 1, {}, {"question": "q", "answer": "a", "metadata": {}})
text = Completion("x" * 5000, [1], [1], None, "stop")
rollouts = [Rollout(text, Score(1.0, Outcome.CORRECT), 1.0)] * 4
writer = RolloutWriter(Path(sys.argv[1]), sys.argv[2], kind="rollouts", threshold=40, version="0")
number = 0
while True:
    writer.add(RolloutGroup(problem, [{"role": "user", "content": str(number)}], rollouts))
    number += 1
    print(number, flush=True)
"""


def test_kill_9_at_any_moment_loses_no_group_that_was_accepted(tmp_path: Path) -> None:
    moments = random.Random(1)
    accepted = {}
    for number in range(5):
        run = f"run{number}"
        child = subprocess.Popen([sys.executable, "-c", _WRITE_FOR_EVER, str(tmp_path), run], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(moments.uniform(0.0, 0.2))
        os.kill(child.pid, signal.SIGKILL)
        accepted[run] = 1 + len(child.stdout.read().splitlines())
        child.wait()
    recover_parts(tmp_path)
    # Killed between making a part and writing to it.
    assert all(path.stat().st_size == 0 for path in tmp_path.glob("*.part"))
    for run, count in accepted.items():
        lines = [line for path in sorted(tmp_path.glob(f"*_{run}_*.jsonl")) for line in path.read_text().splitlines()]
        found = [int(json.loads(line)["rollouts"][0]["conversation"][0]["content"]) for line in lines]
        # The last line may have been printed by nobody any more.
        assert found in (list(range(count)), list(range(count + 1)))
