"""`process` writes exactly the groups asked for, or says why it cannot."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from atroposlib.envs.base import BaseEnvConfig

from reasoning_gym_environment.atropos import preflight
from reasoning_gym_environment.atropos import process as process_command
from reasoning_gym_environment.atropos.process import IDENTITY_SETTINGS
from reasoning_gym_environment.atropos.process import process as run_process
from reasoning_gym_environment.errors import EnvironmentSetupError, InferenceError
from reasoning_gym_environment.records import Completion
from reasoning_gym_environment.run import Mode
from reasoning_gym_environment.settings.environment import ReasoningGymEnvConfig
from reasoning_gym_environment.storage import disk_queue
from reasoning_gym_environment.storage.append_log import AppendLog
from reasoning_gym_environment.telemetry.telemetry import Telemetry
from testing.process_table import until

REPLY = "<think>no</think><answer>not a number</answer>"


def never(number: int) -> bool:
    return False


class FakeInference:
    """Fails the requests whose number `fails(number)`; the others get a wrong answer, after `wait(number)` seconds."""

    def __init__(
        self,
        fails: Callable[[int], bool] = never,
        wait: Callable[[int], float] = lambda number: 0.001,
    ) -> None:
        self.fails, self.wait = fails, wait
        self.asked = self.running = self.most_running = 0
        self.spent: Callable[..., None] = lambda *_: None

    async def complete(self, prompt: Any, sampling: Any, **_: Any) -> list[Completion]:
        number, self.asked = self.asked, self.asked + 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(self.wait(number))
        self.running -= 1
        if self.fails(number):
            raise InferenceError(f"failure of request {number}")
        reply = list(REPLY.encode())
        tokens, masks = [*prompt.tokens, *reply], [-100] * len(prompt.tokens) + reply
        completions = [Completion(REPLY, tokens, masks, None, "stop") for _ in range(sampling.n)]
        self.spent(len(prompt.tokens), len(completions), sum(c.num_completion_tokens for c in completions))
        return completions


@pytest.fixture
def process(make_env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`process(inference, total, concurrency)`: the command, which asks `inference`."""
    monkeypatch.setattr(preflight, "check_offline_use", AsyncMock())

    def make(inference: FakeInference, total: int, concurrency: int = 2, **fields: Any) -> Any:
        values = {"include_tasks": "chain_sum", "num_eval_samples_per_task": 0, "group_size": 3, "total_steps": total}
        values |= {"include_messages": True}
        monkeypatch.setattr(process_command, "CONCURRENT_GROUPS", concurrency)
        env = make_env(**{**values, "data_path_to_save_groups": str(tmp_path / "groups.jsonl"), **fields})
        env.mode = Mode.PROCESS
        env.inference.complete = inference.complete
        inference.spent = env.inference.spending.note
        return SimpleNamespace(env=env, run=lambda: run_process(env))

    return make


def written(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "groups.jsonl"
    return [json.loads(line) for line in path.open(encoding="utf-8")] if path.exists() else []


@pytest.mark.parametrize(
    ("fails", "concurrency", "total"),
    [(never, 50, 4), (lambda number: number % 3 == 0, 3, 7), (lambda number: 5 <= number < 5 + 16, 16, 40)],
)
async def test_exactly_the_groups_asked_for_are_written(
    tmp_path: Path, process: Any, fails: Callable[[int], bool], concurrency: int, total: int
) -> None:
    inference = FakeInference(fails)
    await process(inference, total, concurrency).run()
    groups = written(tmp_path)
    assert len(groups) == len({group["index"] for group in groups}) == total
    assert {len(group["scores"]) for group in groups} == {3}
    assert sum(not fails(number) for number in range(inference.asked)) == total
    assert inference.most_running <= min(concurrency, total)


@pytest.mark.parametrize("has_tokens", [True, False])
async def test_token_ids_that_no_server_reported_are_null_and_the_log_says_so(
    has_tokens: bool, tmp_path: Path, process: Any, caplog: pytest.LogCaptureFixture
) -> None:
    command = process(FakeInference(), 1)
    command.env.inference.adapters[0].has_tokens = has_tokens
    await command.run()
    [group] = written(tmp_path)
    assert (group["tokens"] is None, group["masks"] is None) == (not has_tokens, not has_tokens)
    assert len(group["messages"]) == len(group["scores"]) == 3
    assert ("tokens and masks are null" in caplog.text) is not has_tokens


@pytest.mark.parametrize("mode", [None, "curriculum"])
async def test_a_run_that_was_stopped_is_resumed_and_has_the_groups_of_one_that_was_not(
    tmp_path: Path, process: Any, mode: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = tmp_path / "groups.jsonl"
    # Of another concurrency, and with answers in another order: neither changes the groups.
    random = Random(1)
    await process(FakeInference(wait=lambda number: random.random() * 0.02), 30, 8, complexity_mode=mode).run()
    whole = sorted(path.read_bytes().splitlines())
    path.unlink()
    asked = 0
    for stops_after in (3, 0, 11, 7):
        inference = FakeInference(wait=lambda number, last=stops_after: 0.001 if number < last else 60)
        running = asyncio.ensure_future(process(inference, 30, 4, complexity_mode=mode).run())
        await until(lambda made=inference, last=stops_after: made.asked >= last + min(4, made.running or 4))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        asked += inference.asked
    # Killed while it wrote: the last line is torn.
    path.write_bytes(path.read_bytes()[:-9])
    last = FakeInference()
    await process(last, 30, 4, complexity_mode=mode).run()
    # The line that was torn, and what was in progress at each stop.
    assert 31 <= asked + last.asked <= 31 + 4 * 4
    assert sorted(path.read_bytes().splitlines()) == whole
    assert f"{30 - last.asked} of 30 groups already exist." in caplog.messages
    more = FakeInference()
    await process(more, 30, 4, complexity_mode=mode).run()
    assert more.asked == 0
    await process(more, 32, 4, complexity_mode=mode).run()
    assert more.asked == 2 and len(written(tmp_path)) == 32


async def test_a_file_of_other_settings_is_refused_and_left_alone(tmp_path: Path, process: Any) -> None:
    path = tmp_path / "groups.jsonl"
    await process(FakeInference(), 2).run()
    before = path.read_bytes()
    with pytest.raises(
        EnvironmentSetupError,
        match=r"seed 42 \(now 43\), train_temperature 1.0 \(now 0.5\)",
    ):
        await process(FakeInference(), 3, train_temperature=0.5, seed=43).run()
    assert path.read_bytes() == before


NOT_IN_GROUPS = {
    # How fast groups are made, and what is written and logged beside them.
    "num_generation_workers",
    "num_scoring_workers",
    "limit_tokens",
    "debug_logging",
    "suppress_base_env_logs",
    "dump_rollouts",
    "keep_for_report",
    "dump_failed_rollouts",
    "rollout_save_score_threshold",
    "data_dumps_dir",
    "checkpoint_dir",
    "run_id",
    "rollout_server_url",
    "total_steps",
    "sandbox",
    # Whether a task is refused; it changes nothing about the tasks that are served.
    "allow_unguarded_tasks",
    # Only with a trainer.
    "max_staleness_steps",
    # Evaluation.
    "eval_tasks",
    "num_eval_samples_per_task",
    "eval_seed",
    "eval_completions",
    "eval_temperature",
}
"""Settings that change no group of `process`."""


def test_every_setting_either_determines_the_groups_or_does_not() -> None:
    own = {name for name in ReasoningGymEnvConfig.model_fields if name not in BaseEnvConfig.model_fields}
    own |= {"group_size", "max_token_length"}
    assert own - {"rollout_server_url", "total_steps"} == set(IDENTITY_SETTINGS) | (
        NOT_IN_GROUPS - {"rollout_server_url", "total_steps"}
    )
    assert not set(IDENTITY_SETTINGS) & NOT_IN_GROUPS


async def test_a_limit_of_tokens_ends_a_run_with_what_it_has(tmp_path: Path, process: Any) -> None:
    # A group is some 800 tokens. What is under way when the limit is reached, at most 8 groups, may exceed it.
    limited = process(FakeInference(), 30, 8, limit_tokens=7000)
    await limited.run()
    spent = limited.env.inference.spending
    assert spent.prompt_tokens + spent.completion_tokens >= 7000
    assert 1 <= len(written(tmp_path)) <= 9 + 8
    await process(FakeInference(), 30).run()
    assert len(written(tmp_path)) == 30


async def test_a_run_that_is_stopped_while_groups_are_accepted_ends_and_has_them(
    tmp_path: Path, process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = process(FakeInference(), 50, 3)
    accepting = asyncio.Event()
    being_accepted: list[Any] = []

    async def slowly(group: Any) -> None:
        being_accepted.append(group)
        if len(being_accepted) == 3:
            accepting.set()
        await asyncio.sleep(0.05)

    monkeypatch.setattr(Telemetry, "dump", lambda self, group: slowly(group))
    running = asyncio.ensure_future(stopped.run())
    await accepting.wait()
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=120)
    assert done and running.cancelled()
    assert len(written(tmp_path)) == 3, "what was being accepted is written"


@pytest.mark.parametrize(("concurrency", "good"), [(1, 5), (4, 0)])
async def test_ten_failures_in_a_row_end_the_run_with_the_last_reason(
    tmp_path: Path, process: Any, concurrency: int, good: int
) -> None:
    message = (
        r"^1\d groups in a row could not be sampled: item \d+, chain_sum: failure.* "
        r"start the same command again to resume\.$"
    )
    with pytest.raises(EnvironmentSetupError, match=message):
        await process(FakeInference(lambda number: number >= good), 100, concurrency).run()
    assert len(written(tmp_path)) == good


async def test_a_missing_path_ends_it_with_one_line(process: Any) -> None:
    with pytest.raises(EnvironmentSetupError, match="data_path_to_save_groups"):
        await process(FakeInference(), 2, data_path_to_save_groups=None).run()


# --- a disk that takes no groups


class Disk:
    """The disk of the groups, on which `append` fails with `error`, or hangs, until it is mended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: OSError | None = None
        self.answers = threading.Event()
        self.answers.set()
        self.attempts = 0
        self._append = AppendLog.append
        monkeypatch.setattr(AppendLog, "append", lambda log, record: self._take(log, record))
        monkeypatch.setattr(disk_queue, "RETRY_S", 0.01)
        monkeypatch.setattr(disk_queue, "PATIENCE_S", 1.0)

    def _take(self, log: AppendLog, record: dict[str, Any]) -> None:
        self.attempts += 1
        self.answers.wait(60)
        if self.error is not None:
            raise self.error
        self._append(log, record)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.answers.set()


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("error", [FULL, None])
async def test_groups_wait_for_a_disk_that_is_full_or_hangs_and_no_further_group_starts(
    tmp_path: Path, process: Any, disk: Disk, caplog: pytest.LogCaptureFixture, error: OSError | None
) -> None:
    # Some requests fail. Without a wait, other groups would start in their place.
    inference = FakeInference(fails=lambda number: number % 3 == 2)
    run = process(inference, 30, 8)
    disk.error = error
    if error is None:
        disk.answers.clear()
    running = asyncio.ensure_future(run.run())
    await until(lambda: "The disk of the groups is unavailable" in caplog.text and not inference.running)
    asked = inference.asked
    attempts = disk.attempts
    if error is not None:
        await until(lambda: disk.attempts > attempts + 3)
    assert inference.asked == asked < 12
    assert caplog.text.count("The disk of the groups is unavailable") == 1
    disk.error = None
    disk.answers.set()
    await running
    groups = written(tmp_path)
    assert len(groups) == len({group["index"] for group in groups}) == 30
    assert run.env.run.telemetry.outcomes.metrics()["groups/written"] == 30.0
    assert caplog.text.count("The disk of the groups is back") == 1


async def test_a_run_that_is_stopped_while_the_disk_takes_no_groups_ends_and_counts_them(
    process: Any, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    inference = FakeInference()
    run = process(inference, 30, 4)
    disk.error = FULL
    running = asyncio.ensure_future(run.run())
    await until(lambda: "The disk of the groups is unavailable" in caplog.text)
    await until(lambda: inference.asked == 4 and not inference.running)
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=60)
    assert done and running.cancelled()
    assert "The disk did not take 4 groups, which are lost." in caplog.text
    assert run.env.run.telemetry.outcomes.metrics()["groups/cancelled"] == 4.0


async def test_the_plan_says_how_many_requests_and_tokens_will_follow(
    tmp_path: Path, process: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await process(FakeInference(), 20).run()
    second = process(FakeInference(), 20, data_path_to_save_groups=str(tmp_path / "second.jsonl"))
    second.env.inference.adapters[0].completions_per_request = 1
    await second.run()
    [group, completion] = [message.replace(",", "") for message in caplog.messages if message.startswith("Planned: ")]
    assert group.startswith("Planned: 20 requests ") and completion.startswith("Planned: 60 requests ")
    prompt_tokens = [int(plan.split()[3]) for plan in (group, completion)]
    assert prompt_tokens[1] == 3 * prompt_tokens[0], "each request pays for its prompt"
