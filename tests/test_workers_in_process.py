"""Generation and grading in threads of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from reasoning_gym_environment import library
from reasoning_gym_environment.errors import GenerationError
from reasoning_gym_environment.workers import Status
from reasoning_gym_environment.workers.in_process import InProcessGenerator, InProcessGrader


@pytest.fixture
async def generator() -> AsyncIterator[InProcessGenerator]:
    generator = InProcessGenerator()
    yield generator
    await generator.close()


@pytest.fixture
async def grader() -> AsyncIterator[InProcessGrader]:
    grader = InProcessGrader()
    yield grader
    await grader.close()


async def test_generated_item_is_the_first_of_its_dataset(generator: InProcessGenerator) -> None:
    config = {"min_terms": 2, "max_terms": 3}
    entry = await generator.generate("chain_sum", 17, config)
    assert entry == library.create_dataset("chain_sum", seed=17, size=1, **config)[0]
    assert config == {"min_terms": 2, "max_terms": 3}


@pytest.mark.parametrize(
    ("task", "config"), [("no_such_task", {}), ("chain_sum", {"min_terms": 0}), ("chain_sum", {"unknown": 1})]
)
async def test_failed_generation_names_task_seed_and_cause(
    generator: InProcessGenerator, task: str, config: dict[str, Any]
) -> None:
    with pytest.raises(GenerationError, match=f"{task} with seed 3: [A-Z]") as caught:
        await generator.generate(task, 3, config)
    assert caught.value.__cause__ is not None


async def test_grading_gives_one_verdict_per_answer_in_order(
    generator: InProcessGenerator, grader: InProcessGrader
) -> None:
    entry = await generator.generate("chain_sum", 17, {})
    verdicts = await grader.grade("chain_sum", {}, entry, [entry["answer"], "nonsense", entry["answer"]])
    assert [verdict.value == 1.0 for verdict in verdicts] == [True, False, True]
    assert grader.metrics() == {"grading/scored": 3.0}


async def test_a_verifier_that_raises_is_counted_and_spares_the_others(
    grader: InProcessGrader, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dataset:
        def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
            if "bad" in answer:
                raise RecursionError("deep")
            return 1.0

    monkeypatch.setattr(library, "create_dataset", lambda *args, **config: Dataset())
    verdicts = await grader.grade("x", {}, {}, ["good", "bad"])
    assert [verdict.status for verdict in verdicts] == [Status.SCORED, Status.VERIFIER_ERROR]
    assert grader.metrics() == {"grading/scored": 1.0, "grading/verifier_error": 1.0}


async def test_datasets_are_built_once_per_task_and_config(
    grader: InProcessGrader, generator: InProcessGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = await generator.generate("chain_sum", 1, {})
    built: list[dict[str, Any]] = []
    create = library.create_dataset

    def counting(task: str, **config: Any) -> Any:
        built.append(config)
        return create(task, **config)

    monkeypatch.setattr(library, "create_dataset", counting)
    for config in ({}, {}, {"max_terms": 9, "min_terms": 2}, {"min_terms": 2, "max_terms": 9}):
        await grader.grade("chain_sum", config, entry, ["1"])
    assert len(built) == 2


async def test_the_event_loop_keeps_turning_while_a_verifier_works(
    grader: InProcessGrader, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, release = threading.Event(), threading.Event()

    class Dataset:
        def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
            started.set()
            assert release.wait(10)
            return 1.0

    monkeypatch.setattr(library, "create_dataset", lambda *args, **config: Dataset())
    grading = asyncio.ensure_future(grader.grade("x", {}, {}, ["a"]))
    assert await asyncio.to_thread(started.wait, 10)
    assert not grading.done()
    release.set()
    assert [verdict.value for verdict in await grading] == [1.0]


async def test_closing_twice_is_harmless(grader: InProcessGrader, generator: InProcessGenerator) -> None:
    for worker in (grader, generator):
        await worker.close()
        await worker.close()
