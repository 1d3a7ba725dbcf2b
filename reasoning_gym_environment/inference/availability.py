"""Which inference servers work: one that fails gets a few attempts, ever less often, and not a storm of them.

`InferenceHealth` is about inference as a whole:

    works ──(3 failures in a row)──> away ──(one attempt at a time, ever less often)──(one succeeds)──> works

While it is away everybody else waits for the outcome of that one attempt. A failure then says nothing about the item
that was tried, so it is not held against it: `Patience` asks again for one item, more often while inference is away.

`ServerChoice` is about one of several servers. Atropos goes by health checks and free slots: a server that passes its
check and fails its requests has, by that rule, the most room of all, and gets them all. Here one that failed rests, for
1, 2, 4 ... 30 s; then one request tries it. Of those that work, the one with the most room is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import InferenceError
from ..utils.aio import within
from ..utils.outage_log import Outage, RepeatedEvents

logger = logging.getLogger(__name__)

T = TypeVar("T")

AWAY_AFTER = 3
"""Failures in a row, of any items, after which inference counts as away."""

MAX_FAILURES = 5
"""How often inference may fail for one item while it works for others, each time after the client's own retries."""

MAX_PROBES = 8
"""How often one item is tried while inference is away; then another one is, in case it is the item."""

FIRST_DELAY_S = 1.0
MAX_DELAY_S = 30.0


class InferenceHealth:
    """Wrap every request in `async with health.attempt():`."""

    def __init__(self, *, first_delay_s: float = FIRST_DELAY_S, max_delay_s: float = MAX_DELAY_S) -> None:
        self._outage = Outage(logger, "Inference", first_delay_s=first_delay_s, max_delay_s=max_delay_s)
        self._failures = 0
        self._is_trying = False
        self._next_attempt = 0.0
        self._changed = asyncio.Event()

    @property
    def is_away(self) -> bool:
        return self._outage.is_on

    @property
    def away_s(self) -> float:
        """Seconds that the present outage has lasted; 0 if there is none."""
        return self._outage.lasted_s

    @asynccontextmanager
    async def attempt(self) -> AsyncIterator[None]:
        """Enter when it is time to ask. An InferenceError from inside counts as a failure, and is passed on."""
        is_probe = await self._my_turn()
        try:
            yield
        except InferenceError as error:
            self._note_failure(str(error), is_probe)
            raise
        else:
            self._failures = 0
            self._outage.over()
        finally:
            if is_probe:
                self._is_trying = False
            # Whoever waits sees what became of it.
            self._changed.set()
            self._changed = asyncio.Event()

    async def _my_turn(self) -> bool:
        """Wait for it; whether this is the one attempt that is made during an outage."""
        loop = asyncio.get_running_loop()
        while self.is_away:
            wait_s = self._next_attempt - loop.time()
            if not self._is_trying and wait_s <= 0:
                self._is_trying = True
                return True
            with contextlib.suppress(asyncio.TimeoutError):
                await within(None if self._is_trying else wait_s, self._changed.wait())
        return False

    def _note_failure(self, detail: str, is_probe: bool) -> None:
        self._failures += 1
        # Those that were under way when it went away fail too; only new attempts tell how long it lasts.
        if is_probe or (self._failures >= AWAY_AFTER and not self.is_away):
            delay = self._outage.failed(detail, "items wait and are tried again")
            self._next_attempt = asyncio.get_running_loop().time() + delay

    def metrics(self) -> dict[str, float]:
        return self._outage.metrics("inference/requests")


class Patience:
    """Asks for the completions of an item again, until they come or it is time to try another item."""

    def __init__(self, events: RepeatedEvents) -> None:
        self._events = events
        self.health = InferenceHealth()
        self.gives_up_after_s: float | None = None
        """How long inference may be away before every item is given up at once; None: for ever."""

    async def until_answered(self, ask: Callable[[], Awaitable[T]], what: str) -> T:
        """What `ask` returns in the end. Raises its InferenceError when it is time to try another item."""
        failures = probes = 0
        while True:
            try:
                async with self.health.attempt():
                    return await ask()
            except InferenceError as error:
                self._events.note("inference failed", f"{what}: {error}")
                if self.health.is_away:
                    probes += 1
                else:
                    failures += 1
                is_hopeless = self.gives_up_after_s is not None and self.health.away_s > self.gives_up_after_s
                if failures >= MAX_FAILURES or probes >= MAX_PROBES or is_hopeless:
                    raise


@dataclass
class _Standing:
    """One server. `manager` is Atropos' manager as if it had no other server."""

    server: Any
    manager: Any
    outage: Outage
    rests_until: float = 0.0
    failed_at: float = -1.0


class ServerChoice:
    """Chooses among the servers of an Atropos `ServerManager`; each request is made inside `with choice.one(split)`."""

    def __init__(self, manager: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._standings = [self._standing(manager, server) for server in manager.servers]

    def _standing(self, manager: Any, server: Any) -> _Standing:
        alone = copy.copy(manager)
        alone.servers = [server]
        name = f"The inference server {getattr(getattr(server, 'config', None), 'base_url', '')}".rstrip()
        outage = Outage(logger, name, first_delay_s=FIRST_DELAY_S, max_delay_s=MAX_DELAY_S, clock=self._clock)
        return _Standing(server, alone, outage)

    @contextmanager
    def one(self, split: str) -> Iterator[Any]:
        """A manager of one server. An Exception from inside is that server's failure, and is passed on."""
        standing = self._choose(split)
        began = self._clock()
        try:
            yield standing.manager
        except Exception as error:
            self._failed(standing, began, str(error) or type(error).__name__)
            raise
        else:
            standing.outage.over()
            standing.rests_until = 0.0

    def _choose(self, split: str) -> _Standing:
        if len(self._standings) == 1:
            return self._standings[0]
        now = self._clock()
        healthy = [one for one in self._standings if getattr(one.server, "server_healthy", True)] or self._standings
        rested = [one for one in healthy if one.rests_until <= now]
        if not rested:
            return min(healthy, key=lambda one: one.rests_until)
        chosen = max(rested, key=lambda one: _room(one.server, split))
        if chosen.outage.is_on:
            # The others wait for what becomes of this one request.
            chosen.rests_until = now + MAX_DELAY_S
        return chosen

    def _failed(self, standing: _Standing, began: float, detail: str) -> None:
        # Those that were under way when it failed say nothing new.
        if len(self._standings) > 1 and began >= standing.failed_at:
            standing.failed_at = self._clock()
            rest_s = standing.outage.failed(detail, "requests go to the others")
            standing.rests_until = standing.failed_at + rest_s

    def metrics(self) -> dict[str, float]:
        """How many of several servers rest now, and how often one began to."""
        if not any(one.outage.count for one in self._standings):
            return {}
        return {
            "inference/servers_away": float(sum(one.outage.is_on for one in self._standings)),
            "inference/server_outages": float(sum(one.outage.count for one in self._standings)),
        }


def _room(server: Any, split: str) -> int:
    return int((server.sem if split == "train" else server.eval_sem)._value)
