"""`serve`: follows the trainer, and says how many groups may be in progress (loop.py makes them).

    follow the trainer ──> status of run-api ──> evaluation, checkpoint, log step due? ──> 0.1 s later: status ...
                               │
                               └ how full the queue is
                                   │
    make groups (loop.py) ─────────┴──> room? ──> next item ──> a task for its group ──> room? ...

The two halves run concurrently. A group starts whenever there is room, even while run-api is slow to answer. The loop
notices a step of the trainer immediately, even while groups or items are slow.

The queue at run-api is filled as far as Atropos' own loop fills it (`queue_room`): for `max_batches_offpolicy` batches,
less while an evaluation runs, and never below the share of each batch that `min_batch_allocation` reserves. When the
queue is full, Atropos also cancels groups, and wastes their completions. This loop only stops starting new groups.

The status is always a little old. Its queue may lack groups that were sent after its request went out, so the loop adds
these groups until the next status includes them.

A run begins with an evaluation of the untrained model. Groups are made meanwhile, but no group is delivered before the
completions of this evaluation are sampled, so that the trainer cannot change the model.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atroposlib.envs.base import BaseEnvConfig, EvalHandlingEnum

from ..ledger import Attempt
from ..telemetry.alarms import Rule, Sign
from ..trainer.run_state import RunState
from ..utils.clock import now
from ..utils.resilience import RETRY_S, supervise
from .evaluate import evaluate_at_step
from .loop import GroupLoop
from .run_watch import LOOK_S, STUCK_S, RunWatch, duration

if TYPE_CHECKING:
    from ..env import ReasoningGymEnv

logger = logging.getLogger(__name__)

TICK_S = 0.1
"""Seconds from a status to the request for the next status, as in Atropos."""

FULL_S = 600.0
"""After this long with a full queue and without a step of the trainer, an alarm names possible reasons."""


# --- decisions


def free_places(
    status: Mapping[str, Any],
    config: BaseEnvConfig,
    state: RunState,
    *,
    workers: int,
    sampling: int,
    on_the_way: int,
    is_evaluating: bool,
) -> int:
    """How many groups may start now; zero or less if there is no room.

    `workers` is the limit of groups in sampling, and `sampling` is their number now. Groups for the reserved share of
    the batches start even if all workers are busy, or if other environments have filled the queue. `on_the_way` counts
    the sampled groups that the queue in `status` does not include yet. They need a place in the queue, but no worker.
    If `on_the_way` is 0, the result is the same as in Atropos.
    """
    is_paused = is_evaluating and config.eval_handling is EvalHandlingEnum.STOP_TRAIN
    if state.batch_size == -1 or is_paused:
        return 0
    if is_evaluating and config.eval_handling is EvalHandlingEnum.LIMIT_TRAIN:
        workers = int(workers * config.eval_limit_ratio)
    coming = sampling + on_the_way
    free = min(workers - sampling, queue_room(status, config, state) - coming)
    if config.min_batch_allocation is None:
        return free
    return max(free, reserved_room(status, config, state, config.min_batch_allocation) - coming)


def queue_room(status: Mapping[str, Any], config: BaseEnvConfig, state: RunState) -> int:
    """How many more groups the queue at run-api can take; negative if it has too many."""
    share = status.get("unallocated_fraction", 1.0) + (config.min_batch_allocation or 0.0)
    batch_share = int(state.batch_size * share)
    return config.max_batches_offpolicy * batch_share // state.group_size - int(status["queue_size"])


def reserved_room(status: Mapping[str, Any], config: BaseEnvConfig, state: RunState, allocation: float) -> int:
    """How many more groups of ours have a place reserved in the queue, even if other environments have filled it.

    `allocation` is the share of each batch that `min_batch_allocation` reserves.
    """
    # This counts sequences in groups of the largest size in the queue, because run-api packs batches from such groups.
    largest = status["max_group_size"]
    groups = math.ceil(allocation * state.batch_size * config.max_batches_offpolicy / largest)
    sequences = (groups + largest // state.group_size) * largest
    ours = largest * status["self_queue_size"] // (largest / state.group_size)
    return max(0, math.ceil((sequences - ours) / state.group_size))


def is_over(status: Mapping[str, Any], state: RunState) -> bool:
    """Whether the trainer has taken all its steps, or can take them with the batches in the queue."""
    queued_batches = status["queue_size"] * state.group_size // state.batch_size
    return bool(status["current_step"] + queued_batches > state.total_steps)


def crosses_multiple(before: int, after: int, interval: int) -> bool:
    """Whether a multiple of `interval` lies in (before, after]; never for an interval of 0 or less.

    Atropos compares remainders of the step, and misses a boundary when the step jumps by a whole interval, or when the
    interval is 1.
    """
    return interval > 0 and before // interval < after // interval


# --- the loop


class ServeLoop(GroupLoop):
    """Starts groups until the trainer has all its steps.

    The limit of groups in sampling is `max_num_workers`, or the number that `min_batch_allocation` reserves if that is
    larger.
    """

    def __init__(self, env: ReasoningGymEnv) -> None:
        super().__init__(env)
        self._api = env.run.api
        self._may_send = self._api.may_send
        self._checkpoints = env.run.checkpoints
        self._evaluation: asyncio.Task[Any] | None = None
        self._evaluated_step = 0
        """The step for which the newest evaluation was begun."""
        self._status: Mapping[str, Any] | None = None
        self._sent_before_status = 0
        self._saving: set[asyncio.Task[None]] = set()
        self._is_over = False
        self._has_begun = self._checkpoints.is_resumed
        """Whether the run is past its start. At the start, the loop evaluates the untrained model."""
        self._answered_at = now()
        self._stepped_at = now()

    async def run(self) -> None:
        """Return when the run is over. Errors of the environment propagate."""
        watch = RunWatch(self._run, self._waits_for, self._rules(), self._is_stalled)
        await supervise(
            self._follow_trainer(),
            self.make_groups(),
            watch.follow(),
        )

    # --- the trainer's side

    async def _follow_trainer(self) -> None:
        """Request one status after the other, and do what is due."""
        while not self._is_over:
            sent_before = self._api.sent
            number = self._state.env_id
            await self._heed(await self._api.status(), sent_before)
            if self._state.env_id != number:
                # Without delay, so that a process that replaces this process can sign off this number.
                self._checkpoints.begin_latest()
            await asyncio.sleep(TICK_S)
        self._report_end()

    def _report_end(self) -> None:
        # If run-api still runs from an earlier training, the run ends at its start. So this line says what to do.
        assert self._status is not None
        logger.info(
            "The run is over: run-api is at step %d with %d groups in its queue, and the run has %d steps. For another "
            "training, restart run-api and the trainer, or increase env.total_steps.",
            self._status["current_step"],
            self._status["queue_size"],
            self._state.total_steps,
        )

    async def _heed(self, status: Mapping[str, Any], sent_before: int) -> None:
        """Process a status. `sent_before` groups had been sent when the loop requested it."""
        self._is_over = is_over(status, self._state)
        self._status = status
        self._answered_at = now()
        self._sent_before_status = sent_before
        server = self._env.server
        await server.update_weight(status["env_weight"])
        await self._take_step(status["current_step"])
        self._changed.set()

    async def _take_step(self, step: int) -> None:
        """Do what is due at the trainer's step: evaluation, checkpoint, log."""
        before = self._state.step
        self._state.step = step
        if before != step:
            self._stepped_at = now()
        between_evaluations = self._config.steps_per_eval
        has_questions = self._config.num_eval_samples_per_task > 0 and between_evaluations > 0
        is_begin = step == 0 and has_questions and not self._has_begun
        self._has_begun = True
        if is_begin:
            self._begin_baseline()
        elif has_questions and crosses_multiple(before, step, between_evaluations):
            self.begin_evaluation(step // between_evaluations * between_evaluations)
        interval = self._state.checkpoint_interval
        if crosses_multiple(before, step, interval):
            saving = asyncio.create_task(self._save_checkpoint(step // interval * interval))
            self._saving.add(saving)
            saving.add_done_callback(self._saving.discard)
        if before != step and self._env.items_sent_this_step >= self._config.min_items_sent_before_logging:
            self._env.items_sent_this_step = 0
            await self.log_metrics()
        self._checkpoints.begin_if_due()

    async def _save_checkpoint(self, step: int) -> None:
        """Let the environment save a checkpoint. Training does not wait for it, and continues if it fails."""
        try:
            saving: Any = self._env.save_checkpoint(step)
            if inspect.isawaitable(saving):
                # `save_checkpoint` of a subclass may return nothing.
                await saving
        except Exception as error:  # noqa: BLE001
            what = "checkpoint not saved, training continues"
            self._failures.note("checkpoint_not_saved", what, f"{type(error).__name__}: {error}")

    @property
    def is_evaluating(self) -> bool:
        return self._evaluation is not None and not self._evaluation.done()

    def _begin_baseline(self) -> None:
        """Evaluate the untrained model. Until its completions are sampled, the trainer gets no group to learn from."""
        self._may_send.clear()
        logger.info(
            "The run begins with an evaluation of the untrained model. No group is delivered to the trainer before its "
            "completions are sampled."
        )
        self.begin_evaluation(0)

    def begin_evaluation(self, step: int) -> None:
        """Begin an evaluation for this step, unless the previous one is still running.

        With STOP_TRAIN, the evaluation has the servers to itself, as in Atropos. This method cancels groups that wait
        for completions, and their items are requeued. A group that has its completions continues.
        """
        if self.is_evaluating:
            logger.warning(
                "Skipped the evaluation of step %d, because the evaluation of step %d is still running.",
                step,
                self._evaluated_step,
            )
            return
        self._evaluated_step = step
        self._evaluation = asyncio.create_task(evaluate_at_step(self._env))
        self._evaluation.add_done_callback(self._evaluation_ended)
        if self._config.eval_handling is EvalHandlingEnum.STOP_TRAIN:
            self.cancel_unpaid()

    def _evaluation_ended(self, evaluation: asyncio.Task[Any]) -> None:
        # If an evaluation fails, its results are missing, and training continues.
        self._may_send.set()
        if evaluation.cancelled():
            logger.warning(
                "The run ends before its last evaluation has finished, so the evaluation of step %d has no results.",
                self._evaluated_step,
            )
        elif (error := evaluation.exception()) is not None:
            detail = f"step {self._evaluated_step}: {type(error).__name__}: {error}"
            self._failures.note("evaluation_failed", "evaluation failed, training continues", detail)
            logger.error("The evaluation of step %d failed.", self._evaluated_step, exc_info=error)
        self._changed.set()

    # --- the groups' side

    @property
    def room(self) -> int:
        """How many groups may start now; zero or less if there is no room."""
        api = self._api
        if self._status is None or self._is_over or not api.is_available:
            return 0
        return free_places(
            self._status,
            self._config,
            self._state,
            workers=self._env.max_num_workers,
            sampling=self._sampling,
            on_the_way=self._on_the_way,
            is_evaluating=self.is_evaluating,
        )

    @property
    def _on_the_way(self) -> int:
        """The sampled groups that the queue in the status does not include yet."""
        sent_since_status = self._api.sent - self._sent_before_status
        return self._api.in_delivery + sent_since_status

    @property
    def _sampling(self) -> int:
        """The groups that are not scored and handed on yet."""
        begun = self._ledger.in_progress
        delivering = sum(attempt.is_delivering for attempt in begun)
        return len(self.tasks) - delivering

    async def note_no_item(self) -> None:
        """Wait before `get_next_item` is called again."""
        again = f"it is called again every {RETRY_S:g} s"
        self._failures.note("get_next_item_returned_no_item", "no item from get_next_item", again)
        await asyncio.sleep(RETRY_S)

    # --- alarms: other modules report an outage of run-api, and silent inference servers

    def _rules(self) -> list[Rule]:
        return [
            Rule("run_api_silent", self._silent, STUCK_S - LOOK_S),
            Rule("queue_full", self._full, FULL_S),
        ]

    def _is_stalled(self) -> bool:
        """Whether there is room, and no group has started since the last look."""
        return self.room > 0 and now() - self._started_at >= LOOK_S

    def _silent(self) -> Sign | None:
        """run-api accepts requests, and answers none."""
        silent_s = now() - self._answered_at
        if not self._api.is_available or silent_s < LOOK_S:
            return None
        return Sign(f"The trajectory API has not answered for {silent_s:.0f} s. It may be encoding a batch.")

    def _full(self) -> Sign | None:
        """The queue at run-api has no place for another group, and the trainer makes no step."""
        if self._status is None or not self._is_full or now() - self._stepped_at < LOOK_S:
            return None
        if not self._may_send.is_set():
            # The untrained model is being evaluated.
            return None
        reserved = 1.0 - self._status.get("unallocated_fraction", 1.0)
        return Sign(
            f"The queue at run-api is full, and the trainer has made no step for {self._since_step}. If it waits for a "
            "batch, an environment that was killed may still have its share of each batch reserved (all environments "
            f"together reserve {reserved:.0%}): restart run-api and the trainer."
        )

    @property
    def _is_full(self) -> bool:
        if self._status is None or self._state.batch_size == -1:
            return False
        return queue_room(self._status, self._config, self._state) <= self._on_the_way

    @property
    def _since_step(self) -> str:
        return duration(now() - self._stepped_at)

    def _waits_for(self) -> str:
        """The reason why no group starts now, or ""."""
        api = self._api
        if not api.is_available:
            return "run-api"
        if self._status is None:
            return "the first answer of run-api"
        if self._state.batch_size == -1:
            return "a trainer that sets a batch size"
        if self.is_evaluating and self._config.eval_handling is EvalHandlingEnum.STOP_TRAIN:
            return "the evaluation"
        if not self._may_send.is_set() and self.room <= 0:
            return "the evaluation of the untrained model, before which the trainer gets no group"
        if self._is_full:
            return f"the trainer: the queue is full, and its last step was {self._since_step} ago"
        if self.room <= 0:
            return f"the completions of {self._sampling} groups" if self._sampling else ""
        if now() - self._started_at < RETRY_S:
            return ""
        if self.has_no_item:
            return "an item: get_next_item returns none"
        if self._drawing is None:
            return ""
        stream = self._run.stream
        tasks = ", ".join(stream.tasks_in_progress) or "none"
        return f"the next item (in progress: {tasks})"

    # --- shutdown

    def waits_in_vain(self, attempt: Attempt) -> bool:
        """A group without completions, or one that run-api does not take now."""
        api = self._api
        is_taken = api.is_available and self._may_send.is_set()
        return not attempt.is_paid or (attempt.is_delivering and not is_taken)

    async def close(self) -> None:
        """Stop all tasks of the loop, so that the environment can be closed."""
        await self.stop([] if self._evaluation is None else [self._evaluation])
