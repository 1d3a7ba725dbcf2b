"""The recipe of an item: what another process needs to make the same item again.

    Problem ── Recipe.of ──> Recipe ── as_row ──> a dict of texts and numbers, in JSON lines or parquet
    a row ── Recipe.from_row ──> Recipe ── make ──> the same problem, ready to be graded

JSON and parquet change the metadata of most items, so a row carries the recipe and not the item. The process that
grades makes the item again. The digest of the question shows whether it is the same item.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..api import PromptedProblem, Tasks
from ..errors import EnvironmentSetupError, GenerationError
from ..records import Problem, plain
from ..sampling.item_maker import question_digest


@dataclass(frozen=True)
class Recipe:
    """All fields are texts or numbers, because a column of a table has one type."""

    task: str
    seed: int
    config: str
    """The config of reasoning-gym, as JSON."""
    level: int | None
    """None for an item that was made without levels."""
    question_digest: str
    """Of `sampling.item_maker.question_digest`."""

    @classmethod
    def of(cls, problem: Problem) -> Recipe:
        """The recipe of a problem that a stream, a held-out set or `Tasks.make` has made."""
        config = json.dumps(plain(dict(problem.config)), sort_keys=True)
        return cls(
            problem.task,
            problem.seed,
            config,
            problem.level,
            question_digest(problem.question),
        )

    def as_row(self) -> dict[str, Any]:
        """The recipe as a dict."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Recipe:
        """The recipe of a row, which may have more keys. Raises EnvironmentSetupError if it has no recipe."""
        try:
            level = row["level"]
            config = row["config"]
            if not isinstance(json.loads(config), dict):
                raise ValueError(f"config: {config!r:.60} is not a JSON object")
            return cls(
                task=str(row["task"]),
                seed=int(row["seed"]),
                config=config,
                level=None if level is None else int(level),
                question_digest=str(row["question_digest"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EnvironmentSetupError(
                f"Expected a row of `export --items` with task, seed, config, level and question_digest: {error!r}."
            ) from error

    async def make(self, tasks: Tasks) -> PromptedProblem:
        """Make the item again.

        Raises UnknownNameError for a task that is not served, and GenerationError if the item cannot be made, or if
        this process makes another question.
        """
        problem = await tasks.make_async(self.task, self.seed, json.loads(self.config))
        return self._checked(problem)

    def make_blocking(self, tasks: Tasks) -> PromptedProblem:
        """Like `make`, for callers without an event loop of their own."""
        problem = tasks.make(self.task, self.seed, json.loads(self.config))
        return self._checked(problem)

    def _checked(self, problem: PromptedProblem) -> PromptedProblem:
        if question_digest(problem.question) != self.question_digest:
            raise GenerationError(
                f"{self.task}, seed {self.seed}: the recipe gives another question in this process. Install the same "
                "release of reasoning-gym everywhere."
            )
        return problem
