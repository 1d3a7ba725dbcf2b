"""A disk that hangs holds up neither the groups nor the end, takes no more memory, and gets all of them in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.atropos import shutdown as lifecycle
from reasoning_gym_environment.training_log import dumps as rollout_dumps
from reasoning_gym_environment.training_log.dumps import FAILED, ROLLOUTS, RolloutDumps, RolloutWriter

from ..env_support import RIGHT, WRONG, dumped, rollout


@pytest.fixture
def goes_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until it is set, no line is taken and none refused."""
    goes_on = threading.Event()
    append = RolloutWriter._append

    def hang(writer: RolloutWriter, line: bytes) -> None:
        goes_on.wait(60)
        append(writer, line)

    monkeypatch.setattr(RolloutWriter, "_append", hang)
    monkeypatch.setattr(rollout_dumps, "PATIENCE_S", 0.02)
    monkeypatch.setattr(lifecycle, "STEP_S", 0.2)
    yield goes_on
    goes_on.set()


async def test_groups_go_on_and_are_written_in_order_when_the_disk_does(
    tmp_path: Path, make_group: Any, goes_on: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    dumps = RolloutDumps(tmp_path, "run", kinds=[ROLLOUTS, FAILED], version="0")
    for index in range(6):
        await asyncio.wait_for(dumps.add(make_group([1.0], index=index), (ROLLOUTS, FAILED)[index % 2]), 30)
    metrics = dumps.metrics()
    assert (metrics["dumps/rollouts_waiting"], metrics["dumps/FAILED_rollouts_waiting"]) == (3.0, 3.0)
    assert metrics["dumps/disk_outages"] == 1.0
    goes_on.set()
    await dumps.add(make_group([1.0], index=6), ROLLOUTS)
    await dumps.close()
    assert [line["index"] for line in dumped(tmp_path, "*_rollouts_run_*.jsonl") if line["index"] % 2 == 0] == [
        0,
        2,
        4,
        6,
    ]
    assert [line["index"] for line in dumped(tmp_path, "*_FAILED_*.jsonl")] == [1, 3, 5]
    assert caplog.text.count("The disk of the dumps is away") == caplog.text.count("The disk of the dumps is back") == 1


@pytest.mark.parametrize("most", [10, 2000])
async def test_what_waits_for_a_disk_that_hangs_is_bounded(
    tmp_path: Path, make_group: Any, goes_on: threading.Event, most: int
) -> None:
    dumps = RolloutDumps(tmp_path, "run", kinds=[ROLLOUTS], version="0")
    dumps._writers[ROLLOUTS]._max_waiting_bytes = most
    for index in range(20):
        await dumps.add(make_group([1.0], index=index), ROLLOUTS)
    metrics = dumps.metrics()
    assert 1 <= metrics["dumps/rollouts_waiting"] <= 4
    assert metrics["dumps/rollouts_waiting"] + metrics["dumps/rollouts_dropped"] == 20
    goes_on.set()
    await dumps.close()
    assert len(dumped(tmp_path, "*.jsonl")) == metrics["dumps/rollouts_waiting"]


async def test_training_and_its_end_do_not_wait_for_a_disk_that_hangs(
    make_env: Any, goes_on: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    env = make_env(num_eval_samples_per_task=0, dump_rollouts=True)
    await env.setup()
    item = await env.get_next_item()
    group = await asyncio.wait_for(env.score([rollout(item, text) for text in (RIGHT, WRONG, RIGHT, WRONG)]), 30)
    assert group is not None
    await asyncio.wait_for(env.close(), 30)
    assert "At the end, finishing the dumps was left" in caplog.text
