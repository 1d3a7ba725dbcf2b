"""Which server is asked, when, and how often: the one place where requests are repeated.

    turn: wait for a server that may be asked ──> one request
        ├─> answered: the server works, and takes more requests again
        ├─> busy (429): it pauses as long as it says; then it gets one request, and one more for each answer
        └─> failed: after 3 failures in a row it is unavailable, and one request tries it after 1, 2, 4 ... 30 s

A request that fails is made again a few times (`RetryPolicy`). While all servers are unavailable nothing is held
against the prompt that was tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import tenacity

from ..errors import InferenceError, RequestRefusedError, ServerBusyError, UnavailableError
from ..utils.aio import within
from ..utils.outage_log import Outage
from .servers import ServerAdapter

logger = logging.getLogger(__name__)

UNAVAILABLE_AFTER = 3
"""Failures in a row after which a server is unavailable."""

SILENT_S = 60.0
"""A server that has given no answer for so long is reported while requests wait for it, again and again."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often a request is made, with a random pause that doubles; the delays are also those of outages."""

    tries: int = 5
    first_delay_s: float = 1.0
    max_delay_s: float = 30.0

    def attempts(self) -> tenacity.AsyncRetrying:
        """For `async for attempt in policy.attempts()`. What a server refuses is not repeated."""
        final = (RequestRefusedError, UnavailableError)
        return tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, InferenceError) and not isinstance(e, final)),
            stop=tenacity.stop_after_attempt(self.tries),
            wait=tenacity.wait_random_exponential(multiplier=self.first_delay_s / 2, max=self.max_delay_s / 4),
            reraise=True,
        )


class ServerState:
    """One server: whether it works, and how many requests it takes at once."""

    def __init__(self, adapter: ServerAdapter, policy: RetryPolicy, clock: Callable[[], float]) -> None:
        self.adapter = adapter
        self.outage = Outage(
            logger,
            f"The inference server {adapter.address}",
            first_delay_s=policy.first_delay_s,
            max_delay_s=policy.max_delay_s,
            clock=clock,
        )
        self._clock, self._first_delay_s = clock, policy.first_delay_s
        self._failures = 0
        self._answered_at = -math.inf
        self._not_before = 0.0
        # Requests at once: one after a pause, one more for each answer up to `_enough`, from then on slowly.
        self._limit = self._enough = math.inf
        self._in_flight = 0
        # Ends with each pause: requests that were made before it say nothing about what comes after it.
        self._period = 0
        self._waiting: Counter[str] = Counter()
        self._began: dict[object, float] = {}
        self._reminder: asyncio.TimerHandle | None = None

    @property
    def due_s(self) -> float:
        """Seconds until it may be asked at all."""
        return max(0.0, self._not_before - self._clock())

    @property
    def is_free(self) -> bool:
        return not self.due_s and self._in_flight < self._limit

    def room(self, split: str) -> int:
        """How many more requests it takes by its settings."""
        return int(getattr(self.adapter.slots(split), "max_val", 1)) - self._waiting[split]

    @asynccontextmanager
    async def request(self, split: str) -> AsyncIterator[None]:
        """While one is made. An InferenceError from inside counts as a failure, and is passed on."""
        period, key = self._period, object()
        self._in_flight += 1
        self._waiting[split] += 1
        try:
            async with self.adapter.slots(split):
                began = self._began[key] = self._clock()
                if self._reminder is None:
                    self._reminder = asyncio.get_running_loop().call_later(SILENT_S, self._remind)
                yield
            self._note_answer()
            self.adapter.note_duration(split, self._clock() - began)
        except InferenceError as error:
            if period == self._period:
                self._note_failure(error, began)
            raise
        finally:
            self._began.pop(key, None)
            self._waiting[split] -= 1
            if period == self._period:
                self._in_flight -= 1

    def _note_answer(self) -> None:
        self._failures, self._answered_at = 0, self._clock()
        self.outage.over()
        if self._enough == math.inf:
            self._limit = math.inf
        else:
            self._limit += 1.0 if self._limit < self._enough else 1.0 / self._limit

    def _note_failure(self, error: InferenceError, began: float) -> None:
        is_busy = isinstance(error, ServerBusyError)
        # One that failed while others were answered says nothing of the server.
        if began < self._answered_at and not is_busy:
            return
        self._failures += 1
        pause_s = max(self._first_delay_s, error.pause_s) if isinstance(error, ServerBusyError) else 0.0
        if self._failures >= UNAVAILABLE_AFTER:
            pause_s = max(pause_s, self.outage.failed(str(error), "requests wait, and are made again"))
        if pause_s:
            # Clients that were refused together must not come back together.
            self._not_before = self._clock() + pause_s * random.uniform(1.0, 1.1)
            self._enough = max(1.0, self._in_flight / 2) if is_busy else math.inf
            self._limit, self._in_flight = 1.0, 0
            self._period += 1

    def _remind(self) -> None:
        """Once a minute while requests are under way: report a server that answers none of them."""
        self._reminder = None
        if not self._began:
            return
        silent_s = self._clock() - max(self._answered_at, min(self._began.values()))
        if silent_s >= SILENT_S:
            logger.warning(
                "No answer from %s for %.0f s; %d requests wait. Each fails after env.request_timeout_s.",
                *(self.adapter.address, silent_s, len(self._began)),
            )
        self._reminder = asyncio.get_running_loop().call_later(SILENT_S, self._remind)


class ServerPool:
    """Chooses a server for each request; all are equal but for their room."""

    def __init__(
        self, adapters: Sequence[ServerAdapter], policy: RetryPolicy, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.states = [ServerState(one, policy, clock) for one in adapters]
        self._gives_up_after_s: float | None = None
        self._changed = asyncio.Event()

    def give_up_after(self, seconds: float) -> None:
        """Let requests fail at once if all servers are unavailable for so long. By default they wait without end."""
        self._gives_up_after_s = seconds

    @property
    def unavailable_s(self) -> float:
        """Seconds for which all servers have been unavailable; 0 if one works."""
        return min((one.outage.lasted_s for one in self.states), default=0.0)

    @property
    def is_unavailable(self) -> bool:
        return all(one.outage.is_on for one in self.states)

    @asynccontextmanager
    async def turn(self, split: str) -> AsyncIterator[ServerAdapter]:
        """The server to ask, once one may be asked. Raises UnavailableError; an InferenceError is its failure."""
        state = await self._next(split)
        try:
            async with state.request(split):
                yield state.adapter
        finally:
            # Whoever waits looks again.
            self._changed.set()
            self._changed = asyncio.Event()

    async def _next(self, split: str) -> ServerState:
        while True:
            if self._gives_up_after_s is not None and self.unavailable_s > self._gives_up_after_s:
                raise UnavailableError(f"no inference server has answered for {self.unavailable_s:.0f} s")
            if free := [one for one in self.states if one.is_free]:
                return max(free, key=lambda one: one.room(split))
            due_s = min((one.due_s for one in self.states if one.due_s), default=None)
            with contextlib.suppress(asyncio.TimeoutError):
                await within(due_s, self._changed.wait())

    def metrics(self) -> dict[str, float]:
        """Outages since the start, their seconds, and the servers that are unavailable now; empty without any."""
        values: Counter[str] = Counter()
        for one in self.states:
            values.update(one.outage.metrics("inference/server"))
        unavailable = {"inference/servers_unavailable": float(sum(one.outage.is_on for one in self.states))}
        return {**values, **unavailable} if values else {}
