"""An outage and the repeats of an event are a few lines, and counted; attempts become rarer."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from reasoning_gym_environment.utils.outage_log import SUMMARY_EVERY, Outage, RepeatedEvents


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make(clock: Clock, **options: Any) -> Outage:
    values = {"first_delay_s": 1.0, "max_delay_s": 5.0, **options}
    return Outage(logging.getLogger("test"), "The server", clock=clock, **values)


def test_waits_double_up_to_the_longest_and_start_over(clock: Clock) -> None:
    outage = make(clock)
    assert [outage.failed("x") for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    outage.over()
    assert outage.failed("x") == 1.0
    assert [outage.failed("x") for _ in range(2000)][-1] == 5.0


def test_lines_at_the_beginning_every_minute_and_the_end(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    outage = make(clock)
    outage.over()
    assert not outage.is_on and not caplog.text
    for _ in range(130):
        outage.failed("refused.", "do something")
        clock.now += 1
    outage.over()
    assert caplog.messages == [
        "The server is away (refused); do something.",
        "The server is away, for 60 s now (refused); do something.",
        "The server is away, for 120 s now (refused); do something.",
        "The server is back after 130 s.",
    ]
    assert outage.metrics("api") == {"api_outages": 1.0, "api_outage_seconds": 130.0}


def test_metrics_count_the_present_outage_too(clock: Clock) -> None:
    outage = make(clock)
    assert outage.metrics("api") == {}
    outage.failed("x")
    clock.now += 3
    outage.over()
    outage.failed("x")
    clock.now += 4
    assert (outage.is_on, outage.lasted_s) == (True, 4.0)
    assert outage.metrics("api") == {"api_outages": 2.0, "api_outage_seconds": 7.0}


# --- events


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture) -> RepeatedEvents:
    caplog.set_level(logging.WARNING)
    return RepeatedEvents(logging.getLogger("test.repeated"))


def test_the_first_event_of_a_kind_is_logged_in_full_and_every_hundredth_is_a_summary(
    events: RepeatedEvents, caplog: pytest.LogCaptureFixture
) -> None:
    events.summarise()
    assert caplog.messages == [] and events.metrics("x") == {}
    for number in range(2 * SUMMARY_EVERY + 1):
        events.note("a", f"detail {number}.")
    events.note("b", "another")
    assert caplog.messages == [
        "A: detail 0. Further ones are counted.",
        f"A: {SUMMARY_EVERY} times so far; last: detail {SUMMARY_EVERY - 1}.",
        f"A: {2 * SUMMARY_EVERY} times so far; last: detail {2 * SUMMARY_EVERY - 1}.",
        "B: another. Further ones are counted.",
    ]


def test_the_final_summary_names_what_happened_since_the_last_line_with_its_own_last_detail(
    events: RepeatedEvents, caplog: pytest.LogCaptureFixture
) -> None:
    for kind, detail in (("once", "x"), ("often", "1"), ("often", "2"), ("last", "y")):
        events.note(kind, detail)
    caplog.clear()
    events.summarise()
    events.summarise()
    assert caplog.messages == ["Often: 2 times so far; last: 2"]


def test_metrics_of_events_are_counts_under_short_keys(events: RepeatedEvents) -> None:
    events.note("inference failed, a group is lost", "x")
    events.note("inference failed, a group is lost", "y")
    assert events.metrics("train/failures") == {"train/failures_inference_failed": 2.0}
    assert events.last_detail == "y"
