"""Index -> Problem. Every choice (task, level, item) is a function of named inputs and of what was observed.

index ──> task (see task_choice) ──> level ──> seed ──> item
          each from derive_seed(run seed, split, instance, ...)
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from . import library
from .catalog import Catalog, Task, config_of
from .difficulty import Level
from .errors import EnvironmentSetupError, GenerationError, GenerationTimeoutError
from .records import Problem
from .seeding import derive_seed
from .task_choice import TaskChooser, WeightedTasks

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 200
"""Draws in a row that yield no usable item before the environment gives up with an error."""


class ItemGenerator(Protocol):
    """Generates one item; see workers.generation.ProcessGenerator."""

    async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]: ...


class LevelChooser(Protocol):
    """Chooses the difficulty of a draw; None means reasoning-gym's own defaults."""

    def choose(self, task: str, index: int) -> Level | None: ...


class TaskSampler:
    """Draws training problems in order of their index, and single problems of any split."""

    def __init__(
        self,
        catalog: Catalog,
        generator: ItemGenerator,
        *,
        seed: int,
        instance: str = "0",
        levels: LevelChooser | None = None,
        tasks: TaskChooser | None = None,
    ) -> None:
        """`tasks` chooses the task of each index; by default they are drawn by their weights in the catalog."""
        self._catalog = catalog
        self._generator = generator
        self._seed = seed
        self.instance = instance
        self._levels = levels
        self._configs = {task.name: config_of(task.name, task.overrides) for task in catalog.tasks}
        self._tasks = tasks or WeightedTasks({task.name: task.weight for task in catalog.tasks}, seed)
        self._held_out: set[str] = set()
        self.index = 0
        self.skipped: Counter[str] = Counter()

    async def next(self) -> Problem:
        """The next training problem; an index whose item cannot be used is skipped with a counter.

        Raises EnvironmentSetupError when hundreds of draws in a row yield nothing.
        """
        for _ in range(MAX_CONSECUTIVE_FAILURES):
            index, self.index = self.index, self.index + 1
            task = self.task_at(index)
            level = self._levels.choose(task.name, index) if self._levels else None
            try:
                problem = await self.draw(task.name, index=index, split="train", seed=self._seed, level=level)
            except GenerationError as error:
                timed_out = isinstance(error, GenerationTimeoutError)
                self.skip("generation_timed_out" if timed_out else "generation_failed", task.name, str(error))
                continue
            if _fingerprint(problem) in self._held_out:
                self.skip("in_eval_set", task.name, "its question is in the evaluation set")
                continue
            return problem
        raise EnvironmentSetupError(
            f"{MAX_CONSECUTIVE_FAILURES} draws in a row gave no usable item ({dict(self.skipped)}); "
            "include more tasks, or reduce num_eval_samples_per_task if the evaluation set holds all items."
        )

    def task_at(self, index: int) -> Task:
        """The task that training index `index` gets, given what its chooser has observed."""
        return self._catalog[self._tasks.choose(index, self.instance)]

    async def draw(self, task: str, *, index: int, split: str, seed: int, level: Level | None = None) -> Problem:
        """The problem at one place of a stream. Raises GenerationError if reasoning-gym cannot make it (in time)."""
        config = dict(level.config) if level else self._configs[task]
        instance = self.instance if split == "train" else "shared"
        item_seed = derive_seed(seed, "item", split, instance, task, index)
        entry = await self._generator.generate(task, item_seed, config)
        return Problem(
            task=task,
            category=self._catalog[task].category,
            split=split,
            index=index,
            seed=item_seed,
            config=config,
            entry=entry,
            level=level.index if level else None,
            complexity=level.complexity if level else None,
        )

    def hold_out(self, problem: Problem) -> None:
        """Never hand out a training problem with this question."""
        self._held_out.add(_fingerprint(problem))

    def skip(self, reason: str, task: str, detail: str) -> None:
        """Count a draw that was not used; its first time per task is logged."""
        key = f"{reason}/{task}"
        self.skipped[key] += 1
        self._tasks.skip(task)
        if self.skipped[key] == 1:
            logger.warning("An item of %s is skipped (%s): %s. Counted from here on.", task, reason, detail)

    def metrics(self) -> dict[str, float]:
        """Skipped draws by reason."""
        totals: Counter[str] = Counter()
        for key, count in self.skipped.items():
            totals[key.split("/")[0]] += count
        return {f"train/skipped_{reason}": float(count) for reason, count in totals.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"index": self.index, "instance": self.instance, "skipped": dict(self.skipped)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises EnvironmentSetupError if the state has no usable index."""
        index = state.get("index")
        if not isinstance(index, int) or index < 0:
            raise EnvironmentSetupError(f"A sampler's state needs a non-negative integer index, got {index!r}.")
        self.index = index
        self.instance = str(state.get("instance", self.instance))
        self.skipped = Counter(state.get("skipped", {}))


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


def _fingerprint(problem: Problem) -> str:
    return hashlib.blake2b(problem.question.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
