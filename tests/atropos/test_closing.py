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
from aiohttp import web

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos import serve_loop
from reasoning_gym_environment.trainer import run_api as trainer_api
from reasoning_gym_environment.utils.saved_state import state_of
from testing.mock_dialects import MockServer
from testing.process_table import linux_only

GROUP_SIZE = 2
GROUPS = 20
"""Groups at each stage when the signal comes."""

REPLY = "<think>I work it out.</think><answer>42</answer>"


class RunApi:
    """A trajectory API with a trainer. It takes a number of groups, and does not answer the requests with others."""

    def __init__(self, checkpoints: Path, takes: int) -> None:
        self.accepted = 0
        self.held = 0
        self._checkpoints = checkpoints
        self._takes = takes
        self._is_closing = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._state)
        app.router.add_post("/register-env", self._register)
        app.router.add_post("/disconnect-env", self._state)
        app.router.add_post("/scored_data", self._take)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = "http://127.0.0.1:{1}".format(*self._runner.addresses[0])

    async def close(self) -> None:
        assert self._runner is not None
        self._is_closing.set()
        await self._runner.cleanup()

    async def _register(self, request: web.Request) -> web.Response:
        folder = {"wandb_name": "x", "checkpoint_dir": str(self._checkpoints), "checkpoint_interval": 5}
        return web.json_response({"env_id": 0, "starting_step": 0, "num_steps": 1000, **folder})

    async def _state(self, request: web.Request) -> web.Response:
        queue = {"queue_size": 0, "self_queue_size": 0, "max_group_size": GROUP_SIZE, "unallocated_fraction": 1.0}
        trainer = {"project": "p", "group": None, "batch_size": 10_000, "max_token_len": -1, "current_step": 0}
        return web.json_response({**queue, **trainer, "env_weight": 1.0})

    async def _take(self, request: web.Request) -> web.Response:
        await request.read()
        if self.accepted < self._takes:
            self.accepted += 1
            return web.json_response({"status": "received"})
        self.held += 1
        await self._is_closing.wait()
        return web.json_response({}, status=500)


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
    api = RunApi(tmp_path, takes=GROUPS)
    await server.start()
    await api.start()
    env = make_real_env(
        server.base_url,
        rollout_server_url=api.url,
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
    assert api.accepted == GROUPS
    assert drawn - len(pending) == api.accepted, "every item that was not delivered is pending"
