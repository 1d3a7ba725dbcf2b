"""The stream of training problems: index -> task and level -> item -> Problem.

    index ──> Draw: task and level ──> item (item_maker.py) ──> handed out ──> finished
                                                                                 │    ^
                                requeued, a bounded number of times  ────────────┴────┘

    a problem of the stream ── answered, graded ──> ItemSource.observe: the curriculum, once for each item

Every choice (task, level, item) is a function of named inputs and of the observations so far. A draw is pending until
its item is finished (pending_items.py). The stream saves pending draws and repeats them after a restart.

The stream makes the next few items ahead of time, so that a problem is usually ready when a caller needs it. Problems
come in the order of their index, and the stream also counts skipped and replaced items in that order, and tells the
curriculum of them. Therefore the stream does not depend on which item was ready first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, TypeAlias

from pydantic import NonNegativeInt, TypeAdapter

from ..errors import EnvironmentSetupError
from ..records import Group, Problem
from ..settings.components import SamplingSettings
from ..tasks.difficulty_ladder import Ladder, Level
from ..workers.pool import PoolClosedError
from .curriculum import Curriculum, GroupResult
from .item_maker import ItemAddress, ItemMaker, ItemResult, Unmade
from .pending_items import Draw, PendingItems
from .seeds import derive_random

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 200
"""If this many draws in a row give no item, the stream ends with an error."""

_DRAWS = TypeAdapter(list[tuple[NonNegativeInt, str, NonNegativeInt | None]])
_COUNTS = TypeAdapter(dict[Unmade, NonNegativeInt])
_INDICES = TypeAdapter(list[NonNegativeInt])


PREFETCH = 32
FEWEST_AHEAD = 4
"""The most and the fewest items that the stream of a run makes ahead of time. Items come in the order of their index,
so a slow item delays those behind it, unless it was begun long before its turn."""


def items_ahead(num_tasks: int) -> int:
    """How many items the stream makes ahead of time: one for every third task, so that few levels are chosen early.

    An item's level is chosen when the stream begins to make the item. The curriculum has seen less by then.
    """
    return min(PREFETCH, max(FEWEST_AHEAD, num_tasks // 3))


# --- the task and the level of an index

LevelChooser: TypeAlias = Callable[[str, int], Level]
"""Task and index -> the level of an item."""


def choose_task(weights: Mapping[str, float], seed: int, instance: str, index: int) -> str:
    """The task of an index of the training stream, drawn with probabilities in proportion to the weights."""
    random = derive_random(seed, "task", "train", instance, index)
    return random.choices(list(weights), weights=list(weights.values()))[0]


def level_chooser(
    settings: SamplingSettings,
    ladders: Mapping[str, Ladder],
    level_of: Callable[[str], int],
) -> LevelChooser | None:
    """The chooser of `complexity_mode`; None for reasoning-gym's default configs.

    `level_of` is the level of a task in the curriculum.
    """
    mode = settings.complexity_mode
    if mode is None:
        return None

    def choose(task: str, index: int) -> Level:
        ladder = ladders[task]
        if mode == "curriculum":
            return ladder.levels[level_of(task)]
        if mode == "random":
            return derive_random(settings.seed, "level", task, index).choice(ladder.levels)
        return ladder.at(mode)

    return choose


# --- the stream


@dataclass(eq=False)
class _ItemAhead:
    """An item that is being made, or is ready."""

    draw: Draw
    making: asyncio.Task[ItemResult]


class ProblemStream:
    """Draws training problems in the order of their index; `pending` keeps track of the pending draws.

        problem = await stream.next()
        ...                                   # complete, grade, send
        stream.pending.finish(problem)        # or stream.pending.requeue(problem)

    The stream makes `prefetch` items ahead. With a curriculum, their level was chosen that many items earlier, before
    the latest observations. `ladders` are required if there are `levels`. The stream tells a `curriculum` which levels
    give items.
    """

    def __init__(
        self,
        maker: ItemMaker,
        *,
        seed: int,
        instance: str = "0",
        levels: LevelChooser | None = None,
        ladders: Mapping[str, Ladder] | None = None,
        curriculum: Curriculum | None = None,
        prefetch: int = 0,
    ) -> None:
        self.maker = maker
        self.pending = PendingItems()
        self.instance = instance
        """The name of the stream. It changes before the first draw only."""
        self.skipped: Counter[Unmade] = Counter()
        """Draws that gave no problem, by reason."""
        self.redrawn: Counter[Unmade] = Counter()
        """Items that another seed has replaced, by reason, since this process began."""
        self.replaced: Counter[Unmade] = Counter()
        """Items that came from an easier level than planned, by reason."""
        self._curriculum = curriculum
        self._seed = seed
        self._levels = levels
        self._ladders = ladders or {}
        self._weights = {task.name: task.weight for task in maker.catalog.tasks}
        self._prefetch = prefetch
        self._index = 0
        self._excluded: Collection[int] = ()
        self._ahead: deque[_ItemAhead] = deque()
        self._has_logged_error = False

    @property
    def index(self) -> int:
        """The index of the next problem."""
        if self._ahead:
            return self._ahead[0].draw.index
        if self.pending.waiting:
            return self.pending.waiting[0].index
        return self._index

    @property
    def tasks_in_progress(self) -> list[str]:
        """The tasks of the items that are being made now, in the order of their index, each task once."""
        unfinished = [item.draw.task for item in self._ahead if not item.making.done()]
        return list(dict.fromkeys(unfinished))

    async def next(self) -> Problem:
        """Return the next training problem, and skip (and count) the draws that give no problem.

        The problem is pending until the caller finishes or requeues it. If the caller is cancelled while it waits, the
        item stays the next one. Raises EnvironmentSetupError if hundreds of draws in a row give nothing, and
        PoolClosedError once the workers are closed.
        """
        for _ in range(MAX_CONSECUTIVE_FAILURES):
            item = await self._next_made()
            # If this raises, the draw stays pending.
            result = item.making.result()
            self._ahead.remove(item)
            self._learn_from(item.draw, result)
            if result.problem is not None:
                self.pending.hand_out(item.draw, result.problem)
                return result.problem
        raise EnvironmentSetupError(
            f"{MAX_CONSECUTIVE_FAILURES} draws in a row gave no usable item ({dict(self.skipped)}); include more "
            "tasks, or raise max_token_length if prompts are too long."
        )

    def choose_task(self, index: int) -> str:
        """The task of an index."""
        return choose_task(self._weights, self._seed, self.instance, index)

    def leave_out(self, indices: Collection[int]) -> None:
        """Exclude these indices, because an earlier process has made their groups. Call this before the first draw."""
        self._excluded = frozenset(indices)

    def skip(self, reason: Unmade, task: str, detail: str) -> None:
        """Count a draw that was not used. The first skip for a reason is logged."""
        if reason not in self.skipped:
            logger.warning(
                "Skipped an item of %s (%s): %s. Further skips for this reason are only counted (train/skipped_%s).",
                task,
                reason,
                detail,
                reason,
            )
        self.skipped[reason] += 1

    def metrics(self) -> dict[str, float]:
        """Skipped draws and replaced items by reason, and the items that came from an easier level."""
        counts = {"skipped": self.skipped, "redrawn": self.redrawn, "replaced": self.replaced}
        values: dict[str, float] = {}
        for name, by_reason in counts.items():
            values |= {f"train/{name}_{reason}": float(count) for reason, count in by_reason.items()}
        return values

    def state_dict(self) -> dict[str, Any]:
        """`index` is the first index without a draw; `pending` are the draws whose items are not finished.

        `observed` has the indices of those that the curriculum has seen.
        """
        ahead = [item.draw for item in self._ahead]
        pending = [*self.pending.draws(), *ahead]
        return {
            "index": self._index,
            "pending": [list(astuple(draw)) for draw in sorted(pending)],
            "observed": sorted(self.pending.observed),
            "instance": self.instance,
            "skipped": dict(self.skipped),
            "replaced": dict(self.replaced),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`: the stream repeats its pending draws before it makes a new draw.

        Raises ValueError if the state is malformed.
        """
        index = TypeAdapter(NonNegativeInt).validate_python(state.get("index"), strict=True)
        pending = [Draw(*row) for row in sorted(_DRAWS.validate_python(state.get("pending", [])))]
        observed = _INDICES.validate_python(state.get("observed", []))
        skipped = Counter(_COUNTS.validate_python(state.get("skipped", {})))
        replaced = Counter(_COUNTS.validate_python(state.get("replaced", {})))
        self._stop_making()
        self.pending.restore(self._repeatable(pending), observed)
        self._index = index
        self.instance = str(state.get("instance", self.instance))
        self.skipped = skipped
        self.replaced = replaced

    async def close(self) -> None:
        """Stop making items ahead. Their draws stay pending. Safe to call twice."""
        stopped = [item.making for item in self._ahead]
        self._stop_making()
        await asyncio.gather(*stopped, return_exceptions=True)

    # --- the items ahead

    async def _next_made(self) -> _ItemAhead:
        """Wait for the next item. The item stays ahead, so nothing is lost if the caller is cancelled here."""
        while True:
            while len(self._ahead) <= self._prefetch:
                draw = self.pending.take_waiting() or self._new_draw()
                self._ahead.append(self._begin(draw))
            item = self._ahead[0]
            if item.making.done():
                return item
            # Another caller may take this item meanwhile, or the stream may be closed or loaded.
            await asyncio.wait([item.making])

    def _new_draw(self) -> Draw:
        while self._index in self._excluded:
            self._index += 1
        index = self._index
        task = self.choose_task(index)
        level = None
        if self._levels:
            level = self._levels(task, index).index
        self._index += 1
        return Draw(index, task, level)

    def _begin(self, draw: Draw) -> _ItemAhead:
        levels: list[Level | None] = [None]
        if draw.level is not None:
            levels = [*self._ladders[draw.task].down_from(draw.level)]
        making = asyncio.get_running_loop().create_task(self._make(draw, levels))
        # `next` raises the error when the item's turn comes. Without this, asyncio complains if its turn never comes.
        making.add_done_callback(lambda task: task.cancelled() or task.exception())
        return _ItemAhead(draw, making)

    async def _make(self, draw: Draw, levels: Sequence[Level | None]) -> ItemResult:
        """Make the item of a draw. An error that no code expects costs this item and nothing else."""
        address = ItemAddress(draw.task, draw.index, "train", self._seed, self.instance)
        try:
            return await self.maker.make_at_first_of(levels, address)
        except (EnvironmentSetupError, PoolClosedError):
            raise
        except Exception as error:
            if not self._has_logged_error:
                self._has_logged_error = True
                logger.exception(
                    "Unexpected error while making an item of %s. Please report it.",
                    draw.task,
                )
            return ItemResult(reason=Unmade.ERROR, detail=f"{type(error).__name__}: {error}")

    def _learn_from(self, draw: Draw, result: ItemResult) -> None:
        self.redrawn += result.redrawn
        for level, reason in result.exceeded:
            if level > 0:
                self.replaced[reason] += 1
            if self._curriculum is not None:
                self._curriculum.note_unmade(draw.task, level)
        if result.problem is None:
            assert result.reason is not None
            self.pending.forget_failures(draw.index)
            self.skip(result.reason, draw.task, result.detail)
        elif result.problem.level is not None and self._curriculum is not None:
            self._curriculum.note_made(draw.task, result.problem.level)

    def _repeatable(self, draws: Sequence[Draw]) -> list[Draw]:
        """The draws of tasks that are served here, at their default config if there are no levels."""
        catalog = self.maker.catalog
        served = set(catalog.names)
        kept = [draw for draw in draws if draw.task in served]
        unknown = sorted({draw.task for draw in draws} - served)
        if unknown:
            logger.warning(
                "Pending items of %s are dropped: these tasks are not served now.",
                ", ".join(unknown),
            )
        if self._levels:
            return kept
        return [replace(draw, level=None) for draw in kept]

    def _stop_making(self) -> None:
        for item in self._ahead:
            item.making.cancel()
        self.pending.put_back(item.draw for item in self._ahead)
        self._ahead.clear()


# --- the stream together with the curriculum, which learns from the rewards


@dataclass
class ItemSource:
    """The item stream together with the curriculum, which chooses its levels if `follows_curriculum`."""

    stream: ProblemStream
    curriculum: Curriculum
    follows_curriculum: bool

    def observe_group(self, group: Group) -> None:
        """Show the curriculum a scored group; see `observe`."""
        credits = [rollout.base_reward for rollout in group.scored]
        self.observe(group.problem, credits)

    def observe(self, problem: Problem, credits: Sequence[float]) -> None:
        """Show the curriculum the scores of a problem's completions, once for each pending problem.

        `credits` has the scores, each in [0, 1], of the completions that could be scored, because a timeout or a crash
        of the grader is not the model's failure.
        """
        if credits and self.stream.pending.note_observed(problem):
            self.learn(problem.task, problem.level, credits)

    def learn(self, task: str, level: int | None, credits: Sequence[float]) -> None:
        """Show the curriculum the scores of a group that it has not seen before."""
        if self.follows_curriculum and level is not None:
            self.curriculum.observe(GroupResult(task, level, tuple(credits)))

    def metrics(self) -> dict[str, float]:
        """The numbers of the stream and of the curriculum."""
        values = self.stream.metrics()
        if self.follows_curriculum:
            values |= self.curriculum.metrics()
        return values

    @property
    def stateful(self) -> dict[str, Any]:
        """The components with state, in the order in which they are saved and loaded."""
        return {
            "item_stream": self.stream,
            "curriculum": self.curriculum,
        }


def build_item_source(
    settings: SamplingSettings,
    maker: ItemMaker,
    ladders: Mapping[str, Ladder],
) -> ItemSource:
    """A new item source of the maker's tasks. `ladders` has the ladder of each task, or nothing without levels."""
    sizes = {task: len(ladder) for task, ladder in ladders.items()}
    curriculum = Curriculum(sizes, settings.curriculum_target_accuracy)
    follows_curriculum = settings.complexity_mode == "curriculum"
    stream = ProblemStream(
        maker,
        seed=settings.seed,
        instance=settings.instance_id or "0",
        levels=level_chooser(settings, ladders, curriculum.level),
        ladders=ladders,
        curriculum=curriculum if follows_curriculum else None,
        prefetch=items_ahead(len(maker.catalog.tasks)),
    )
    return ItemSource(stream, curriculum, follows_curriculum=follows_curriculum)
