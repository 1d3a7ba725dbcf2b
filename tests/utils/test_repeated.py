"""The first event of a kind is a line; hundreds more are a few lines."""

from __future__ import annotations

import logging

import pytest

from reasoning_gym_environment.utils.outage_log import SUMMARY_EVERY, RepeatedEvents

logger = logging.getLogger("test.repeated")


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture) -> RepeatedEvents:
    caplog.set_level(logging.WARNING)
    return RepeatedEvents(logger)


def test_first_event_is_logged_in_full_and_the_next_ones_are_not(
    events: RepeatedEvents, caplog: pytest.LogCaptureFixture
) -> None:
    events.note("inference failed", "no route.")
    events.note("inference failed", "again")
    assert caplog.messages == ["Inference failed: no route. Further ones are counted."]


def test_each_kind_has_its_own_first_event(events: RepeatedEvents, caplog: pytest.LogCaptureFixture) -> None:
    events.note("a", "1")
    events.note("b", "2")
    assert len(caplog.messages) == 2


def test_every_hundredth_is_a_summary_with_the_last_detail(
    events: RepeatedEvents, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(2 * SUMMARY_EVERY + 1):
        events.note("a", f"detail {number}")
    assert caplog.messages[1:] == [
        f"A: {SUMMARY_EVERY} times so far; last: detail {SUMMARY_EVERY - 1}",
        f"A: {2 * SUMMARY_EVERY} times so far; last: detail {2 * SUMMARY_EVERY - 1}",
    ]


def test_final_summary_names_only_what_happened_since_the_last_line(
    events: RepeatedEvents, caplog: pytest.LogCaptureFixture
) -> None:
    for kind in ("once", "often", "often"):
        events.note(kind, kind)
    caplog.clear()
    events.summarise()
    events.summarise()
    assert caplog.messages == ["Often: 2 times so far; last: often"]


def test_each_kind_is_summarised_with_its_own_last_detail(
    events: RepeatedEvents, caplog: pytest.LogCaptureFixture
) -> None:
    for kind, detail in (("a", "1"), ("a", "2"), ("b", "3")):
        events.note(kind, detail)
    caplog.clear()
    events.summarise()
    assert caplog.messages == ["A: 2 times so far; last: 2"]


def test_nothing_happened_is_no_line(events: RepeatedEvents, caplog: pytest.LogCaptureFixture) -> None:
    events.summarise()
    assert caplog.messages == []
    assert events.metrics("x") == {}


def test_metrics_are_counts_under_short_keys(events: RepeatedEvents) -> None:
    events.note("inference failed, a group is lost", "x")
    events.note("inference failed, a group is lost", "y")
    assert events.metrics("train/failures") == {"train/failures_inference_failed": 2.0}
    assert events.last_detail == "y"
