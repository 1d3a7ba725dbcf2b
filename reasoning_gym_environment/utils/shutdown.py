"""How a command ends: every shutdown step runs, whatever ended the work and whichever step fails or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Coroutine
from typing import Any

from .clock import now
from .resilience import with_deadline

logger = logging.getLogger(__name__)

STEP_S = 5.0
"""Shutdown steps that take longer than this are abandoned: a file system that hangs must not keep the process."""

REPEATED_S = 1.0
"""A signal this soon after the first is a repetition of it."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def run_then_close(work: Coroutine[Any, Any, None], close: Coroutine[Any, Any, None]) -> None:
    """Run `work`, then `close`, however the work ended.

    SIGINT and SIGTERM cancel the work. The process then closes and exits with 128 + the number of the signal. A second
    signal ends the process immediately. Launchers often repeat a signal immediately: such a repeat does not count as
    a second signal.
    """
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []
    received_at = 0.0
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def stop(number: signal.Signals) -> None:
        nonlocal received_at
        if received and now() - received_at < REPEATED_S:
            return
        if received:
            os._exit(128 + number)
        received_at = now()
        received.append(number)
        logger.warning("%s: flushing buffers and closing. Send it again to stop immediately.", number.name)
        task.cancel()

    for number in SIGNALS:
        # Only the main thread of the main interpreter can handle signals; elsewhere the host program does.
        with contextlib.suppress(RuntimeError, ValueError):
            loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise
    finally:
        await close
        for number, handler in before.items():
            if loop.remove_signal_handler(number):
                # asyncio has set the default, with which SIGTERM ends the process without a word.
                signal.signal(number, handler)
    if received:
        logger.info("Closed after %s. Run the same command again to resume.", received[0].name)
        sys.exit(128 + received[0])


async def shutdown_step(name: str, step: Awaitable[Any], limit_s: float | None = STEP_S) -> None:
    """Run one shutdown step. Log a failure or a timeout, and continue."""
    work = asyncio.ensure_future(step)
    try:
        await with_deadline(limit_s, work)
    except Exception as error:
        # A file system can raise TimeoutError as well.
        if work.cancelled():
            logger.error("Shutdown: %s timed out after %s s.", name, limit_s)
            return
        # An error of the disk is explained by its message. Any other error is a defect and needs its traceback.
        is_defect = not isinstance(error, OSError)
        logger.error("Shutdown: %s failed: %s", name, error, exc_info=is_defect)


async def uninterrupted(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a short piece of work that must not be left half done: the first cancellation is ignored."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        return await task
