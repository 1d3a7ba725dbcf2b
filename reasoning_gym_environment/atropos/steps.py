"""Atropos' main loop, kept going: what happens when the trainer has taken steps, and how long groups are started.

    status ──> checks of the step: evaluation, checkpoint, log ──> start groups until there are enough ──> status ...

Atropos compares remainders of the step, and so misses every boundary when the step jumps by a whole interval or the
interval is 1; here a boundary counts whenever it has been passed. And it starts groups until there are enough, however
long that takes: where groups end as fast as items are made, it would never look at the step again. Here it does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from atroposlib.envs.base import BaseEnv, EvalHandlingEnum

from ..utils.aio import within

logger = logging.getLogger(__name__)

T = TypeVar("T")

KEPT = 10_000
"""Loops of which Atropos' timings are kept until the next log, some twenty minutes."""

FILL_S = 1.0
"""Seconds between two looks at the trainer's step, at most, while groups are started."""


class StepChecks(BaseEnv):
    """Mixin for a BaseEnv subclass that saves its own checkpoints."""

    _filling_until: float | None = None
    curr_step: int
    items_sent_this_step: int
    eval_runner: asyncio.Task[Any] | None
    mainloop_timings: list[float]
    workers_added_list: list[int]
    workers: set[asyncio.Task[Any]]
    running_items: dict[Any, Any]

    async def env_step_checks(self) -> None:
        """Heed the step in `status_dict`; called by Atropos after each status."""
        # It notes two numbers each time around, for as long as the trainer takes no step.
        for noted in (self.mainloop_timings, self.workers_added_list):
            del noted[:-KEPT]
        before, now = self.curr_step, self.status_dict["current_step"]
        if before != now:
            if _passed(before, now, self.config.steps_per_eval):
                self._start_evaluation()
            self.curr_step = now
            if _passed(before, now, self.checkpoint_interval):
                self.checkpoint_now(now // self.checkpoint_interval * self.checkpoint_interval)
            if self.items_sent_this_step >= self.config.min_items_sent_before_logging:
                self.items_sent_this_step = 0
                await self.wandb_log({})
        self.checkpoint_if_due()

    async def add_train_workers(self) -> None:
        """Start groups until there are enough, or for FILL_S; the main loop comes back to the rest."""
        self._filling_until = time.monotonic() + FILL_S
        try:
            await super().add_train_workers()
        finally:
            self._filling_until = None

    async def while_filling(self, drawing: Coroutine[Any, Any, T]) -> T | None:
        """An item; None, which tells Atropos to start no more groups now, if the time for that is over.

        `drawing` must be safe to cancel: the next one draws what this one would have.
        """
        if self._filling_until is None:
            return await drawing
        left = self._filling_until - time.monotonic()
        if left <= 0:
            drawing.close()
            return None
        try:
            return await within(left, drawing)
        except asyncio.TimeoutError:
            return None

    def checkpoint_now(self, step: int) -> None:
        """Begin to save the checkpoint of a step that was passed."""
        raise NotImplementedError

    def checkpoint_if_due(self) -> None:
        """Begin to save the latest state if that has not been done for a while."""
        raise NotImplementedError

    def _start_evaluation(self) -> None:
        if self.eval_runner is not None and not self.eval_runner.done():
            logger.warning("An evaluation is due, but the one before still runs: this one is left out.")
            return
        self.eval_runner = asyncio.create_task(self.evaluate())
        if self.config.eval_handling == EvalHandlingEnum.STOP_TRAIN:
            self._stop_groups_in_progress()

    def _stop_groups_in_progress(self) -> None:
        """Their items go on Atropos' backlog, which is run first when training goes on."""
        running: list[dict[str, Any]] = list(self.running_items.values())
        self.backlog.extend(one["item"] for one in running)
        for worker in self.workers:
            worker.cancel()
        self.workers = set()
        self.running_items = {}


def _passed(before: int, now: int, interval: int) -> bool:
    """Whether a multiple of `interval` lies in (before, now]; never for an interval of 0 or less."""
    return interval > 0 and before // interval < now // interval
