"""Atropos' trajectory API: the few requests that an environment makes of it, and scored groups on their way there.

    put ──> waiting ──(API there, trainer registered)──> sent | refused
                  └──(more than max_staleness_steps since its sampling began)──> stale

A restarted API knows neither trainer nor environments. It must not be sent a group before its trainer has registered:
it would take it, and then treat the trainer's registration as a repetition and forget what it says. So `has_trainer`
is asked before each group. Cancelling who waits for a group does not cancel the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any

import aiohttp

from ..training_log.training_log import GroupOutcome
from ..utils.aio import within
from ..utils.outage_log import RepeatedEvents

logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0
GROUP_TIMEOUT_S = 60.0
COMPRESS_FROM = 1024
"""Bytes from which a body is worth compressing."""

GZIP_LEVEL = 1
"""Token ids shrink nearly as well at the lowest level, several times faster."""

COME_BACK_LATER = (408, 429)
"""Answers below 500 that say nothing of what was asked."""

_TROUBLE = (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError)


class ApiUnavailableError(Exception):
    """No usable answer. `was_gone`: nobody listened, so the process had ended. `failed`: it failed at the request."""

    def __init__(self, message: str, *, was_gone: bool = False, failed: bool = False) -> None:
        super().__init__(message)
        self.was_gone = was_gone
        self.failed = failed


class RefusedError(Exception):
    """The API will have none of it, however often it is asked; the message is what it said."""


class UnknownEnvironmentError(Exception):
    """The API does not know the environment's number: it was restarted or reset."""


class TrajectoryApi:
    """A client of one trajectory API. Each request has a connection of its own, so none outlives a restart."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    async def status(self, env_id: int) -> dict[str, Any]:
        """Steps and queue as this environment sees them. Raises UnknownEnvironmentError, ApiUnavailableError."""
        code, text = await self._ask("GET", "/status-env", {"env_id": env_id})
        # It looks the number up without asking whether it has it.
        if code == 500:
            raise UnknownEnvironmentError(f"the API does not know environment {env_id}")
        status: dict[str, Any] = self._json(code, text)
        return status

    async def register(self, registration: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the API says of a new environment; None while no trainer has started.

        Raises ApiUnavailableError, and RefusedError for a registration that is not taken.
        """
        code, text = await self._ask("POST", "/register-env", registration)
        if 400 <= code < 500 and code not in COME_BACK_LATER:
            raise RefusedError(f"{code}: {text[:300]}")
        answer = self._json(code, text)
        return answer if answer.get("status") == "success" else None

    async def info(self) -> dict[str, Any]:
        """The trainer's `batch_size` and `max_token_len`, each -1 if it set none. Raises ApiUnavailableError."""
        info: dict[str, Any] = self._json(*await self._ask("GET", "/info", None))
        return info

    async def has_trainer(self) -> bool:
        """Whether a trainer is registered. Raises ApiUnavailableError."""
        return (await self.trainer()).get("project") is not None

    async def trainer(self) -> dict[str, Any]:
        """The wandb `group` and `project` of the trainer, each None without one. Raises ApiUnavailableError."""
        trainer: dict[str, Any] = self._json(*await self._ask("GET", "/wandb_info", None))
        return trainer

    async def sign_off(self, env_id: int) -> None:
        """Tell it that an environment is gone. Raises ApiUnavailableError."""
        self._json(*await self._ask("POST", "/disconnect-env", {"env_id": env_id}))

    async def post_group(self, group: Mapping[str, Any]) -> str | None:
        """Send one scored group; None if it was taken, else why it was refused. Raises ApiUnavailableError.

        What run-api would take and could not hand on is not sent: it fails after it has taken a batch out of its queue,
        and the other groups of that batch are lost with it.
        """
        try:
            body, headers = await asyncio.to_thread(_encoded, group)
        except (TypeError, ValueError) as error:
            return f"not sent, for no batch with it could be used: {error}"
        code, text = await self._request("POST", "/scored_data", GROUP_TIMEOUT_S, data=body, headers=headers)
        if code >= 500:
            raise ApiUnavailableError(f"it answers {code}: {text[:200]}", failed=code == 500)
        return None if code < 400 else f"{code}: {text[:200]}"

    async def _ask(self, method: str, path: str, data: Mapping[str, Any] | None) -> tuple[int, str]:
        return await self._request(method, path, TIMEOUT_S, json=data)

    async def _request(self, method: str, path: str, timeout_s: float, **request: Any) -> tuple[int, str]:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, self.url + path, **request) as response,
            ):
                return response.status, await response.text()
        except _TROUBLE as error:
            # Only a machine that answers "nobody listens here" is sure to have no such process.
            was_gone = isinstance(getattr(error, "os_error", error), ConnectionRefusedError)
            raise ApiUnavailableError(str(error) or type(error).__name__, was_gone=was_gone) from error

    def _json(self, code: int, text: str) -> Any:
        if code >= 400:
            raise ApiUnavailableError(f"it answers {code}: {text[:200]}")
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise ApiUnavailableError(f"{self.url} does not answer like run-api: {text[:80]!r}") from error
        if not isinstance(answer, dict):
            raise ApiUnavailableError(f"{self.url} does not answer like run-api: {text[:80]!r}")
        return answer


def _encoded(group: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Raises TypeError or ValueError for what run-api cannot encode in its turn (NaN, half a surrogate pair), and for
    sequences that no trainer can read.
    """
    for name in ("masks", "inference_logprobs"):
        if group.get(name) is not None and [*map(len, group[name])] != [*map(len, group["tokens"])]:
            raise ValueError(f"its {name} are not as many as its tokens")
    body = json.dumps(group, allow_nan=False, ensure_ascii=False).encode("utf-8")
    headers = {"Content-Type": "application/json"}
    if len(body) >= COMPRESS_FROM:
        headers["Content-Encoding"] = "gzip"
        body = gzip.compress(body, compresslevel=GZIP_LEVEL)
    return body, headers


# --- scored groups on their way

CAPACITY = 64
"""Groups that may wait. Whoever brings another one waits with it, which bounds memory by the number of workers."""

SAMPLED_AT_STEP = "sampled_at_step"
"""In a posted group's `generation_params`: the trainer's step at which its sampling began."""

AT_ONCE = 8
MAX_FAILURES = 10
"""How often run-api, while it is there and has a trainer, may fail at one group before it is the group's fault."""

FIRST_DELAY_S = 0.25
MAX_DELAY_S = 5.0


def why_useless(
    group: Mapping[str, Any], *, group_size: int, drops_equal_scores: bool, max_token_len: int
) -> tuple[GroupOutcome, str] | None:
    """Why the trainer has no use for a scored group, and in words; None if it has. A limit of 0 or less is none."""
    if len(group["tokens"]) != group_size:
        return GroupOutcome.DROPPED, f"it has {len(group['tokens'])} rollouts, expected {group_size}"
    if drops_equal_scores and len(set(group["scores"])) == 1:
        return GroupOutcome.EQUAL_SCORES, "its scores are equal"
    if 0 < max_token_len <= (longest := max(map(len, group["tokens"]))):
        return GroupOutcome.TOO_LONG, f"a sequence has {longest} tokens, the trainer's limit is {max_token_len}"
    return None


class Delivery(str, Enum):
    """How a group left the outbox."""

    SENT = "sent"
    REFUSED = "refused"
    STALE = "stale"

    @property
    def outcome(self) -> GroupOutcome:
        return GroupOutcome.SEND_FAILED if self is Delivery.REFUSED else GroupOutcome(self.value)


class Outbox:
    """Delivers groups, each in a task of its own, a few at a time.

    `post` sends a group: None if it was taken, a reason if it was refused, ApiUnavailableError if it is to be tried
    again. `is_ready` says whether the API may be sent a group now. `step` is the trainer's step.
    """

    def __init__(
        self,
        post: Callable[[Mapping[str, Any]], Awaitable[str | None]],
        is_ready: Callable[[], Awaitable[bool]],
        *,
        step: Callable[[], int],
        max_staleness_steps: int,
        capacity: int = CAPACITY,
    ) -> None:
        self._post = post
        self._is_ready = is_ready
        self._step = step
        self._max_staleness_steps = max_staleness_steps
        self._room = asyncio.Semaphore(capacity)
        self._senders = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._events = RepeatedEvents(logger)
        self._api_is_back = asyncio.Event()
        self.counts = dict.fromkeys(Delivery, 0)
        self.failed_attempts = 0
        self._steps_behind: list[int] = []

    @property
    def waiting(self) -> int:
        """Groups that are not delivered yet."""
        return len(self._tasks)

    async def put(
        self, group: Mapping[str, Any], settled: Callable[[Delivery], None], sampled_at: int | None = None
    ) -> asyncio.Task[None]:
        """Take a group in, when there is room; returns the task of its delivery, which calls `settled` at its end.

        `sampled_at` is the trainer's step at which its sampling began; where that is not known, the present one counts.
        """
        await self._room.acquire()
        step = self._step() if sampled_at is None else sampled_at
        task = asyncio.get_running_loop().create_task(self._deliver(group, step, settled))
        self._tasks.add(task)
        task.add_done_callback(self._left)
        return task

    def _left(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.note("a group could not be sent at all", repr(error))

    async def _deliver(self, group: Mapping[str, Any], step: int, settled: Callable[[Delivery], None]) -> None:
        delay, failures = FIRST_DELAY_S, 0
        while True:
            # A trainer that was restarted may count from its last checkpoint: then what it takes from there on counts.
            step = min(step, self._step())
            if 0 <= self._max_staleness_steps < self._step() - step:
                self._events.note("a group is dropped, too old", f"sampled from step {step} on, now {self._step()}")
                return self._settle(Delivery.STALE, settled)
            try:
                async with self._senders:
                    if await self._is_ready():
                        return self._settle(await self._sent(group, step), settled)
            except ApiUnavailableError as error:
                self.failed_attempts += 1
                logger.debug("A group waits: %s", error)
                failures += error.failed
                if failures >= MAX_FAILURES:
                    self._events.note("a group is dropped, the trajectory API fails at it", str(error))
                    return self._settle(Delivery.REFUSED, settled)
            with contextlib.suppress(asyncio.TimeoutError):
                await within(delay, self._api_is_back.wait())
            delay = min(MAX_DELAY_S, delay * 2)

    async def _sent(self, group: Mapping[str, Any], step: int) -> Delivery:
        params = {**(group.get("generation_params") or {}), SAMPLED_AT_STEP: step}
        refusal = await self._post({**group, "generation_params": params})
        if refusal is None:
            self._steps_behind.append(max(0, self._step() - step))
            return Delivery.SENT
        self._events.note("a group is dropped, refused by the trajectory API", refusal)
        return Delivery.REFUSED

    def _settle(self, delivery: Delivery, settled: Callable[[Delivery], None]) -> None:
        self.counts[delivery] += 1
        settled(delivery)

    def try_now(self) -> None:
        """The API is back: what waits need not wait any longer."""
        self._api_is_back.set()
        self._api_is_back = asyncio.Event()

    async def close(self, grace_s: float) -> None:
        """Let what waits be delivered for `grace_s` seconds; what is left is not settled, and is reported."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if left:
            logger.warning("%d groups could not be sent to the trajectory API; their items are drawn again.", len(left))
        self._events.summarise()

    def metrics(self) -> dict[str, float]:
        """Groups that wait now; and since the start, those that were not sent, and attempts that failed, if any."""
        counts = {one.value: n for one, n in self.counts.items() if one is not Delivery.SENT}
        counts["failed_attempts"] = self.failed_attempts
        return {
            "outbox/waiting": float(self.waiting),
            **{f"outbox/{name}": float(n) for name, n in counts.items() if n},
        }

    def drain(self) -> dict[str, float]:
        """Of the groups posted since the last call: how many steps before that their sampling began."""
        steps, self._steps_behind = self._steps_behind, []
        return (
            {"train/staleness_mean": sum(steps) / len(steps), "train/staleness_max": float(max(steps))} if steps else {}
        )
