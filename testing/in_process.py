"""Stand-ins for the workers that do the same work in this process, for tests of other things.

Starting worker processes takes seconds. The stand-ins have no deadlines. Some tasks lower the precision of decimal
numbers for their whole process, so each call has a separate decimal context.
"""

from __future__ import annotations

import decimal
import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from reasoning_gym_environment import runtime
from reasoning_gym_environment.errors import GenerationError, NoRightAnswerError
from reasoning_gym_environment.records import Verdict
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification.grade import check_for, grade
from reasoning_gym_environment.verification.questions import is_sound, mended
from reasoning_gym_environment.workers.datasets import DatasetCache, is_reseeded


class _InProcess:
    """The common part of the stand-ins."""

    def __init__(self, *, strict: bool = False, **_: Any) -> None:
        self._strict = strict
        self._datasets = DatasetCache()

    def _cached(self, task: str, **config: Any) -> Any:
        dataset = self._datasets.dataset(task, config)
        # The cache freezes all objects for the children that a worker forks. Here it would keep those of all tests.
        gc.unfreeze()
        return dataset

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        return {}


class InProcessGrader(_InProcess):
    """Of a grader's settings it heeds `strict` alone."""

    async def grade(
        self, task: str, config: Mapping[str, Any], entry: dict[str, Any], answers: Sequence[str]
    ) -> list[Verdict]:
        dataset = self._cached(task, seed=0, size=1, **config)
        check = check_for(task, entry) if self._strict else None
        with decimal.localcontext():
            return [grade(dataset.score_answer, entry, answer, check) for answer in answers]


class InProcessGenerator(_InProcess):
    async def generate(
        self,
        task: str,
        seed: int,
        config: Mapping[str, Any],
        *,
        mends: bool = False,
        refuses: bool = False,
    ) -> dict[str, Any]:
        entry = self.make(task, seed, config)
        if is_sound(task, entry):
            return mended(task, entry) if mends else entry
        if refuses:
            raise NoRightAnswerError(f"{task} with seed {seed}")
        return entry

    def make(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
        """The item as reasoning-gym makes it. A test may remember items that take long."""
        try:
            with decimal.localcontext():
                make = self._cached if is_reseeded(task) else library.create_dataset
                entry: dict[str, Any] = make(task, seed=seed, size=1, **config)[0]
        except Exception as error:
            raise GenerationError(f"{task} with seed {seed}: {library.explain(error)}") from error
        return entry


@contextmanager
def in_process_workers(generator: type[InProcessGenerator] = InProcessGenerator) -> Iterator[None]:
    """Environments and `Tasks` that are made in this block generate and grade in this process."""
    with mock.patch.multiple(runtime, SandboxGrader=InProcessGrader, ProcessGenerator=generator):
        yield
