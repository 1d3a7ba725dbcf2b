"""The clock that all code uses to wait, to poll and to time out.

Inside an event loop this is the loop's own clock, by which asyncio's sleeps and timeouts are measured as well. A test
can therefore run an hour of delays within a second, on an event loop whose time is simulated.
"""

from __future__ import annotations

import asyncio
import time


def now() -> float:
    """Seconds on a clock that never goes back; only differences between two values mean something."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()
