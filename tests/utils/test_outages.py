"""An outage is reported when it begins, once a minute, and when it ends; attempts become rarer."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from reasoning_gym_environment.utils.outage_log import Outage


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
