"""The one loop that makes groups, for `serve` and for `process`.

    room? ──> item ──> a task: collect ──> postprocess ──> send ──> end ──> room? ...

                 serve (serve_loop.py)                        process (process.py)
    room         places in the queue at run-api               groups that the file still lacks
    send         to run-api (trainer/sinks.py)                to the file
    no item      `get_next_item` is called again              the command ends
    failed       the item is requeued a few times             another item takes its place
    equal scores the group is dropped                         the group is written
    over         the trainer has all its steps                the file has all its groups

`Run` sets up the rows `failed` and `equal scores` by its mode. Each task makes one attempt, which `ledger.attempt`
begins and ends. An attempt ends only when its group has arrived.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from ..errors import EnvironmentSetupError
from ..group import drawn_problem
from ..ledger import Attempt
from ..records import GroupOutcome
from ..telemetry.telemetry import keep_newest
from ..utils.clock import now

if TYPE_CHECKING:
    from ..env import ReasoningGymEnv

logger = logging.getLogger(__name__)

GRACE_S = 4.0
"""At shutdown, groups that have their completions get this long to be graded and handed to the sink.

Docker and many supervisors kill a process 10 seconds after SIGTERM, and the API client needs up to 4 seconds.
"""


class GroupLoop:
    """Makes groups while there is room."""

    to_api = True
    """Whether groups go to run-api, which has a limit for the length of a sequence."""

    def __init__(self, env: ReasoningGymEnv) -> None:
        run = env.run
        self._env = env
        self._run = run
        self._config = run.config
        self._state = run.state
        self._ledger = run.ledger
        self._recorder = run.recorder
        self._failures = run.failures
        self.items: deque[Any] = deque()
        """The items to use next: drawn ahead, or given back by `collect_trajectories` of a subclass."""
        self._drawing: asyncio.Task[Any] | None = None
        self.has_no_item = False
        """Whether the last call of `get_next_item` has returned None."""
        self.tasks: set[asyncio.Task[None]] = set()
        """The tasks of the groups in progress."""
        self._changed = run.ledger.changed
        self._error: BaseException | None = None
        self._started_at = now()

    # --- what differs between the commands

    @property
    def room(self) -> int:
        """How many groups may start now; zero or less if there is no room."""
        raise NotImplementedError

    @property
    def is_finished(self) -> bool:
        """Whether no group is in progress and none will start."""
        return False

    async def note_no_item(self) -> None:
        """`get_next_item` of a subclass has returned None."""

    async def note_end(self, attempt: Attempt) -> None:
        """An attempt has ended, and was not cancelled."""

    # --- room, item, group

    async def make_groups(self) -> None:
        """Start a group whenever there is room. Errors that nothing can mend propagate."""
        while not self.is_finished:
            self._changed.clear()
            if self._error is not None:
                raise self._error
            if self.room <= 0:
                await self._changed.wait()
                continue
            if not self.items:
                await self.draw()
            # While the item was made, the room may have gone. Then the item remains the next item.
            if self.items and self.room > 0:
                self._start(self.items.popleft())

    async def draw(self) -> None:
        """Draw the next item, if there is one. If this is cancelled, the item is not lost."""
        if self._drawing is None:
            self._drawing = asyncio.create_task(self._env.get_next_item())
        item = await asyncio.shield(self._drawing)
        self._drawing = None
        self.has_no_item = item is None
        if item is None:
            await self.note_no_item()
        else:
            self.items.append(item)

    def _start(self, item: Any) -> None:
        self._started_at = now()
        task = asyncio.create_task(self._make_group(item))
        self.tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._error = task.exception()
        self._changed.set()

    async def _make_group(self, item: Any) -> None:
        """One attempt, from its item until its group has arrived."""
        async with self._ledger.attempt(item, self._run.sampling_step()) as attempt:
            await self._collect_and_send(attempt)
        try:
            await self._env.cleanup()
        except Exception as error:  # noqa: BLE001
            what = "error in cleanup, after a group"
            self._failures.note("error_in_cleanup", what, f"{type(error).__name__}: {error}")
        await self.note_end(attempt)

    async def _collect_and_send(self, attempt: Attempt) -> None:
        env = self._env
        began = now()
        groups = await self._collect(attempt)
        self._note_duration(now() - began, is_made=groups is not None)
        if groups is None:
            return
        await env.handle_send_to_api(
            groups,
            attempt.item,
            do_send_to_api=self.to_api,
            abort_on_any_max_length_exceeded=self.to_api,
        )
        if attempt.outcome is None:
            self._drop(attempt, "handle_send_to_api of a subclass did not pass the group on")

    async def _collect(self, attempt: Attempt) -> Any:
        """A group, or a list of groups, to send; None if there is none."""
        found, backlog = await self._env.collect_trajectories(attempt.item)
        for item in backlog or ():
            self.items.append(item)
            is_the_same = attempt.problem is not None and drawn_problem(item) is attempt.problem
            attempt.is_given_back |= is_the_same or item is attempt.item
        groups = await self._recorder.keep(attempt, found)
        if not groups or groups == [None] * len(groups):
            return None
        groups = await self._env.postprocess_histories(groups)
        if not groups:
            self._drop(attempt, "postprocess_histories returned no group")
        return groups or None

    def _drop(self, attempt: Attempt, reason: str) -> None:
        self._ledger.drop(attempt, GroupOutcome.DROPPED, reason)

    def _note_duration(self, seconds: float, *, is_made: bool) -> None:
        """Keep the duration for Atropos' metrics."""
        env = self._env
        by_outcome = env.succeeded_task_duration if is_made else env.failed_task_duration
        for durations in (env.task_duration, by_outcome):
            durations.append(seconds)
            keep_newest(durations)

    async def log_metrics(self) -> None:
        """Let the environment log its metrics. An error of a subclass costs these metrics, not the run."""
        try:
            await self._env.wandb_log({})
        except EnvironmentSetupError:
            raise
        except Exception as error:  # noqa: BLE001
            what = "error in wandb_log, the run continues"
            self._failures.note("error_in_wandb_log", what, f"{type(error).__name__}: {error}")

    # --- stopping groups

    def cancel_unpaid(self) -> None:
        """Cancel the groups that have no completions yet. Their items are requeued."""
        self._cancel(lambda attempt: not attempt.is_paid)

    def _cancel(self, is_chosen: Callable[[Attempt], bool]) -> None:
        def cancel() -> None:
            for attempt in self._ledger.in_progress:
                if is_chosen(attempt):
                    attempt.cancel()

        # A task that was just created takes its first step before, and has begun its attempt then.
        asyncio.get_running_loop().call_soon(cancel)

    def waits_in_vain(self, attempt: Attempt) -> bool:
        """Whether shutdown must not wait for this attempt."""
        return not attempt.is_paid

    async def stop(self, others: Collection[asyncio.Task[Any]] = ()) -> None:
        """Stop all groups, and the tasks `others`. Afterwards, no group uses a server, a worker or the sink.

        Groups without completions end immediately, and the other groups get GRACE_S seconds to arrive. The items of
        cancelled groups are requeued.
        """
        self._cancel(self.waits_in_vain)
        stopped = list(others)
        if self._drawing is not None:
            stopped.append(self._drawing)
        for task in stopped:
            task.cancel()
        await _wait(self.tasks.union(stopped))
        late = list(self._ledger.in_progress)
        if late:
            logger.warning(
                "Groups that were not graded and handed on within %g s: %d. Their items will be requeued.",
                GRACE_S,
                len(late),
            )
        for attempt in late:
            attempt.cancel()
        # A hook may be at work before or after an attempt.
        for task in self.tasks.union(stopped):
            task.cancel()
        await _wait(self.tasks.union(stopped))
        self._give_back_unused()

    def _give_back_unused(self) -> None:
        """Requeue the items that were drawn, and for which there was no room."""
        drawing = self._drawing
        if drawing is not None and drawing.done() and not drawing.cancelled() and drawing.exception() is None:
            self.items.append(drawing.result())
        for item in self.items:
            self._ledger.give_back(item)
        self.items.clear()


async def _wait(tasks: Collection[asyncio.Task[Any]]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=GRACE_S)
