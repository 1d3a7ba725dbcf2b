"""Which inference servers work: one that fails gets a few attempts, ever less often, and not a storm of them.

`InferenceHealth` is about inference as a whole:

    works ──(3 failures in a row)──> away ──(one attempt at a time, ever less often)──(one succeeds)──> works

While it is away everybody else waits for the outcome of that one attempt. A failure then says nothing about the item
that was tried, so it is not held against it: `Patience` asks again for one item, more often while inference is away.

`ServerChoice` is about one of several servers. Atropos goes by health checks and free slots: a server that passes its
check and fails its requests has, by that rule, the most room of all, and gets them all. Here one that failed rests, for
1, 2, 4 ... 30 s; then one request tries it. Of those that work, the one with the most room is asked.

A server that hangs does not fail. A request that takes far longer than its like hangs: it is told of, its server is
asked last, and it no longer takes the place of a group that could be started. Only when it takes longer than the
longest completion would need is it given up, which is a failure. `Latencies` knows how long that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..errors import GivenUpError, InferenceError, RequestRefusedError
from ..utils.aio import within
from ..utils.outage_log import REMIND_S, Outage, RepeatedEvents

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
        self._answered_at = -math.inf
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
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            yield
        except InferenceError as error:
            # One that hung while others were answered says nothing of inference as a whole, nor one prompt too long.
            is_of_one = isinstance(error, GivenUpError) and began < self._answered_at
            if not getattr(error, "is_of_prompt", False) and (is_probe or not is_of_one):
                self._note_failure(str(error), is_probe)
            raise
        else:
            self._failures = 0
            self._answered_at = clock()
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
                # What is refused is refused again; another item may not be.
                is_hopeless = isinstance(error, RequestRefusedError) and error.pause_s is None
                is_hopeless |= self.gives_up_after_s is not None and self.health.away_s > self.gives_up_after_s
                if failures >= MAX_FAILURES or probes >= MAX_PROBES or is_hopeless:
                    raise


RECENT = 256
"""Requests by which others are judged."""

ENOUGH = 20
"""Nothing hangs before so many were answered, and twice as many as are under way: the first to come are the short."""

HIGH, SLOW = 0.99, 0.95
"""Which shares of the requests are usual in their seconds, and in their seconds for a token."""

GIVEN_UP_AFTER = 2.0
"""Times as long as after which a request hangs, at least."""

LOSING_PATIENCE = 8
"""Requests given up in a row after which limits are doubled: more likely all have become slow."""

SILENCE = 4.0
"""Times `floor_s` after which a request is told of although there is nothing to compare it with."""

GATHER_S = 1.0
"""Between the first request that hangs and the line about it: they mostly come together."""


@dataclass(frozen=True)
class HangLimits:
    """When a request hangs: after `factor` times what is usual (-1: never), and not before `floor_s` seconds."""

    factor: float = 2.0
    floor_s: float = 30.0


class Latencies:
    """How long the last requests took, with how many tokens in the longest completion of each."""

    def __init__(self, limits: HangLimits) -> None:
        self._limits = limits
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self._answered = 0
        self._given_up_in_a_row = 0

    def note(self, seconds: float, tokens: int) -> None:
        self._recent.append((seconds, max(1, tokens)))
        self._answered += 1
        self._given_up_in_a_row = 0

    def note_given_up(self) -> None:
        self._given_up_in_a_row += 1

    def limits(self, max_tokens: int, under_way: int) -> tuple[float, float]:
        """Seconds after which a request for at most so many tokens hangs, and after which it is given up.

        It hangs when it is slow among those before. But most of them may have been short: it is not given up before
        the time in which a server that writes as slowly as any lately would have written all of `max_tokens`.
        """
        factor, floor_s = self._limits.factor, self._limits.floor_s
        if self._answered < max(ENOUGH, 2 * under_way):
            return math.inf, math.inf
        # Short ones would count the wait for their first token as if it went on.
        longer = sorted(self._recent, key=lambda one: one[1])[len(self._recent) // 2 :]
        per_token = _percentile([seconds / tokens for seconds, tokens in longer], SLOW)
        hangs = max(floor_s, factor * self.seconds(HIGH)) * 2 ** min(3, self._given_up_in_a_row // LOSING_PATIENCE)
        return hangs, max(GIVEN_UP_AFTER * hangs, factor * per_token * max_tokens)

    def seconds(self, share: float) -> float:
        """Within how many seconds this share of the last requests was answered; 0 if there were none."""
        return _percentile([seconds for seconds, _ in self._recent], share)

    def metrics(self) -> dict[str, float]:
        if not self._recent:
            return {}
        shares = {"p50": 0.5, "p95": 0.95, "max": 1.0}
        return {f"inference/latency_{name}": self.seconds(share) for name, share in shares.items()}


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))] if values else 0.0


@dataclass(eq=False)
class _Request:
    """One under way since `began` by the clock; looked at again and again once it could hang."""

    split: str
    max_tokens: int
    began: float
    task: asyncio.Future[Any]
    timer: asyncio.TimerHandle | None = None
    given_up_after_s: float = math.inf
    is_given_up: bool = False


@dataclass
class Standing:
    """One server. `manager` is Atropos' manager as if it had no other server."""

    server: Any
    manager: Any
    outage: Outage
    rests_until: float = 0.0
    failed_at: float = -1.0
    under_way: Counter[str] = field(default_factory=Counter)
    hanging: set[_Request] = field(default_factory=set)
    silent: set[_Request] = field(default_factory=set)
    is_told_of: bool = False

    @property
    def address(self) -> str:
        """Where it listens."""
        config = getattr(self.server, "config", None)
        return str(getattr(config, "base_url", None) or "the inference server")

    def room(self, split: str) -> int:
        """How many more requests it takes at once, also counting those that have not come to its semaphore yet."""
        slots = self.server.sem if split == "train" else self.server.eval_sem
        return min(slots._value, getattr(slots, "max_val", slots._value) - self.under_way[split])


class ServerChoice:
    """Chooses among the servers of an Atropos `ServerManager`; each request is made inside `with choice.one(split)`."""

    def __init__(
        self, manager: Any, limits: HangLimits | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._limits = limits or HangLimits()
        self._latencies = {split: Latencies(self._limits) for split in ("train", "eval")}
        self._given_up = 0
        self._standings = [self._standing(manager, server) for server in manager.servers]

    def _standing(self, manager: Any, server: Any) -> Standing:
        alone = copy.copy(manager)
        alone.servers = [server]
        name = f"The inference server {getattr(getattr(server, 'config', None), 'base_url', '')}".rstrip()
        outage = Outage(logger, name, first_delay_s=FIRST_DELAY_S, max_delay_s=MAX_DELAY_S, clock=self._clock)
        return Standing(server, alone, outage)

    @contextmanager
    def one(self, split: str) -> Iterator[Standing]:
        """The server to ask. An Exception from inside is that server's failure, and is passed on."""
        standing = self._choose(split)
        standing.under_way[split] += 1
        began = self._clock()
        try:
            yield standing
        except Exception as error:
            self._failed(standing, began, str(error) or type(error).__name__)
            raise
        else:
            if standing.rests_until:
                standing.outage.over()
                standing.rests_until = 0.0
        finally:
            standing.under_way[split] -= 1

    def rest(self, standing: Standing, seconds: float) -> None:
        """Let the others be asked for so long, if there are any."""
        standing.rests_until = self._clock() + seconds

    async def watched(
        self, asked: Standing, split: str, max_tokens: int, request: Coroutine[Any, Any, T], tokens: Callable[[T], int]
    ) -> T:
        """The reply to a request to this server, of so many `tokens`, which is told of while it hangs.

        Raises GivenUpError when it is given up.
        """
        it = _Request(split, max_tokens, self._clock(), asyncio.ensure_future(request))
        if self._limits.factor > 0:
            self._look_again(asked, it, self._limits.floor_s)
        try:
            await asyncio.wait([it.task])
        finally:
            if it.timer is not None:
                it.timer.cancel()
            asked.hanging.discard(it)
            asked.silent.discard(it)
            if not it.task.done():
                it.task.cancel()
                await asyncio.wait([it.task])
        seconds = self._clock() - it.began
        if it.is_given_up and it.task.cancelled():
            self._given_up += 1
            self._latencies[split].note_given_up()
            raise GivenUpError(f"no answer for {seconds:.0f} s, given up")
        reply: T = it.task.result()
        self._latencies[split].note(seconds, tokens(reply))
        return reply

    def _look_again(self, asked: Standing, it: _Request, after_s: float) -> None:
        it.timer = asyncio.get_running_loop().call_later(max(after_s, 0.01), self._look, asked, it)

    def _look(self, asked: Standing, it: _Request) -> None:
        """Whether a request hangs, by what has been seen by now, which may be more than when it went out."""
        under_way = sum(one.under_way[it.split] for one in self._standings)
        hangs_after_s, it.given_up_after_s = self._latencies[it.split].limits(it.max_tokens, under_way)
        age_s, floor_s = self._clock() - it.began, self._limits.floor_s
        if age_s >= it.given_up_after_s:
            it.is_given_up = True
            it.task.cancel()
            return
        (asked.hanging.add if age_s >= hangs_after_s else asked.hanging.discard)(it)
        if hangs_after_s == math.inf and age_s >= SILENCE * floor_s:
            asked.silent.add(it)
        if (asked.hanging or asked.silent) and not asked.is_told_of:
            asked.is_told_of = True
            asyncio.get_running_loop().call_later(GATHER_S, self._tell, asked)
        next_s = it.given_up_after_s if it in asked.hanging else hangs_after_s
        self._look_again(asked, it, min(floor_s, next_s - age_s))

    def _tell(self, asked: Standing) -> None:
        """Of the requests that hang, once a minute for as long as there are any."""
        waiting = asked.hanging or asked.silent
        if not waiting:
            asked.is_told_of = False
            return
        first = min(waiting, key=lambda it: it.began)
        usual_s, limit_s = self._latencies[first.split].seconds(HIGH), first.given_up_after_s
        logger.warning(
            "%d request%s no answer from %s, the longest for %.0f s: %s.",
            *(len(waiting), " has" if len(waiting) == 1 else "s have", asked.address, self._clock() - first.began),
            f"it hangs, {HIGH:.0%} of the last took {usual_s:.1f} s at most, and is given up after {limit_s:.0f} s"
            if asked.hanging
            else "too few have been answered to tell how long it may take",
        )
        asyncio.get_running_loop().call_later(REMIND_S, self._tell, asked)

    def hanging(self, split: str | None = None) -> int:
        """How many requests hang now."""
        return sum(split in (None, it.split) for one in self._standings for it in one.hanging)

    def _choose(self, split: str) -> Standing:
        if len(self._standings) == 1:
            return self._standings[0]
        now = self._clock()
        healthy = [one for one in self._standings if getattr(one.server, "server_healthy", True)] or self._standings
        rested = [one for one in healthy if one.rests_until <= now]
        if not rested:
            return min(healthy, key=lambda one: one.rests_until)
        calm = [one for one in rested if not one.hanging and one.room(split) > 0]
        chosen = max(calm or rested, key=lambda one: one.room(split))
        if chosen.outage.is_on:
            # The others wait for what becomes of this one request.
            chosen.rests_until = now + MAX_DELAY_S
        return chosen

    def _failed(self, standing: Standing, began: float, detail: str) -> None:
        # Those that were under way when it failed say nothing new.
        if len(self._standings) > 1 and began >= standing.failed_at:
            standing.failed_at = self._clock()
            rest_s = standing.outage.failed(detail, "requests go to the others")
            standing.rests_until = standing.failed_at + rest_s

    def metrics(self) -> dict[str, float]:
        """How long requests for training took lately; how many hang now, and were given up since the start, if any.

        Of several servers, how many rest now, and how often one began to.
        """
        values = self._latencies["train"].metrics()
        if values or self.hanging():
            values["inference/hanging"] = float(self.hanging())
        if self._given_up:
            values["inference/given_up"] = float(self._given_up)
        if any(one.outage.count for one in self._standings):
            values["inference/servers_away"] = float(sum(one.outage.is_on for one in self._standings))
            values["inference/server_outages"] = float(sum(one.outage.count for one in self._standings))
        return values
