"""Which inference server gets the next request, and which servers must rest.

ServerPool.turn ──> wait for an available server ──> ServerState.request ──> the caller makes its request
    ├─> answered: the server is available
    ├─> busy (429): the server rests for as long as it asks. Then it gets a single request, and one more at the same
    │       time for each answer
    ├─> failed, or not answered in time: after UNAVAILABLE_AFTER failures in a row the server is unavailable, and a
    │       single request tries it after 1, 2, 4 ... 30 s
    └─> refused: the same, for requests of the same kind (training or evaluation). The server may accept the other kind
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..errors import (
    BrokenOffError,
    InferenceError,
    RequestRefusedError,
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

    def pause_s(self, failures: int) -> float:
        """A random pause after this many failures of a request in a row. Its mean doubles with each failure."""
        longest = self.first_delay_s * 2 ** (failures - 2)
        return random.uniform(0.0, min(longest, self.max_delay_s / 4))


class Availability:
    """When a server may get another request: its outages and its rests, because of failures of one sort."""

    def __init__(self, who: str, policy: RetryPolicy, clock: Callable[[], float]) -> None:
        self.outage = Outage(
            logger,
            who,
            first_delay_s=policy.first_delay_s,
            max_delay_s=policy.max_delay_s,
            clock=clock,
        )
        self._clock = clock
        self._failures = 0
        self.rested_at = -math.inf
        """When the last rest began."""
        self._resumes_at = 0.0
        self._limit = math.inf
        """Requests at the same time since the last rest: one, and one more for each answer."""

    @property
    def rest_s(self) -> float:
        """Seconds until the next request may begin."""
        # Clocks count whole microseconds at best: a shorter rest would never end on a simulated clock.
        return max(0.0, round(self._resumes_at - self._clock(), 5))

    def allows_another(self, began: Iterable[float]) -> bool:
        """Whether another request may begin now. `began` are the times of the requests in flight."""
        if self.rest_s:
            return False
        since_rest = [time for time in began if time > self.rested_at]
        return len(since_rest) < self._limit

    def note_answer(self, began: float) -> None:
        """Note the answer to a request that began at this time."""
        self._failures = 0
        self.outage.over()
        if began > self.rested_at:
            self._limit += 1.0

    def note_failure(self, error: InferenceError, rest_s: float = 0.0) -> None:
        """Note a failure, after which no request begins for `rest_s` seconds, or longer if there were several."""
        self._failures += 1
        if self._failures >= UNAVAILABLE_AFTER:
            delay_s = self.outage.failed(str(error), "requests wait and are repeated")
            rest_s = max(rest_s, delay_s)
        if rest_s:
            self.rested_at = self._clock()
            self._limit = 1.0
            # Clients that were refused together must not come back together.
            self._resumes_at = self.rested_at + rest_s * random.uniform(1.0, 1.1)


KINDS = {"train": "training", "eval": "evaluation"}
"""The kinds of requests, by split."""


class ServerState:
    """The outages, the rests and the requests of one server.

    A server may refuse only one kind of requests, for example because evaluations may use more tokens.
    So refusals make the server unavailable for the refused kind only.
    """

    def __init__(self, adapter: ServerAdapter, policy: RetryPolicy, clock: Callable[[], float]) -> None:
        self.adapter = adapter
        who = f"The inference server {adapter.address}"
        self._any = Availability(who, policy, clock)
        self._of_kind = {
            split: Availability(f"{who} (for {kind} requests)", policy, clock) for split, kind in KINDS.items()
        }
        self._clock = clock
        self._first_delay_s = policy.first_delay_s
        self._answered_at = -math.inf
        self._began: dict[object, tuple[str, float]] = {}
        """The split of each request in flight, and when it began."""
        self._reminder: asyncio.TimerHandle | None = None

    @property
    def outages(self) -> list[Outage]:
        """The outage of the server, and the outages for one kind of requests."""
        return [availability.outage for availability in (self._any, *self._of_kind.values())]

    def unavailable_since(self, split: str) -> float | None:
        """When the server became unavailable for requests of this split; None if it is available."""
        began = [self._any.outage.began, self._of_kind[split].outage.began]
        return min((time for time in began if time is not None), default=None)

    def rest_s(self, split: str) -> float:
        """Seconds until the server may get a request."""
        return max(self._any.rest_s, self._of_kind[split].rest_s)

    def is_free(self, split: str) -> bool:
        """Whether the server may get another request now."""
        all_began = [began for _, began in self._began.values()]
        of_kind = [began for kind, began in self._began.values() if kind == split]
        return self._any.allows_another(all_began) and self._of_kind[split].allows_another(of_kind)

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
        self._began[key] = (split, began)
        if self._reminder is None:
            self._remind_in(SILENT_S)
        try:
            async with self.adapter.slots(split):
                if began <= self._rested_at(split):
                    raise ServerBusyError(f"{self.adapter.address} began to rest while a request waited for it", 0.0)
                began = self._clock()
                self._began[key] = (split, began)
                yield self.adapter
            answered_at = self._clock()
            self._note_answer(split, began, answered_at)
            self.adapter.note_duration(split, answered_at - began)
        except BrokenOffError:
            self._note_answer(split, began, self._clock())
            raise
        except InferenceError as error:
            self._note_failure(error, split, began)
            raise
        finally:
            del self._began[key]

    def _rested_at(self, split: str) -> float:
        return max(self._any.rested_at, self._of_kind[split].rested_at)

    def _note_answer(self, split: str, began: float, answered_at: float) -> None:
        self._answered_at = answered_at
        self._any.note_answer(began)
        self._of_kind[split].note_answer(began)

    def _note_failure(self, error: InferenceError, split: str, began: float) -> None:
        rest_s = 0.0
        if isinstance(error, ServerBusyError):
            rest_s = max(self._first_delay_s, error.pause_s)
        # A request from before the last rest says nothing about the server after it.
        if began <= self._rested_at(split):
            return
        # A request that failed while another was answered is no sign of an outage, unless the server is silent since.
        was_answering = began < self._answered_at and self._clock() - self._answered_at < SILENT_S
        if was_answering and not rest_s:
            return
        is_refused = isinstance(error, RequestRefusedError)
        availability = self._of_kind[split] if is_refused else self._any
        availability.note_failure(error, rest_s)

    def _remind_in(self, seconds: float) -> None:
        self._reminder = asyncio.get_running_loop().call_later(seconds, self._report_silence)

    def _report_silence(self) -> None:
        """Report that requests have waited for SILENT_S without any answer, and repeat it every SILENT_S."""
        self._reminder = None
        if not self._began:
            return
        silent_since = max(self._answered_at, min(began for _, began in self._began.values()))
        silent_s = round(self._clock() - silent_since, 3)
        if silent_s < SILENT_S:
            self._remind_in(SILENT_S - silent_s)
            return
        self._remind_in(SILENT_S)
        logger.warning(
            "No answer from %s for %.0f s; %d requests wait. A request fails after openai.timeout seconds, in "
            "training also after env.worker_timeout seconds. After %d such requests the server is unavailable.",
            self.adapter.address,
            silent_s,
            len(self._began),
            UNAVAILABLE_AFTER,
        )


class ServerPool:
    """Chooses a server for each request: the available server with the most room."""

    def __init__(
        self,
        adapters: Sequence[ServerAdapter],
        policy: RetryPolicy,
        *,
        clock: Callable[[], float] = now,
    ) -> None:
        self.policy = policy
        self._clock = clock
        self.states = [ServerState(adapter, policy, clock) for adapter in adapters]
        self._changed = asyncio.Event()

    def unavailable_since(self, split: str = "train") -> float | None:
        """When the last server became unavailable for requests of this split; None while a server is available."""
        began = [state.unavailable_since(split) for state in self.states]
        known = [time for time in began if time is not None]
        return max(known) if len(known) == len(began) else None

    @asynccontextmanager
    async def turn(
        self,
        split: str,
        patience_s: float | None = None,
        *,
        failed: InferenceError | None = None,
    ) -> AsyncIterator[ServerAdapter]:
        """Wait for a server that is available, and enclose one request to it.

        An InferenceError in the block counts as a failure of the server. Raises UnavailableError once all servers have
        been unavailable for `patience_s` seconds; with None, `turn` waits without limit.

        `failed` is the error of the attempt before, if the request is a repetition. With a patience of None, a training
        request is not repeated while all servers are unavailable: it may have crashed them, and would crash them again
        as soon as they are back. The item stream decides when its item is due again (sampling/pending_items.py).
        """
        is_suspect = failed is not None and split == "train" and patience_s is None
        if is_suspect and self.unavailable_since(split) is not None:
            raise UnavailableError(str(failed))
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
            since = self.unavailable_since(split)
            unavailable_s = 0.0 if since is None else self._clock() - since
            if patience_s is not None and unavailable_s > patience_s:
                raise UnavailableError(f"no inference server has answered for {unavailable_s:.0f} s")
            # Before the look for a free server: a rest may end meanwhile, and nothing else would end the wait.
            rests = list(filter(None, (state.rest_s(split) for state in self.states)))
            free = [state for state in self.states if state.is_free(split)]
            if free:
                return max(free, key=lambda state: state.room(split))
            with contextlib.suppress(asyncio.TimeoutError):
                await with_deadline(min(rests, default=None), self._changed.wait())

    def metrics(self) -> dict[str, float]:
        """Outages since the start, their seconds, and the number of servers that are unavailable now."""
        unavailable = [state for state in self.states if any(outage.is_on for outage in state.outages)]
        values = Counter({"inference/servers_unavailable": float(len(unavailable))})
        for state in self.states:
            for outage in state.outages:
                values.update(outage.metrics("inference/server"))
        return dict(values)
