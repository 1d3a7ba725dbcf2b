"""The recipe of an item: what another process needs to make the same item again.

    Problem ── Recipe.of ──> Recipe ── as_row ──> a dict of texts and numbers, in JSON lines or parquet
    a row ── Recipe.from_row ──> Recipe ── make ──> the same problem, ready to be graded

JSON and parquet change the metadata of most items, so a row carries the recipe and not the item. The process that
grades makes the item again. The digest of the question shows whether it is the same item.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any

from ..api import PromptedProblem, Tasks
from ..errors import EnvironmentSetupError, GenerationError
from ..records import Problem, to_json
from ..sampling.seeds import question_digest

KEPT_ITEMS = 1024
"""Items that `RecentItems` remembers."""


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
        config = json.dumps(to_json(dict(problem.config)), sort_keys=True)
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
            # pandas reads a missing number as NaN, the only number that differs from itself.
            is_missing = level is None or level != level
            config = row["config"]
            if not isinstance(json.loads(config), dict):
                raise ValueError(f"config: {config!r:.60} is not a JSON object")
            return cls(
                task=str(row["task"]),
                seed=int(row["seed"]),
                config=config,
                level=None if is_missing else int(level),
                question_digest=str(row["question_digest"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EnvironmentSetupError(
                f"Expected a row of `export --items` with task, seed, config, level and question_digest: {error!r}."
            ) from error

    def make(self, tasks: Tasks) -> PromptedProblem:
        """Make the item again.

        Raises UnknownNameError for a task that is not served, and GenerationError if the item cannot be made, or if
        this process makes another question.
        """
        return self.checked(self.begin(tasks).result())

    async def make_async(self, tasks: Tasks) -> PromptedProblem:
        """Like `make`, for callers with an event loop."""
        return self.checked(await asyncio.wrap_future(self.begin(tasks)))

    def begin(self, tasks: Tasks) -> Future[PromptedProblem]:
        """Begin to make the item. Its question is not checked yet. Raises UnknownNameError."""
        served = tasks.catalog[self.task]
        return tasks.begin_to_make(served.name, self.seed, json.loads(self.config))

    def checked(self, problem: PromptedProblem) -> PromptedProblem:
        """The problem. Raises GenerationError if it has another question than the recipe."""
        if question_digest(problem.question) != self.question_digest:
            raise GenerationError(
                f"{self.task}, seed {self.seed}: the recipe gives another question in this process. Install the same "
                "release of reasoning-gym everywhere."
            )
        return problem


class RecentItems:
    """The items of the latest recipes. The completions of a group come one by one, and share an item.

    All callers of a recipe wait for the same item. After a failure, the next call tries again. Any thread may call both
    methods.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self._lock = threading.Lock()
        self._making: OrderedDict[Recipe, Future[PromptedProblem]] = OrderedDict()

    def get(self, recipe: Recipe) -> PromptedProblem:
        """The item. Raises what `Recipe.make` raises."""
        return recipe.checked(self._begin(recipe).result())

    async def get_async(self, recipe: Recipe) -> PromptedProblem:
        """Like `get`, for callers with an event loop."""
        making = asyncio.wrap_future(self._begin(recipe))
        # A caller that is cancelled must not cancel the item of the others.
        return recipe.checked(await asyncio.shield(making))

    def _begin(self, recipe: Recipe) -> Future[PromptedProblem]:
        with self._lock:
            making = self._making.get(recipe)
            if making is None or _has_failed(making):
                making = recipe.begin(self.tasks)
                self._making[recipe] = making
            self._making.move_to_end(recipe)
            if len(self._making) > KEPT_ITEMS:
                self._making.popitem(last=False)
        return making


def _has_failed(making: Future[PromptedProblem]) -> bool:
    return making.done() and (making.cancelled() or making.exception() is not None)


_starting = threading.Lock()
_started: dict[str, RecentItems] = {}
"""The items and workers of this process, by the arguments of `Tasks` as JSON."""


def items_for(settings: Mapping[str, Any]) -> RecentItems:
    """The items and workers of this process for these arguments of `Tasks`, which are JSON data.

    The first call starts the workers, and concurrent calls wait. They end with the process. Any thread may call this
    function. Raises EnvironmentSetupError if they do not start. The next call tries again.
    """
    try:
        key = json.dumps(settings, sort_keys=True)
    except TypeError as error:
        raise EnvironmentSetupError(
            f"Expected settings that are texts and numbers, got {settings!r:.200}. Separate names by commas."
        ) from error
    with _starting:
        if key not in _started:
            _started[key] = RecentItems(Tasks(**settings))
        return _started[key]


def _forget_the_parents_workers() -> None:
    global _starting, _started
    _starting = threading.Lock()
    _started = {}


# A forked process lacks the threads of its parent. So it cannot use the parent's workers, and a lock that another
# thread held at the time of the fork would never be released.
os.register_at_fork(after_in_child=_forget_the_parents_workers)
