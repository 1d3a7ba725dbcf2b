"""Started tasks for the tests of integrations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reasoning_gym_environment import Tasks, runtime
from testing.in_process import InProcessGenerator, InProcessGrader


@pytest.fixture(scope="session")
def tasks_in_process() -> Iterator[Tasks]:
    """Tasks that make and grade their items in this process. They have items with tuples and nested configs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "SandboxGrader", InProcessGrader)
        patch.setattr(runtime, "ProcessGenerator", InProcessGenerator)
        tasks = Tasks("arc_agi,chain_sum,complex_arithmetic,rearc")
    with tasks:
        yield tasks
