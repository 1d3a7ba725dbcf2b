"""Calls with the same problem share a child: each answer has the verdict that it has alone, whatever the others do."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections import Counter
from typing import Any

import pytest

from reasoning_gym_environment.records import Outcome, Verdict
from reasoning_gym_environment.workers import grader as grader_module
from reasoning_gym_environment.workers import pool
from reasoning_gym_environment.workers.grader import MAX_SHARED_ANSWERS, SandboxGrader
from reasoning_gym_environment.workers.grading_worker import GroupRequest
from testing.process_table import linux_only

from .conftest import ACTING_TASK as TASK

pytestmark = pytest.mark.asyncio(loop_scope="session")
STATUSES = {
    "hang": Outcome.TIMEOUT,
    "crash": Outcome.CRASHED,
    "memory": Outcome.MEMORY,
    "raise": None,
    "other": None,
}


@pytest.fixture(autouse=True)
def short_deadline(grader: SandboxGrader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grader, "_timeout_s", 0.3)


def problem(name: str) -> dict[str, Any]:
    return {"question": "?", "answer": name, "metadata": {}}


def expected(name: str, answer: str) -> tuple[float, Outcome | None]:
    status = STATUSES[answer.split()[0]] if answer != name else None
    if status is not None:
        return 0.0, status
    return (1.0 if answer == name else 0.25), status


def found(verdicts: list[Verdict]) -> list[tuple[float, Outcome | None]]:
    return [(verdict.value, verdict.failure) for verdict in verdicts]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The answers of each turn for which a grader asks its workers."""
    turns = []
    ask = pool.WorkerProcess.ask

    async def record(self: pool.WorkerProcess, message: bytes, limit_s: float) -> bytes:
        request = pickle.loads(message)
        # Another kind of message starts a worker.
        if isinstance(request, GroupRequest):
            turns.append(request.answers)
        return await ask(self, message, limit_s)

    monkeypatch.setattr(pool.WorkerProcess, "ask", record)
    return turns


# A worker ends, and starts again, if all calls of its group are cancelled.
@pytest.mark.parametrize(("seed", "share_cancelled"), [(0, 0.0), pytest.param(1, 0.2, marks=pytest.mark.slow)])
async def test_any_mixture_of_calls_gives_each_answer_the_verdict_that_it_has_alone(
    grader: SandboxGrader, sent: list[tuple[str, ...]], seed: int, share_cancelled: float
) -> None:
    rng = random.Random(seed)
    grader._remembered.clear()
    before = Counter(grader.metrics())
    names = [f"{seed} {letter}" for letter in "abc"]
    calls: list[tuple[str, list[str], bool]] = []
    for _ in range(60):
        name = rng.choice(names)
        kinds = rng.choices(list(STATUSES), weights=[1, 1, 1, 5, 10], k=rng.choice([1, 1, 1, 3]))
        answers = [name, *(f"{kind} {rng.randrange(9)}" for kind in kinds)]
        calls.append((name, rng.sample(answers, len(kinds)), rng.random() < share_cancelled))

    async def call(name: str, answers: list[str], is_cancelled: bool) -> None:
        await asyncio.sleep(rng.random() * 0.05)
        grading_task = asyncio.create_task(grader.grade(TASK, {}, problem(name), answers))
        if is_cancelled:
            await asyncio.sleep(rng.random() * 0.05)
            grading_task.cancel()
            await asyncio.wait([grading_task])
            return
        assert found(await grading_task) == [expected(name, answer) for answer in answers]

    await asyncio.gather(*(call(*arguments) for arguments in calls))
    assert len(sent) < len(calls) / 2
    assert max(map(len, sent)) <= MAX_SHARED_ANSWERS
    assert (Counter(grader.metrics()) - before)["grading/unscored_groups"] == 0
    assert not grader._waiting


async def test_scores_of_the_library_s_verifiers_are_remembered_and_no_others(
    grader: SandboxGrader, sent: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grader_module, "MAX_REMEMBERED", 2)
    grader._remembered.clear()
    for _ in range(2):
        await grader.grade("chain_sum", {}, problem("1"), ["1", "2"])
    assert sent == [("1", "2")]
    # Another item, or another type of a value in the config or the item, is another problem.
    for entry in (problem("2"), {**problem("1"), "metadata": 1}, {**problem("1"), "metadata": 1.0}):
        await grader.grade("chain_sum", {}, entry, ["1"])
    assert len(sent) == 4
    assert len(grader._remembered) == 2
    # An answer to a task of the user's own may have run as code.
    answers = ["hang", "crash", "memory", "other 1"]
    for _ in range(2):
        sent.clear()
        verdicts = await grader.grade(TASK, {}, problem("kept"), answers)
        assert found(verdicts) == [expected("kept", answer) for answer in answers]
        # An answer that needs long has a turn of its own after the others.
        assert sent[0] == tuple(answers) and sent[-1] == ("hang",)


@linux_only
async def test_a_call_with_slow_answers_delays_no_other_call_for_long(grader: SandboxGrader) -> None:
    ended: list[str] = []

    async def call(name: str, answers: list[str]) -> None:
        await grader.grade(TASK, {}, problem(name), answers)
        ended.append(name)

    slow = asyncio.create_task(call("slow", [f"hang {number}" for number in range(6)]))
    await asyncio.sleep(0.05)
    for number in range(3):
        await call(f"quick {number}", ["other 1"])
    await slow
    assert ended[-1] == "slow"
