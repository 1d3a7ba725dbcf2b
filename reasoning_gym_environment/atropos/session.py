"""This environment at the trajectory API: its number there, the trainer's limits and step, and groups delivered.

register ──> status, ten times a second ──> ...     unavailable: waits, and no group is started meanwhile
    └──(restarted or reset: register again)──┘      available again: continues with the items and levels it had

group ──> outbox ──(API available, trainer registered)──> sent | refused     only then is its item done
              └──(more than max_staleness_steps since its sampling began)──> stale

A restarted API knows neither trainer nor environments. It must not be sent a group before its trainer has registered:
it would take the group, and then treat the trainer's registration as a repetition and ignore what it says. So the
trainer is asked for before each group. Cancelling who waits for a group's delivery does not cancel the delivery.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import aiohttp

from ..errors import EnvironmentSetupError
from ..telemetry.telemetry import GroupOutcome
from ..utils.aio import within
from ..utils.outage_log import REMIND_S, Outage, RepeatedEvents

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_DELAY_S, MAX_DELAY_S = 0.2, 5.0
TRAINER_POLL_S = 1.0


@dataclass
class RunState:
    """What a run learns and what changes while it runs, apart from its settings, which do not change.

    `batch_size` and `total_steps` begin as the settings' and become the trainer's where it sets its own;
    `max_token_len` is its limit for a whole sequence, none if it is not positive. `is_offline` while groups are written
    to a file and not for a trainer. `steps_again` are those that a restarted trainer took once more.
    """

    group_size: int
    batch_size: int
    total_steps: int
    drops_equal_scores: bool
    is_offline: bool = False
    max_token_len: int = -1
    env_id: int | None = None
    step: int = 0
    steps_again: int = 0
    metrics_prefix: str | None = None
    checkpoint_dir: str = ""
    checkpoint_interval: int = -1

    def begin_offline(self, group_size: int, *, step: int) -> None:
        """From now on groups are written to a file. Equal scores are data there, and no reason to drop a group."""
        self.group_size, self.step = group_size, step
        self.drops_equal_scores, self.is_offline = False, True


class NumberKeeper(Protocol):
    """Keeps the number that the API gave beyond the end of the process; see checkpoints.RunCheckpoints."""

    async def keep_number(self, api: Mapping[str, Any]) -> set[int]:
        """Keep the present one; returns the one before, if it was not signed off and this API gave it."""
        ...


class ApiSession:
    """The dealings with one trajectory API. `registration` is what this environment says of itself."""

    def __init__(
        self,
        url: str,
        run: RunState,
        numbers: NumberKeeper,
        *,
        registration: Mapping[str, Any],
        max_staleness_steps: int,
    ) -> None:
        self._api = TrajectoryApi(url)
        self._run = run
        self._numbers = numbers
        self._registration = registration
        self._outage = Outage(logger, "The trajectory API", first_delay_s=FIRST_DELAY_S, max_delay_s=MAX_DELAY_S)
        self._was_gone = False
        self._registrations = 0
        self._remind_at = 0.0
        self.outbox = Outbox(self._post, self._is_ready, step=lambda: run.step, max_staleness_steps=max_staleness_steps)

    @property
    def is_unavailable(self) -> bool:
        return self._outage.is_on

    # --- registration

    async def until_trainer(self) -> None:
        """Return once a trainer has registered, which names the wandb project."""
        while not await self._until_answered(self._api.has_trainer, "waiting for the name of the wandb project"):
            await self._wait_for_trainer()

    async def register(self) -> None:
        """Register, and take over where the run stands; waits for the API and for a trainer.

        Raises EnvironmentSetupError if the API refuses the registration, and if neither the settings nor the trainer
        say how many steps there are.
        """
        try:
            data = await self._registered()
        except RefusedError as refusal:
            raise EnvironmentSetupError(
                f"{self._api.url}/register-env refuses this environment with {str(refusal).rstrip('.')}. Expected the "
                "run-api of Atropos 0.4: check env.rollout_server_url, and what it says of the settings."
            ) from refusal
        run = self._run
        run.step, run.metrics_prefix = data["starting_step"], data["wandb_name"]
        run.checkpoint_dir, run.checkpoint_interval = data["checkpoint_dir"], data["checkpoint_interval"]
        if run.total_steps == -1:
            run.total_steps = data["num_steps"]
        if run.total_steps == -1:
            raise EnvironmentSetupError("Neither env.total_steps nor the trainer says how many steps there are.")
        logger.info("Registered as environment %d at step %d.", run.env_id, run.step)

    async def take_over_limits(self) -> None:
        """Ask for the trainer's limits. Raises EnvironmentSetupError if a group is larger than its batch."""
        run = self._run
        info = await self._until_answered(lambda: self._api.ask("GET", "/info"), "waiting for the trainer's batch size")
        if info["batch_size"] != -1:
            run.batch_size = info["batch_size"]
        if info["max_token_len"] != -1:
            run.max_token_len = info["max_token_len"]
        if run.batch_size == -1:
            logger.warning("Neither env.batch_size nor the trainer sets a batch size: no group is started.")
        elif run.group_size > run.batch_size:
            raise EnvironmentSetupError(
                f"A group of {run.group_size} does not fit the trainer's batch of {run.batch_size}: "
                "lower env.group_size or raise the batch size."
            )

    async def keep_number(self, *old: int) -> None:
        """Keep the number with the run, and sign off those that it had before: `old`, and the one when it was killed.

        The API would go on reserving their share of every batch.
        """
        before = set(old)
        try:
            before |= await self._numbers.keep_number({"url": self._api.url, **await self._api.trainer()})
        except ApiUnavailableError as error:
            logger.warning("The API did not name its trainer (%s): an earlier number stays registered.", error)
        # One that is not below the present number was given before a restart, and may be another's by now.
        for number in sorted(one for one in before if self._run.env_id is not None and one < self._run.env_id):
            logger.warning("Signing off environment %d, which this one was before.", number)
            await self.sign_off(number)

    async def sign_off(self, number: int | None = None) -> None:
        """Tell the API that an environment (None: this one) is gone, so that its share goes to the others."""
        env_id = self._run.env_id if number is None else number
        if env_id is not None:
            try:
                await self._api.ask("POST", "/disconnect-env", {"env_id": env_id})
            except ApiUnavailableError as error:
                logger.info("The trajectory API did not take the sign-off of environment %d: %s", env_id, error)

    async def _registered(self) -> dict[str, Any]:
        registration = {**self._registration, "group_size": self._run.group_size}
        while True:
            data = await self._until_answered(lambda: self._api.register(registration), "waiting to register")
            if data is not None:
                self._run.env_id = data["env_id"]
                self._registrations += 1
                return data
            await self._wait_for_trainer()

    async def _until_answered(self, ask: Callable[[], Awaitable[T]], remedy: str) -> T:
        """The API's answer, however long it is unavailable."""
        while True:
            try:
                answer = await ask()
            except (ApiUnavailableError, RefusedError) as error:
                # One that was registered before may meet a gateway whose API is being restarted behind it.
                if isinstance(error, RefusedError) and self._run.env_id is None:
                    raise
                await asyncio.sleep(self._outage.failed(str(error), remedy))
            else:
                self._outage.over()
                return answer

    async def _wait_for_trainer(self) -> None:
        if time.monotonic() >= self._remind_at:
            self._remind_at = time.monotonic() + REMIND_S
            logger.warning("The trajectory API has no trainer yet: waiting until one registers and asks for batches.")
        await asyncio.sleep(TRAINER_POLL_S)

    # --- where the run stands

    async def status(self) -> dict[str, Any]:
        """What the API says of the run, once it is available; registers again if the API was restarted."""
        was_unknown = False
        while True:
            try:
                status = await self._status()
                break
            except ApiUnavailableError as error:
                self._was_gone |= error.was_gone
                delay = self._outage.failed(str(error), "groups wait, no new ones are started")
            except UnknownEnvironmentError as error:
                # Twice, for any error inside the API looks like this.
                self._was_gone, was_unknown = was_unknown, True
                delay = self._outage.failed(str(error))
            await asyncio.sleep(delay)
        if self._outage.is_on:
            self._outage.over()
            self.outbox.try_now()
        return status

    async def _status(self) -> dict[str, Any]:
        if self._was_gone:
            # Another environment may have our number by now: ask under a new one.
            await self._register_again("it was restarted")
        status = await self._api.status(self._run.env_id)
        if status["current_step"] < self._run.step:
            await self._register_again(f"it went from step {self._run.step} to {status['current_step']}")
            status = await self._api.status(self._run.env_id)
        return status

    async def _register_again(self, reason: str) -> None:
        old = self._run.env_id
        assert old is not None
        # Not `register`: the run keeps its folder and the names of its metrics.
        step = (await self._registered())["starting_step"]
        self._run.steps_again += max(0, self._run.step - step)
        self._run.step = step
        await self.keep_number(old)
        self._was_gone = False
        await self.take_over_limits()
        logger.warning(
            "Registered again with the trajectory API, as environment %d instead of %d (%s): continuing at step %d.",
            *(self._run.env_id, old, reason, self._run.step),
        )
        self.outbox.try_now()

    # --- delivery: what the outbox asks

    async def _post(self, group: Mapping[str, Any]) -> str | None:
        return await self._api.post_group({**group, "env_id": self._run.env_id})

    async def _is_ready(self) -> bool:
        if self._outage.is_on or self._was_gone:
            return False
        try:
            return await self._api.has_trainer()
        except ApiUnavailableError as error:
            # It may be back, as another process, before its status is asked for again.
            self._was_gone = error.was_gone and self._run.env_id is not None
            raise

    def metrics(self) -> dict[str, float]:
        """Outages and registrations after the first, if there were any, and what the outbox counts."""
        again = {"api/registered_again": self._registrations - 1, "api/steps_again": self._run.steps_again}
        counts = {name: float(count) for name, count in again.items() if count > 0}
        return {**self._outage.metrics("api/server"), **counts, **self.outbox.metrics()}


# --- scored groups on their way

CAPACITY = 64
"""Groups that may wait. Whoever brings another one waits with it, which bounds memory by the number of workers."""

SAMPLED_AT_STEP = "sampled_at_step"
"""In a posted group's `generation_params`: the trainer's step at which its sampling began."""

AT_ONCE = 8
MAX_FAILURES = 10
"""How often run-api, while it is available and has a trainer, may fail at one group before the group is dropped."""

FIRST_PAUSE_S, MAX_PAUSE_S = 0.25, 5.0


def why_unused(
    group: Mapping[str, Any], *, group_size: int, drops_equal_scores: bool, max_token_len: int
) -> tuple[GroupOutcome, str] | None:
    """Why the trainer cannot use a scored group, and in words; None if it can. A limit of 0 or less is none."""
    if len(group["tokens"]) != group_size:
        return GroupOutcome.DROPPED, f"it has {len(group['tokens'])} rollouts, expected {group_size}"
    if drops_equal_scores and len(set(group["scores"])) == 1:
        return GroupOutcome.EQUAL_SCORES, "its scores are equal"
    if 0 < max_token_len <= (longest := max(map(len, group["tokens"]))):
        return GroupOutcome.TOO_LONG, f"a sequence has {longest} tokens, the trainer's limit is {max_token_len}"
    return None


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
        self._post, self._is_ready, self._step = post, is_ready, step
        self._max_staleness_steps = max_staleness_steps
        self._room = asyncio.Semaphore(capacity)
        self._senders = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._events = RepeatedEvents(logger)
        self._api_is_back = asyncio.Event()
        self._counts: Counter[str] = Counter()
        self._steps_behind: list[int] = []

    async def put(
        self, group: Mapping[str, Any], settled: Callable[[GroupOutcome], None], sampled_at: int | None = None
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

    async def _deliver(self, group: Mapping[str, Any], step: int, settled: Callable[[GroupOutcome], None]) -> None:
        delay, failures = FIRST_PAUSE_S, 0
        while True:
            # A trainer that was restarted may count from its last checkpoint: then its steps from there on count.
            step = min(step, self._step())
            if 0 <= self._max_staleness_steps < self._step() - step:
                self._counts["stale"] += 1
                self._events.note("a group is dropped, too old", f"sampled from step {step} on, now {self._step()}")
                return settled(GroupOutcome.STALE)
            refusal: str | None = "the trajectory API fails at it"
            try:
                async with self._senders:
                    if is_ready := await self._is_ready():
                        params = {**(group.get("generation_params") or {}), SAMPLED_AT_STEP: step}
                        refusal = await self._post({**group, "generation_params": params})
            except ApiUnavailableError as error:
                self._counts["failed_attempts"] += 1
                logger.debug("A group waits: %s", error)
                failures += error.failed
                is_ready, refusal = failures >= MAX_FAILURES, f"{refusal}: {error}"
            if is_ready and refusal is None:
                self._steps_behind.append(max(0, self._step() - step))
                return settled(GroupOutcome.SENT)
            if is_ready:
                self._counts["refused"] += 1
                self._events.note("a group is dropped, refused by the trajectory API", str(refusal))
                return settled(GroupOutcome.SEND_FAILED)
            with contextlib.suppress(asyncio.TimeoutError):
                await within(delay, self._api_is_back.wait())
            delay = min(MAX_PAUSE_S, delay * 2)

    def try_now(self) -> None:
        """The API is available again: what waits need not wait any longer."""
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
        """Groups that wait now; and since the start, those refused and stale, and failed attempts, if any."""
        return {f"outbox/{name}": float(n) for name, n in {"waiting": len(self._tasks), **self._counts}.items()}

    def drain(self) -> dict[str, float]:
        """Of the groups posted since the last call: how many steps before that their sampling began."""
        steps, self._steps_behind = self._steps_behind, []
        return (
            {"train/staleness_mean": sum(steps) / len(steps), "train/staleness_max": float(max(steps))} if steps else {}
        )


# --- the trajectory API's requests

TIMEOUT_S, GROUP_TIMEOUT_S = 10.0, 60.0
COMPRESS_FROM = 1024
"""Bytes from which a body is compressed, at the lowest level: token ids shrink nearly as well, several times faster."""

COME_BACK_LATER = (408, 429)
"""Answers below 500 that say nothing of what was asked."""


class ApiUnavailableError(Exception):
    """No usable answer. `was_gone`: nobody listened, so the process had ended. `failed`: it failed at the request."""

    def __init__(self, message: str, *, was_gone: bool = False, failed: bool = False) -> None:
        super().__init__(message)
        self.was_gone, self.failed = was_gone, failed


class RefusedError(Exception):
    """The API refuses it, however often it is asked; the message is what it said."""


class UnknownEnvironmentError(Exception):
    """The API does not know the environment's number: it was restarted or reset."""


class TrajectoryApi:
    """A client of one trajectory API. Each request has a connection of its own, so none outlives a restart."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    async def status(self, env_id: int | None) -> dict[str, Any]:
        """Steps and queue as this environment sees them. Raises UnknownEnvironmentError, ApiUnavailableError."""
        code, text = await self._request("GET", "/status-env", json={"env_id": env_id})
        # It looks the number up without asking whether it has it.
        if code == 500:
            raise UnknownEnvironmentError(f"the API does not know environment {env_id}")
        return self._object(code, text)

    async def register(self, registration: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the API says of a new environment; None while no trainer has started.

        Raises ApiUnavailableError, and RefusedError for a registration that is not taken.
        """
        code, text = await self._request("POST", "/register-env", json=registration)
        if 400 <= code < 500 and code not in COME_BACK_LATER:
            raise RefusedError(f"{code}: {text[:300]}")
        answer = self._object(code, text)
        return answer if answer.get("status") == "success" else None

    async def ask(self, method: str, path: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer to any other request. Raises ApiUnavailableError."""
        return self._object(*await self._request(method, path, json=data))

    async def trainer(self) -> dict[str, Any]:
        """The wandb `group` and `project` of the trainer, each None without one. Raises ApiUnavailableError."""
        return await self.ask("GET", "/wandb_info")

    async def has_trainer(self) -> bool:
        """Whether a trainer is registered. Raises ApiUnavailableError."""
        return (await self.trainer()).get("project") is not None

    async def post_group(self, group: Mapping[str, Any]) -> str | None:
        """Send one scored group; None if it was taken, else why it was refused. Raises ApiUnavailableError.

        A group that run-api would take and could not hand on is not sent: run-api fails after it has taken a batch out
        of its queue, and the other groups of that batch are lost with it.
        """
        try:
            body, headers = await asyncio.to_thread(_encoded, group)
        except (TypeError, ValueError) as error:
            return f"not sent, for no batch with it could be used: {error}"
        code, text = await self._request("POST", "/scored_data", GROUP_TIMEOUT_S, data=body, headers=headers)
        if code >= 500:
            raise ApiUnavailableError(f"it answers {code}: {text[:200]}", failed=code == 500)
        return None if code < 400 else f"{code}: {text[:200]}"

    async def _request(self, method: str, path: str, timeout_s: float = TIMEOUT_S, **request: Any) -> tuple[int, str]:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, self.url + path, **request) as response,
            ):
                return response.status, await response.text()
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError) as error:
            # Only a machine that answers "nobody listens here" is sure to have no such process.
            was_gone = isinstance(getattr(error, "os_error", error), ConnectionRefusedError)
            raise ApiUnavailableError(str(error) or type(error).__name__, was_gone=was_gone) from error

    def _object(self, code: int, text: str) -> dict[str, Any]:
        if code >= 400:
            raise ApiUnavailableError(f"it answers {code}: {text[:200]}")
        with contextlib.suppress(ValueError):
            if isinstance(answer := json.loads(text), dict):
                return answer
        raise ApiUnavailableError(f"{self.url} does not answer like run-api: {text[:80]!r}")


def _encoded(group: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Raises TypeError or ValueError for what run-api cannot encode in its turn (NaN, half a surrogate pair), and for
    sequences that no trainer can read.
    """
    for name in ("masks", "inference_logprobs"):
        if group.get(name) is not None and [*map(len, group[name])] != [*map(len, group["tokens"])]:
            raise ValueError(f"its {name} are not as many as its tokens")
    body = json.dumps(group, allow_nan=False, ensure_ascii=False).encode("utf-8")
    headers = {"Content-Type": "application/json"}
    if len(body) < COMPRESS_FROM:
        return body, headers
    return gzip.compress(body, compresslevel=1), {**headers, "Content-Encoding": "gzip"}
