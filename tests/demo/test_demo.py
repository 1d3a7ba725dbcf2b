"""The demo, as a person runs it, only shorter."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from ..support import running, wait_for

DEMO = ["-m", "reasoning_gym_environment", "demo", "--steps", "2"]


def processes_mentioning(text: str) -> list[str]:
    """Command lines of living processes that contain `text`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it ended between listing and reading
            continue
        if text in command:
            found.append(command)
    return found


@pytest.fixture
def marker(tmp_path: Path) -> str:
    """A dump folder whose name only this demo's processes mention."""
    return str(tmp_path / f"dumps-{time.monotonic_ns()}")


def test_the_demo_trains_sums_up_and_leaves_only_its_files(tmp_path: Path, marker: str) -> None:
    log = tmp_path / "demo.log"
    with running([*DEMO, "--dumps", marker], log, tmp_path, TMPDIR=str(tmp_path)) as demo:
        assert demo.wait(timeout=90) == 0, log.read_text()
    text = log.read_text()
    assert "2 training steps" in text
    assert "22 tasks of reasoning-gym" in text
    assert "with a learning signal" in text and "mean difficulty" in text
    assert re.search(r"Of \d+ groups: \d+ sent", text)
    assert list(Path(marker).glob("*.jsonl")) and not list(Path(marker).glob("*.part"))
    assert not processes_mentioning(marker)


def test_ctrl_c_stops_the_demo_and_its_processes(tmp_path: Path, marker: str) -> None:
    log = tmp_path / "demo.log"
    with running([*DEMO, "--dumps", marker], log, tmp_path, TMPDIR=str(tmp_path)) as demo:
        wait_for(lambda: len(processes_mentioning(marker)) == 2, "the demo and its environment")
        demo.send_signal(signal.SIGINT)
        assert demo.wait(timeout=30) == 130
    assert "nothing is left running" in log.read_text()
    assert not processes_mentioning(marker)


def test_bad_options_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    with running(["-m", "reasoning_gym_environment", "demo", "--steps", "0"], log, tmp_path) as demo:
        assert demo.wait(timeout=30) == 2
    assert "--steps: expected a whole number of at least 1" in log.read_text()


def test_a_place_for_dumps_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    with running([*DEMO, "--dumps", str(log / "x")], log, tmp_path) as demo:
        assert demo.wait(timeout=30) == 2
    assert "--dumps: cannot write" in log.read_text()
