"""The end of `serve` with groups at every stage, over real connections, workers and signals."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos import serve_loop
from reasoning_gym_environment.trainer import run_api as trainer_api
from reasoning_gym_environment.utils.saved_state import state_of
from testing.fake_api import FakeApi
from testing.inference_server import MockServer
from testing.process_table import linux_only

GROUP_SIZE = 2
GROUPS = 4
"""Groups at each stage when the signal comes."""

REPLY = "<think>I work it out.</think><answer>42</answer>"


async def exit_code(command: Awaitable[None]) -> Any:
    """The code with which a command ends this process."""
    try:
        await command
    except SystemExit as end:
        return end.code
    return 0


async def until(is_reached: Callable[[], bool], serving: asyncio.Task[Any]) -> None:
    """Wait for a condition, and raise what ends `serve` before."""
    while not is_reached():
        assert not serving.done(), f"serve has ended with {serving.result()}"
        await asyncio.sleep(0.01)


def stop_processes(workers: Any) -> None:
    """Stop these workers without ending them, so that every request to them stays unanswered."""
    for worker in workers:
        os.kill(worker.pid, signal.SIGSTOP)


def latest_state(folder: Path) -> dict[str, Any]:
    """The state in the last checkpoint below `folder`."""
    [latest] = folder.glob("env_checkpoints/*/latest.json")
    state: dict[str, Any] = json.loads(latest.read_text())["reasoning_gym_environment"]["state"]
    return state


@pytest.mark.slow
@linux_only
async def test_a_signal_with_groups_at_every_stage_loses_no_item_and_is_no_error(
    make_real_env: Callable[..., ReasoningGymEnv],
    byte_tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(serve_loop, "GRACE_S", 0.5)
    monkeypatch.setattr(trainer_api, "CLOSE_S", 0.5)
    unhandled: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    # The first request of `serve` is not of a group.
    replies = asyncio.Semaphore(GROUP_SIZE)

    async def respond(prompt: str) -> str:
        await replies.acquire()
        return REPLY

    def answer_groups(count: int) -> None:
        for _ in range(count * GROUP_SIZE):
            replies.release()

    server = MockServer(respond, byte_tokenizer)
    api = FakeApi(batch_size=10_000, max_token_len=-1, checkpoint_dir=str(tmp_path), checkpoint_interval=5)
    api.takes = GROUPS
    await server.start()
    await api.listen()
    env = make_real_env(
        server.base_url,
        rollout_server_url=api.address,
        group_size=GROUP_SIZE,
        ensure_scores_are_not_same=False,
        max_num_workers=10 * GROUPS,
        num_eval_samples_per_task=0,
        num_scoring_workers=2,
        num_generation_workers=1,
        dump_rollouts=True,
        rollout_save_score_threshold=0.0,
    )
    serving = asyncio.create_task(exit_code(env.env_manager()))
    try:
        # Some groups are delivered, and others are being sent.
        answer_groups(2 * GROUPS)
        await until(lambda: api.held == GROUPS, serving)
        # Others have their completions and are being graded.
        stop_processes(env.run.runtime.grader._pool.workers)
        answer_groups(GROUPS)
        sampled = 3 * GROUPS + 1
        await until(lambda: len(server.requests) >= sampled + GROUPS, serving)
        # Others wait for their completions, and the items of others are being made.
        stop_processes(env.run.runtime.generator._pool.workers)
        await until(lambda: bool(env.run.stream.tasks_in_progress), serving)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await serving == 128 + signal.SIGTERM
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await server.close()
        await api.close()
    gc.collect()
    await asyncio.sleep(0)
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == []
    assert unhandled == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
    state = latest_state(tmp_path)
    assert state == json.loads(json.dumps(state_of(env.run.checkpoints.components)))
    pending = {row[0] for row in state["item_stream"]["pending"]}
    drawn = state["item_stream"]["index"]
    assert drawn - len(pending) == len(api.groups) == GROUPS, "every item that was not delivered is pending"
