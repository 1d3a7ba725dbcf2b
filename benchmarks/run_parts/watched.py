"""Runs a module and measures its event loop: python -m benchmarks.run_parts.watched FILE MODULE ARGUMENTS

A step is what the event loop does without a pause: while it lasts, no other request, reply or group gets its turn. FILE
gets a line for each step of at least a millisecond: the moment on the monotonic clock, the processor time of the step
in milliseconds, and the same by the clock, which also counts what other threads and processes took.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
import time
from pathlib import Path
from typing import IO, Any

SHORTEST_S = 0.001


def watch(file: IO[str]) -> None:
    """Write down the long steps of every event loop of this process."""
    run = asyncio.events.Handle._run

    def watched(handle: Any) -> None:
        began = time.monotonic()
        used = time.thread_time()
        run(handle)
        took = time.monotonic() - began
        if took >= SHORTEST_S:
            file.write(f"{began:.4f} {1e3 * (time.thread_time() - used):.2f} {1e3 * took:.2f}\n")

    asyncio.events.Handle._run = watched  # type: ignore[method-assign]


if __name__ == "__main__":
    _, path, module, *arguments = sys.argv
    with Path(path).open("w", buffering=1) as log:
        watch(log)
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
