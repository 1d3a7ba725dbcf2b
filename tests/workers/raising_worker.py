"""A worker that raises an exception at its first request. The cleanup closes the socket, and then takes very long.

Not a test. The pool's tests start it instead of one of the package's workers.
"""

from __future__ import annotations

import atexit
import time

from reasoning_gym_environment.workers.protocol import open_channel


def main(parent: int) -> None:
    channel = open_channel(parent)
    channel.receive()
    channel.send(b"{}")
    channel.receive()
    atexit.register(time.sleep, 3600)
    atexit.register(channel._messages.close)
    raise RuntimeError("as the test wants it")
