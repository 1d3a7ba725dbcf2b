"""Whatever ends a run, the environment is closed."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from reasoning_gym_environment.atropos import shutdown as lifecycle
from reasoning_gym_environment.atropos.shutdown import ShutdownRequested, run_to_the_end, to_the_end


class FakeEnv:
    """What `run_to_the_end` needs of an environment; remembers how often it was closed."""

    def __init__(self, **fields: Any) -> None:
        self.config = SimpleNamespace(use_wandb=False, rollout_server_url="http://127.0.0.1:9")
        self.server = SimpleNamespace(servers=[])
        self.workers: set[Any] = set()
        self.eval_workers: set[Any] = set()
        self.eval_runner: Any = None
        self.closed = 0
        self.__dict__.update(fields)

    async def close(self) -> None:
        self.closed += 1


async def nothing() -> None:
    await asyncio.sleep(0)


async def failing() -> None:
    raise KeyError("bug")


async def test_a_normal_end_closes() -> None:
    env = FakeEnv()
    await run_to_the_end(env, nothing())
    assert env.closed == 1


async def test_an_error_closes_and_propagates() -> None:
    env = FakeEnv()
    with pytest.raises(KeyError, match="bug"):
        await run_to_the_end(env, failing())
    assert env.closed == 1


async def test_a_cancelled_run_closes_and_stays_cancelled() -> None:
    env, started = FakeEnv(), asyncio.Event()
    ended: list[str] = []

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("work")

    run = asyncio.ensure_future(run_to_the_end(env, work()))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (env.closed, ended) == (1, ["work"])


async def test_tasks_in_flight_are_cancelled_before_the_close() -> None:
    tasks = [asyncio.ensure_future(asyncio.sleep(60)) for _ in range(4)]
    state: list[bool] = []

    class Env(FakeEnv):
        async def close(self) -> None:
            state.extend(task.cancelled() for task in tasks)

    servers = [SimpleNamespace(check_task=tasks[3]), SimpleNamespace(check_task=None), SimpleNamespace()]
    env = Env(
        workers={tasks[0]}, eval_workers={tasks[1]}, eval_runner=tasks[2], server=SimpleNamespace(servers=servers)
    )
    await run_to_the_end(env, nothing())
    assert state == [True] * 4


async def test_a_task_that_does_not_end_is_left_behind_with_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifecycle, "GRACE_S", 0.05)
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    task = asyncio.ensure_future(stubborn())
    await asyncio.sleep(0)
    env = FakeEnv(workers={task})
    await run_to_the_end(env, nothing())
    assert env.closed == 1
    assert "1 tasks did not end" in caplog.text
    release.set()
    await task


async def test_every_step_of_the_end_is_made_whatever_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[str] = []

    class Env(FakeEnv):
        async def close(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    async def disconnect(env: Any) -> None:
        made.append("signed off")
        await asyncio.Event().wait()

    def finish() -> None:
        made.append("wandb finished")
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    monkeypatch.setattr(lifecycle, "STEP_S", 0.05)
    monkeypatch.setattr(lifecycle, "_disconnect", disconnect)
    monkeypatch.setattr(lifecycle, "wandb", SimpleNamespace(run=1, finish=finish))
    env = Env()
    env.config.use_wandb = True
    await run_to_the_end(env, nothing())
    assert made == ["signed off", "wandb finished"]
    assert [record.message for record in caplog.records] == [
        "At the end, closing the environment failed: [Errno 28] No space left on device",
        "At the end, signing off at the trajectory API was left after 0.05 s.",
        "At the end, finishing the wandb run failed: [Errno 104] Connection reset by peer",
    ]
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("status", [200, 500])
async def test_a_registered_environment_signs_off(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    received: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        received.append((request.path, await request.json()))
        return web.Response(status=status)

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    env = FakeEnv(env_id=3)
    env.config.rollout_server_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    await run_to_the_end(env, nothing())
    await runner.cleanup()
    assert received == [("/disconnect-env", {"env_id": 3})]
    assert ("did not take our sign-off" in caplog.text) == (status == 500)


async def test_an_api_that_is_gone_does_not_hinder_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    env = FakeEnv(env_id=0)
    await run_to_the_end(env, nothing())
    assert env.closed == 1
    assert "did not take our sign-off" in caplog.text


async def test_signal_handlers_are_taken_back() -> None:
    installed: list[Any] = []

    async def work() -> None:
        installed.extend(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM))

    await run_to_the_end(FakeEnv(), work())
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert after == [signal.default_int_handler, signal.SIG_DFL]
    assert not set(installed) & set(after)


async def test_work_that_is_taken_to_the_end_is_not_stopped_halfway() -> None:
    done: list[str] = []
    gate = asyncio.Event()

    async def work() -> str:
        await gate.wait()
        done.append("all")
        return "result"

    async def caller() -> str:
        return await to_the_end(work())

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    gate.set()
    assert (await task, done) == ("result", ["all"])
    twice = asyncio.create_task(to_the_end(asyncio.sleep(3600)))
    for _ in range(2):
        await asyncio.sleep(0.01)
        twice.cancel()
    with pytest.raises(asyncio.CancelledError):
        await twice


async def test_outside_the_main_thread_signals_are_left_to_the_host_program() -> None:
    env = FakeEnv()
    await asyncio.to_thread(lambda: asyncio.run(run_to_the_end(env, nothing())))
    assert env.closed == 1


PROGRAM = """
import asyncio, os, sys
from types import SimpleNamespace
from reasoning_gym_environment.atropos.shutdown import ShutdownRequested, run_to_the_end

number, stubborn = int(sys.argv[1]), sys.argv[2] == "stubborn"

class Env(SimpleNamespace):
    async def close(self):
        print("closed", flush=True)
        if stubborn:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)

async def work():
    os.kill(os.getpid(), number)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise

env = Env(config=SimpleNamespace(use_wandb=False), server=SimpleNamespace(servers=[]),
          workers=set(), eval_workers=set(), eval_runner=None)
try:
    asyncio.run(run_to_the_end(env, work()))
except ShutdownRequested as stop:
    print(stop, flush=True)
    sys.exit(stop.exit_code)
"""


def run_program(number: signal.Signals, manner: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(int(number)), manner]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_closes_and_gives_the_exit_code_of_its_number(number: signal.Signals) -> None:
    ended = run_program(number, "willing")
    assert ended.stdout.splitlines() == ["cancelled", "closed", f"stopped by {number.name}"]
    assert ended.returncode == 128 + number
    assert f"{number.name}: writing what is buffered and closing" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_second_signal_ends_the_process_at_once() -> None:
    ended = run_program(signal.SIGTERM, "stubborn")
    assert ended.stdout.splitlines() == ["cancelled", "closed"]
    assert ended.returncode == 128 + signal.SIGTERM


def test_the_exit_code_of_a_stop_is_that_of_the_shell() -> None:
    assert ShutdownRequested(signal.SIGINT).exit_code == 130


@pytest.mark.parametrize(
    ("suppress", "debug", "levels"),
    [(True, False, ("WARNING", "NOTSET")), (False, False, ("INFO", "NOTSET")), (True, True, ("WARNING", "DEBUG"))],
)
def test_log_levels_follow_the_settings(suppress: bool, debug: bool, levels: tuple[str, str]) -> None:
    loggers = [logging.getLogger(name) for name in ("atroposlib.envs.base", "reasoning_gym_environment")]
    before = [logger.level for logger in loggers]
    lifecycle.quiet_base_env(suppress, debug=debug)
    assert tuple(logging.getLevelName(logger.level) for logger in loggers) == levels
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
