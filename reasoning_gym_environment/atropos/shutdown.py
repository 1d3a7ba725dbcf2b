"""From start to a clean end, whatever ends it: the last step, an error, Ctrl-C or SIGTERM.

Atropos never closes an environment; every command of ours runs inside `run_to_the_end`, which does.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import aiohttp
import wandb

from ..utils.aio import within

logger = logging.getLogger(__name__)

GRACE_S = 5.0
"""How long tasks in flight get to end before they are left behind."""

STEP_S = 5.0
"""How long one step of the end may take: a file system that hangs must not keep the process."""

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ShutdownRequested(Exception):
    """A signal ended the run; everything has been flushed and closed."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


def quiet_base_env(suppress: bool, *, debug: bool) -> None:
    """Set the level of Atropos' status logger, of HTTP clients, and of this package's with `debug`."""
    logging.getLogger("atroposlib.envs.base").setLevel(logging.WARNING if suppress else logging.INFO)
    logging.getLogger(__package__.partition(".")[0]).setLevel(logging.DEBUG if debug else logging.NOTSET)
    # A line for each request of an OpenAI client would bury all others.
    for client in ("httpx", "httpx2"):
        logging.getLogger(client).setLevel(logging.NOTSET if debug else logging.WARNING)


def freeze_memory() -> None:
    """Leave what set-up has made out of later garbage collections.

    A full one that walks the ladders of a hundred tasks and all that was imported stops the event loop for 40 to 90 ms.
    """
    gc.collect()
    gc.freeze()


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of a short piece of work that must not be left half done: cancelling it once is ignored."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        return await task


async def run_to_the_end(env: Any, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, then close `env`. Raises ShutdownRequested if a signal ended it; a second one ends the process."""
    task = asyncio.ensure_future(work)
    with _signals_cancel(task) as received:
        try:
            await task
        except asyncio.CancelledError:
            if not received:
                task.cancel()
                raise
        finally:
            await _shut_down(env)
    if received:
        raise ShutdownRequested(received[0])


@contextmanager
def _signals_cancel(task: asyncio.Future[None]) -> Iterator[list[int]]:
    received: list[int] = []
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        name = signal.Signals(number).name
        logger.warning("%s: writing what is buffered and closing; once more to stop at once.", name)
        task.cancel()

    installed = []
    for number in _SIGNALS:
        # Only the main thread of the main interpreter can handle signals; elsewhere the host program does.
        try:
            loop.add_signal_handler(number, stop, number)
            installed.append(number)
        except (NotImplementedError, RuntimeError, ValueError):
            logger.debug("%s is left to the host program.", number)
    try:
        yield received
    finally:
        for number in installed:
            loop.remove_signal_handler(number)


async def attempt(what: str, step: Callable[[], Coroutine[Any, Any, Any]], *, is_limited: bool = True) -> None:
    """One step of the end. If it fails or takes over STEP_S, a line says so by `what`, and the next steps are made."""
    try:
        await within(STEP_S if is_limited else None, step())
    except asyncio.TimeoutError:
        logger.error("At the end, %s was left after %g s.", what, STEP_S)
    except Exception as error:
        # A disk that refuses says all in one line; anything else is an error of ours.
        logger.error("At the end, %s failed: %s", what, error, exc_info=not isinstance(error, OSError))


async def _shut_down(env: Any) -> None:
    await attempt("stopping what is in progress", lambda: _cancel(_tasks_of(env)), is_limited=False)
    await attempt("closing the environment", env.close, is_limited=False)
    await attempt("signing off at the trajectory API", lambda: _disconnect(env))
    if env.config.use_wandb and wandb.run is not None:
        # It may have much to send.
        await attempt("finishing the wandb run", lambda: asyncio.to_thread(wandb.finish), is_limited=False)


def _tasks_of(env: Any) -> list[asyncio.Task[Any]]:
    servers = getattr(env.server, "servers", [])
    tasks = [
        *env.workers,
        *env.eval_workers,
        env.eval_runner,
        *(getattr(s, "check_task", None) for s in servers),
    ]
    return [task for task in tasks if task is not None and not task.done()]


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        _, left = await asyncio.wait(tasks, timeout=GRACE_S)
        if left:
            logger.warning("%d tasks did not end within %.0f s.", len(left), GRACE_S)


async def _disconnect(env: Any) -> None:
    """Tell the API that this environment is gone, so that its share goes to the others."""
    env_id = getattr(env, "env_id", None)
    if env_id is None:
        return
    url = f"{env.config.rollout_server_url}/disconnect-env"
    timeout = aiohttp.ClientTimeout(total=2.0)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, json={"env_id": env_id}) as response,
        ):
            response.raise_for_status()
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
        logger.info("The trajectory API did not take our sign-off: %s", str(error) or type(error).__name__)
