"""The client of one trajectory API: registration, status of the run, and delivery of scored groups.

    register ──> status, ten times a second ──> ...     unavailable: wait, and start no group meanwhile
        └──(API restarted or reset: register again)─┘    available again: continue with the same items and levels

    group ──> deliver ──(API available, trainer registered)──> sent | refused     then its item is finished
                  └──(more than max_staleness_steps since it was sampled)──> stale

A restarted API knows neither the trainer nor the environments. A group must not reach it before the trainer has
registered again: the API would accept the group, and would then take the trainer's registration for a repetition and
ignore it. So a group travels only on a connection on which the API has shown its trainer (transport.py).

Deliveries are detached: whoever hands over a group does not wait for it, and cannot cancel it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..config import ReasoningGymEnvConfig
from ..errors import EnvironmentSetupError
from ..telemetry.telemetry import GroupOutcome
from ..utils.resilience import (
    Outage,
    RepeatedEvents,
    cancel_and_wait,
    with_deadline,
)
from .run_state import RunState
from .transport import ApiError, RefusedError, Transport

logger = logging.getLogger(__name__)

OnOutcome = Callable[[GroupOutcome], None]
"""Callback that receives the outcome of a group."""

FIRST_DELAY_S = 0.2
MAX_DELAY_S = 2.0
"""Waits between two attempts to reach the API. They double from the first to the longest."""

RESEND_S = 1.0
"""The wait before a group is sent again."""

REGISTRATION_KEYS = (
    "checkpoint_dir",
    "checkpoint_interval",
    "env_id",
    "num_steps",
    "starting_step",
    "wandb_name",
)
LIMITS_KEYS = ("batch_size", "max_token_len")
STATUS_KEYS = (
    "current_step",
    "env_weight",
    "max_group_size",
    "queue_size",
    "self_queue_size",
)

NO_NEW_GROUPS = "no new groups are started"

CLOSE_S = 2.0
"""Shutdown waits this long for groups that are still being delivered, and this long for the answer to the sign-off."""


class TrajectoryApi:
    """Client for one trajectory API. It writes the trainer's limits and steps into `state`, and counts lost groups.

    `is_available` is false from the first failed request until the API answers again, and after a refused connection
    until this environment has registered again.
    `sent` counts the groups that the API has accepted, `in_delivery` those on their way.
    """

    def __init__(
        self,
        config: ReasoningGymEnvConfig,
        state: RunState,
        failures: RepeatedEvents,
        transport: Transport,
    ) -> None:
        self.sent = 0
        self._config = config
        self._state = state
        self._failures = failures
        self._transport = transport
        self._outage = Outage(
            logger,
            "The trajectory API",
            first_delay_s=FIRST_DELAY_S,
            max_delay_s=MAX_DELAY_S,
        )
        self._trainer_sets_steps = state.total_steps == -1
        self._is_restarted = False
        self._status_requests = itertools.count(1)
        self._newest_status = 0
        self._deliveries: set[asyncio.Task[None]] = set()
        self._staleness: list[int] = []

    @property
    def is_available(self) -> bool:
        return not self._outage.is_on and not self._is_restarted

    @property
    def in_delivery(self) -> int:
        return len(self._deliveries)

    # --- registration

    async def register(self) -> None:
        """Register, and take over where the run stands. Waits for the API and for a trainer.

        Raises EnvironmentSetupError if the API refuses the registration, or if neither the settings nor the trainer
        say how many steps the run has.
        """
        state = self._state
        answer = await self._registration()
        state.env_id = answer["env_id"]
        state.step = answer["starting_step"]
        state.metrics_prefix = answer["wandb_name"]
        state.checkpoint_dir = answer["checkpoint_dir"]
        state.checkpoint_interval = answer["checkpoint_interval"]
        self._take_over_steps(answer)
        if state.total_steps == -1:
            raise EnvironmentSetupError(
                "Neither env.total_steps nor the trainer says how many steps there are: set env.total_steps."
            )
        logger.info("Registered as environment %d at step %d.", state.env_id, state.step)

    async def _register_again(self, reason: str) -> None:
        """Register with an API that was restarted. The run keeps its folder and the names of its metrics."""
        state = self._state
        old = state.env_id
        answer = await self._registration()
        new = answer["env_id"]
        step = answer["starting_step"]
        logger.warning(
            "Registered again with the trajectory API (%s), as environment %d instead of %s, at step %d.",
            reason,
            new,
            old,
            step,
        )
        # Numbers only grow. An old number that is not below the new one was given before a restart of the API, and may
        # belong to another environment by now.
        if old is not None and old < new:
            await self.sign_off(old)
        state.repeated_steps += max(0, state.step - step)
        state.env_id = new
        state.step = step
        self._is_restarted = False
        self._take_over_steps(answer)
        await self.take_over_limits()

    def _take_over_steps(self, registration: Mapping[str, Any]) -> None:
        """A trainer that was restarted may have another number of steps."""
        if self._trainer_sets_steps and registration["num_steps"] != -1:
            self._state.total_steps = registration["num_steps"]

    async def _registration(self) -> dict[str, Any]:
        config = self._config
        body = {
            "max_token_length": config.max_token_length,
            "desired_name": config.wandb_name or "reasoning_gym",
            "weight": config.inference_weight,
            "min_batch_allocation": config.min_batch_allocation,
            "group_size": self._state.group_size,
        }
        return await self._until_answered("POST", "/register-env", REGISTRATION_KEYS, body)

    async def take_over_limits(self) -> None:
        """Take over the trainer's batch size and token limit.

        Raises EnvironmentSetupError if a group is larger than the trainer's batch.
        """
        state = self._state
        info = await self._until_answered("GET", "/info", LIMITS_KEYS)
        if info["batch_size"] != -1:
            state.batch_size = info["batch_size"]
        if info["max_token_len"] != -1:
            state.max_token_len = info["max_token_len"]
        if state.batch_size == -1:
            logger.warning("Neither env.batch_size nor the trainer sets a batch size. No group will be started.")
        elif state.group_size > state.batch_size:
            raise EnvironmentSetupError(
                f"A group of {state.group_size} does not fit the trainer's batch of {state.batch_size}: "
                "lower env.group_size or raise the batch size."
            )
        elif state.batch_size % state.group_size:
            logger.warning(
                "The trainer's batch of %d is no multiple of env.group_size, %d: run-api cannot fill it with groups of "
                "this environment alone. Change one of them, unless other environments have smaller groups.",
                state.batch_size,
                state.group_size,
            )

    async def sign_off(self, env_id: int) -> bool:
        """Tell the API that this environment has ended, so that its share of the batches goes to the others.

        Returns whether the API has answered.
        """
        try:
            await self._transport.request("POST", "/disconnect-env", {"env_id": env_id})
        except ApiError as error:
            logger.info(
                "The trajectory API did not take the sign-off of environment %d: %s",
                env_id,
                error,
            )
            return False
        return True

    async def _until_answered(
        self,
        method: str,
        path: str,
        keys: Sequence[str],
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The API's answer, however long the API is unavailable or has no trainer. Raises EnvironmentSetupError."""
        while True:
            try:
                answer = await self._transport.request(method, path, body)
                if answer.get("status") == "wait for trainer to start":
                    raise ApiError("no trainer has requested a batch yet")
                _check_keys(answer, path, keys)
            except ApiError as error:
                # After the first registration a refusal may come from a gateway in front of an API that restarts.
                if isinstance(error, RefusedError) and self._state.env_id is None:
                    raise self._refusal(path, error) from error
                await asyncio.sleep(self._outage.failed(str(error), "waiting for run-api and its trainer"))
            else:
                self._outage.over()
                return answer

    def _refusal(self, path: str, error: RefusedError) -> EnvironmentSetupError:
        said = str(error).rstrip(".")
        return EnvironmentSetupError(
            f"{self._transport.url}{path} refuses this environment: {said}. Expected the run-api of Atropos 0.4: "
            "check env.rollout_server_url, and what the answer says about the settings."
        )

    # --- where the run stands

    async def poll(self) -> dict[str, Any] | None:
        """Request the API's status of this environment once. Several polls may be in flight at the same time.

        Returns None if the request failed, so that the API counts as unavailable until `status` returns, and if a
        later request has been answered before this one.
        """
        number = next(self._status_requests)
        step = self._state.step
        try:
            status = await self._request_status()
            if status["current_step"] < step:
                raise ApiError(f"it went from step {step} to {status['current_step']}")
        except ApiError as error:
            if number > self._newest_status:
                self._is_restarted |= error.is_gone
                self._outage.failed(str(error), NO_NEW_GROUPS)
            return None
        if number < self._newest_status or not self.is_available:
            return None
        self._newest_status = number
        return status

    async def status(self) -> dict[str, Any]:
        """The API's status of this environment, once the API is available. Registers again after a restart."""
        was_unknown = False
        while True:
            try:
                if self._is_restarted:
                    # Another environment may have our number by now.
                    await self._register_again("it was restarted")
                status = await self._request_status()
                if status["current_step"] >= self._state.step:
                    # Polls that began before do not count any more.
                    self._newest_status = next(self._status_requests)
                    self._outage.over()
                    return status
                await self._register_again(f"it went from step {self._state.step} to {status['current_step']}")
            except ApiError as error:
                # The API answers 500 to an unknown number and to any internal error. Only two in a row mean a restart.
                is_unknown = error.code == 500
                if error.is_gone or (is_unknown and was_unknown):
                    self._is_restarted = True
                was_unknown = is_unknown
                await asyncio.sleep(self._outage.failed(str(error), NO_NEW_GROUPS))

    async def _request_status(self) -> dict[str, Any]:
        status = await self._transport.request("GET", "/status-env", {"env_id": self._state.env_id})
        _check_keys(status, "/status-env", STATUS_KEYS)
        return status

    # --- delivery of scored groups

    def deliver(self, group: Mapping[str, Any], sampled_at: int | None, on_outcome: OnOutcome) -> asyncio.Task[None]:
        """Begin to deliver a group, with as many attempts as it takes.

        `sampled_at` is the trainer's step at which the sampling of the group began; None stands for the present step.
        `on_outcome` receives the outcome, unless the run ends before there is one.
        """
        task = asyncio.create_task(self._deliver(group, sampled_at, on_outcome))
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)
        return task

    async def _deliver(self, group: Mapping[str, Any], sampled_at: int | None, on_outcome: OnOutcome) -> None:
        outcome = None
        while outcome is None:
            # A restarted trainer may count from its last checkpoint. Then its steps from there on count.
            step = self._state.step
            sampled_at = step if sampled_at is None else min(sampled_at, step)
            try:
                outcome = await self._attempt(group, sampled_at)
            except Exception as error:  # noqa: BLE001
                # No code awaits this task, so the error would be lost, and the item would stay pending.
                self._failures.note(
                    "error while a group was delivered, the group is lost", f"{type(error).__name__}: {error}"
                )
                outcome = GroupOutcome.FAULT
            if outcome is None:
                await asyncio.sleep(RESEND_S)
        on_outcome(outcome)

    async def _attempt(self, group: Mapping[str, Any], sampled_at: int) -> GroupOutcome | None:
        """One attempt to send a group. Returns its outcome, or None if the group should be sent again."""
        state = self._state
        limit = self._config.max_staleness_steps
        if 0 <= limit < state.step - sampled_at:
            detail = f"sampled at step {sampled_at}, now {state.step}"
            self._failures.note("group too old for the trainer, dropped", detail)
            return GroupOutcome.STALE
        if not self.is_available:
            return None
        parameters = {
            **(group.get("generation_params") or {}),
            "sampled_at_step": sampled_at,
        }
        try:
            is_sent = await self._transport.offer({**group, "env_id": state.env_id, "generation_params": parameters})
        except RefusedError as error:
            self._failures.note("group refused by the trajectory API, dropped", str(error))
            return GroupOutcome.SEND_FAILED
        except ApiError as error:
            logger.debug("A group waits: %s", error)
            if error.is_gone and state.env_id is not None:
                # The API may be back, as another process, before its status is requested again.
                self._is_restarted = True
            if error.may_have_arrived:
                self._failures.note("group sent again, the trainer may get it twice", str(error))
            return None
        if not is_sent:
            return None
        self.sent += 1
        self._staleness.append(state.step - sampled_at)
        return GroupOutcome.SENT

    async def close(self) -> None:
        """Wait CLOSE_S seconds for deliveries, then cancel the rest, whose items stay pending, and sign off."""
        if self._deliveries:
            await asyncio.wait(self._deliveries, timeout=CLOSE_S if self.is_available else 0.0)
        left = list(self._deliveries)
        if left:
            logger.warning(
                "%d groups could not be sent to the trajectory API. Their items will be requeued.",
                len(left),
            )
        await cancel_and_wait(left)
        await self._transport.close()
        env_id = self._state.env_id
        if env_id is None:
            return
        try:
            if await with_deadline(CLOSE_S, self.sign_off(env_id)):
                self._state.env_id = None
        except TimeoutError:
            # The last checkpoint keeps the number.
            logger.info("The trajectory API is busy: the next start signs off environment %d.", env_id)

    def metrics(self) -> dict[str, float]:
        """Outages, groups in delivery, and the staleness of the groups that were sent since the last call."""
        metrics = {
            **self._outage.metrics("api/server"),
            "api/groups_in_delivery": float(self.in_delivery),
        }
        if self._staleness:
            metrics["train/staleness_mean"] = sum(self._staleness) / len(self._staleness)
            metrics["train/staleness_max"] = float(max(self._staleness))
            self._staleness.clear()
        return metrics


def _check_keys(answer: Mapping[str, Any], path: str, keys: Sequence[str]) -> None:
    """Raise ApiError for the answer of another program, or of another version, which lacks some of the keys."""
    missing = [key for key in keys if key not in answer]
    if missing:
        raise ApiError(f"its answer to {path} lacks {', '.join(missing)}")
