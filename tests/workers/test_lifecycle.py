"""Workers that die, are killed or refuse to start: what the caller sees."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.records import Outcome
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.workers import confinement
from reasoning_gym_environment.workers.confinement import Layers
from reasoning_gym_environment.workers.generator import ProcessGenerator
from reasoning_gym_environment.workers.grader import SandboxGrader
from reasoning_gym_environment.workers.worker import _layers
from testing.hostile_answers import ATTACK_TASK, ENTRY, RIGHT
from testing.process_table import linux_only, parents, until, workers_of

from .conftest import FILE_TASK, grading

slow = pytest.mark.slow
pytestmark = pytest.mark.asyncio(loop_scope="session")


@slow
@linux_only
async def test_a_group_whose_worker_dies_is_graded_by_another_and_given_up_after_two(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    kill = "import os; os.kill(os.getppid(), 9)"
    kill_once = kill.replace("os;", f"os; os.mkdir({str(tmp_path / 'killed')!r});")
    # No kernel layer is in their way.
    async with grading(num_workers=2, sandbox="off") as grader:
        verdicts = await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT, kill_once, "None"])
        assert [verdict.value for verdict in verdicts] == [1.0, 0.25, 0.25]
        # Two workers die of the group, and two of the answer alone.
        other, killed = await grader.grade(ATTACK_TASK, {}, ENTRY, ["1", kill])
        assert (other.value, killed.failure) == (0.25, Outcome.CRASHED)
        assert "1 answers to a executes_answers problem could not be scored" in caplog.text
        assert (await grader.grade(ATTACK_TASK, {}, ENTRY, ["2"]))[0].value == 0.25
        assert (grader.metrics()["grading/unscored_groups"], grader.metrics()["grading/worker_restarts"]) == (1, 5)
        # A busy child ends with its worker.
        grading_of_group = asyncio.create_task(grader.grade(ATTACK_TASK, {}, ENTRY, ["while True: pass"]))
        workers = [worker.pid or 0 for worker in grader._pool.workers]
        await until(lambda: any(map(workers_of, workers)))
        [(worker, child)] = [(worker, child) for worker in workers for child in workers_of(worker)]
        os.kill(worker, signal.SIGKILL)
        await until(lambda: child not in parents())
        grading_of_group.cancel()


@slow
@linux_only
async def test_a_silent_worker_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("GROUP_ALLOWANCE_S", 3.0), ("ANSWER_ALLOWANCE_S", 0.0)):
        monkeypatch.setattr(f"reasoning_gym_environment.workers.grader.{name}", value)
    async with grading(timeout_s=0.5) as grader:
        # It has more to read than a socket holds.
        os.kill(grader._pool.workers[0].pid or 0, signal.SIGSTOP)
        right, comment = await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT, "#" * 500_000])
        assert (right.value, comment.value) == (1.0, 0.25)
        assert grader.metrics()["grading/worker_restarts"] == 1


async def test_a_dataset_reads_the_files_beside_its_module(grader: SandboxGrader) -> None:
    [verdict] = await grader.grade(FILE_TASK, {}, ENTRY, ["right"])
    assert (verdict.value, verdict.detail) == (1.0, "")


# --- starting ---


async def test_require_refuses_what_does_not_confine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "detect", lambda: Layers(landlock=1))
    with pytest.raises(EnvironmentSetupError, match=r"got Landlock ABI 1; not active: seccomp"):
        _layers("require")


@slow
async def test_off_still_guards_is_loud_and_refuses_what_is_unguarded(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    async with grading(sandbox="off", allow_unguarded=[]) as grader:
        assert "sandbox is OFF" in caplog.text
        layers = "no kernel layer; not active: seccomp, Landlock"
        assert grader.describe().endswith(f"12 guarded verifiers, 2 s deadline per answer, {layers}")
        entry = library.create_dataset("binary_matrix", seed=1, size=1)[0]
        shell = f"__import__('os').system('touch {marker}')"
        verdicts = await grader.grade("binary_matrix", {}, entry, [entry["answer"], shell])
        assert [verdict.value for verdict in verdicts] == [1.0, 0.0]
        assert not marker.exists()
        with pytest.raises(EnvironmentSetupError, match=r"executes_answers is not scored: .* exec"):
            await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT])


@pytest.mark.parametrize("kind", [ProcessGenerator, pytest.param(SandboxGrader, marks=slow)])
async def test_a_worker_that_cannot_start_says_why(
    kind: type[SandboxGrader] | type[ProcessGenerator], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken_task.py").write_text("raise RuntimeError('half-written')")
    with pytest.raises(EnvironmentSetupError, match=r"broken_task\.py.*half-written"):
        await kind(num_workers=1, task_modules=[str(tmp_path / "broken_task.py")]).start()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnvironmentSetupError, match=r"worker could not start: .*It runs /bin/false"):
        await kind(num_workers=1).start()


# --- signals ---


@linux_only
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_workers_ignore_the_signals_that_ask_their_program_to_close(
    generator: ProcessGenerator, grader: SandboxGrader, number: int
) -> None:
    """SLURM sends such a signal to all processes of a job."""
    workers = workers_of(os.getpid())
    assert workers, "The fixtures start worker processes."
    for worker in workers:
        os.kill(worker, number)
    item = await generator.generate("chain_sum", 1, {})
    (verdict,) = await grader.grade("chain_sum", {}, item, [item["answer"]])
    assert verdict.failure is None
    assert set(workers) <= set(workers_of(os.getpid()))
