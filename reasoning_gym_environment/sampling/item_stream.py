"""What the item stream has promised: a plan for each index, from its choice until its group is settled.

chosen ──> drawn ahead ──> handed out ──> settled
└──────────── pending: saved, and drawn again after a restart ───────────┘

One plan of the item stream -> a problem, at the level that was planned or, if that cannot be had, at a lower one.

Index -> Problem. Every choice (task, level, item) is a function of named inputs and of what was observed.

index ──> plan: task (see task_choice), level ──> seed ──> item          each from derive_seed(run seed, split, ...)

The next few plans are drawn ahead, so that a problem is usually there when it is asked for. Problems come in the order
of their index, and what they teach about levels and skipped items is taken in in that order too: the stream does not
depend on which of them was made first.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..errors import EnvironmentSetupError, GenerationCrashedError, GenerationError, GenerationTimeoutError
from ..records import Problem
from ..tasks.catalog import Catalog, Task, config_of
from ..tasks.difficulty_ladder import Level
from ..utils.seeding import derive_seed
from .level_limits import FAILED, TIMED_OUT, TOO_LONG, LevelBudgets
from .task_bandit import TaskChooser, WeightedTasks

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """Which task and level an index of the training stream gets; `level` is None for the default config."""

    index: int
    task: str
    level: int | None

    def as_json(self) -> list[Any]:
        return [self.index, self.task, self.level]


def plans_from(saved: Any, *, below: int, tasks: Container[str]) -> tuple[list[Plan], list[Plan]]:
    """Saved plans in the order of their index: those that can be carried out, and those of tasks not served now.

    Raises EnvironmentSetupError unless `saved` is a list of [index, task, level] with indices under `below`.
    """
    plans = [_plan(entry, below) for entry in _as_list(saved)]
    plans.sort(key=lambda plan: plan.index)
    return [plan for plan in plans if plan.task in tasks], [plan for plan in plans if plan.task not in tasks]


def _as_list(saved: Any) -> Iterable[Any]:
    if not isinstance(saved, list):
        raise EnvironmentSetupError(f"A sampler's state needs a list of pending items, got {saved!r}.")
    return saved


def _plan(entry: Any, below: int) -> Plan:
    match entry:
        case [int(index), str(task), int() | None as level] if 0 <= index < below and (level is None or level >= 0):
            return Plan(index, task, level)
    raise EnvironmentSetupError(
        f"A pending item of a sampler's state is [index, task, level] with an index below {below}, got {entry!r}."
    )


SEEDS_TRIED = 5
"""How many seeds a level may have: countdown, for one, finds no item for one seed in three."""

Make = Callable[[Level | None, int], Awaitable[Problem]]
"""Makes the planned item at a level, None for the task's default, with the seed of the attempt of that number."""


@dataclass
class Drawn:
    """What became of a plan: a problem or a reason to skip it, and what was learned about levels on the way."""

    problem: Problem | None = None
    skipped: tuple[str, str] = ("", "")
    exceeded: list[tuple[int, str, str]] = field(default_factory=list)


async def carry_out(levels: Sequence[Level | None], make: Make, too_long: Callable[[str], str]) -> Drawn:
    """The item at the first of these levels at which it is made, in time, and fits; `too_long` says if it does not."""
    drawn = Drawn()
    for level in levels:
        try:
            problem = await _made(level, make)
            reason, detail = TOO_LONG, too_long(problem.question)
        except GenerationTimeoutError as error:
            reason, detail = TIMED_OUT, str(error)
        except GenerationError as error:
            reason, detail = FAILED, str(error)
        if not detail:
            return Drawn(problem, exceeded=drawn.exceeded)
        drawn.skipped = (reason, detail)
        if level is not None:
            drawn.exceeded.append((level.index, reason, detail))
    return drawn


async def _made(level: Level | None, make: Make) -> Problem:
    for attempt in range(SEEDS_TRIED - 1):
        try:
            return await make(level, attempt)
        except (GenerationTimeoutError, GenerationCrashedError):
            # Either took its time, and will again.
            raise
        except GenerationError:
            continue
    return await make(level, SEEDS_TRIED - 1)


MAX_CONSECUTIVE_FAILURES = 200
"""Draws in a row that yield no usable item before the environment gives up with an error."""

MAX_TRIES = 5
"""How often an item is handed out while its group is not done in time."""


class ItemGenerator(Protocol):
    """Generates one item; see workers.generation.ProcessGenerator."""

    async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]: ...


class LevelChooser(Protocol):
    """Chooses the difficulty of a draw; None means reasoning-gym's own defaults."""

    def choose(self, task: str, index: int) -> Level | None: ...


class TaskSampler:
    """Draws training problems in order of their index, and single problems of any split.

    `prefetch` plans are drawn ahead of the one asked for. With a curriculum or learnability their task and level were
    chosen that many items earlier, before the latest observations. `too_long` says what is wrong with a question
    that does not fit the prompt budget, "" if it fits. `budgets` are needed where `levels` are.
    """

    def __init__(
        self,
        catalog: Catalog,
        generator: ItemGenerator,
        *,
        seed: int,
        instance: str = "0",
        levels: LevelChooser | None = None,
        tasks: TaskChooser | None = None,
        budgets: LevelBudgets | None = None,
        too_long: Callable[[str], str] = lambda question: "",
        prefetch: int = 0,
    ) -> None:
        """`tasks` chooses the task of each index; by default they are drawn by their weights in the catalog."""
        self._catalog = catalog
        self._generator = generator
        self._seed = seed
        self.instance = instance
        self._levels = levels
        self._configs = {task.name: config_of(task.name, task.overrides) for task in catalog.tasks}
        self._tasks = tasks or WeightedTasks({task.name: task.weight for task in catalog.tasks}, seed)
        self._budgets = budgets or LevelBudgets({})
        self._too_long = too_long
        self._prefetch = prefetch
        self._held_out: set[str] = set()
        self._index = 0
        self._again: deque[Plan] = deque()
        self._ahead: deque[tuple[Plan, asyncio.Task[Drawn]]] = deque()
        self._handed_out: dict[int, Plan] = {}
        self._tries: dict[int, int] = {}
        self.skipped: Counter[str] = Counter()

    @property
    def index(self) -> int:
        """Index of the problem that is handed out next."""
        if self._ahead:
            return self._ahead[0][0].index
        return self._again[0].index if self._again else self._index

    async def next(self) -> Problem:
        """The next training problem; an index whose item cannot be used is skipped with a counter.

        It counts as pending until `finish`. Raises EnvironmentSetupError when hundreds of draws in a row yield nothing.
        """
        for _ in range(MAX_CONSECUTIVE_FAILURES):
            self._draw_ahead()
            plan, drawing = self._ahead.popleft()
            # Pending also while it is awaited: a checkpoint may be written meanwhile.
            self._handed_out[plan.index] = plan
            try:
                drawn = await asyncio.shield(drawing)
            except BaseException:
                # Nobody got it, so it is still the next one.
                del self._handed_out[plan.index]
                if drawing.done() and (drawing.cancelled() or drawing.exception()):
                    self._again.appendleft(plan)
                else:
                    self._ahead.appendleft((plan, drawing))
                raise
            problem = self._settle(plan, drawn)
            if problem is not None:
                # At the level it came to in the end: drawn again, it must be the same item.
                self._handed_out[plan.index] = replace(plan, level=problem.level)
                return problem
            del self._handed_out[plan.index]
        raise EnvironmentSetupError(
            f"{MAX_CONSECUTIVE_FAILURES} draws in a row gave no usable item ({dict(self.skipped)}); include more "
            "tasks, raise max_token_length or max_prompt_tokens if prompts are too long, or reduce "
            "num_eval_samples_per_task if the evaluation set holds all items."
        )

    def finish(self, problem: Problem) -> None:
        """Its group is settled: sent, filtered or given up. Harmless for a problem that is not pending."""
        if problem.is_of_stream and self._handed_out.pop(problem.index, None) is not None:
            self._tries.pop(problem.index, None)

    def try_again(self, problem: Problem, *, is_counted: bool = True) -> bool:
        """Hand a pending problem out once more, after those already drawn; False if it had MAX_TRIES already."""
        plan = self._handed_out.get(problem.index) if problem.is_of_stream else None
        tries = self._tries.get(problem.index, 1)
        if plan is None or tries >= MAX_TRIES:
            self._tries.pop(problem.index, None)
            return False
        self._tries[problem.index] = tries + is_counted
        del self._handed_out[problem.index]
        self._again.append(plan)
        return True

    def task_at(self, index: int) -> Task:
        """The task that training index `index` gets, given what its chooser has observed."""
        return self._catalog[self._tasks.choose(index, self.instance)]

    async def draw(
        self,
        task: str,
        *,
        index: int,
        split: str,
        seed: int,
        level: Level | None = None,
        config: Mapping[str, Any] | None = None,
        attempt: int = 0,
    ) -> Problem:
        """The problem at one place of a stream, of a level, of a whole config, or as the task is served.

        A further `attempt` has another seed.
        Raises GenerationError if reasoning-gym cannot make it (in time).
        """
        config = dict(level.config) if level else dict(config) if config is not None else self._configs[task]
        instance = self.instance if split == "train" else "shared"
        further = (attempt,) if attempt else ()
        item_seed = derive_seed(seed, "item", split, instance, task, index, *further)
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
        """Skipped draws by reason, and what became of levels."""
        totals: Counter[str] = Counter()
        for key, count in self.skipped.items():
            totals[key.split("/")[0]] += count
        values = {f"train/skipped_{reason}": float(count) for reason, count in totals.items()}
        return {**values, **self._budgets.metrics()} if self._levels else values

    def state_dict(self) -> dict[str, Any]:
        """`index` is the next without a plan; `pending` are the plans not settled yet, drawn again after a restart."""
        pending = [*self._handed_out.values(), *(plan for plan, _ in self._ahead), *self._again]
        return {
            "index": self._index,
            "pending": [plan.as_json() for plan in sorted(pending, key=lambda plan: plan.index)],
            "instance": self.instance,
            "skipped": dict(self.skipped),
            "budgets": self._budgets.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises EnvironmentSetupError if the state has no usable index or pending items."""
        index = state.get("index")
        if not isinstance(index, int) or index < 0:
            raise EnvironmentSetupError(f"A sampler's state needs a non-negative integer index, got {index!r}.")
        pending, unknown = plans_from(state.get("pending", []), below=index, tasks=self._catalog)
        if unknown:
            names = ", ".join(sorted({plan.task for plan in unknown}))
            logger.warning("%d pending items are dropped, for their tasks are not served now: %s.", len(unknown), names)
        self._stop_drawing()
        self._index = index
        # A run that goes on without levels draws what was pending at the tasks' defaults.
        self._again = deque(pending if self._levels else (replace(plan, level=None) for plan in pending))
        self._handed_out.clear()
        self.instance = str(state.get("instance", self.instance))
        self.skipped = Counter(state.get("skipped", {}))
        self._budgets.load_state_dict(state.get("budgets", {}))

    async def close(self) -> None:
        """Stop drawing ahead. What was drawn stays pending. Safe to call twice."""
        drawing = [task for _, task in self._ahead]
        self._stop_drawing()
        await asyncio.gather(*drawing, return_exceptions=True)

    def _stop_drawing(self) -> None:
        for _, drawing in self._ahead:
            drawing.cancel()
        self._again.extendleft(plan for plan, _ in reversed(self._ahead))
        self._ahead.clear()

    def _draw_ahead(self) -> None:
        while len(self._ahead) <= self._prefetch:
            plan = self._again.popleft() if self._again else self._next_plan()
            levels = [] if plan.level is None else self._budgets.from_level_down(plan.task, plan.level)
            drawing = asyncio.get_running_loop().create_task(self._carried_out(plan, levels or [None]))
            # Looked at when its turn comes; if it never does, asyncio must not complain about its error.
            drawing.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._ahead.append((plan, drawing))

    def _next_plan(self) -> Plan:
        index, self._index = self._index, self._index + 1
        task = self.task_at(index).name
        level = self._levels.choose(task, index) if self._levels else None
        return Plan(index, task, self._budgets.level(task, level.index).index if level else None)

    async def _carried_out(self, plan: Plan, levels: Sequence[Level | None]) -> Drawn:
        async def make(level: Level | None, attempt: int) -> Problem:
            return await self.draw(
                plan.task, index=plan.index, split="train", seed=self._seed, level=level, attempt=attempt
            )

        return await carry_out(levels, make, self._too_long)

    def _settle(self, plan: Plan, drawn: Drawn) -> Problem | None:
        """Take in what a plan's drawing taught; the problem, if it can be used."""
        for level, reason, detail in drawn.exceeded:
            self._budgets.exceeded(plan.task, level, reason, detail)
        problem = drawn.problem
        if problem is None:
            self.skip(drawn.skipped[0], plan.task, drawn.skipped[1])
            return None
        if problem.level is not None:
            self._budgets.made(plan.task, problem.level)
        if _fingerprint(problem) in self._held_out:
            self.skip("in_eval_set", plan.task, "its question is in the evaluation set")
            return None
        return problem


def _fingerprint(problem: Problem) -> str:
    return hashlib.blake2b(problem.question.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
