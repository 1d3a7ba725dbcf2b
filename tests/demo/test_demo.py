"""The demo, as a person runs it, only shorter; its options and its summary."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from examples.demo.learner import Checks
from examples.demo.main import GROUP_SIZE, GROUPS_PER_BATCH, print_summary
from reasoning_gym_environment.evaluation.results import EvalResults, summarise
from testing.readme import DEMO_OUTPUT, is_printed
from testing.support import PATIENCE_S, running, wait_for

ROOT = Path(__file__).resolve().parents[2]
DEMO = ["-m", "examples.demo", "--steps", "2"]
STAGES = ("loading the model", "questions before training", "starting run-api and serve", "questions after training")
INTERVAL = r"[\d.]+%? \[[\d.]+%?, [\d.]+%?\]"


def processes_mentioning(text: str) -> list[str]:
    """Command lines of living processes that contain `text`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended between listing and reading
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [command for command in found if text in command]


@pytest.fixture
def marker(tmp_path: Path) -> str:
    """A dump folder whose name only this demo's processes mention."""
    return str(tmp_path / f"dumps-{time.monotonic_ns()}")


@pytest.mark.slow
def test_the_demo_trains_a_real_model_sums_up_and_leaves_only_its_files(tmp_path: Path, marker: str) -> None:
    log = tmp_path / "demo.log"
    with running([*DEMO, "--dumps", marker], log, tmp_path, TMPDIR=str(tmp_path), PYTHONPATH=str(ROOT)) as demo:
        assert demo.wait(timeout=PATIENCE_S) == 0, log.read_text()
    text = log.read_text()
    places = [text.index(stage) for stage in STAGES]
    assert places == sorted(places)
    assert "because it reached the limit of 2 steps (--steps)" in text
    checked = re.search(r"checks passed: (\d+) sequences in (\d+) groups: all whole, masks exact", text)
    assert checked and (int(checked[1]), int(checked[2])) == (2 * GROUPS_PER_BATCH * GROUP_SIZE, 2 * GROUPS_PER_BATCH)
    assert len(re.findall(rf"{INTERVAL} +{INTERVAL}", text)) == 4  # of all and of three tasks
    # Two steps neither reach the limit that the README names, nor teach the model anything.
    shown = [line for line in DEMO_OUTPUT.splitlines() if not re.search("limit of|learned|training: step", line)]
    assert len(shown) > 5 and [line for line in shown if not is_printed(line, text)] == []
    assert len(re.findall(r"\] +0 to \d+$", text, re.MULTILINE)) == 3, "the level of each task at the end"
    assert list(Path(marker).glob("*.jsonl"))
    assert not processes_mentioning(marker)


@pytest.mark.slow
def test_ctrl_c_stops_the_demo_and_its_processes(tmp_path: Path, marker: str) -> None:
    log = tmp_path / "demo.log"
    with running([*DEMO, "--dumps", marker], log, tmp_path, TMPDIR=str(tmp_path), PYTHONPATH=str(ROOT)) as demo:
        wait_for(lambda: len(processes_mentioning(marker)) == 2, "the demo and its evaluation")
        for _ in range(2):  # also if one does not wait
            demo.send_signal(signal.SIGINT)
            time.sleep(0.1)
        assert demo.wait(timeout=PATIENCE_S) == 130
    assert "All processes of the demo have ended" in log.read_text()
    assert not processes_mentioning(marker)


def results(right: int) -> EvalResults:
    about = {"task": "gcd", "category": "arithmetic", "attempt": 0, "finish_reason": "stop", "num_completion_tokens": 5}
    scores = [float(number < right) for number in range(40)]
    return summarise([{**about, "question_digest": str(at), "score": score} for at, score in enumerate(scores)])


def test_a_failed_check_is_the_exit_code_and_a_rise_is_what_intervals_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty = Checks(groups=8, faults=Counter({"a group is not whole": 1}))
    for right, checks, code, told in (
        (30, Checks(groups=8), 0, "rose, and the 95 % intervals do not overlap"),
        (7, Checks(groups=8), 0, "does not show learning"),
        (30, faulty, 1, "checks FAILED: 1x a group is not whole"),
        (30, Checks(), 1, "no batch arrived"),
    ):
        assert print_summary(results(5), results(right), checks, tmp_path, tmp_path) == code
        assert told in capsys.readouterr().out
