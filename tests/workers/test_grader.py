"""Grading in workers: the scores of grading in this process, whatever the answers try to do."""

from __future__ import annotations

import asyncio
import re
import types
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.records import Outcome
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification.eval_guards import GUARDS
from reasoning_gym_environment.verification.grade import grade
from reasoning_gym_environment.workers.grader import MAX_ANSWER_CHARS, SandboxGrader
from reasoning_gym_environment.workers.grading_worker import tasks_within
from testing.hostile_answers import ATTACK_TASK, ENTRY, HOSTILE_ANSWERS, RIGHT
from testing.process_table import linux_only, until, workers_of

from .conftest import FILE_TASK, HIDDEN_EVAL_TASK, grading

pytestmark = pytest.mark.asyncio(loop_scope="session")
TASKS = set(library.registry()) - {"composite"}
ORDINARY = (None, Outcome.VERIFIER_ERROR)


def each(tasks: Iterable[str], *quick: str) -> list[Any]:
    """All of these tasks, of which the fast tier has only `quick`."""
    return [pytest.param(task, marks=[pytest.mark.slow] * (task not in quick)) for task in sorted(tasks)]


def items(task: str, count: int = 2) -> tuple[Any, list[dict[str, Any]]]:
    dataset = library.create_dataset(task, seed=3, size=count)
    return dataset, [dataset[index] for index in range(count)]


@pytest.fixture(scope="module")
def sum_item() -> dict[str, Any]:
    return items("chain_sum")[1][0]


def honest_answers(entries: list[dict[str, Any]]) -> list[str]:
    """Right answers, right answers to something else, slips of the pen, and prose."""
    right, other = (str(entry["answer"]) for entry in entries)
    slips = [right[:-1], right + "0", right.replace("1", "7"), right[: len(right) // 2], f" {right} ", f"[{right}]"]
    return [right, other, *slips, f"The answer is {right}.", "42", "I do not know", "\\boxed{7}", ""]


@pytest.mark.parametrize(
    "task", each({*GUARDS, "chain_sum", "graph_color"}, "chain_sum", "countdown", "binary_matrix", "graph_color")
)
async def test_honest_answers_score_as_they_do_in_process(grader: SandboxGrader, task: str) -> None:
    dataset, entries = items(task)
    answers = honest_answers(entries)
    verdicts = await grader.grade(task, {}, entries[0], answers)
    # Only slow simplification gets here, where the plain verifier would take as long and longer.
    settled = [(a, v) for a, v in zip(answers, verdicts, strict=True) if v.failure is not Outcome.TIMEOUT]
    expected = [grade(dataset.score_answer, entries[0], answer) for answer, _ in settled]
    assert [(v.value, v.native, v.failure) for _, v in settled] == [(v.value, v.native, v.failure) for v in expected]


@pytest.mark.parametrize("task", each(TASKS, "chain_sum", "countdown", "binary_matrix"))
async def test_no_hostile_answer_has_an_effect_or_costs_another_answer(
    grader: SandboxGrader, tmp_path: Path, task: str
) -> None:
    dataset, [entry, _] = items(task)
    marker = tmp_path / "marker"
    hostile = [answer.replace("<marker>", str(marker)).replace("<port>", "9") for answer in HOSTILE_ANSWERS.values()]
    right = str(entry["answer"]) if task != "countdown" else entry["metadata"]["expression"]
    verdicts = await grader.grade(task, {}, entry, [right, *hostile, f" {right}"])
    expected = [grade(dataset.score_answer, entry, text) for text in (right, f" {right}")]
    assert [verdicts[0], verdicts[-1]] == expected
    # A guarded verifier evaluates none of it: nothing runs into a limit, and nothing is paid.
    guarded = zip(HOSTILE_ANSWERS, verdicts[1:-1], strict=True) if task in GUARDS else ()
    crashed = {name: one for name, one in guarded if one.failure not in ORDINARY or one.value > 0.3}
    assert crashed == {} and not await asyncio.to_thread(marker.exists)


async def test_equal_answers_get_equal_verdicts_in_order_and_are_counted(
    grader: SandboxGrader, sum_item: dict[str, Any]
) -> None:
    before, right = grader.metrics(), sum_item["answer"]
    verdicts = await grader.grade("chain_sum", {}, sum_item, [right, "x", right, "x", "y"])
    assert [verdict.value for verdict in verdicts] == [1.0, 0.0, 1.0, 0.0, 0.0]
    grown = Counter(grader.metrics()) - Counter(before)
    assert grown == {"grading/groups": 1.0, "grading/answers": 5.0, "grading/scored": 5.0}
    assert await grader.grade("chain_sum", {}, sum_item, []) == []


async def test_the_config_reaches_the_verifier_and_an_answer_of_absurd_length_does_not(grader: SandboxGrader) -> None:
    _, [entry, _] = items("puzzle24")
    right = "6*4*1*1"
    absurd, default = await grader.grade("puzzle24", {}, entry, ["1" * (MAX_ANSWER_CHARS + 1), right])
    [narrower] = await grader.grade("puzzle24", {"min_value": 2}, entry, [right])
    assert (absurd.value, default.value, narrower.value) == (0.0, 1.0, 0.01)
    assert absurd.detail.startswith(f"expected at most {MAX_ANSWER_CHARS} characters")


BROKEN_DATASETS: list[Any] = [
    ("chain_sum", {"no_such_field": 1}, "TypeError: .*no_such_field"),
    ("no_such_task", {}, "ValueError: .*no_such_task"),
    (ATTACK_TASK, {"breaks": "OSError"}, "OSError: as the test wants it"),
    # It costs a worker.
    pytest.param(ATTACK_TASK, {"breaks": "MemoryError"}, "MemoryError: more than 2048 MiB", marks=pytest.mark.slow),
    (ATTACK_TASK, {"breaks": "SystemExit"}, "SystemExit: as the test wants it"),
]


@pytest.mark.parametrize(("task", "config", "cause"), BROKEN_DATASETS)
async def test_a_group_whose_dataset_or_item_cannot_be_used_is_unscored_by_name_and_costs_no_worker(
    grader: SandboxGrader,
    sum_item: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    task: str,
    config: dict[str, Any],
    cause: str,
) -> None:
    before = Counter(grader.metrics())
    grader._faults.counts.clear()
    verdicts = await grader.grade(task, config, sum_item, ["1", "2"])
    assert [verdict.failure for verdict in verdicts] == [Outcome.CRASHED] * 2
    assert re.search(f"^not scored: {cause}", verdicts[0].detail)
    assert re.search(f"2 answers to a {task} problem could not be scored: {cause}", caplog.text)
    grader._remembered.clear()
    assert (await grader.grade("chain_sum", {}, sum_item, [sum_item["answer"]]))[0].value == 1.0
    grown = Counter(grader.metrics()) - before
    assert grown["grading/unscored_groups"] == 1.0
    # A worker that has run out of memory ends with its reply.
    assert grown["grading/worker_restarts"] == ("MemoryError" in cause)


@pytest.mark.slow
@linux_only
async def test_a_worker_that_keeps_much_memory_ends_and_one_that_needs_too_much_scores_nothing(
    grader: SandboxGrader,
) -> None:
    before = Counter(grader.metrics())
    for _ in range(2):
        [kept] = await grader.grade(ATTACK_TASK, {"keeps": 1100 << 20}, ENTRY, [RIGHT])
        assert kept.value == 1.0
    [refused] = await grader.grade(ATTACK_TASK, {"keeps": 3 << 30}, ENTRY, [RIGHT])
    assert (refused.failure, "MemoryError" in refused.detail) == (Outcome.CRASHED, True)
    [right] = await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT])
    assert right.value == 1.0
    assert (Counter(grader.metrics()) - before)["grading/worker_restarts"] == 3


async def test_an_answer_that_runs_unseen_by_the_scan_changes_no_score_of_others(grader: SandboxGrader) -> None:
    task = HIDDEN_EVAL_TASK
    grader._remembered.clear()
    forge = "Dataset.score_answer = lambda self, answer, entry: float(answer != entry['answer'])"
    calls = [grader.grade(task, {}, ENTRY, answers) for answers in ([forge, "None", RIGHT], ["0"], [RIGHT, "1"])]
    found = await asyncio.gather(*calls)
    again = await grader.grade(task, {}, ENTRY, ["None", RIGHT])
    assert not grader._remembered
    values = [[verdict.value for verdict in verdicts] for verdicts in [*found, again]]
    assert values == [[0.25, 0.25, 1.0], [0.25], [1.0, 0.25], [0.25, 1.0]]


@linux_only
async def test_every_layer_is_named_and_no_child_outlives_its_group(
    grader: SandboxGrader, sum_item: dict[str, Any]
) -> None:
    assert all(layer in grader.describe() for layer in ("seccomp", "Landlock", "guarded", "deadline"))
    await grader.grade("chain_sum", {}, sum_item, ["1", sum_item["answer"]])
    # The last record arrives just before the worker collects its child.
    await until(lambda: not [child for worker in grader._pool.workers for child in workers_of(worker.pid or 0)])


@pytest.mark.slow
async def test_workers_apply_the_forms_and_count_what_the_verifier_sees_otherwise(
    sum_item: dict[str, Any],
) -> None:
    task = "game_of_life_halting"
    entry = items(task)[1][0]
    async with grading(strict=True) as grader:
        refused, right = await grader.grade(task, {}, entry, ["anything at all", str(entry["answer"])])
        assert (refused.value, refused.native, right.value) == (0.0, 1.0, 1.0)
        [recovered] = await grader.grade("chain_sum", {}, sum_item, [f"**{sum_item['answer']}**"])
        assert recovered.value == 1.0 > recovered.native
        counts = grader.metrics()
    assert (counts["grading/refused_answers"], counts["grading/recovered_answers"]) == (1.0, 1.0)


async def test_a_verifier_that_raises_is_reported_once_with_its_exception_and_line(
    grader: SandboxGrader, caplog: pytest.LogCaptureFixture
) -> None:
    verdicts = await grader.grade(FILE_TASK, {}, {"question": "?", "answer": "right"}, ["raise 1", "raise 2", "right"])
    assert [verdict.failure for verdict in verdicts] == [
        Outcome.VERIFIER_ERROR,
        Outcome.VERIFIER_ERROR,
        None,
    ]
    assert [verdict.value for verdict in verdicts] == [0.0, 0.0, 1.0]
    error = f"The verifier of {FILE_TASK} raised an error, so the answer scores 0: NameError: no such name (own_dataset"
    assert caplog.text.count(error) == 1


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ("import os; os._exit(0)", "the verifier's process ended early"),
        ("raise MemoryError", "the verifier ran out of memory"),
        pytest.param("while True: pass", "no verdict within 2 s", marks=pytest.mark.slow),
    ],
)
@linux_only
async def test_an_answer_without_a_score_is_reported_once_for_its_task_with_its_reason(
    grader: SandboxGrader, caplog: pytest.LogCaptureFixture, answer: str, cause: str
) -> None:
    grader._faults.counts.clear()
    for number in range(2):
        [verdict] = await grader.grade(ATTACK_TASK, {}, {"answer": str(number), "metadata": {}}, [answer])
        assert verdict.failure is not None and not verdict.failure.is_scored
    assert caplog.text.count(f"1 answers to a {ATTACK_TASK} problem could not be scored: {cause}") == 1


async def test_a_composite_is_as_guarded_as_its_parts() -> None:
    part = types.SimpleNamespace(name="countdown", weight=1, config={})
    nested = {"datasets": [{"name": "composite", "config": {"datasets": [part]}}]}
    assert tasks_within("composite", nested) == {"composite", "countdown"}
    assert tasks_within("chain_sum", {"min_terms": 2}) == {"chain_sum"}
    assert tasks_within("own_task", {"datasets": 3}) == {"own_task"}
