"""Which inference server gets the next request, and which servers must rest.

ServerPool.turn ──> wait for an available server ──> ServerState.request ──> the caller makes its request
    ├─> answered: the server is available
    ├─> busy (429): the server rests for as long as it asks
    └─> failed, refused, or not answered in time: after UNAVAILABLE_AFTER failures in a row the server is unavailable,
            and a single request tries it after 1, 2, 4 ... 30 s
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from ..errors import (
    BrokenOffError,
    InferenceError,
    ServerBusyError,
    UnavailableError,
)
from ..utils.clock import now
from ..utils.resilience import Outage, with_deadline
from .servers import ServerAdapter

logger = logging.getLogger(__name__)

UNAVAILABLE_AFTER = 3
"""After this many failures in a row a server is unavailable."""

SILENT_S = 60.0
"""A server that has answered none of its requests for this many seconds is silent, and the log reports it."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often the client tries a request, and the pauses of repeated requests and of outages."""

    tries: int = 5
    first_delay_s: float = 1.0
    max_delay_s: float = 30.0

    def longest_pause_s(self, failures: int) -> float:
        """The longest pause after this many failures of a request in a row. It doubles with each failure."""
        return min(self.first_delay_s * 2.0 ** (failures - 2), self.max_delay_s / 4)


class ServerState:
    """The outages, the rests and the requests of one server."""

    def __init__(self, adapter: ServerAdapter, policy: RetryPolicy, jitter: Random, clock: Callable[[], float]) -> None:
        self.adapter = adapter
        self.outage = Outage(
            logger,
            f"The inference server {adapter.address}",
            first_delay_s=policy.first_delay_s,
            max_delay_s=policy.max_delay_s,
            clock=clock,
        )
        self._clock = clock
        self._jitter = jitter
        self._first_delay_s = policy.first_delay_s
        self._failures = 0
        """Failures since the last answer."""
        self._rested_at = -math.inf
        """When the last rest began."""
        self._resumes_at = 0.0
        self._answered_at = -math.inf
        self._began: dict[object, float] = {}
        """When each request in flight began."""
        self._reminder: asyncio.TimerHandle | None = None

    @property
    def rest_s(self) -> float:
        """Seconds until the server may get a request."""
        # Clocks count whole microseconds at best: a shorter rest would never end on a simulated clock.
        return max(0.0, round(self._resumes_at - self._clock(), 5))

    @property
    def is_free(self) -> bool:
        """Whether the server may get another request now. In an outage it gets a single request after each rest."""
        is_tried = self.outage.is_on and any(began > self._rested_at for began in self._began.values())
        return not self.rest_s and not is_tried

    def room(self, split: str) -> int:
        """How many more requests the server takes by its settings."""
        most = int(getattr(self.adapter.slots(split), "max_val", 1))
        return most - len(self._began)

    @asynccontextmanager
    async def request(self, split: str) -> AsyncIterator[ServerAdapter]:
        """Wait for a slot, and enclose one request. Raises ServerBusyError if the server begins to rest meanwhile.

        An InferenceError in the block counts as a failure of the server, and is raised.
        """
        key = object()
        began = self._clock()
        self._began[key] = began
        if self._reminder is None:
            self._look_for_answers()
        try:
            async with self.adapter.slots(split):
                if began <= self._rested_at:
                    raise ServerBusyError(f"{self.adapter.address} began to rest while a request waited for it", 0.0)
                began = self._clock()
                self._began[key] = began
                yield self.adapter
            self._note_answer()
            self.adapter.note_duration(split, self._answered_at - began)
        except BrokenOffError:
            self._note_answer()
            raise
        except InferenceError as error:
            self._note_failure(error, began)
            raise
        finally:
            del self._began[key]

    def _note_answer(self) -> None:
        self._answered_at = self._clock()
        self._failures = 0
        self.outage.over()

    def _note_failure(self, error: InferenceError, began: float) -> None:
        # A request from before the last rest says nothing about the server after it.
        if began <= self._rested_at:
            return
        rest_s = 0.0
        if isinstance(error, ServerBusyError):
            rest_s = max(self._first_delay_s, error.pause_s)
        # A request that failed while another was answered is no sign of an outage, unless the server is silent since.
        was_answering = began < self._answered_at and self._clock() - self._answered_at < SILENT_S
        if was_answering and not rest_s:
            return
        self._failures += 1
        if self._failures >= UNAVAILABLE_AFTER:
            rest_s = max(rest_s, self.outage.failed(str(error), "requests wait and are repeated"))
        if rest_s:
            self._rested_at = self._clock()
            # Clients that were refused together must not come back together.
            self._resumes_at = self._rested_at + rest_s * self._jitter.uniform(1.0, 1.1)

    def _look_for_answers(self) -> None:
        self._reminder = asyncio.get_running_loop().call_later(SILENT_S, self._report_silence)

    def _report_silence(self) -> None:
        """Every SILENT_S seconds, report that requests have waited for this long without any answer."""
        self._reminder = None
        if not self._began:
            return
        self._look_for_answers()
        silent_s = self._clock() - max(self._answered_at, min(self._began.values()))
        # A timer may be early by the resolution of the clock.
        if round(silent_s, 3) >= SILENT_S:
            logger.warning(
                "No answer from %s for %.0f s; %d requests wait. A request fails after openai.timeout seconds, in "
                "training also after env.worker_timeout seconds. After %d such requests the server is unavailable.",
                self.adapter.address,
                silent_s,
                len(self._began),
                UNAVAILABLE_AFTER,
            )


class ServerPool:
    """Chooses a server for each request: the available server with the most room.

    `jitter` makes pauses random, so that clients that fail together do not return together.
    """

    def __init__(
        self,
        adapters: Sequence[ServerAdapter],
        policy: RetryPolicy,
        *,
        jitter: Random,
        clock: Callable[[], float] = now,
    ) -> None:
        self.policy = policy
        self._clock = clock
        self._jitter = jitter
        self.states = [ServerState(adapter, policy, jitter, clock) for adapter in adapters]
        self._changed = asyncio.Event()

    async def pause(self, failures: int) -> None:
        """Wait before a request is repeated that has failed so many times in a row."""
        await asyncio.sleep(self._jitter.uniform(0.0, self.policy.longest_pause_s(failures)))

    def unavailable_since(self) -> float | None:
        """When the last server became unavailable; None while a server is available."""
        began = [state.outage.began for state in self.states]
        known = [time for time in began if time is not None]
        return max(known) if len(known) == len(began) else None

    @asynccontextmanager
    async def turn(self, split: str, patience_s: float | None = None) -> AsyncIterator[ServerAdapter]:
        """Wait for a server that is available, and enclose one request to it.

        An InferenceError in the block counts as a failure of the server. Raises UnavailableError once all servers have
        been unavailable for `patience_s` seconds; with None, `turn` waits without limit.
        """
        state = await self._next(split, patience_s)
        try:
            async with state.request(split) as adapter:
                yield adapter
        finally:
            self._wake_waiters()

    def _wake_waiters(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _next(self, split: str, patience_s: float | None) -> ServerState:
        while True:
            since = self.unavailable_since()
            unavailable_s = 0.0 if since is None else self._clock() - since
            if patience_s is not None and unavailable_s > patience_s:
                raise UnavailableError(f"no inference server has answered for {unavailable_s:.0f} s")
            # Before the look for a free server: a rest may end meanwhile, and nothing else would end the wait.
            rests = list(filter(None, (state.rest_s for state in self.states)))
            free = [state for state in self.states if state.is_free]
            if free:
                return max(free, key=lambda state: state.room(split))
            with contextlib.suppress(asyncio.TimeoutError):
                await with_deadline(min(rests, default=None), self._changed.wait())

    def metrics(self) -> dict[str, float]:
        """Outages since the start, their seconds, and the number of servers that are unavailable now."""
        unavailable = [state for state in self.states if state.outage.is_on]
        values = Counter({"inference/servers_unavailable": float(len(unavailable))})
        for state in self.states:
            values.update(state.outage.metrics("inference/server"))
        return dict(values)
