"""Grading workers that die, refuse to start or outlive their parent: what the caller sees and what is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.records import Status
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.workers.generator import ProcessGenerator
from reasoning_gym_environment.workers.grader import ATTEMPTS, GradingWorker, SandboxGrader
from reasoning_gym_environment.workers.pool import WorkerProcess

from ..hostile_answers import ATTACK_MODULE, ATTACK_TASK, ENTRY, RIGHT
from ..process_table import eventually, linux_only, parents, until, workers_of
from .conftest import MISBEHAVING_MODULE, grading

HANG = "while True: pass"


def busy_workers(grader: SandboxGrader) -> list[int]:
    return [worker.pid for worker in grader._workers if worker.pid and workers_of(worker.pid)]


async def kill_busy_worker(grader: SandboxGrader) -> None:
    """Kill the worker whose child has been at it for a while: those that a start-up needs are short."""
    children: list[int] = []
    while True:
        before, children = children, [child for worker in busy_workers(grader) for child in workers_of(worker)]
        if lasting := set(before) & set(children):
            os.kill(parents()[lasting.pop()], signal.SIGKILL)
            return
        await asyncio.sleep(0.3)


@linux_only
@pytest.mark.asyncio(loop_scope="session")
async def test_a_group_whose_worker_dies_is_graded_by_another(
    grader: SandboxGrader, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Counter(grader.metrics())
    with monkeypatch.context() as patch:
        # So that it is killed before its deadline, however slow the machine is.
        patch.setattr(grader, "_timeout_s", 100.0)
        task = asyncio.create_task(grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT, HANG, "None"]))
        await kill_busy_worker(grader)
    verdicts = await task
    assert [verdict.status for verdict in verdicts] == [Status.SCORED, Status.TIMEOUT, Status.SCORED]
    assert [verdict.value for verdict in verdicts] == [1.0, 0.0, 0.25]
    grown = Counter(grader.metrics()) - before
    assert (grown["grading/regraded_groups"], grown["grading/worker_restarts"]) == (1, 1)


@pytest.mark.slow
@linux_only
async def test_after_two_deaths_the_rest_is_unscored_and_the_next_group_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with grading(timeout_s=100.0) as grader:
        task = asyncio.create_task(grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT, HANG, "None"]))
        await kill_busy_worker(grader)
        await kill_busy_worker(grader)
        scored, hung, unscored = await task
        assert (scored.status, scored.value) == (Status.SCORED, 1.0)
        assert (hung.status, unscored.status) == (Status.CRASHED, Status.CRASHED)
        assert hung.detail.startswith("not scored: ")
        assert grader.metrics()["grading/unscored_groups"] == 1
        assert "2 answers to a executes_answers problem could not be scored" in caplog.text
        assert (await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT]))[0].value == 1.0


@pytest.mark.slow
@linux_only
async def test_a_group_beside_one_whose_worker_dies_twice_is_scored() -> None:
    async with grading(timeout_s=100.0) as grader:
        # Each waits until it has a worker alone, or is one of two.
        tasks = [asyncio.create_task(grader.grade(ATTACK_TASK, {}, ENTRY, [HANG])) for _ in range(2)]
        await until(lambda: len(workers_of(grader._workers[0].pid or 0)) == 2)
        await kill_busy_worker(grader)
        await kill_busy_worker(grader)
        [first], _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert [verdict.status for verdict in await first] == [Status.CRASHED]
        [second] = [task for task in tasks if task is not first]
        await until(lambda: bool(busy_workers(grader)))
        assert not second.done()
        second.cancel()


@pytest.mark.slow
@linux_only
async def test_a_silent_worker_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reasoning_gym_environment.workers.grader.SILENCE_ALLOWANCE_S", 0.5)
    monkeypatch.setattr("reasoning_gym_environment.workers.grader.BUILD_ALLOWANCE_S", 0.5)
    async with grading() as grader:
        # The second has more to read than a pipe holds.
        for answers in ([RIGHT], [RIGHT, "#" * 500_000]):
            os.kill(grader._workers[0].pid or 0, signal.SIGSTOP)
            # Two, of which each may be what holds up the other.
            groups = await asyncio.gather(*(grader.grade(ATTACK_TASK, {}, ENTRY, answers) for _ in range(2)))
            assert [verdicts[0].value for verdicts in groups] == [1.0, 1.0]


@pytest.mark.slow
@linux_only
async def test_time_in_which_everything_was_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reasoning_gym_environment.workers.grader.SILENCE_ALLOWANCE_S", 1.0)
    compute = "import time\nwhile time.process_time() < 0.3: pass"
    async with grading(timeout_s=0.5) as grader:
        task = asyncio.create_task(grader.grade(ATTACK_TASK, {}, ENTRY, [compute, RIGHT]))
        await until(lambda: bool(busy_workers(grader)))
        everything = [p for worker in busy_workers(grader) for p in (worker, *workers_of(worker))]
        for process in everything:
            os.kill(process, signal.SIGSTOP)
        # Longer than the answer may take by the clock, and than the worker may be silent.
        time.sleep(3.5)  # noqa: ASYNC251
        await asyncio.sleep(0.01)
        for process in everything:
            os.kill(process, signal.SIGCONT)
        assert [verdict.status for verdict in await task] == [Status.SCORED, Status.SCORED]
        assert "grading/worker_restarts" not in grader.metrics()


@pytest.mark.slow
@linux_only
async def test_slow_groups_hold_up_no_other_and_the_worker_outlives_those_that_are_cancelled() -> None:
    async with grading(timeout_s=100.0) as grader:
        pid = grader._workers[0].pid or 0
        slow = [asyncio.create_task(grader.grade(ATTACK_TASK, {}, ENTRY, [HANG])) for _ in range(3)]
        await until(lambda: len(workers_of(pid)) == 3)
        for _ in range(3):
            assert (await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT, "None"]))[0].value == 1.0
        assert not any(task.done() for task in slow)
        for task in slow:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: not workers_of(pid))
        assert (await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT]))[0].value == 1.0
        assert grader._workers[0].pid == pid


@pytest.mark.slow
@linux_only
async def test_a_group_whose_worker_was_ended_for_another_is_graded_again_as_often_as_that_happens() -> None:
    async with grading(timeout_s=1.0) as grader:
        [worker] = grader._workers
        task = asyncio.create_task(grader.grade(ATTACK_TASK, {}, ENTRY, [HANG, RIGHT]))
        for _ in range(ATTEMPTS + 1):
            await until(lambda: bool(worker._groups))
            worker.end()
            await until(lambda: not worker._groups)
        assert [verdict.status for verdict in await task] == [Status.TIMEOUT, Status.SCORED]


@pytest.mark.slow
@linux_only
async def test_closing_in_the_middle_leaves_nothing_and_answers_the_caller() -> None:
    async with grading(timeout_s=100.0) as grader:
        groups = [asyncio.create_task(grader.grade(ATTACK_TASK, {}, ENTRY, [HANG, RIGHT])) for _ in range(3)]
        await until(lambda: bool(busy_workers(grader)))
        everything = [p for worker in busy_workers(grader) for p in (worker, *workers_of(worker))]
        await grader.close()
        await grader.close()
        verdicts = await asyncio.gather(*groups)
        assert {verdict.status for group in verdicts for verdict in group} <= {Status.CRASHED, Status.SCORED}
        eventually(lambda: not set(everything) & set(parents()))


PARENT = """
import asyncio, os, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.hostile_answers import ATTACK_TASK, ENTRY
from tests.process_table import until, workers_of
from reasoning_gym_environment.workers.generator import ProcessGenerator
from reasoning_gym_environment.workers.grader import SandboxGrader
async def main():
    generator = ProcessGenerator(timeout_s=100, task_modules=[{making!r}])
    grader = SandboxGrader(num_workers=2, timeout_s=100, task_modules=[{grading!r}], allow_unguarded=[ATTACK_TASK])
    await asyncio.gather(generator.start(), grader.start())
    busy = asyncio.gather(
        generator.generate("misbehaves", 1, {{"act": "hang", "marker": {marker!r}}}),
        *(grader.grade(ATTACK_TASK, {{}}, ENTRY, ["while True: pass"]) for _ in range(3)),
    )
    await until(lambda: Path({marker!r}).exists())
    await until(lambda: sum(len(workers_of(worker.pid)) for worker in grader._workers) == 3)
    print("ready", flush=True)
    await busy
asyncio.run(main())
"""


@pytest.mark.slow
@linux_only
def test_killing_the_environment_leaves_no_process(tmp_path: Path) -> None:
    places = {"root": str(Path(__file__).parents[2]), "marker": str(tmp_path / "marker")}
    code = PARENT.format(**places, grading=ATTACK_MODULE, making=MISBEHAVING_MODULE)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        workers = workers_of(parent.pid)
        everything = {*workers, *(child for worker in workers for child in workers_of(worker))}
        assert len(workers) == 3 and len(everything) > 6
        parent.kill()
        parent.wait()
        eventually(lambda: not everything & set(parents()))


async def test_require_refuses_what_does_not_confine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(worker: GradingWorker) -> None:
        worker.description = "Landlock ABI 1 + rlimits; not active: seccomp"

    monkeypatch.setattr(GradingWorker, "start", start)
    with pytest.raises(EnvironmentSetupError, match="not active: seccomp"):
        await SandboxGrader(num_workers=1, sandbox="require").start()


@pytest.mark.slow
async def test_off_still_guards_is_loud_and_refuses_what_is_unguarded(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    async with grading(sandbox="off", allow_unguarded=[]) as grader:
        assert "sandbox is OFF" in caplog.text
        assert "no kernel layer" in grader.describe()
        assert "refused as unguarded: executes_answers" in grader.describe()
        entry = library.create_dataset("binary_matrix", seed=1, size=1)[0]
        shell = f"__import__('os').system('touch {marker}')"
        verdicts = await grader.grade("binary_matrix", {}, entry, [entry["answer"], shell])
        assert [verdict.value for verdict in verdicts] == [1.0, 0.0]
        assert not marker.exists()
        with pytest.raises(EnvironmentSetupError, match=r"executes_answers is not scored: .* exec"):
            await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT])
        part = {"datasets": [{"name": ATTACK_TASK, "weight": 1, "config": {}}]}
        with pytest.raises(EnvironmentSetupError, match="executes_answers is not scored"):
            await grader.grade("composite", part, ENTRY, [RIGHT])


# --- on a machine that is short of processes ---

SHORT_OF_PROCESSES = """
import itertools, os
fork, calls = os.fork, itertools.count()
def fork_sometimes():
    if next(calls) % 3:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = fork_sometimes
"""


@pytest.fixture
def short_of_processes(tmp_path: Path) -> str:
    module = tmp_path / "short_of_processes.py"
    module.write_text(SHORT_OF_PROCESSES)
    return str(module)


@pytest.mark.slow
async def test_a_group_for_which_no_child_can_be_had_waits_for_one(short_of_processes: str) -> None:
    async with grading(task_modules=[ATTACK_MODULE, short_of_processes]) as grader:
        for _ in range(4):
            verdicts = await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT, "import os; os.abort()", "None"])
            assert [verdict.value for verdict in verdicts] == [1.0, 0.0, 0.25]
        assert "grading/worker_restarts" not in grader.metrics()


@pytest.mark.slow
async def test_items_are_made_by_the_children_that_there_are_while_no_other_can_be_had(
    short_of_processes: str, tmp_path: Path
) -> None:
    generator = ProcessGenerator(timeout_s=60.0, task_modules=[MISBEHAVING_MODULE, short_of_processes])
    await generator.start()
    marker = tmp_path / "marker"
    slow = asyncio.create_task(generator.generate("misbehaves", 1, {"act": "wait_for", "marker": str(marker)}))
    for seed in range(3):
        await generator.generate("misbehaves", seed, {})
    marker.touch()
    await slow
    assert generator.metrics()["generation/worker_restarts"] == 0
    await generator.close()


@pytest.mark.slow
@linux_only
async def test_a_worker_for_which_no_thread_can_be_had_is_started_again_and_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, refused = threading.Thread.start, list[str]()

    def start_later(thread: threading.Thread) -> None:
        # asyncio's, which waits for a process; since Python 3.12 there is none on Linux.
        if "waitpid" in thread.name and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    async with grading() as grader:
        before = len(workers_of(os.getpid()))
        monkeypatch.setattr(threading.Thread, "start", start_later)
        os.kill(grader._workers[0].pid or 0, signal.SIGKILL)
        assert (await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT]))[0].value == 1.0
        await until(lambda: len(workers_of(os.getpid())) == before)


class EndsAtOnce(WorkerProcess):
    async def prepare(self) -> None:
        assert self._process is not None
        self.end()
        await self._process.wait()


async def test_a_worker_that_ends_with_its_start_has_not_started() -> None:
    with pytest.raises(EnvironmentSetupError, match="it ended at once"):
        await EndsAtOnce("nothing").start()


# --- starting, of either kind ---

Kind = type[SandboxGrader] | type[ProcessGenerator]
KINDS = [pytest.param(ProcessGenerator, id="generator"), pytest.param(SandboxGrader, id="grader")]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_worker_that_cannot_even_start_says_so(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnvironmentSetupError, match=r"worker could not start: .*It runs /bin/false"):
        await kind(num_workers=1).start()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_what_cannot_be_imported_is_named_and_the_given_library_is_the_one_in_use(
    kind: Kind, tmp_path: Path
) -> None:
    module = tmp_path / "broken_task.py"
    module.write_text("raise RuntimeError('half-written')")
    with pytest.raises(EnvironmentSetupError, match=r"broken_task\.py.*half-written"):
        await kind(num_workers=2, task_modules=[str(module)]).start()
    package = tmp_path / "reasoning_gym"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('this one')")
    with pytest.raises(EnvironmentSetupError, match="this one"):
        await kind(num_workers=1, library_path=str(tmp_path)).start()


@pytest.mark.parametrize("kind", KINDS)
async def test_senseless_numbers_are_refused_and_work_needs_a_start(kind: Kind) -> None:
    for options in ({"num_workers": 0}, {"num_workers": 1, "timeout_s": 0}):
        with pytest.raises(EnvironmentSetupError, match=r"must be .*, got 0"):
            kind(**options)
    with pytest.raises(RuntimeError, match="not started"):
        await ProcessGenerator().generate("chain_sum", 1, {})
