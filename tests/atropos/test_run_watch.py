"""What `serve` says of itself while it runs: its status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reasoning_gym_environment.records import GroupOutcome
from reasoning_gym_environment.telemetry import alarms
from reasoning_gym_environment.telemetry.telemetry import outcome_words
from testing.simulation import World

from .test_serve_in_simulated_time import Event, serves


def statuses(caplog: pytest.LogCaptureFixture) -> list[list[str]]:
    """The lines of each status in the log."""
    return [message.splitlines() for message in caplog.messages if message.startswith("Status: ")]


def test_a_status_has_at_most_three_lines_and_comes_every_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    serves(130.0, trainer_step_s=1e6, num_eval_samples_per_task=0)
    first, second = statuses(caplog)
    assert re.fullmatch(r"Status: Step 0 of [\d,]+; [\d.]+ groups and [\d,]+ tokens a second", first[0])
    assert re.match(
        r"  The last \d+ groups: reward \d+\.\d%, exact \d+\.\d%, signal \d+\.\d%, unreadable 0\.0%, cut off 0\.0%$",
        first[1],
    )
    assert re.fullmatch(
        r"  Waits for the trainer: the queue is full, and its last step was \d+ s ago; \d+ sent in the last 60 s",
        first[2],
    )
    assert len(first) == len(second) == 3
    # A trainer that makes no step has no time that is left.
    assert re.match(r"Status: Step 0 of [\d,]+, no step for 2 min; 0\.0 groups", second[0])


def test_a_trainer_that_stands_still_has_no_time_that_is_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def plan(world: World) -> list[Event]:
        world.run.state.total_steps = 30
        # All other steps would take some ten seconds.
        return [(20.0, lambda: setattr(world.api, "trainer_step_s", 1e6))]

    serves(70.0, plan, trainer_step_s=1.0, batch_size=4, num_eval_samples_per_task=0)
    [(progress, *_)] = statuses(caplog)
    assert re.match(r"Status: Step \d+ of 30, no step for \d\d s; ", progress), progress


def test_the_status_of_a_run_with_steps_has_the_time_that_is_left_and_says_how_full_the_dumps_are(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_polls: None
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(alarms, "RECENT", 16)

    def plan(world: World) -> list[Event]:
        return [(10.0, lambda: setattr(world.run.evaluator, "newest", "exact 31.2% at step 0"))]

    serves(310.0, plan, dump_rollouts=True, data_dumps_dir=str(tmp_path))
    last = statuses(caplog)[-1]
    assert re.match(r"Status: Step \d+ of [\d,]+, about [^;]+ left; [^;]+; exact 31\.2% at step 0$", last[0])
    assert re.search(r"reward [\d.]+% \([+-][\d.]+\), exact [\d.]+% \([+-][\d.]+\), signal", last[1])
    assert re.search(r"dumps: \d+/100 rollouts", last[2])


def test_no_line_is_about_a_single_group(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = serves(30.0, num_eval_samples_per_task=0)
    assert len(world.started) > 20
    assert not [message for message in caplog.messages if "Drew item" in message or "rewards [" in message]


def test_every_outcome_has_words() -> None:
    assert all(outcome_words(outcome.value).replace(" ", "").isalpha() for outcome in GroupOutcome)


WAITS = (
    r"the completions of \d+ groups"
    r"|the trainer: the queue is full, and its last step was (\d+ s|\d+ min) ago"
    r"|the next item \(in progress: .*\)"
)
"""What a healthy run may wait for."""


@pytest.mark.parametrize(
    ("inference_s", "trainer_step_s", "latency_s"),
    [(0.2, 150.0, 0.0), (40.0, 0.1, 0.0), pytest.param(0.2, 20.0, 0.0, marks=pytest.mark.slow)],
)
def test_a_healthy_run_has_no_alarm_and_every_line_of_its_status_is_true(
    inference_s: float, trainer_step_s: float, latency_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    serves(
        190.0,
        inference=lambda: inference_s,
        trainer_step_s=trainer_step_s,
        latency=lambda: latency_s,
        workers=8,
        num_eval_samples_per_task=0,
    )
    found = statuses(caplog)
    assert len(found) >= 3
    for progress, *others, present in found:
        assert len(others) <= 1 and "ALARM" not in present
        waits = re.match(r"  Waits for (.*?); ", present)
        assert waits is None or re.fullmatch(WAITS, waits[1]), present
        # Without a step for longer than usual, there is no time that is left.
        assert not ("left" in progress and "no step for" in progress)
        ended = re.search(r"([\d.]+) groups and", progress)
        assert ended is not None and (float(ended[1]) > 0) == ("no group ended" not in present), (progress, present)
    assert not [line for line in caplog.messages if "ALARM" in line]
