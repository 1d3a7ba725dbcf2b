"""From start to a clean end, whatever ends it: the last step, an error, Ctrl-C or SIGTERM.

Atropos never closes an environment; every command of ours runs inside `run_to_the_end`, which does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Coroutine
from typing import Any

from ..utils.resilience import within

logger = logging.getLogger(__name__)

STEP_S = 5.0
"""How long one step of the end may take: a file system that hangs must not keep the process."""


async def run_to_the_end(work: Coroutine[Any, Any, None], end: Coroutine[Any, Any, None]) -> None:
    """Run `work`, then `end`, whatever becomes of the work.

    Exits with 128 + its number if a signal ended it; a second one ends the process.
    """
    task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
    received: list[int] = []
    names: dict[int, str] = {number: number.name for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        logger.warning("%s: writing what is buffered and closing; once more to stop at once.", names[number])
        task.cancel()

    for number in names:
        # Only the main thread of the main interpreter can handle signals; elsewhere the host program does.
        with contextlib.suppress(RuntimeError, ValueError):
            loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            task.cancel()
            raise
    finally:
        await end
        for number in names:
            loop.remove_signal_handler(number)
    if received:
        logger.info("Closed: stopped by %s.", names[received[0]])
        sys.exit(128 + received[0])


async def attempt(what: str, step: Awaitable[Any], limit_s: float | None = STEP_S) -> None:
    """Make one step of the end. If it fails or takes longer, a line says so, and the end goes on."""
    try:
        await within(limit_s, step)
    except asyncio.TimeoutError:
        logger.error("At the end, %s was left after %g s.", what, limit_s)
    except Exception as error:
        # A disk that refuses says all in one line; anything else is an error of ours.
        logger.error("At the end, %s failed: %s", what, error, exc_info=not isinstance(error, OSError))
