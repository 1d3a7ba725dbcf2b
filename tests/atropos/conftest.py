"""Fixtures for runs in simulated time."""

from __future__ import annotations

import pytest

from reasoning_gym_environment.atropos import serve_loop


@pytest.fixture
def few_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests for the status, for tests of long runs."""
    monkeypatch.setattr(serve_loop, "TICK_S", 1.0)
