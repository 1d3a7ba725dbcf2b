"""The loop of `serve`: how many groups may be under way now, and starting them.

    status (ten times a second) ──> the step's checks ──> room for groups ──> draw, start ──> status ...

In place of Atropos' own loop, whose rules for the room it keeps (`most_groups`): the queue at the trajectory API is
filled for `max_batches_offpolicy` batches and no further, less while an evaluation runs, and never below the share of
each batch that `min_batch_allocation` reserves. What it does not keep is the price. Atropos cancels groups when the
queue is full, paid completions and all; here a full queue stops the start of groups, and what has begun goes on.

Drawing an item may take seconds. The status is asked for all the same, so that a step of the trainer is seen at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from atroposlib.envs.base import BaseEnvConfig, EvalHandlingEnum

from ..errors import EnvironmentSetupError
from ..utils.aio import within
from ..utils.outage_log import RepeatedEvents
from .session import RunState

logger = logging.getLogger(__name__)

TICK_S = 0.1
"""Seconds between two requests for the status, as Atropos has it."""

KEPT = 10_000
"""Ticks whose timings are kept until the next log, which is some twenty minutes."""


def is_queue_full(status: Mapping[str, Any], config: BaseEnvConfig, run: RunState) -> bool:
    """Whether no group is to be started: the queue holds enough, and of ours as much as is reserved for us."""
    if run.batch_size == -1:
        return True
    enough = config.max_batches_offpolicy * run.batch_size
    if config.max_batches_offpolicy <= 0 or status["queue_size"] * run.group_size < enough:
        return False
    if config.min_batch_allocation is None:
        return True
    largest = status["max_group_size"]
    reserved = math.ceil(config.min_batch_allocation * enough / largest) * (largest // run.group_size)
    return bool(reserved - status["self_queue_size"] <= 0)


def most_groups(
    status: Mapping[str, Any], config: BaseEnvConfig, run: RunState, most: int, *, is_evaluating: bool
) -> int:
    """How many groups may run at once while the queue is not full, `most` at any time; the arithmetic is Atropos'."""
    if is_evaluating and config.eval_handling is EvalHandlingEnum.STOP_TRAIN:
        return 0
    if is_evaluating and config.eval_handling is EvalHandlingEnum.LIMIT_TRAIN:
        most = int(most * config.eval_limit_ratio)
    allocated = config.min_batch_allocation
    batch_share = -1
    if run.batch_size != -1:
        batch_share = int(run.batch_size * (status.get("unallocated_fraction", 1.0) + (allocated or 0.0)))
    most = min(most, config.max_batches_offpolicy * batch_share // run.group_size - status["queue_size"])
    if allocated is None:
        return most
    # Other environments may have filled the queue: what is reserved for us must be there all the same.
    largest = status["max_group_size"]
    reserved = math.ceil(allocated * run.batch_size * config.max_batches_offpolicy / largest)
    sequences = (reserved + largest // run.group_size) * largest
    ours = largest * status["self_queue_size"] // (largest / run.group_size)
    return max(most, max(0, math.ceil((sequences - ours) / run.group_size)))


def is_over(status: Mapping[str, Any], run: RunState) -> bool:
    """Whether the trainer has, or will have with what is queued, all the steps it wants."""
    queued_batches = status["queue_size"] * run.group_size // run.batch_size
    return bool(status["current_step"] + queued_batches > run.total_steps)


def is_passed(before: int, now: int, interval: int) -> bool:
    """Whether a multiple of `interval` lies in (before, now]; never for an interval of 0 or less.

    Atropos compares remainders of the step, and misses a boundary when the step jumps by a whole interval, or when the
    interval is 1.
    """
    return interval > 0 and before // interval < now // interval


class ServeLoop:
    """Starts groups until the run is over, `max_groups` at once at most.

    `status` gives what run-api says, and does not return while it is unavailable; `checks` is called after each. `draw`
    gives the next item; `work` makes, scores and sends a group of it, and returns whether a group was sent. Of what
    `work` raises, only an EnvironmentSetupError ends the run.
    """

    def __init__(
        self,
        config: BaseEnvConfig,
        run: RunState,
        max_groups: int,
        *,
        status: Callable[[], Awaitable[Mapping[str, Any]]],
        checks: Callable[[], Awaitable[None]],
        draw: Callable[[], Coroutine[Any, Any, Any]],
        work: Callable[[Any], Coroutine[Any, Any, bool]],
    ) -> None:
        self._config, self._run, self._max_groups = config, run, max_groups
        self._status, self._checks, self._draw, self._work = status, checks, draw, work
        self._groups: set[asyncio.Task[bool]] = set()
        self._drawing: asyncio.Task[Any] | None = None
        self._evaluation: asyncio.Task[Any] | None = None
        self._room = 0
        self._has_ended = asyncio.Event()
        self._error: EnvironmentSetupError | None = None
        self._events = RepeatedEvents(logger)
        self._tick_seconds: deque[float] = deque(maxlen=KEPT)
        self._groups_wanted: deque[int] = deque(maxlen=KEPT)

    async def run(self) -> None:
        """Returns when the run is over. Raises what `status`, `checks` and `draw` raise, and EnvironmentSetupErrors."""
        while True:
            began = time.monotonic()
            status = await self._status()
            await self._checks()
            if self._error is not None:
                raise self._error
            if is_over(status, self._run):
                return
            self._room = self._room_for(status)
            self._groups_wanted.append(self._room)
            await self._fill(began + TICK_S)
            self._tick_seconds.append(time.monotonic() - began)

    def _room_for(self, status: Mapping[str, Any]) -> int:
        """How many more groups to start; negative if more are running than should be."""
        if len(self._groups) >= self._max_groups or is_queue_full(status, self._config, self._run):
            return 0
        most = most_groups(status, self._config, self._run, self._max_groups, is_evaluating=self.is_evaluating)
        return most - len(self._groups)

    async def _fill(self, until: float) -> None:
        """Start as many groups as there is room for, but no longer than until the next status is due."""
        while (left := until - time.monotonic()) > 0:
            if self._room <= 0:
                self._has_ended.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await within(left, self._has_ended.wait())
                continue
            # An item that is still being drawn when the status is due is kept: it is this run's next item.
            if self._drawing is None:
                self._drawing = asyncio.create_task(self._draw())
            await asyncio.wait([self._drawing], timeout=left)
            if self._drawing.done():
                drawn, self._drawing = self._drawing, None
                group = asyncio.create_task(self._work(drawn.result()))
                self._groups.add(group)
                group.add_done_callback(self._ended)
                self._room -= 1
        # Also with no time left, as on a busy machine: other tasks must get their turn.
        await asyncio.sleep(0)

    def _ended(self, group: asyncio.Task[bool]) -> None:
        self._groups.discard(group)
        if group.cancelled():
            return
        if isinstance(error := group.exception(), EnvironmentSetupError):
            self._error = error
        elif error is not None:
            self._events.note("a group ended with an error", repr(error))
            if self._events.counts.total() == 1:
                logger.error("The first of them in full; please report it:", exc_info=error)
        if error is not None or not group.result():
            # A group that was sent is in the queue now, and counts until the next status.
            self._room += 1
        self._has_ended.set()

    # --- evaluation, beside it or in its place

    @property
    def is_evaluating(self) -> bool:
        return self._evaluation is not None and not self._evaluation.done()

    def begin_evaluation(self, evaluate: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Begin one, unless the one before still runs.

        With STOP_TRAIN the servers are for the evaluation alone, as Atropos has it: groups that wait for completions
        are cancelled, and their items come again when training goes on. `work` keeps a group that has its completions.
        """
        if self.is_evaluating:
            logger.warning("An evaluation is due, but the one before still runs: this one is left out.")
            return
        self._evaluation = asyncio.create_task(evaluate())
        if self._config.eval_handling is EvalHandlingEnum.STOP_TRAIN:
            for group in self._groups:
                group.cancel()

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """All that is running, to be cancelled at the end."""
        return [*self._groups, *(task for task in (self._drawing, self._evaluation) if task is not None)]

    def drain(self) -> tuple[list[float], list[int]]:
        """Seconds that each turn took, and groups that there was room for, since the last call."""
        drained = [*self._tick_seconds], [*self._groups_wanted]
        self._tick_seconds.clear()
        self._groups_wanted.clear()
        return drained
