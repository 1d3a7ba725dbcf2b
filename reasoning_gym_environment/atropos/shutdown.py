"""From start to a clean end, whatever ends it: the last step, an error, Ctrl-C or SIGTERM.

Atropos never closes an environment; every command of ours runs inside `run_to_the_end`, which does.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..utils.aio import within

logger = logging.getLogger(__name__)

GRACE_S = 5.0
"""How long tasks in flight get to end before they are left behind."""

STEP_S = 5.0
"""How long one step of the end may take: a file system that hangs must not keep the process."""

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


@dataclass(frozen=True)
class LastStep:
    """One step of the end, by what a log line calls it; one that is not limited may take as long as it likes."""

    what: str
    make: Callable[[], Coroutine[Any, Any, Any]]
    is_limited: bool = True


async def run_to_the_end(work: Coroutine[Any, Any, None], last_steps: Sequence[LastStep]) -> None:
    """Run `work`, then make the last steps, each whatever becomes of the others.

    Raises ShutdownRequested if a signal ended it; a second one ends the process.
    """
    task = asyncio.ensure_future(work)
    with _signals_cancel(task) as received:
        try:
            await task
        except asyncio.CancelledError:
            if not received:
                task.cancel()
                raise
        finally:
            for step in last_steps:
                await attempt(step)
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


async def attempt(step: LastStep) -> None:
    """Make one step of the end. If it fails or takes over STEP_S, a line says so."""
    try:
        await within(STEP_S if step.is_limited else None, step.make())
    except asyncio.TimeoutError:
        logger.error("At the end, %s was left after %g s.", step.what, STEP_S)
    except Exception as error:
        # A disk that refuses says all in one line; anything else is an error of ours.
        logger.error("At the end, %s failed: %s", step.what, error, exc_info=not isinstance(error, OSError))


async def cancel_all(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancel what is not done, and wait for it; what does not end in time is left behind with a line."""
    under_way = [task for task in tasks if task is not None and not task.done()]
    for task in under_way:
        task.cancel()
    if under_way:
        _, left = await asyncio.wait(under_way, timeout=GRACE_S)
        if left:
            logger.warning("%d tasks did not end within %.0f s.", len(left), GRACE_S)
