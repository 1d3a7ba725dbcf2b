"""An outage and the repeats of an event are a few lines, and counted; attempts become rarer."""

from __future__ import annotations

import logging

import pytest

from reasoning_gym_environment.utils.outage_log import SUMMARY_EVERY, Outage, RepeatedEvents

LOGGER = logging.getLogger("test")


def test_waits_double_up_to_the_longest_and_start_over() -> None:
    outage = Outage(LOGGER, "The server", first_delay_s=1.0, max_delay_s=5.0)
    assert [outage.failed("x") for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    outage.over()
    assert outage.failed("x") == 1.0


def test_an_outage_is_told_at_the_beginning_every_minute_and_at_the_end_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [100.0]
    outage = Outage(LOGGER, "The server", clock=lambda: now[0])
    outage.over()
    assert (outage.is_on, caplog.text, outage.metrics("api")) == (False, "", {})
    for _ in range(130):
        outage.failed("refused.", "do something")
        now[0] += 1
    outage.over()
    assert caplog.messages == [
        "The server is unavailable (refused); do something.",
        "The server is unavailable, for 60 s now (refused); do something.",
        "The server is unavailable, for 120 s now (refused); do something.",
        "The server is back after 130 s.",
    ]
    outage.failed("x")
    now[0] += 4
    assert (outage.is_on, outage.lasted_s) == (True, 4.0)
    assert outage.metrics("api") == {"api_outages": 2.0, "api_outage_seconds": 134.0}


def test_the_first_event_of_a_kind_is_told_in_full_and_every_hundredth_and_the_end_in_sum(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = RepeatedEvents(LOGGER)
    events.summarise()
    assert events.metrics("x") == {}
    for number in range(SUMMARY_EVERY + 2):
        events.note("a failed, its group is lost", f"detail {number}.")
    events.note("b", "another")
    events.summarise()
    events.summarise()
    assert caplog.messages == [
        "A failed, its group is lost: detail 0. Further ones are counted.",
        "A failed, its group is lost: 100 times so far; last: detail 99.",
        "B: another. Further ones are counted.",
        "A failed, its group is lost: 102 times so far; last: detail 101.",
    ]
    assert events.metrics("train") == {"train_a_failed": 102.0, "train_b": 1.0}
    assert events.last_detail == "another"
