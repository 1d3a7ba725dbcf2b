"""Generation and grading in this process, each in one thread of its own.

The event loop keeps turning while a verifier works, but nothing here stops a hostile answer: reasoning-gym
verifiers that evaluate text run it with this process's rights, and a verifier that never returns blocks grading.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from .. import library
from ..errors import GenerationError
from .daemon_thread import DaemonThread
from .grading import Verdict, grade

logger = logging.getLogger(__name__)


class InProcessGrader:
    """Grades in a thread, with one cached dataset per (task, config)."""

    def __init__(self) -> None:
        self._thread = DaemonThread("grade")
        self._datasets: dict[tuple[str, str], Any] = {}
        self._counts: Counter[str] = Counter()

    async def grade(
        self, task: str, config: Mapping[str, Any], entry: dict[str, Any], answers: Sequence[str]
    ) -> list[Verdict]:
        graded = self._thread.submit(partial(self._grade, task, config, entry, answers))
        verdicts = await asyncio.wrap_future(graded)
        self._counts.update(verdict.status.value for verdict in verdicts)
        return verdicts

    def metrics(self) -> dict[str, float]:
        return {f"grading/{status}": float(count) for status, count in self._counts.items()}

    async def close(self) -> None:
        self._thread.close()

    def _grade(
        self, task: str, config: Mapping[str, Any], entry: dict[str, Any], answers: Sequence[str]
    ) -> list[Verdict]:
        key = (task, json.dumps(dict(config), sort_keys=True, default=repr))
        if key not in self._datasets:
            self._datasets[key] = library.create_dataset(task, seed=0, size=1, **config)
        score_answer = self._datasets[key].score_answer
        return [grade(score_answer, entry, answer) for answer in answers]


class InProcessGenerator:
    """Generates items in a thread."""

    def __init__(self) -> None:
        self._thread = DaemonThread("generate")

    async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
        """Item 0 of the dataset with this seed and config. Raises GenerationError if reasoning-gym fails."""
        return await asyncio.wrap_future(self._thread.submit(partial(_generate, task, seed, config)))

    async def close(self) -> None:
        self._thread.close()


def _generate(task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
    # Any of a hundred third-party generators runs here, each with its own exceptions.
    try:
        entry: dict[str, Any] = library.create_dataset(task, seed=seed, size=1, **config)[0]
    except Exception as error:
        raise GenerationError(f"{task} with seed {seed}: {type(error).__name__}: {error}") from error
    return entry
