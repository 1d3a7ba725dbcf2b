"""A problem dressed as the dataset it came from, for code that expects one."""

from __future__ import annotations

from typing import Any

from ..records import Problem
from ..tasks import reasoning_gym_source as library


class ProblemDataset:
    """The dataset an item came from, as Atropos-style code expects it: something with `score_answer`.

    Holds the problem's recipe; the reasoning-gym dataset itself is built only if `score_answer` is called here.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.name = problem.task
        self.config = problem.config
        self._dataset: Any = None

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """reasoning-gym's own verdict, unguarded: it runs in this process and raises what the verifier raises."""
        if self._dataset is None:
            self._dataset = library.create_dataset(self.name, seed=self.problem.seed, size=1, **self.config)
        return float(self._dataset.score_answer(answer=answer, entry=entry))
