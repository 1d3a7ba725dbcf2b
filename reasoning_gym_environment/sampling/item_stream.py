"""Index -> Problem. Every choice (task, level, item) is a function of named inputs and of what was observed.

    index ──> plan: task, level (see policies) ──> item (see item_maker) ──> handed out ──> done: its group is sent, or
                                                                             │    ^          is of no use
                      at most MAX_TRIES times, if no group came of it ───────┴────┘

    a problem of the stream ── answered, graded ──> Sampler.observe: task chooser and curriculum, once for each item

A plan is pending until its item is done: it is saved, and drawn again after a restart.

The next few plans are drawn ahead, so that a problem is usually there when it is asked for. Problems come in the order
of their index, and what they teach about levels and skipped items is taken in in that order too: the stream does not
depend on which of them was made first. In `serve`, which must not wait while a slow item is made, it does: there the
others overtake it. What item an index has at a task and level is the same either way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from pydantic import NonNegativeInt, TypeAdapter

from ..errors import EnvironmentSetupError
from ..records import Episode, Problem
from ..settings import SamplingSettings
from ..tasks.catalog import Catalog, progress
from ..tasks.difficulty_ladder import Ladder, Ranges, build_ladders, describe
from .curriculum import Curriculum
from .item_maker import Drawn, ItemMaker, LevelLimits, Place, loading
from .policies import LevelChooser, build_level_chooser, build_task_policy
from .task_policy import GroupResult, TaskPolicy
from .weighted import WeightedTasks

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 200
"""Draws in a row that yield no usable item before the environment gives up with an error."""

MOST_AHEAD = 128
"""Plans drawn ahead at most, however many of them are overtaken."""

PATIENCE_S = 0.25
"""How long none of those drawn ahead may be made until more are drawn."""

MAX_TRIES = 5
"""How often an item is handed out while its group is not done in time."""

REMEMBERED = 4096
"""Observed items kept in mind; many more than are ever under way."""


class ItemStream:
    """Draws training problems in order of their index; `ledger` knows what became of each.

    `prefetch` plans are drawn ahead of the one asked for. With a curriculum or learnability their task and level were
    chosen that many items earlier, before the latest observations. `limits` are needed where `levels` are.
    """

    def __init__(
        self,
        maker: ItemMaker,
        *,
        seed: int,
        instance: str = "0",
        levels: LevelChooser | None = None,
        tasks: TaskPolicy | None = None,
        limits: LevelLimits | None = None,
        prefetch: int = 0,
    ) -> None:
        """`tasks` chooses the task of each index; by default they are drawn by their weights in the catalog."""
        self.maker = maker
        self.ledger = ItemLedger()
        self.limits = limits or LevelLimits({})
        self.instance = instance
        self.skipped: Counter[str] = Counter()
        self._seed = seed
        self._levels = levels
        self._tasks = tasks or WeightedTasks({task.name: task.weight for task in maker.catalog.tasks}, seed)
        self._prefetch = prefetch
        self.redrawn: Counter[str] = Counter()
        """Items not used, another made in their place, by reason; since this process began."""
        self._index = 0
        self._left_out: Collection[int] = ()
        self._ahead: deque[tuple[Plan, asyncio.Task[Drawn]]] = deque()
        self.may_overtake = False
        """Whether what is made first is handed out first: which that is depends on the clock."""
        self._furthest = -1

    @property
    def index(self) -> int:
        """Index of the problem that is handed out next."""
        planned = [*(plan for plan, _ in self._ahead), *self.ledger.again]
        return planned[0].index if planned else self._index

    async def next(self) -> Problem:
        """The next training problem; an index whose item cannot be used is skipped with a counter.

        It is pending until `ledger` is told what became of it. Raises EnvironmentSetupError when hundreds of draws in
        a row yield nothing.
        """
        for _ in range(MAX_CONSECUTIVE_FAILURES):
            self._draw_ahead()
            if self.may_overtake:
                await self._until_one_is_made()
            plan, drawing = self._ahead.popleft()
            # Pending also while it is awaited: a checkpoint may be written meanwhile.
            self.ledger.hand_out(plan)
            try:
                drawn = await asyncio.shield(drawing)
            except BaseException:
                # Nobody got it, so it is still the next one.
                del self.ledger.handed_out[plan.index]
                self._ahead.appendleft((plan, drawing))
                raise
            self._learn_from(plan, drawn)
            if drawn.problem is not None:
                self.ledger.hand_out(plan, drawn.problem)
                return drawn.problem
            del self.ledger.handed_out[plan.index]
        raise EnvironmentSetupError(
            f"{MAX_CONSECUTIVE_FAILURES} draws in a row gave no usable item ({dict(self.skipped)}); include more "
            "tasks, or raise max_token_length or max_prompt_tokens if prompts are too long."
        )

    async def _until_one_is_made(self) -> None:
        """And put it in front, to be handed out."""
        while not (made := next((one for one in self._ahead if one[1].done()), None)):
            drawings = [drawing for _, drawing in self._ahead]
            if not (await asyncio.wait(drawings, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                # None before those that come now.
                self._furthest = max(plan.index for plan, _ in self._ahead) + 1
                self._draw_ahead()
        self._ahead.remove(made)
        self._ahead.appendleft(made)
        self._furthest = max(made[0].index, self._furthest)

    def _draw_ahead(self) -> None:
        # One that is overtaken must not take the place of others.
        overtaken = sum(plan.index < self._furthest and not drawing.done() for plan, drawing in self._ahead)
        while len(self._ahead) <= min(self._prefetch + overtaken, MOST_AHEAD):
            plan = self.ledger.again.popleft() if self.ledger.again else self._next_plan()
            levels = [] if plan.level is None else self.limits.from_level_down(plan.task, plan.level)
            place = Place(plan.task, plan.index, "train", self._seed, self.instance)
            drawing = asyncio.get_running_loop().create_task(self.maker.make_at_first_of(levels or [None], place))
            # Looked at when its turn comes; if it never does, asyncio must not complain about its error.
            drawing.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._ahead.append((plan, drawing))

    def leave_out(self, indices: Collection[int]) -> None:
        """Do not draw these: an earlier start has made their groups. Before the first draw."""
        self._left_out = frozenset(indices)

    def _next_plan(self) -> Plan:
        while self._index in self._left_out:
            self._index += 1
        index, self._index = self._index, self._index + 1
        task = self._tasks.choose(index, self.instance)
        level = self._levels(task, index) if self._levels else None
        return Plan(index, task, self.limits.level(task, level.index).index if level else None)

    def _learn_from(self, plan: Plan, drawn: Drawn) -> None:
        self.redrawn += drawn.redrawn
        for level, reason, detail in drawn.exceeded:
            self.limits.exceeded(plan.task, level, reason, detail)
        if drawn.problem is None:
            self.skip(drawn.skipped[0], plan.task, drawn.skipped[1])
        elif drawn.problem.level is not None:
            self.limits.made(plan.task, drawn.problem.level)

    def skip(self, reason: str, task: str, detail: str) -> None:
        """Count a draw that was not used; its first time per task is logged."""
        key = f"{reason}/{task}"
        self.skipped[key] += 1
        self._tasks.note_failure(task)
        if self.skipped[key] == 1:
            logger.warning("An item of %s is skipped (%s): %s. Counted from here on.", task, reason, detail)

    def metrics(self) -> dict[str, float]:
        """Skipped draws by reason, items in whose place another was made, and what became of levels."""
        totals = Counter(key.split("/")[0] for key in self.skipped.elements())
        values = {f"train/skipped_{reason}": float(count) for reason, count in totals.items()}
        values |= {f"train/redrawn_{reason}": float(count) for reason, count in self.redrawn.items()}
        values |= self.ledger.metrics()
        return {**values, **self.limits.metrics()} if self._levels else values

    def state_dict(self) -> dict[str, Any]:
        """`index` is the next without a plan; `pending` are the plans not settled yet, drawn again after a restart."""
        pending = [*self.ledger.handed_out.values(), *(plan for plan, _ in self._ahead), *self.ledger.again]
        return {
            "index": self._index,
            "pending": [list(astuple(plan)) for plan in sorted(pending)],
            "instance": self.instance,
            "skipped": dict(self.skipped),
            "budgets": self.limits.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises EnvironmentSetupError if the state has no usable index or pending items."""
        with loading("sampler"):
            index = TypeAdapter(NonNegativeInt).validate_python(state.get("index"), strict=True)
            pending = [Plan(*row) for row in sorted(_PLANS.validate_python(state.get("pending", [])))]
        if unknown := {plan.task for plan in pending} - set(self.maker.catalog.names):
            logger.warning("Pending items of %s are dropped: not served now.", ", ".join(sorted(unknown)))
        self._stop_drawing()
        self._index = index
        # A run that goes on without levels draws what was pending at the tasks' defaults.
        plans = [plan if self._levels else replace(plan, level=None) for plan in pending if plan.task not in unknown]
        self.ledger.restore(plans)
        self.instance = str(state.get("instance", self.instance))
        self.skipped = Counter(state.get("skipped", {}))
        self.limits.load_state_dict(state.get("budgets", {}))

    async def close(self) -> None:
        """Stop drawing ahead. What was drawn stays pending. Safe to call twice."""
        drawing = [task for _, task in self._ahead]
        self._stop_drawing()
        await asyncio.gather(*drawing, return_exceptions=True)

    def _stop_drawing(self) -> None:
        for _, drawing in self._ahead:
            drawing.cancel()
        self.ledger.again.extendleft(plan for plan, _ in reversed(self._ahead))
        self._ahead.clear()


# --- what became of each item: which are under way, and which are done


@dataclass(frozen=True, order=True)
class Plan:
    """Which task and level an index of the training stream gets; `level` is None for the default config."""

    index: int
    task: str
    level: int | None


_PLANS = TypeAdapter(list[tuple[NonNegativeInt, str, NonNegativeInt | None]])


class ItemLedger:
    """Plans that are handed out or wait to be drawn again, and the last items observed.

    An item teaches the curriculum once (`is_new_observation`, saved), however often it is drawn. Items that are not of
    the stream (those of an evaluation or of a caller's own dataset) are never pending.
    """

    def __init__(self) -> None:
        self.handed_out: dict[int, Plan] = {}
        self.again: deque[Plan] = deque()
        """Plans to draw before any new one is made."""
        self._tries: dict[int, int] = {}
        self._observed: dict[int, None] = {}
        self._observed_again = 0

    # --- for the item stream

    def hand_out(self, plan: Plan, problem: Problem | None = None) -> None:
        """It is pending from here on; with its problem, at the level that this came to in the end."""
        # Drawn again, it must be the same item.
        self.handed_out[plan.index] = plan if problem is None else replace(plan, level=problem.level)

    def restore(self, plans: Iterable[Plan]) -> None:
        """Forget what was pending: these plans are, and are drawn again."""
        self.handed_out.clear()
        self._tries.clear()
        self.again = deque(plans)

    # --- for whoever runs an item

    def done(self, problem: Problem) -> None:
        """Its group is settled: sent, or of no use. Harmless for a problem that is not pending."""
        if problem.is_of_stream and self.handed_out.pop(problem.index, None) is not None:
            self._tries.pop(problem.index, None)

    def requeue(self, problem: Problem, *, is_counted: bool = True) -> bool:
        """Hand a pending problem out once more, after those already drawn; False if it had MAX_TRIES already."""
        plan = self.handed_out.get(problem.index) if problem.is_of_stream else None
        tries = self._tries.get(problem.index, 1)
        if plan is None or tries >= MAX_TRIES:
            self._tries.pop(problem.index, None)
            return False
        self._tries[problem.index] = tries + is_counted
        del self.handed_out[problem.index]
        self.again.append(plan)
        return True

    def is_new_observation(self, index: int) -> bool:
        """Whether this is the first observation of the item with this index; a second one is counted."""
        if index in self._observed:
            self._observed_again += 1
            return False
        self._observed[index] = None
        if len(self._observed) > REMEMBERED:
            del self._observed[next(iter(self._observed))]
        return True

    # --- what is told and saved (of the observed items; the pending ones are saved with the stream)

    def metrics(self) -> dict[str, float]:
        return {"train/items_observed_again": float(self._observed_again)} if self._observed_again else {}

    def state_dict(self) -> dict[str, Any]:
        return {"indices": list(self._observed), "repeated": self._observed_again}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; an empty one starts afresh. Raises EnvironmentSetupError if it is malformed."""
        with loading("list of observed items"):
            self._observed = dict.fromkeys(TypeAdapter(list[int]).validate_python(state.get("indices", [])))
            self._observed_again = int(state.get("repeated", 0))


# --- the choosers of tasks and levels, which learn from what was earned


@dataclass
class Sampler:
    """The item stream with what steers it: whoever trains, and with what, holds one of these."""

    stream: ItemStream
    chooser: TaskPolicy
    curriculum: Curriculum
    follows_curriculum: bool

    def observe_group(self, group: Episode) -> None:
        self.observe(group.problem, [rollout.credit for rollout in group.scored], has_signal=group.has_signal)

    def observe(self, problem: Problem, credits: Sequence[float], *, has_signal: bool) -> None:
        """Let the choosers see what the completions of a problem earned, once for each item of the stream.

        `credits`, each in [0, 1], are of those that could be scored: a timeout or crash of our own is not the model's
        failure. `has_signal`: their rewards differ.
        """
        if not problem.is_of_stream:
            return
        if not credits:
            self.chooser.note_failure(problem.task)
        elif self.stream.ledger.is_new_observation(problem.index):
            self.learn(problem.task, problem.level, credits, has_signal)

    def learn(self, task: str, level: int | None, credits: Sequence[float], has_signal: bool) -> None:
        """The same, of a group that is new for certain."""
        result = GroupResult(task, level, tuple(credits), has_signal)
        self.chooser.observe(result)
        if self.follows_curriculum and level is not None:
            self.curriculum.observe(result)

    def metrics(self) -> dict[str, float]:
        values = {**self.stream.metrics(), **self.chooser.metrics()}
        return {**values, **self.curriculum.metrics()} if self.follows_curriculum else values

    @property
    def stateful(self) -> dict[str, Any]:
        """The parts that observed scores or drawn items move, in the order in which they are saved and loaded."""
        stream = self.stream
        return {"sampler": stream, "curriculum": self.curriculum, "chooser": self.chooser, "observed": stream.ledger}


async def ladders_of(
    catalog: Catalog, complexity_mode: str | float | None, difficulty_range: Ranges
) -> dict[str, Ladder]:
    """Every task's ladder; in a thread, for thousands of configs are tried and the event loop must heed signals."""
    if complexity_mode is None:
        return {}
    tasks = progress("difficulty ladders")(catalog.tasks)
    ladders = await asyncio.to_thread(build_ladders, tasks, difficulty_range=difficulty_range)
    logger.info("Difficulty %s: %s.", complexity_mode, describe(ladders))
    return ladders


def build_sampler(settings: SamplingSettings, maker: ItemMaker, ladders: Mapping[str, Ladder]) -> Sampler:
    """A new stream of the maker's tasks; `ladders` are those of `ladders_of`."""
    limits = LevelLimits(ladders)
    curriculum = Curriculum(ladders, limits.top_level, settings.curriculum_target_accuracy)
    weights = {task.name: task.weight for task in maker.catalog.tasks}
    chooser = build_task_policy(settings, weights, curriculum)
    levels = build_level_chooser(settings, ladders, curriculum)
    stream = ItemStream(
        maker, seed=settings.seed, levels=levels, tasks=chooser, limits=limits, prefetch=settings.prefetch_items
    )
    stream.instance = settings.instance_id or "0"
    return Sampler(stream, chooser, curriculum, settings.complexity_mode == "curriculum")
