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
import logging
import math
from collections.abc import Mapping
from typing import Any

from atroposlib.envs.base import BaseEnv, BaseEnvConfig, EvalHandlingEnum

from .session import RunState

logger = logging.getLogger(__name__)

TICK_S = 0.1
"""Seconds between two requests for the status, as Atropos has it."""

GRACE_S = 5.0
"""How long groups in progress get to end before they are left behind."""


def most_groups(
    status: Mapping[str, Any], config: BaseEnvConfig, run: RunState, most: int, *, is_evaluating: bool
) -> int:
    """How many groups may run at once, `most` if the queue has room for all of them; the arithmetic is Atropos'."""
    if run.batch_size == -1 or (is_evaluating and config.eval_handling is EvalHandlingEnum.STOP_TRAIN):
        return 0
    if is_evaluating and config.eval_handling is EvalHandlingEnum.LIMIT_TRAIN:
        most = int(most * config.eval_limit_ratio)
    allocated = config.min_batch_allocation
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
    """Starts groups until the run is over, `env.max_num_workers` at once at most.

    `env.get_status` does not return while run-api is unavailable. `env.make_and_send` makes, scores and sends a group
    of an item, and returns whether a group was sent; what it raises ends the run.
    """

    def __init__(self, env: BaseEnv) -> None:
        self._env, self._config = env, env.config
        self._groups: set[asyncio.Task[bool]] = set()
        self._drawing: asyncio.Task[Any] | None = None
        self._evaluation: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        """Returns when the run is over. Raises what the environment raises."""
        env = self._env
        while True:
            tick = asyncio.create_task(asyncio.sleep(TICK_S))
            await env.get_status()
            await env.env_step_checks()
            if is_over(env.status_dict, env.run):
                return
            most = most_groups(
                env.status_dict, self._config, env.run, env.max_num_workers, is_evaluating=self.is_evaluating
            )
            await self._start_groups(most - len(self._groups), tick)

    async def _start_groups(self, room: int, tick: asyncio.Task[None]) -> None:
        """Start so many groups, and one for each that came to nothing, until the tick is over."""
        while not tick.done():
            under_way: list[asyncio.Task[Any]] = [tick, *self._groups]
            if room > 0:
                # If the queue is full once the item is made, it is kept as this run's next one.
                drawing = self._drawing or asyncio.create_task(self._env.get_next_item())
                self._drawing = None if drawing.done() else drawing
                if drawing.done():
                    self._groups.add(asyncio.create_task(self._env.make_and_send(drawing.result())))
                    room -= 1
                    continue
                under_way.append(drawing)
            await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for group in [group for group in self._groups if group.done()]:
                self._groups.remove(group)
                # A group that was sent is in the queue now, and counts until the next status.
                room += not (group.cancelled() or group.result())

    @property
    def is_evaluating(self) -> bool:
        return self._evaluation is not None and not self._evaluation.done()

    def begin_evaluation(self) -> None:
        """Begin one, unless the one before still runs.

        With STOP_TRAIN the servers are for the evaluation alone, as Atropos has it: groups that wait for completions
        are cancelled, and their items come again when training goes on. A group that has its completions is kept.
        """
        if self.is_evaluating:
            logger.warning("An evaluation is due, but the one before still runs: this one is left out.")
            return
        self._evaluation = asyncio.create_task(self._env.evaluate())
        if self._config.eval_handling is EvalHandlingEnum.STOP_TRAIN:
            for group in self._groups:
                group.cancel()

    async def stop(self) -> None:
        """Cancel all that is running; what does not end within GRACE_S seconds is left behind."""
        tasks = [task for task in (*self._groups, self._drawing, self._evaluation) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
