"""What threads of a process share, and what a forked process does without its parent's threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from reasoning_gym_environment.utils.loop_thread import PerProcess
from testing.process_table import linux_only


class Starts:
    """Counts its starts.

    A start waits for a second, concurrent start. With a correct caller none comes, so the start ends after a moment.
    """

    def __init__(self) -> None:
        self.count = 0
        self._meeting = threading.Barrier(2)

    def begin(self) -> int:
        self.count += 1
        with suppress(threading.BrokenBarrierError):
            self._meeting.wait(0.1)
        return os.getpid()


def test_concurrent_first_calls_share_one_start() -> None:
    shared = PerProcess[int]()
    starts = Starts()
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(shared.get, "", starts.begin) for _ in range(8)]
    assert [call.result() for call in calls] == [os.getpid()] * 8
    assert starts.count == 1
    shared.get("other", starts.begin)
    assert starts.count == 2


PROGRAM = """
import asyncio
from reasoning_gym_environment.utils.loop_thread import LoopThread

class Service:
    async def start(self):
        await asyncio.to_thread(int)
        self.waiting = asyncio.create_task(asyncio.sleep(600))

    async def close(self):
        print("closed")

LoopThread(Service())
"""


def test_a_program_that_ends_without_a_close_closes_the_service_and_says_nothing() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "closed\n", "")


@linux_only
def test_a_forked_process_makes_its_own_even_in_the_middle_of_a_start() -> None:
    shared = PerProcess[int]()
    starts = Starts()
    # Another thread of the parent is in the middle of a start when the process forks.
    shared._lock.acquire()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            code = 0 if shared.get("", starts.begin) == os.getpid() else 1
        finally:
            os._exit(code)
    shared._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert shared.get("", starts.begin) == os.getpid()
