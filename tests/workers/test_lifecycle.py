"""Workers that die, are killed or refuse to start: what the caller sees."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.records import Status, Verdict
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification.grade import Verifier
from reasoning_gym_environment.workers.generator import ProcessGenerator
from reasoning_gym_environment.workers.grader import SandboxGrader
from reasoning_gym_environment.workers.grading_worker import _contained, _describe_end
from reasoning_gym_environment.workers.pool import WorkerProcess
from testing.hostile_answers import ATTACK_TASK, ENTRY, RIGHT
from testing.process_table import linux_only, parents, until, workers_of

from .conftest import grading

slow = pytest.mark.slow


async def test_a_group_whose_worker_dies_is_graded_by_another_and_given_up_after_two(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    kill = "import os; os.kill(os.getppid(), 9)"
    kill_once = kill.replace("os;", f"os; os.mkdir({str(tmp_path / 'killed')!r});")
    # No kernel layer is in their way.
    async with grading(num_workers=2, sandbox="off") as grader:
        verdicts = await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT, kill_once, "None"])
        assert [verdict.value for verdict in verdicts] == [1.0, 0.25, 0.25]
        verdicts = await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT, kill])
        assert {verdict.status for verdict in verdicts} == {Status.CRASHED}
        assert "2 answers to a executes_answers problem could not be scored" in caplog.text
        assert (await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT]))[0].value == 1.0
        assert (grader.metrics()["grading/unscored_groups"], grader.metrics()["grading/worker_restarts"]) == (1, 3)


@linux_only
async def test_a_busy_child_ends_with_its_worker_even_without_a_sandbox() -> None:
    async with grading(sandbox="off") as grader:
        worker = grader._workers[0].pid or 0
        grading_of_group = asyncio.create_task(grader.grade(ATTACK_TASK, {}, ENTRY, ["while True: pass"]))
        await until(lambda: bool(workers_of(worker)))
        [child] = workers_of(worker)
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
        os.kill(grader._workers[0].pid or 0, signal.SIGSTOP)
        [verdict, _] = await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT, "#" * 500_000])
        assert (verdict.status, "silent for" in verdict.detail) == (Status.CRASHED, True)
        assert (await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT]))[0].value == 1.0
        assert grader.metrics()["grading/worker_restarts"] == 1


OWN_DATASET = """
from dataclasses import dataclass
from pathlib import Path
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import register_dataset

@dataclass
class Config:
    seed: int | None = None
    size: int = 1

class Dataset(ProceduralDataset):
    def __init__(self, config):
        super().__init__(config, config.seed, config.size)
        self.word = Path(__file__).with_name("word.txt").read_text()

    def __getitem__(self, index):
        return {}

    def score_answer(self, answer, entry):
        return float(answer == self.word)

register_dataset("reads_a_file", Dataset, Config)
"""


async def test_a_dataset_reads_the_files_beside_its_module(tmp_path: Path) -> None:
    module = tmp_path / "own_dataset.py"
    module.write_text(OWN_DATASET)
    module.with_name("word.txt").write_text("right")
    async with grading(task_modules=[str(module)]) as grader:
        [verdict] = await grader.grade("reads_a_file", {}, ENTRY, ["right"])
    assert (verdict.value, verdict.detail) == (1.0, "")


# --- how a child ends ---


def test_any_signal_may_end_a_child() -> None:
    for number in signal.valid_signals():
        verdict = _describe_end(number)
        assert verdict.status == Status.CRASHED and verdict.detail, number


def test_a_check_that_runs_out_of_memory_is_reported_as_such() -> None:
    def check_fails(verifier: Verifier) -> Verdict:
        raise MemoryError

    assert _contained(lambda **_: 0.0, check_fails).status == Status.MEMORY
    assert _contained(lambda **_: 0.0, lambda verifier: Verdict(1.0)).status == Status.SCORED


# --- starting ---


async def test_require_refuses_what_does_not_confine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(worker: WorkerProcess) -> None:
        worker.ready = {"layers": "Landlock ABI 1 + rlimits; not active: seccomp", "is_confined": False}

    monkeypatch.setattr(WorkerProcess, "start", start)
    with pytest.raises(EnvironmentSetupError, match="not active: seccomp"):
        await SandboxGrader(num_workers=1, sandbox="require").start()


async def test_require_refuses_a_restarted_worker_that_is_not_confined(monkeypatch: pytest.MonkeyPatch) -> None:
    is_confined = True

    async def start(worker: WorkerProcess) -> None:
        worker.ready = {"layers": "the layers of a test", "is_confined": is_confined}

    monkeypatch.setattr(WorkerProcess, "start", start)
    grader = SandboxGrader(num_workers=1, sandbox="require")
    await grader.start()
    # The rehearsal of a worker falls back to fewer layers if a confined child fails, for example for lack of memory.
    is_confined = False
    # The pool calls this method to restart a worker. It logs the error, and tries again later.
    with pytest.raises(EnvironmentSetupError, match=r"sandbox: require needs seccomp .* got the layers of a test"):
        await grader._workers[0].start()
    await grader.close()


async def test_a_restarted_worker_with_other_protections_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    layers = "seccomp"

    async def start(worker: WorkerProcess) -> None:
        worker.ready = {"layers": layers, "is_confined": True}

    monkeypatch.setattr(WorkerProcess, "start", start)
    grader = SandboxGrader(num_workers=1)
    await grader.start()
    await grader._workers[0].start()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    layers = "limits"
    await grader._workers[0].start()
    assert caplog.messages[-1] == "A restarted scoring worker has the protections limits. It had seccomp before."
    await grader.close()


async def test_other_protections_are_logged_after_failed_restarts_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replies = [b'{"layers": "seccomp"}', b'{"failure": "no memory is left"}', b'{"layers": "limits"}']

    async def nothing(worker: WorkerProcess) -> None:
        pass

    async def ask(worker: WorkerProcess, message: bytes, limit_s: float) -> bytes:
        return replies.pop(0)

    monkeypatch.setattr(WorkerProcess, "_spawn", nothing)
    monkeypatch.setattr(WorkerProcess, "ask", ask)
    grader = SandboxGrader(num_workers=1)
    await grader.start()
    with pytest.raises(EnvironmentSetupError, match="no memory is left"):
        await grader._workers[0].start()
    await grader._workers[0].start()
    assert caplog.messages[-1] == "A restarted scoring worker has the protections limits. It had seccomp before."
    await grader.close()


@slow
async def test_off_still_guards_is_loud_and_refuses_what_is_unguarded(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    async with grading(sandbox="off", allow_unguarded=[]) as grader:
        assert "sandbox is OFF" in caplog.text
        assert grader.describe().endswith(
            "12 guarded verifiers, 2 s deadline per answer, no kernel layer; not active: seccomp, Landlock, rlimits"
        )
        entry = library.create_dataset("binary_matrix", seed=1, size=1)[0]
        shell = f"__import__('os').system('touch {marker}')"
        verdicts = await grader.grade("binary_matrix", {}, entry, [entry["answer"], shell])
        assert [verdict.value for verdict in verdicts] == [1.0, 0.0]
        assert not marker.exists()
        with pytest.raises(EnvironmentSetupError, match=r"executes_answers is not scored: .* exec"):
            await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT])


@pytest.mark.parametrize("kind", [ProcessGenerator, SandboxGrader])
async def test_a_worker_that_cannot_start_says_why(
    kind: type[SandboxGrader] | type[ProcessGenerator], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken_task.py").write_text("raise RuntimeError('half-written')")
    with pytest.raises(EnvironmentSetupError, match=r"broken_task\.py.*half-written"):
        await kind(num_workers=1, task_modules=[str(tmp_path / "broken_task.py")]).start()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnvironmentSetupError, match=r"worker could not start: .*It runs /bin/false"):
        await kind(num_workers=1).start()
