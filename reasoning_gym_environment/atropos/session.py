"""This environment at the trajectory API: its number there, the trainer's limits and step, and groups delivered.

register ──> status, ten times a second ──> ...     unavailable: waits, and no group is started meanwhile
    └──(restarted or reset: register again)──┘      available again: continues with the items and levels it had

group ──> deliver ──(API available, trainer registered)──> sent | refused     only then is its item done
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from atroposlib.envs.base import BaseEnvConfig

from ..errors import EnvironmentSetupError
from ..telemetry.telemetry import GroupOutcome
from ..utils.resilience import Outage, RepeatedEvents, ended

logger = logging.getLogger(__name__)

Settle = Callable[[GroupOutcome], None]
"""Is told what became of a group."""

FIRST_DELAY_S, MAX_DELAY_S = 0.2, 2.0
SEND_AGAIN_S = 1.0
TIMEOUT_S, GROUP_TIMEOUT_S = 10.0, 60.0

CLOSE_S = 2.0
"""How long groups that wait may hold up the end."""


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

    def begin_offline(self, step: int) -> None:
        """From now on groups are written to a file. Equal scores are data there, and no reason to drop a group."""
        self.step, self.drops_equal_scores, self.is_offline = step, False, True


class ApiError(Exception):
    """No usable answer. `code` is its HTTP status; `is_gone` if nobody listened, so that the process had ended."""

    def __init__(self, message: str, *, code: int | None = None, is_gone: bool = False) -> None:
        super().__init__(message)
        self.code, self.is_gone = code, is_gone


class RefusedError(ApiError):
    """The API refuses it, however often it is asked; the message is what it said."""


class ApiSession:
    """The dealings with one trajectory API; what is learned there goes into `run`. Groups that are lost are noted."""

    def __init__(self, config: BaseEnvConfig, run: RunState, failures: RepeatedEvents) -> None:
        self._config, self._run, self._failures = config, run, failures
        self._url = config.rollout_server_url.rstrip("/")
        self._outage = Outage(logger, "The trajectory API", first_delay_s=FIRST_DELAY_S, max_delay_s=MAX_DELAY_S)
        self._is_gone = False
        self._deliveries: set[asyncio.Task[None]] = set()
        self._steps_behind: list[int] = []

    # --- registration

    async def register(self, reason: str = "") -> None:
        """Register, and take over where the run stands; waits for the API and for a trainer.

        With a `reason` it is done again: the run keeps its folder and the names of its metrics. Raises
        EnvironmentSetupError if the API refuses the registration, and if neither the settings nor the trainer say how
        many steps there are.
        """
        config, run, old = self._config, self._run, self._run.env_id
        registration = {
            "max_token_length": config.max_token_length,
            "desired_name": config.wandb_name or "reasoning_gym",
            "weight": config.inference_weight,
            "min_batch_allocation": config.min_batch_allocation,
            "group_size": run.group_size,
        }
        data = await self._until_answered("POST", "/register-env", json=registration)
        run.env_id, step = data["env_id"], data["starting_step"]
        if old is not None:
            logger.warning(
                "Registered again with the trajectory API (%s), as environment %d instead of %d, at step %d.",
                *(reason, run.env_id, old, step),
            )
            # Numbers only grow: one that is not below the new one was given before a restart, and may be another's.
            if old < data["env_id"]:
                await self.sign_off(old)
            run.steps_again += max(0, run.step - step)
            run.step, self._is_gone = step, False
            return await self.take_over_limits()
        run.step, run.metrics_prefix = step, data["wandb_name"]
        run.checkpoint_dir, run.checkpoint_interval = data["checkpoint_dir"], data["checkpoint_interval"]
        if run.total_steps == -1:
            run.total_steps = data["num_steps"]
        if run.total_steps == -1:
            raise EnvironmentSetupError("Neither env.total_steps nor the trainer says how many steps there are.")
        logger.info("Registered as environment %d at step %d.", run.env_id, run.step)

    async def take_over_limits(self) -> None:
        """Ask for the trainer's limits. Raises EnvironmentSetupError if a group is larger than its batch."""
        info, run = await self._until_answered("GET", "/info"), self._run
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

    async def sign_off(self, env_id: int) -> None:
        """Tell the API that this environment is gone, so that its share goes to the others."""
        try:
            await self._ask("POST", "/disconnect-env", json={"env_id": env_id})
        except ApiError as error:
            logger.info("The trajectory API did not take the sign-off of environment %d: %s", env_id, error)

    async def _until_answered(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """The API's answer, however long it is unavailable or without a trainer. Raises EnvironmentSetupError."""
        while True:
            try:
                answer = await self._ask(method, path, **request)
                if answer.get("status") == "wait for trainer to start":
                    raise ApiError("no trainer has asked it for a batch yet")
            except ApiError as error:
                # One that was registered before may meet a gateway whose API is being restarted behind it.
                if isinstance(error, RefusedError) and self._run.env_id is None:
                    raise EnvironmentSetupError(
                        f"{self._url}{path} refuses this environment: {str(error).rstrip('.')}. Expected the run-api "
                        "of Atropos 0.4: check env.rollout_server_url, and what it says of the settings."
                    ) from error
                await asyncio.sleep(self._outage.failed(str(error), "waiting; `run-api` starts it"))
            else:
                self._outage.over()
                return answer

    # --- where the run stands

    async def status(self) -> dict[str, Any]:
        """What the API says of the run, once it is available; registers again if the API was restarted."""
        was_unknown = False
        while True:
            try:
                if self._is_gone:
                    # Another environment may have our number by now.
                    await self.register("it was restarted")
                status = await self._ask("GET", "/status-env", json={"env_id": self._run.env_id})
                if status["current_step"] >= self._run.step:
                    self._outage.over()
                    return status
                await self.register(f"it went from step {self._run.step} to {status['current_step']}")
            except ApiError as error:
                # It answers 500 to an unknown number, and to any error inside it: only twice means a restart.
                is_unknown = error.code == 500
                self._is_gone |= error.is_gone or (is_unknown and was_unknown)
                was_unknown = is_unknown
                await asyncio.sleep(self._outage.failed(str(error), "groups wait, no new ones are started"))

    # --- scored groups on their way

    def deliver(self, group: Mapping[str, Any], sampled_at: int | None, settle: Settle) -> asyncio.Task[None]:
        """Begin to send a group, as often as it takes. `settle` is told what became of it, unless the run ends before.

        `sampled_at` is the trainer's step at which its sampling began; where that is not known, the present one counts.
        """
        task = asyncio.create_task(self._deliver(group, sampled_at, settle))
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)
        return task

    async def _deliver(self, group: Mapping[str, Any], sampled_at: int | None, settle: Settle) -> None:
        run, limit = self._run, self._config.max_staleness_steps
        while True:
            # A trainer that was restarted may count from its last checkpoint: then its steps from there on count.
            sampled_at = run.step if sampled_at is None else min(sampled_at, run.step)
            if 0 <= limit < run.step - sampled_at:
                detail = f"sampled from step {sampled_at} on, now {run.step}"
                self._failures.note("group too old for the trainer, it is dropped", detail)
                return settle(GroupOutcome.STALE)
            try:
                if await self._is_ready():
                    params = {**(group.get("generation_params") or {}), "sampled_at_step": sampled_at}
                    await self._post({**group, "env_id": run.env_id, "generation_params": params})
                    self._steps_behind.append(run.step - sampled_at)
                    return settle(GroupOutcome.SENT)
            except RefusedError as error:
                self._failures.note("group refused by the trajectory API, it is dropped", str(error))
                return settle(GroupOutcome.SEND_FAILED)
            except ApiError as error:
                logger.debug("A group waits: %s", error)
            await asyncio.sleep(SEND_AGAIN_S)

    async def _is_ready(self) -> bool:
        if self._outage.is_on or self._is_gone:
            return False
        try:
            return (await self._ask("GET", "/wandb_info")).get("project") is not None
        except ApiError as error:
            # It may be back, as another process, before its status is asked for again.
            self._is_gone = error.is_gone and self._run.env_id is not None
            raise

    async def _post(self, group: Mapping[str, Any]) -> None:
        """Send one scored group. Raises RefusedError, and ApiError if it is to be tried again.

        A group that run-api would take and could not hand on is not sent: run-api fails after it has taken a batch out
        of its queue, and the other groups of that batch are lost with it.
        """
        try:
            body = await asyncio.to_thread(_compressed, group)
        except (TypeError, ValueError) as error:
            raise RefusedError(f"not sent, for no batch with it could be used: {error}") from error
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        await self._ask("POST", "/scored_data", GROUP_TIMEOUT_S, data=body, headers=headers)

    async def close(self) -> None:
        """Let what waits be delivered for CLOSE_S seconds; what is left is not settled, and is reported. Sign off."""
        if self._deliveries:
            await asyncio.wait(self._deliveries, timeout=0.0 if self._outage.is_on else CLOSE_S)
        if left := list(self._deliveries):
            logger.warning("%d groups could not be sent to the trajectory API; their items are drawn again.", len(left))
        await ended(left)
        env_id, self._run.env_id = self._run.env_id, None
        if env_id is not None:
            await self.sign_off(env_id)

    def metrics(self) -> dict[str, float]:
        """Outages and groups that wait; the staleness of those sent since the last call."""
        metrics = {**self._outage.metrics("api/server"), "outbox/waiting": float(len(self._deliveries))}
        if steps := self._steps_behind:
            metrics |= {"train/staleness_mean": sum(steps) / len(steps), "train/staleness_max": float(max(steps))}
            self._steps_behind = []
        return metrics

    # --- requests

    async def _ask(self, method: str, path: str, timeout_s: float = TIMEOUT_S, **request: Any) -> dict[str, Any]:
        """Raises ApiError. Each request has a connection of its own, so none outlives a restart."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
                session.request(method, self._url + path, **request) as response,
            ):
                code, text = response.status, await response.text()
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError) as error:
            # Only a machine that answers "nobody listens here" is sure to have no such process.
            is_gone = isinstance(getattr(error, "os_error", error), ConnectionRefusedError)
            raise ApiError(str(error) or type(error).__name__, is_gone=is_gone) from error
        if code >= 400:
            # To come back later is no refusal.
            kind = RefusedError if code < 500 and code not in (408, 429) else ApiError
            raise kind(f"it answers {code}: {text[:300]}", code=code)
        with contextlib.suppress(ValueError):
            if isinstance(answer := json.loads(text), dict):
                return answer
        raise ApiError(f"{self._url} does not answer like run-api: {text[:80]!r}")


def _compressed(group: Mapping[str, Any]) -> bytes:
    """Raises TypeError or ValueError for what run-api cannot encode in its turn (NaN, half a surrogate pair), and for
    sequences that no trainer can read.
    """
    for name in ("masks", "inference_logprobs"):
        if group.get(name) is not None and [*map(len, group[name])] != [*map(len, group["tokens"])]:
            raise ValueError(f"its {name} are not as many as its tokens")
    body = json.dumps(group, allow_nan=False, ensure_ascii=False).encode("utf-8")
    # Token ids shrink nearly as well at the lowest level, several times faster.
    return gzip.compress(body, compresslevel=1)


def why_unused(
    group: Mapping[str, Any], run: RunState, *, heeds_length: bool = True
) -> tuple[GroupOutcome, str] | None:
    """Why the trainer cannot use a scored group, and in words; None if it can."""
    if len(group["tokens"]) != run.group_size:
        return GroupOutcome.DROPPED, f"it has {len(group['tokens'])} rollouts, expected {run.group_size}"
    if run.drops_equal_scores and len(set(group["scores"])) == 1:
        return GroupOutcome.EQUAL_SCORES, "its scores are equal"
    longest = max(map(len, group["tokens"]))
    if heeds_length and 0 < run.max_token_len <= longest:
        return GroupOutcome.TOO_LONG, f"a sequence has {longest} tokens, the trainer's limit is {run.max_token_len}"
    return None
