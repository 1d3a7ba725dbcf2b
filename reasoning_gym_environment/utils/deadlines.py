"""A deadline that heeds being cancelled.

`asyncio.wait_for` of Python 3.10 and 3.11 returns a result that is there at the moment of a cancellation, and forgets
the cancellation: a main loop that is being stopped would go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float | None, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled after so many seconds (None: never), or when this is.

    Raises asyncio.TimeoutError if it has no result by then. Waits for the end of `work` in any case.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    if task.cancelled():
        raise asyncio.TimeoutError
    return task.result()
