"""An event loop whose clock is simulated: a test can run an hour of delays within a second, the same way every time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import looptime

from reasoning_gym_environment.utils.resilience import cancel_and_wait

T = TypeVar("T")


class VirtualLoop(looptime.LoopTimeEventLoop, asyncio.SelectorEventLoop):
    """Whenever nothing can run, the clock jumps to the next moment at which something can."""


def run_virtually(work: Coroutine[Any, Any, T], *, limit_s: float = 24 * 3600.0) -> T:
    """The result of `work` on a new loop. Raises TimeoutError after `limit_s` seconds of simulated time."""
    # The loop waits for no event outside of it, so it need not check for such events before each jump.
    loop = VirtualLoop(noop_cycles=0)
    try:
        return loop.run_until_complete(asyncio.wait_for(work, limit_s))
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(cancel_and_wait(left))
        loop.close()
