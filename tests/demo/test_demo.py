"""The demo, as a person runs it, only shorter; what it counts, and what its environment tells it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.demo.main import EVENTS_FD, STAGES, Progress, category_table, main, progress_line

from ..support import PATIENCE_S, running, wait_for

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


@pytest.mark.slow
def test_the_demo_trains_sums_up_and_leaves_only_its_files(tmp_path: Path, marker: str) -> None:
    log = tmp_path / "demo.log"
    with running([*DEMO, "--dumps", marker], log, tmp_path, TMPDIR=str(tmp_path)) as demo:
        assert demo.wait(timeout=PATIENCE_S) == 0, log.read_text()
    text = log.read_text()
    assert "2 training steps" in text
    assert "22 tasks of reasoning-gym" in text
    assert "with a learning signal" in text and "mean difficulty" in text
    assert re.search(r"Of \d+ groups: \d+ sent", text)
    assert list(Path(marker).glob("*.jsonl")) and not list(Path(marker).glob("*.part"))
    assert not processes_mentioning(marker)


@pytest.mark.slow
def test_ctrl_c_stops_the_demo_and_its_processes(tmp_path: Path, marker: str) -> None:
    log = tmp_path / "demo.log"
    with running([*DEMO, "--dumps", marker], log, tmp_path, TMPDIR=str(tmp_path)) as demo:
        wait_for(lambda: len(processes_mentioning(marker)) == 2, "the demo and its environment")
        demo.send_signal(signal.SIGINT)
        assert demo.wait(timeout=PATIENCE_S) == 130
    assert "nothing is left running" in log.read_text()
    assert not processes_mentioning(marker)


def test_options_that_cannot_be_used_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for options, reason in (
        (["--steps", "0"], "--steps: expected a whole number of at least 1"),
        (["--max-seconds", "0"], "--max-seconds must be positive"),
        (["--dumps", str(tmp_path / "file" / "x")], "--dumps: cannot write"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(options)
        assert reason in capsys.readouterr().err


def group(task: str, scores: list[float], complexity: float) -> dict[str, Any]:
    facts = {"task": task, "category": "logic", "level": 1, "complexity": complexity, "sent": True}
    return {**facts, "scores": scores, "signal": len(set(scores)) > 1}


def test_the_summary_compares_the_parts_of_a_run() -> None:
    progress = Progress(total_steps=1)
    assert progress.parts() == [] and "0 groups scored" in progress_line(progress)
    for number in range(2 * STAGES):
        progress.add_group(group(f"task_{number % 2}", [1.0, float(number % 2)], complexity=number / 8))
    parts = progress.parts()
    assert [part.groups for part in parts] == [2] * STAGES
    assert [part.complexity for part in parts] == sorted(part.complexity for part in parts)
    assert (parts[0].accuracy, parts[0].signal_share) == (0.75, 0.5)
    assert parts[0].effective_tasks == pytest.approx(2.0)
    assert "signal 50%  accuracy 75%  2 tasks seen, effective number 2" in progress_line(progress)
    assert progress.by_category()["logic"].groups == 2 * STAGES and category_table(progress).row_count == 1


async def test_the_demo_environment_tells_of_every_item(
    make_env: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not at the top: the other tests here do not need Atropos, nor the time that its import takes.
    from reasoning_gym_environment.demo.environment import DemoEnv

    events = tmp_path / "events.jsonl"
    monkeypatch.setenv(EVENTS_FD, str(os.open(events, os.O_WRONLY | os.O_CREAT)))
    env = make_env(kind=DemoEnv)
    await env.setup()
    before = events.read_text().count('"item"')
    item = await env.get_next_item()
    await env.close()
    told = [json.loads(line) for line in events.read_text().splitlines()]
    items = [event for event in told if event["event"] == "item"]
    assert len(items) == before + 1 and items[-1]["question"] == item[1]["question"]
    assert [told[0]["event"], told[-1]["event"]] == ["ready", "closed"]
