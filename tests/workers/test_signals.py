"""A signal to every process, as SLURM sends it to the tasks of a job, does not end the workers of a live program."""

from __future__ import annotations

import os
import signal

import pytest

from reasoning_gym_environment.workers.generator import ProcessGenerator
from reasoning_gym_environment.workers.grader import SandboxGrader
from testing.process_table import linux_only, workers_of

pytestmark = pytest.mark.asyncio(loop_scope="session")


@linux_only
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_workers_ignore_the_signals_that_ask_their_program_to_close(
    generator: ProcessGenerator, grader: SandboxGrader, number: int
) -> None:
    workers = workers_of(os.getpid())
    assert workers, "The fixtures start worker processes."
    for worker in workers:
        os.kill(worker, number)
    item = await generator.generate("chain_sum", 1, {})
    (verdict,) = await grader.grade("chain_sum", {}, item, [item["answer"]])
    assert verdict.failure is None
    assert set(workers) <= set(workers_of(os.getpid()))
