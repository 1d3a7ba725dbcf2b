"""Calls run one after another in a thread that never keeps the process from ending."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from reasoning_gym_environment.workers.daemon_thread import DaemonThread

WAIT_S = 10.0


@pytest.fixture
def thread() -> Iterator[DaemonThread]:
    thread = DaemonThread("test-calls")
    yield thread
    thread.close()


def test_a_call_gives_its_result_from_the_named_thread(thread: DaemonThread) -> None:
    assert thread.submit(lambda: threading.current_thread().name).result(WAIT_S) == "test-calls"


def test_calls_run_in_turn(thread: DaemonThread) -> None:
    seen: list[int] = []
    futures = [thread.submit(lambda number=number: seen.append(number)) for number in range(100)]  # type: ignore[misc]
    futures[-1].result(WAIT_S)
    assert seen == list(range(100))


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), KeyboardInterrupt(), StopIteration()])
def test_what_a_call_raises_reaches_whoever_waits_and_the_thread_goes_on(
    thread: DaemonThread, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    assert thread.submit(fail).exception(WAIT_S) is error
    assert thread.submit(lambda: 5).result(WAIT_S) == 5


def test_a_cancelled_call_does_not_run(thread: DaemonThread) -> None:
    started, release, seen = threading.Event(), threading.Event(), []

    def hold() -> bool:
        started.set()
        return release.wait(WAIT_S)

    first = thread.submit(hold)
    assert started.wait(WAIT_S)
    second = thread.submit(lambda: seen.append(2))
    assert second.cancel()
    assert not first.cancel()
    release.set()
    assert first.result(WAIT_S)
    assert thread.submit(lambda: 3).result(WAIT_S) == 3
    assert seen == []
    with pytest.raises(CancelledError):
        second.result(0)


def test_closing_ends_the_thread_after_what_was_submitted_and_refuses_more() -> None:
    thread = DaemonThread("test-closing")
    [running] = [t for t in threading.enumerate() if t.name == "test-closing"]
    last = thread.submit(lambda: "done")
    thread.close()
    thread.close()
    assert last.result(WAIT_S) == "done"
    running.join(WAIT_S)
    assert not running.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        thread.submit(lambda: None)


def test_a_call_that_hangs_does_not_keep_the_process_from_ending() -> None:
    code = (
        "import threading\n"
        "from reasoning_gym_environment.workers.daemon_thread import DaemonThread\n"
        "started, thread = threading.Event(), DaemonThread('hang')\n"
        "thread.submit(lambda: (started.set(), threading.Event().wait()))\n"
        "started.wait()\n"
        "thread.close()\n"
        "print('end')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "end\n"
