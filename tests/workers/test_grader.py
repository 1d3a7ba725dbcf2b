from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification import eval_guards as guard
from reasoning_gym_environment.verification.grade import grade
from reasoning_gym_environment.workers import Status
from reasoning_gym_environment.workers.grader import MAX_ANSWER_CHARS, SandboxGrader

from ..hostile_answers import HOSTILE_ANSWERS

pytestmark = pytest.mark.asyncio(loop_scope="module")
TASKS = sorted(set(library.registry()) - {"composite"})
TIMEOUT_S = 2.0
MAX_STALL_S = 0.05


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grader() -> AsyncIterator[SandboxGrader]:
    grader = SandboxGrader(num_workers=2, timeout_s=TIMEOUT_S)
    await grader.start()
    yield grader
    await grader.close()


@pytest.fixture
def traps(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Places that show when an answer had an effect; checked when the test is over."""
    marker = tmp_path / "marker"
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        yield {"marker": str(marker), "port": str(server.getsockname()[1])}
        with pytest.raises(BlockingIOError):
            server.accept()
    assert not marker.exists()


def items(task: str, seed: int = 3, count: int = 2) -> tuple[Any, list[dict[str, Any]]]:
    dataset = library.create_dataset(task, seed=seed, size=count)
    return dataset, [dataset[index] for index in range(count)]


def honest_answers(task: str, entries: list[dict[str, Any]]) -> list[str]:
    """Right answers, right answers to something else, slips of the pen, and prose."""
    rng = random.Random(task)
    answers = [str(entry["answer"]) for entry in entries]
    letters = list(answers[0])
    for _ in range(2):
        at = rng.randrange(len(letters))
        letters[at] = rng.choice("0123456789 abcxyz+-")
        answers.append("".join(letters))
    answers += [answers[0][: len(answers[0]) // 2], f" {answers[0]} ", f"The answer is {answers[0]}."]
    return [*answers, f"[{answers[0]}]", "42", "I do not know", "\\boxed{7}", ""]


@pytest.mark.parametrize("task", TASKS)
async def test_honest_answers_score_as_they_do_in_process(grader: SandboxGrader, task: str) -> None:
    dataset, entries = items(task)
    answers = honest_answers(task, entries)
    verdicts = await grader.grade(task, {}, entries[0], answers)
    # Only slow simplification gets here, where the plain verifier would take as long and longer.
    settled = [(a, v) for a, v in zip(answers, verdicts, strict=True) if v.status is not Status.TIMEOUT]
    expected = [grade(dataset.score_answer, entries[0], answer) for answer, _ in settled]
    assert [(v.value, v.bare, v.tagged, v.status) for _, v in settled] == [
        (v.value, v.bare, v.tagged, v.status) for v in expected
    ]
    assert grader.metrics()["grading/late_imports"] == 0


def hardest_items(task: str) -> tuple[Any, dict[str, Any], list[dict[str, Any]]]:
    """The dataset, its config and two items at the top of every range of the task's curriculum."""
    curriculum = library.create_curriculum(task)
    for name, attribute in curriculum._attributes.items():
        curriculum.set_attr_level(name, len(attribute.levels) - 1)
    config = vars(curriculum.generate_configuration({"seed": 5, "size": 50}))
    dataset = library.create_dataset(task, **config)
    found: list[dict[str, Any]] = []
    for index in range(50):
        # countdown gives up on some seeds.
        with contextlib.suppress(ValueError):
            found.append(dataset[index])
        if len(found) == 2:
            break
    return dataset, {name: config[name] for name in config if name not in ("seed", "size")}, found


@pytest.mark.parametrize("task", sorted(guard.GUARDS))
async def test_the_guards_take_the_hardest_levels(grader: SandboxGrader, task: str) -> None:
    dataset, config, entries = hardest_items(task)
    answers = [text for entry in entries for text in (entry["answer"], str(entry["metadata"].get("solution")))]
    verdicts = await grader.grade(task, config, entries[0], answers)
    expected = [grade(dataset.score_answer, entries[0], answer) for answer in answers]
    assert verdicts[0].value == 1.0
    assert [(v.value, v.bare, v.tagged) for v in verdicts] == [(v.value, v.bare, v.tagged) for v in expected]


@pytest.mark.parametrize("task", sorted(guard.GUARDS))
async def test_no_hostile_answer_has_any_effect(grader: SandboxGrader, traps: dict[str, str], task: str) -> None:
    _, [entry, _] = items(task)
    hostile = [
        answer.replace("<marker>", traps["marker"]).replace("<port>", traps["port"])
        for answer in HOSTILE_ANSWERS.values()
    ]
    right = str(entry["answer"]) if task != "countdown" else entry["metadata"]["expression"]
    verdicts = await grader.grade(task, {}, entry, [right, *hostile, f" {right}"])
    assert verdicts[0].value == 1.0
    crashed = {
        name: verdict
        for name, verdict in zip(HOSTILE_ANSWERS, verdicts[1:-1], strict=True)
        if verdict.status not in (Status.SCORED, Status.VERIFIER_ERROR) or verdict.value > 0.3
    }
    assert crashed == {}
    assert verdicts[-1].status is Status.SCORED


@pytest.mark.parametrize("task", sorted(set(TASKS) - set(guard.GUARDS)))
async def test_hostile_answers_cost_other_answers_nothing(grader: SandboxGrader, task: str) -> None:
    dataset, [entry, _] = items(task)
    right = str(entry["answer"])
    verdicts = await grader.grade(task, {}, entry, [right, *HOSTILE_ANSWERS.values(), right + " "])
    assert verdicts[0] == grade(dataset.score_answer, entry, right)
    assert verdicts[-1] == grade(dataset.score_answer, entry, right + " ")


async def test_equal_answers_get_equal_verdicts_in_order(grader: SandboxGrader) -> None:
    _, [entry, _] = items("chain_sum")
    right = entry["answer"]
    verdicts = await grader.grade("chain_sum", {}, entry, [right, "x", right, "x", "y"])
    assert [verdict.value for verdict in verdicts] == [1.0, 0.0, 1.0, 0.0, 0.0]


async def test_no_answers_give_no_verdicts(grader: SandboxGrader) -> None:
    assert await grader.grade("chain_sum", {}, items("chain_sum")[1][0], []) == []


async def test_the_config_reaches_the_verifier(grader: SandboxGrader) -> None:
    _, [entry, _] = items("puzzle24")
    [default] = await grader.grade("puzzle24", {}, entry, ["6*4*1*1"])
    [strict] = await grader.grade("puzzle24", {"min_value": 2}, entry, ["6*4*1*1"])
    assert (default.value, strict.value) == (1.0, 0.01)


async def test_an_answer_of_absurd_length_is_not_graded(grader: SandboxGrader) -> None:
    _, [entry, _] = items("chain_sum")
    [verdict, right] = await grader.grade("chain_sum", {}, entry, ["1" * (MAX_ANSWER_CHARS + 1), entry["answer"]])
    assert verdict.status is Status.VERIFIER_ERROR
    assert right.value == 1.0


async def test_groups_are_graded_side_by_side(grader: SandboxGrader) -> None:
    prepared = [(task, items(task)[1][0]) for task in TASKS[:20]]
    groups = await asyncio.gather(
        *(grader.grade(task, {}, entry, [str(entry["answer"])]) for task, entry in prepared * 3)
    )
    alone = [await grader.grade(task, {}, entry, [str(entry["answer"])]) for task, entry in prepared]
    assert groups == alone * 3


async def test_the_event_loop_keeps_turning_under_hostile_answers(grader: SandboxGrader) -> None:
    stalls: list[float] = []

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.002)
            stalls.append(time.perf_counter() - before - 0.002)

    watcher = asyncio.create_task(watch())
    entries = {task: items(task)[1][0] for task in guard.GUARDS}
    stalls.clear()
    await asyncio.gather(
        *(grader.grade(task, {}, entry, list(HOSTILE_ANSWERS.values())) for task, entry in entries.items())
    )
    watcher.cancel()
    assert len(stalls) > 20
    # Not a measurement: the machine may be busy. It fails when grading runs on the loop, which takes seconds.
    assert sorted(stalls)[len(stalls) // 2] < MAX_STALL_S


async def test_a_config_that_fits_no_dataset_is_the_callers_error(grader: SandboxGrader) -> None:
    _, [entry, _] = items("chain_sum")
    with pytest.raises(EnvironmentSetupError, match=r"chain_sum: .*no_such_field"):
        await grader.grade("chain_sum", {"no_such_field": 1}, entry, ["1"])
    with pytest.raises(EnvironmentSetupError, match="no_such_task"):
        await grader.grade("no_such_task", {}, entry, ["1"])
    assert (await grader.grade("chain_sum", {}, entry, [entry["answer"]]))[0].value == 1.0
    assert grader.metrics().get("grading/worker_restarts", 0) == 0


async def test_counters_add_up(grader: SandboxGrader) -> None:
    before = grader.metrics()
    _, [entry, _] = items("chain_sum")
    await grader.grade("chain_sum", {}, entry, [entry["answer"], "x"])
    after = grader.metrics()
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    assert {name: by for name, by in grown.items() if by} == {
        "grading/groups": 1.0,
        "grading/answers": 2.0,
        "grading/scored": 2.0,
    }


async def test_the_description_names_every_layer(grader: SandboxGrader) -> None:
    text = grader.describe()
    assert all(layer in text for layer in ("seccomp", "Landlock", "rlimits", "guarded", "deadline"))


def children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
async def test_no_child_outlives_its_group(grader: SandboxGrader) -> None:
    _, [entry, _] = items("chain_sum")
    await grader.grade("chain_sum", {}, entry, ["1", entry["answer"]])
    workers = children_of(os.getpid())
    # The last record arrives just before the worker collects its child.
    for _ in range(200):
        left = [child for worker in workers for child in children_of(worker)]
        if not left:
            break
        await asyncio.sleep(0.01)
    assert left == []
