"""What `serve` says of itself while it runs: the status block, and the alarms about requests and items."""

from __future__ import annotations

import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from reasoning_gym_environment.atropos import run_watch
from reasoning_gym_environment.atropos.run_watch import LOOKED_BACK_S, RunWatch, Total, items_not_made
from reasoning_gym_environment.atropos.status import duration, outcome_words
from reasoning_gym_environment.telemetry.telemetry import GroupOutcome

from .test_serve_in_simulated_time import serves


def test_a_status_block_has_at_most_six_lines_and_comes_every_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    serves(130.0, trainer_step_s=1e6, num_eval_samples_per_task=0)
    blocks = [message.splitlines() for message in caplog.messages if message.startswith("Status: ")]
    assert len(blocks) == 2 and all(len(lines) <= 6 for lines in blocks)
    first, second = blocks
    assert re.fullmatch(r"Status: Step 0 of [\d,]+; [\d.]+ groups and [\d,]+ tokens a second", first[0])
    assert any(
        re.match(r"  The last \d+ groups: reward \d\.\d\d, exact \d+\.\d%, \d+% with a signal", line) for line in first
    )
    assert any(re.match(r"  Groups in the last 60 s: \d+ sent", line) for line in first)
    assert "Waits for the trainer: the queue is full, and its last step was" in second[-1]


def test_the_log_steps_of_the_trainer_show_blocks_with_the_time_that_is_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    serves(90.0, num_eval_samples_per_task=0)
    blocks = [message for message in caplog.messages if message.startswith("Status: ")]
    assert 3 <= len(blocks) <= 5
    assert re.search(r"Step \d+ of [\d,]+, about .* left; ", blocks[-1])


def test_no_line_is_about_a_single_group(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = serves(30.0, num_eval_samples_per_task=0)
    assert len(world.started) > 20
    assert not [message for message in caplog.messages if "Drew item" in message or "mean reward 0" in message]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (89.0, "89 s"), (95.0, "2 min"), (5_000.0, "83 min"), (7_500.0, "2 h 5 min")]
)
def test_durations_are_read_at_a_glance(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_requests_that_get_no_answer_in_time_are_an_alarm_while_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    time = [0.0]
    monkeypatch.setattr(run_watch, "now", lambda: time[0])
    counts = Counter[str]()
    answered = [0]
    watch = RunWatch.__new__(RunWatch)
    watch._run = SimpleNamespace(config=SimpleNamespace(worker_timeout=600.0))  # type: ignore[assignment]
    watch._timeouts = Total(lambda: counts["requests_timed_out"])
    watch._answers = Total(lambda: answered[0])

    def look(timeouts: int, answers: int) -> str:
        for _ in range(12):
            time[0] += LOOKED_BACK_S / 12
            counts["requests_timed_out"] += timeouts
            answered[0] += answers
            watch._timeouts.note()
            watch._answers.note()
        return watch._slow_requests()

    assert look(0, 5) == ""
    assert look(1, 100) == ""
    text = look(2, 5)
    assert "env.worker_timeout, 600 s, in the last 2 min" in text
    assert look(0, 5) == ""


def test_a_task_whose_items_cannot_be_used_is_named() -> None:
    skipped = Counter({"too_long/maze": 9, "timeout/maze": 3, "too_long/gcd": 20})
    groups = {"maze": 2, "gcd": 500}
    run: Any = SimpleNamespace(
        stream=SimpleNamespace(skipped=skipped),
        telemetry=SimpleNamespace(outcomes=SimpleNamespace(of_task=lambda task: groups[task])),
    )
    assert "Most items of maze (12 items skipped, 2 groups) cannot be used." in items_not_made(run)
    skipped.clear()
    assert items_not_made(run) == ""


def test_every_outcome_has_words() -> None:
    assert all(outcome_words(outcome.value).replace(" ", "").isalpha() for outcome in GroupOutcome)
