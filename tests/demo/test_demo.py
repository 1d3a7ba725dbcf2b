"""The demo, as a person runs it, only shorter; what it counts, and what its environment tells it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.demo.learner import Checks
from reasoning_gym_environment.demo.main import (
    EVENTS_FD,
    GROUP_SIZE,
    GROUPS_PER_BATCH,
    Evaluated,
    Progress,
    levels,
    main,
    print_summary,
    progress_line,
)
from reasoning_gym_environment.utils.terminal import Output

from ..env_support import ReadyEnv
from ..mock_dialects import ThreadedMockServer
from ..support import PATIENCE_S, running, wait_for

DEMO = ["-m", "reasoning_gym_environment", "demo", "--steps", "2"]
STAGES = ("loading the model", "starting run-api", "making tasks", "before training", "] training", "after training")
INTERVAL = r"[\d.]+%? \[[\d.]+%?, [\d.]+%?\]"
SCORES = {"eval/percent_correct": 0.2, "eval/percent_correct_low": 0.1, "eval/percent_correct_high": 0.3}


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
def test_the_demo_trains_a_real_model_sums_up_and_leaves_only_its_files(tmp_path: Path, marker: str) -> None:
    log = tmp_path / "demo.log"
    with running([*DEMO, "--dumps", marker], log, tmp_path, TMPDIR=str(tmp_path)) as demo:
        assert demo.wait(timeout=PATIENCE_S) == 0, log.read_text()
    text = log.read_text()
    places = [text.index(stage) for stage in STAGES]
    assert places == sorted(places)
    assert "because the 2 steps of --steps are made" in text
    checked = re.search(r"checks passed: (\d+) sequences in (\d+) groups: all whole, masks exact", text)
    assert checked and (int(checked[1]), int(checked[2])) == (2 * GROUPS_PER_BATCH * GROUP_SIZE, 2 * GROUPS_PER_BATCH)
    assert re.search(r"held-out exact, step 0 .*\nheld-out exact, step 2 ", text), (
        "the last evaluation is that of the last weights"
    )
    assert len(re.findall(rf"{INTERVAL} +{INTERVAL}", text)) == 8  # exact and mean score, of all and of three tasks
    assert re.search(r"Of \d+ groups: \d+ sent", text)
    assert list(Path(marker).glob("*.jsonl")) and not list(Path(marker).glob("*.part"))
    assert not processes_mentioning(marker)


@pytest.mark.slow
def test_ctrl_c_stops_the_demo_and_its_processes(tmp_path: Path, marker: str) -> None:
    log = tmp_path / "demo.log"
    with running([*DEMO, "--dumps", marker], log, tmp_path, TMPDIR=str(tmp_path)) as demo:
        wait_for(lambda: len(processes_mentioning(marker)) == 2, "the demo and its environment")
        for _ in range(2):  # also if one does not wait
            demo.send_signal(signal.SIGINT)
            time.sleep(0.1)
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


METRICS = {"eval/exact": 0.2, "eval/exact_low": 0.1, "eval/exact_high": 0.3}


def group(task: str, rewards: list[float], level: int) -> dict[str, Any]:
    counts = {"scored": len(rewards), "exact": rewards.count(1.0)}
    signal = len(set(rewards)) > 1
    return {"event": "group", "task": task, "level": level, "rewards": rewards, "signal": signal, **counts}


def progress_of(steps: int | None = None, groups: int = 99) -> Progress:
    progress = Progress(groups, steps, most_seconds=1e9)
    progress.take("ready", tasks=["gcd", "maze"], questions=9, library="reasoning-gym")
    progress.take("evaluating")
    progress.take("evaluation", metrics=METRICS, last=False)
    return progress


def test_what_was_seen_is_counted_by_task_and_the_run_ends_at_its_first_limit() -> None:
    progress = progress_of(groups=2)
    assert "0 groups" in progress_line(progress) and levels(progress) == {"gcd": 0, "maze": 0}
    assert progress.reason_to_end() == ""
    for event in (group("gcd", [1.0, 0.0], 1), group("gcd", [0.8, 1.0], 2)):
        progress.take(**event)
    assert re.search("2 groups,.* signal 100%  reward 0.70  exact 50%  held-out exact 20.0%", progress_line(progress))
    assert levels(progress) == {"gcd": 2, "maze": 0}
    assert "the 2 groups" in progress.reason_to_end()
    progress = progress_of(steps=3)
    progress.step = 3
    assert "the 3 steps" in progress.reason_to_end()
    progress.most_steps, progress.most_seconds = None, 0.0
    assert "--max-seconds are over" in progress.reason_to_end()


def test_an_evaluation_counts_for_the_step_at_which_it_began() -> None:
    progress = progress_of()
    progress.take("evaluating")
    progress.step = 5
    progress.take("evaluation", metrics=METRICS, last=False)
    assert [one.step for one in progress.evaluations] == [0, 0]


@pytest.mark.parametrize(("groups", "faults", "code"), [(8, {}, 0), (8, {"a group is not whole": 1}, 1), (0, {}, 1)])
def test_a_failed_check_is_the_exit_code(
    groups: int, faults: dict[str, int], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = progress_of()
    progress.ready["tasks"] = []
    progress.evaluations = [Evaluated(0, METRICS | SCORES, False), Evaluated(4, METRICS | SCORES, True)]
    checks = Checks(groups=groups, faults=Counter(faults))
    assert print_summary(Output(), progress, checks, tmp_path) == code
    told = capsys.readouterr().out
    assert f"The trainer's checks {'FAILED' if code else 'passed'}: " in told
    assert all(f"1x {fault}" in told for fault in faults)
    assert "did not rise for certain" in told and "shows no learning" in told


async def test_the_demo_environment_evaluates_before_the_first_group_and_after_the_last(
    ready_env: ReadyEnv, adding_server: ThreadedMockServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not at the top: the other tests here do not need Atropos, nor the time that its import takes.
    from reasoning_gym_environment.demo.environment import DemoEnv

    events = tmp_path / "events.jsonl"
    monkeypatch.setenv(EVENTS_FD, str(os.open(events, os.O_WRONLY | os.O_CREAT)))
    monkeypatch.setattr(os, "kill", lambda process, number: None)
    env = await ready_env(
        adding_server.base_url, kind=DemoEnv, include_tasks="chain_sum", data_dir_to_save_evals=str(tmp_path)
    )
    await env.collect_trajectories(await env.get_next_item())
    env._end_with_evaluation()
    await env.close()
    told = [json.loads(line) for line in events.read_text().splitlines()]
    before = ["setup", "ready", "evaluating", "evaluation"]
    assert [event["event"] for event in told] == [*before, "group", "evaluating", "evaluation", "closed"]
    evaluations = [event for event in told if event["event"] == "evaluation"]
    assert [event["last"] for event in evaluations] == [False, True]
    assert Evaluated(0, evaluations[0]["metrics"], False).estimate(task="chain_sum")[1] >= 0.0
    (scored,) = [event for event in told if event["event"] == "group"]
    assert len(scored["rewards"]) == scored["scored"] == 4 and scored["exact"] == scored["rewards"].count(1.0)
    assert scored["task"] in told[1]["tasks"]
