"""A worker that replies with its process number, and takes very long to end after a reply that it calls its last.

The message `raise` raises an exception in it. The cleanup after that would close the socket, and take very long.

Not a test. The pool's tests start it instead of one of the package's workers.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time

from reasoning_gym_environment.workers import confinement
from reasoning_gym_environment.workers.protocol import Channel


def main(parent: int) -> None:
    confinement.die_with_parent(parent)
    channel = Channel()
    channel.receive()
    channel.send(b"{}")
    # The parent has hung up.
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            message = channel.receive()
            if message == "raise":
                atexit.register(time.sleep, 3600)
                atexit.register(channel._messages.close)
                raise RuntimeError("as the test wants it")
            is_last = message == "last"
            channel.send(str(os.getpid()).encode(), is_last=is_last)
            if is_last:
                time.sleep(3600)
