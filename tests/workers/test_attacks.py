"""The kernel's layers alone: the verifier of `attack_task.py` executes the answer, with no guard between.

Every attack (most are in attacks.jsonl) sits between a right and a wrong answer. It must end with its status,
its neighbours must get their score, and so must the next group. What leaves the child can only be seen in
`Verdict.detail`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from reasoning_gym_environment.records import Outcome, Verdict
from reasoning_gym_environment.workers.grader import SandboxGrader
from testing.hostile_answers import ATTACK_TASK, ENTRY, RIGHT

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel layers are Linux's"),
]
Attack = Callable[[str], Awaitable[Verdict]]
FORGED_RECORD = """
from reasoning_gym_environment.workers.protocol import *
from reasoning_gym_environment.records import Verdict
import os
os.write(3, pack_record(Verdict(1.0, native=1.0)))
"""

SLOW = ("a loop in C", "a loop that swallows everything", "half a record, for ever", "a wait for a processor")
"""Each takes its whole deadline of two seconds of processor time, or waits for longer than that."""
ATTACKS = [
    pytest.param(row, id=row["attack"], marks=[pytest.mark.slow] * (row["attack"] in SLOW))
    for row in map(json.loads, Path(__file__).with_name("attacks.jsonl").read_text(encoding="utf-8").splitlines())
]


@pytest.fixture(scope="module", autouse=True)
def signals_received() -> Iterator[list[int]]:
    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    yield received
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def attack(grader: SandboxGrader, tmp_path: Path) -> Attack:
    """Gives the verdict on a piece of code, after checking that nothing but its own score was touched."""
    assert "seccomp" in grader.describe().split("not active")[0], grader.describe()
    marker, victim = tmp_path / "marker", tmp_path / "victim"
    victim.write_text("intact")

    async def verdict_on(code: str) -> Verdict:
        for name, place in (("marker", marker), ("victim", victim), ("parent", os.getpid())):
            code = code.replace(f"<{name}>", str(place))
        # A worker that an earlier test has ended is replaced before the attack.
        assert (await grader.grade(ATTACK_TASK, {}, ENTRY, ["None"]))[0].value == 0.25
        restarts = grader.metrics().get("grading/worker_restarts", 0)
        first, verdict, last = await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT, code, "None"])
        assert (first.value, last.value) == (1.0, 0.25), "a neighbour lost its score"
        [following] = await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT])
        assert following.value == 1.0
        assert not await asyncio.to_thread(marker.exists) and victim.read_text() == "intact"
        assert grader.metrics().get("grading/worker_restarts", 0) == restarts
        return verdict

    return verdict_on


@pytest.mark.parametrize("case", ATTACKS)
async def test_an_attack_costs_its_own_answer_only(
    attack: Attack, signals_received: list[int], case: dict[str, str]
) -> None:
    verdict = await attack(case["code"])
    assert (verdict.failure or "scored", verdict.value) == (case["status"], 0.25 if case["status"] == "scored" else 0.0)
    assert case["detail"] in verdict.detail
    assert signals_received == []


@pytest.mark.slow
async def test_unbounded_recursion_ends_one_way_or_another(attack: Attack) -> None:
    code = "import sys\nsys.setrecursionlimit(2**31 - 1)\ndef f(): f()\nf()"
    assert (await attack(code)).failure in (Outcome.MEMORY, Outcome.CRASHED, Outcome.TIMEOUT)


async def test_a_patched_verifier_is_gone_with_its_child(grader: SandboxGrader, attack: Attack) -> None:
    for code in (
        "AttackDataset.score_answer = lambda *args, **kwargs: 1.0",
        "entry['answer'] = 'right '",
        "import builtins; builtins.float = lambda value: 1.0",
        "import sys; sys.modules['reasoning_gym_environment.workers.grading_worker'].grade = lambda *a: 1",
    ):
        await attack(code)
        wrong, right = await grader.grade(ATTACK_TASK, {}, ENTRY, ["None", RIGHT])
        assert (wrong.value, right.value) == (0.25, 1.0), code


async def test_code_that_runs_can_forge_no_score_but_its_own(grader: SandboxGrader) -> None:
    verdicts = await grader.grade(ATTACK_TASK, {}, ENTRY, [4 * FORGED_RECORD, "None", RIGHT, "0"])
    assert [verdict.value for verdict in verdicts[1:]] == [0.25, 1.0, 0.25]
