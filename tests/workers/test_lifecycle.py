"""Workers that die, refuse to start or outlive their parent: what the caller sees and what is left."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.workers import Status
from reasoning_gym_environment.workers.grader import GradingWorker, SandboxGrader

from ..hostile_answers import ATTACK_TASK, ENTRY, RIGHT
from ..process_table import eventually, linux_only, parents, workers_of

ATTACK_MODULE = str(Path(__file__).parents[1] / "attack_task.py")
HANG = "while True: pass"


@asynccontextmanager
async def grading(**options: Any) -> AsyncIterator[SandboxGrader]:
    values: dict[str, Any] = {
        "num_workers": 1,
        "timeout_s": 2.0,
        "task_modules": [ATTACK_MODULE],
        "allow_unguarded": [ATTACK_TASK],
    }
    grader = SandboxGrader(**{**values, **options})
    await grader.start()
    try:
        yield grader
    finally:
        await grader.close()


def busy_workers(pid: int) -> list[int]:
    return [worker for worker in workers_of(pid) if workers_of(worker)]


async def some_worker_is_busy() -> None:
    # Another process is watched, so there is no event to wait for.
    while not busy_workers(os.getpid()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def kill_busy_worker() -> None:
    """Kill the worker whose child has been at it for a while: those that a start-up needs are short."""
    children: list[int] = []
    while True:
        before, children = children, [c for worker in busy_workers(os.getpid()) for c in workers_of(worker)]
        if lasting := set(before) & set(children):
            os.kill(parents()[lasting.pop()], signal.SIGKILL)
            return
        await asyncio.sleep(0.3)


@linux_only
async def test_a_group_whose_worker_dies_is_graded_by_another() -> None:
    async with grading(num_workers=2) as grader:
        task = asyncio.create_task(grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT, HANG, "None"]))
        await kill_busy_worker()
        verdicts = await task
        assert [verdict.status for verdict in verdicts] == [Status.SCORED, Status.TIMEOUT, Status.SCORED]
        assert [verdict.value for verdict in verdicts] == [1.0, 0.0, 0.25]
        assert grader.metrics()["grading/regraded_groups"] == 1
        assert grader.metrics()["grading/worker_restarts"] == 1


@linux_only
async def test_after_two_deaths_the_rest_is_unscored_and_the_next_group_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with grading() as grader:
        task = asyncio.create_task(grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT, HANG, "None"]))
        await kill_busy_worker()
        await kill_busy_worker()
        scored, hung, unscored = await task
        assert (scored.status, scored.value) == (Status.SCORED, 1.0)
        assert (hung.status, unscored.status) == (Status.CRASHED, Status.CRASHED)
        assert hung.detail.startswith("not scored: ")
        assert grader.metrics()["grading/unscored_groups"] == 1
        assert "2 answers to a executes_answers problem could not be scored" in caplog.text
        assert (await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT]))[0].value == 1.0


@linux_only
async def test_a_silent_worker_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reasoning_gym_environment.workers.grader.SILENCE_ALLOWANCE_S", 0.5)
    monkeypatch.setattr("reasoning_gym_environment.workers.grader.BUILD_ALLOWANCE_S", 0.5)
    async with grading() as grader:
        os.kill(workers_of(os.getpid())[0], signal.SIGSTOP)
        assert (await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT]))[0].value == 1.0


@linux_only
async def test_a_cancelled_group_leaves_a_fresh_worker() -> None:
    async with grading() as grader:
        task = asyncio.create_task(grader.grade(ATTACK_TASK, {}, ENTRY, [HANG]))
        await some_worker_is_busy()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT, "None"]))[0].value == 1.0


@linux_only
async def test_closing_in_the_middle_leaves_nothing_and_answers_the_caller() -> None:
    async with grading() as grader:
        groups = [asyncio.create_task(grader.grade(ATTACK_TASK, {}, ENTRY, [HANG, RIGHT])) for _ in range(3)]
        await some_worker_is_busy()
        everything = [p for worker in workers_of(os.getpid()) for p in (worker, *workers_of(worker))]
        await grader.close()
        await grader.close()
        verdicts = await asyncio.wait_for(asyncio.gather(*groups), 10)
        assert {verdict.status for group in verdicts for verdict in group} <= {Status.CRASHED, Status.SCORED}
        eventually(lambda: not set(everything) & set(parents()))


PARENT = """
import asyncio, sys
sys.path.insert(0, {root!r})
from tests.hostile_answers import *
from reasoning_gym_environment.workers.grader import SandboxGrader
async def main():
    options = dict(task_modules=[{module!r}], allow_unguarded=[ATTACK_TASK])
    grader = SandboxGrader(num_workers=2, timeout_s=60, **options)
    await grader.start()
    task = asyncio.create_task(grader.grade(ATTACK_TASK, {{}}, ENTRY, ["while True: pass"]))
    await asyncio.sleep(0.3)
    print("ready", flush=True)
    await task
asyncio.run(main())
"""


@linux_only
def test_killing_the_environment_leaves_no_process() -> None:
    root = str(Path(__file__).parents[2])
    code = PARENT.format(root=root, module=ATTACK_MODULE)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        workers = workers_of(parent.pid)
        everything = {*workers, *(child for worker in workers for child in workers_of(worker))}
        assert len(everything) == 3
        parent.kill()
        parent.wait()
        eventually(lambda: not everything & set(parents()))


async def test_a_task_module_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    module = tmp_path / "broken_task.py"
    module.write_text("raise RuntimeError('half-written')")
    grader = SandboxGrader(num_workers=2, task_modules=[str(module)])
    with pytest.raises(EnvironmentSetupError, match=r"broken_task\.py.*half-written"):
        await grader.start()
    await grader.close()


async def test_a_worker_that_cannot_even_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    grader = SandboxGrader(num_workers=1)
    with pytest.raises(EnvironmentSetupError, match="could not start"):
        await grader.start()
    await grader.close()


async def test_require_refuses_what_does_not_confine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(worker: GradingWorker) -> None:
        worker.description = "Landlock ABI 1 + rlimits; not active: seccomp"

    monkeypatch.setattr(GradingWorker, "start", start)
    with pytest.raises(EnvironmentSetupError, match="not active: seccomp"):
        await SandboxGrader(num_workers=1, sandbox="require").start()


async def test_off_still_guards_and_is_loud(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with caplog.at_level(logging.WARNING):
        async with grading(sandbox="off") as grader:
            assert "no kernel layer" in grader.describe()
            entry = library.create_dataset("binary_matrix", seed=1, size=1)[0]
            shell = f"__import__('os').system('touch {marker}')"
            verdicts = await grader.grade("binary_matrix", {}, entry, [entry["answer"], shell])
    assert [verdict.value for verdict in verdicts] == [1.0, 0.0]
    assert not marker.exists()
    assert "sandbox is OFF" in caplog.text


async def test_an_unguarded_task_is_refused_unless_it_is_allowed() -> None:
    async with grading(allow_unguarded=[]) as grader:
        with pytest.raises(EnvironmentSetupError, match=r"executes_answers is not scored: .* exec"):
            await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT])
        part = {"datasets": [{"name": ATTACK_TASK, "weight": 1, "config": {}}]}
        with pytest.raises(EnvironmentSetupError, match="executes_answers is not scored"):
            await grader.grade("composite", part, ENTRY, [RIGHT])
        assert "refused as unguarded: executes_answers" in grader.describe()


async def test_the_given_library_is_the_one_in_use(tmp_path: Path) -> None:
    package = tmp_path / "reasoning_gym"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('this one')")
    grader = SandboxGrader(num_workers=1, library_path=str(tmp_path))
    with pytest.raises(EnvironmentSetupError, match="this one"):
        await grader.start()


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 1, "timeout_s": 0}])
def test_senseless_numbers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"must be .*, got 0"):
        SandboxGrader(**options)
