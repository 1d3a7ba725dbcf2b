"""The client of one trajectory API: registration, status of the run, and delivery of scored groups.

    register ──> status, one after the other ──> ...    unavailable: wait, and start no group meanwhile
        ^                     │
        │                     v
        └── API unknown <── does the API still know this environment? ──> known: continue with the same number

    group ──> put ──(API available, trainer registered)──> sent | refused     then its item is finished
               └──(more than max_staleness_steps since it was sampled)──> stale

A restarted API knows neither the trainer nor the environments, and gives the same numbers again, to environments in
any order. So after each outage, the client looks at its mark (transport.py). If the API knows it, the number is still
valid. Otherwise the client registers again, and signs nothing off.

A group must not reach a restarted API before the trainer has registered again: the API would accept the group, and
would then take the trainer's registration for a repetition and ignore it. So the client looks at the trainer before it
sends each group (transport.py).

The task of a group waits for `put`. While `may_send` is not set, groups wait there: the first evaluation of a run is of
the model before its first step.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Any

from ..errors import EnvironmentSetupError
from ..records import GroupOutcome
from ..settings.environment import ReasoningGymEnvConfig
from ..utils.clock import now
from ..utils.resilience import (
    REMIND_S,
    RETRY_S,
    Outage,
    RepeatedEvents,
    with_deadline,
)
from .run_state import RunState
from .transport import (
    FINAL_CODES,
    NO_TRAINER,
    AnswerT,
    ApiError,
    ApiRefusedError,
    Limits,
    Planted,
    Registered,
    Status,
    Transport,
    is_known,
    new_mark,
    parse,
    registration_of,
)

logger = logging.getLogger(__name__)

REFUSED_S = 60.0
"""If an API refuses the first registration for this long (404, for example), it is no run-api, and the run ends.

A gateway refuses requests for a shorter time, while its run-api restarts.
"""

NO_NEW_GROUPS = "no new groups are started"

IN_DOUBT = "registration_in_doubt"
SENT_AGAIN = "group_sent_again"
"""An answer was lost, so the number of a registration is unknown, or whether this number is still valid."""

CLOSE_S = 2.0
"""Shutdown waits this long for the answer to the sign-off."""


class TrajectoryApi:
    """Client for one trajectory API. It writes the trainer's limits and steps into `state`, and counts lost groups.

    `is_available` is false from the first failed request until the API has answered and knows this environment.
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
        self.in_delivery = 0
        self.may_send = asyncio.Event()
        """Set while groups may be delivered."""
        self.may_send.set()
        self._config = config
        self._state = state
        self._failures = failures
        self._transport = transport
        self._no_trainer_at = -math.inf
        """When a line last said that there is no trainer."""
        self._outage = Outage(
            logger,
            "The trajectory API",
            first_delay_s=RETRY_S,
            max_delay_s=RETRY_S,
        )
        self._trainer_sets_steps = state.total_steps == -1
        self._mark: str | None = None
        """Shows whether the API is the process that gave our number; None if it cannot, because an answer was lost."""
        self._reserved: float | None = None
        """The share of each batch that all environments have reserved, according to the newest status."""
        self._staleness: list[int] = []

    @property
    def is_available(self) -> bool:
        return not self._outage.is_on

    # --- registration

    async def register(self) -> None:
        """Register, and take over the trainer's step. Waits for the API and for a trainer.

        Raises EnvironmentSetupError if the API refuses the registration, or if neither the settings nor the trainer
        say how many steps the run has.
        """
        state = self._state
        answer = await self._registration()
        state.step = answer.starting_step
        state.metrics_prefix = answer.wandb_name
        state.checkpoint_dir = answer.checkpoint_dir
        state.checkpoint_interval = answer.checkpoint_interval
        self._take_over_steps(answer)
        if state.total_steps == -1:
            raise EnvironmentSetupError(
                "Neither env.total_steps nor the trainer says how many steps there are: set env.total_steps."
            )
        self._outage.over()
        logger.info("Registered with the trajectory API at step %d.", state.step)

    async def _register_again(self) -> None:
        """Register with an API that does not know this environment. The run keeps its folder and metric names."""
        answer = await self._registration()
        logger.warning("Registered again with the trajectory API, at step %d.", answer.starting_step)
        self._continue_from(answer.starting_step)
        self._take_over_steps(answer)
        await self.take_over_limits()

    def _continue_from(self, step: int) -> None:
        """The trainer may have gone back to its last checkpoint."""
        self._state.repeated_steps += max(0, self._state.step - step)
        self._state.step = step

    def _take_over_steps(self, registration: Registered) -> None:
        """A trainer that was restarted may have another number of steps."""
        state = self._state
        if registration.num_steps in (-1, state.trainer_steps):
            return
        state.trainer_steps = registration.num_steps
        if self._trainer_sets_steps:
            state.total_steps = registration.num_steps
        elif state.total_steps != registration.num_steps:
            consequence = "this environment will wait for steps that the trainer does not make"
            if state.ends_before_trainer:
                consequence = "this environment will end first, and the trainer will wait for batches"
            logger.warning(
                "env.total_steps is %d, and the trainer makes %d steps: %s. Set env.total_steps to -1, which takes "
                "over the trainer's number.",
                state.total_steps,
                registration.num_steps,
                consequence,
            )

    async def _registration(self) -> Registered:
        """Plant new marks, then register."""
        config = self._config
        mark = new_mark()
        successor_mark = new_mark()
        for name in (mark, successor_mark):
            await self._until_answered("POST", "/register-env", Planted, registration_of(name))
        body = {
            "max_token_length": config.max_token_length,
            "desired_name": config.wandb_name or "reasoning_gym",
            "weight": config.inference_weight,
            "min_batch_allocation": config.min_batch_allocation,
            "group_size": self._state.group_size,
        }
        answer = await self._until_answered("POST", "/register-env", Registered, body)
        self._mark = mark
        self._state.env_id = answer.env_id
        self._state.successor_mark = successor_mark
        return answer

    async def _is_known(self) -> bool:
        """Whether the API that answers now is the process that has given our number. Raises ApiError."""
        mark = self._mark
        if mark is None:
            return False
        # This request has no effect, so it may fail any number of times. The look at the mark may not.
        await self._transport.request("GET", "/wandb_info")
        self._mark = None
        try:
            is_same = await is_known(self._transport, mark)
        except ApiError as error:
            if error.is_without_effect:
                self._mark = mark
            else:
                self._note_doubt(error)
            raise
        if is_same:
            self._mark = mark
        return is_same

    def _note_doubt(self, error: ApiError) -> None:
        what = "registration in doubt, run-api may keep its share until it is restarted"
        self._failures.note(IN_DOUBT, what, str(error))

    async def take_over_limits(self) -> None:
        """Take over the trainer's batch size and token limit.

        Raises EnvironmentSetupError if a group is larger than the trainer's batch.
        """
        state = self._state
        limits = await self._until_answered("GET", "/info", Limits)
        if limits.batch_size != -1:
            state.batch_size = limits.batch_size
        if limits.max_token_len != -1:
            state.max_token_len = limits.max_token_len
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
        self._outage.over()

    async def sign_off_predecessor(self, env_id: int, mark: str) -> None:
        """Sign off the number of an earlier process of this run that was killed, so that its share does not stay.

        `mark` is the mark that it has left to its successor. The caller has saved a checkpoint without this mark,
        because a second look at it would prove nothing.
        """
        await self._until_reachable()
        try:
            if await is_known(self._transport, mark):
                logger.warning("Signing off environment %d, which an earlier process of this run left.", env_id)
                await self._sign_off(env_id)
        except ApiError as error:
            self._note_doubt(error)

    async def _until_reachable(self) -> None:
        """Wait until the API answers a request that has no effect, and therefore may fail many times."""
        while True:
            try:
                await self._transport.request("GET", "/wandb_info")
                return
            except ApiError:
                await asyncio.sleep(RETRY_S)

    async def _sign_off(self, env_id: int) -> None:
        """Release the share of an environment, so that other environments can use it. Raises ApiError."""
        await self._transport.request("POST", "/disconnect-env", {"env_id": env_id})

    async def _until_answered(
        self,
        method: str,
        path: str,
        kind: type[AnswerT],
        body: Mapping[str, Any] | None = None,
    ) -> AnswerT:
        """The API's answer, however long the API is unavailable or has no trainer.

        Raises EnvironmentSetupError if the API refuses the first registration for good, or for REFUSED_S seconds.
        """
        refused_since: float | None = None
        while True:
            try:
                answer = await self._transport.request(method, path, body)
                if answer.get("status") != NO_TRAINER:
                    return parse(kind, answer, path)
                refused_since = None
                self._note_no_trainer()
                await asyncio.sleep(RETRY_S)
                continue
            except ApiRefusedError as error:
                if refused_since is None:
                    refused_since = now()
                is_final = error.code in FINAL_CODES or now() - refused_since >= REFUSED_S
                if is_final and self._state.env_id is None:
                    raise self._refusal(path, error) from error
                problem = str(error)
            except ApiError as error:
                if kind is Registered and not error.is_without_effect:
                    self._note_doubt(error)
                refused_since = None
                problem = str(error)
            await asyncio.sleep(self._outage.failed(problem, "waiting for run-api and its trainer"))

    def _note_no_trainer(self) -> None:
        """Say now and then that run-api has no trainer."""
        if now() - self._no_trainer_at >= REMIND_S:
            self._no_trainer_at = now()
            logger.info("Waiting for a trainer: none has registered with the run-api at %s.", self._transport.url)

    def _refusal(self, path: str, error: ApiRefusedError) -> EnvironmentSetupError:
        said = str(error).rstrip(".")
        return EnvironmentSetupError(
            f"{self._transport.url}{path} refuses this environment: {said}. Expected the run-api of Atropos 0.4: "
            "check env.rollout_server_url, and what the answer says about the settings."
        )

    # --- the status

    async def status(self) -> dict[str, Any]:
        """The API's status of this environment, once the API is available. Registers again if it was restarted."""
        while True:
            is_checked = not self.is_available
            try:
                if is_checked and not await self._is_known():
                    await self._register_again()
                status = await self._request_status()
                if status.current_step < self._state.step and not is_checked:
                    raise ApiError(f"it went from step {self._state.step} to {status.current_step}")
            except ApiError as error:
                await asyncio.sleep(self._outage.failed(str(error), NO_NEW_GROUPS))
                continue
            if not is_checked and not self.is_available:
                # The delivery of a group has failed meanwhile, so the answer may come from another process.
                continue
            if status.current_step < self._state.step:
                self._continue_from(status.current_step)
            self._outage.over()
            return self._noted(status)

    async def _request_status(self) -> Status:
        answer = await self._transport.request("GET", "/status-env", {"env_id": self._state.env_id})
        return parse(Status, answer, "/status-env")

    def _noted(self, status: Status) -> dict[str, Any]:
        """The status as a dict. A change of the reserved shares is logged: the only trace of other environments."""
        reserved = round(1.0 - status.unallocated_fraction, 3)
        if reserved != self._reserved:
            logger.info(
                "The environments that are registered with run-api reserve %.0f%% of each batch.", 100 * reserved
            )
            self._reserved = reserved
        return status.model_dump()

    # --- delivery of scored groups

    async def put(self, payload: Mapping[str, Any], sampled_at: int | None) -> GroupOutcome:
        """Deliver a group, with as many attempts as it takes. Returns how it ended.

        `sampled_at` is the trainer's step at which the sampling of the group began; None means the current step.
        """
        self.in_delivery += 1
        try:
            await self.may_send.wait()
            outcome = None
            while outcome is None:
                # A restarted trainer may count from its last checkpoint. Then its steps from there on count.
                step = self._state.step
                sampled_at = step if sampled_at is None else min(sampled_at, step)
                outcome = await self._attempt(payload, sampled_at)
                if outcome is None:
                    await asyncio.sleep(RETRY_S)
            return outcome
        finally:
            self.in_delivery -= 1

    async def _attempt(self, payload: Mapping[str, Any], sampled_at: int) -> GroupOutcome | None:
        """One attempt to send a group. Returns its outcome, or None if the group should be sent again."""
        state = self._state
        limit = self._config.max_staleness_steps
        if 0 <= limit < state.step - sampled_at:
            detail = f"sampled at step {sampled_at}, now {state.step}"
            self._failures.note("group_too_old_for_the_trainer", "group too old for the trainer, dropped", detail)
            return GroupOutcome.STALE
        if not self.is_available:
            return None
        parameters: dict[str, Any] = {}
        if self._config.train_temperature is not None:
            # Trainers divide their logits by it.
            parameters["temperature"] = self._config.train_temperature
        # A subclass may have set other parameters.
        parameters |= payload.get("generation_params") or {}
        parameters["sampled_at_step"] = sampled_at
        try:
            is_sent = await self._transport.offer({**payload, "env_id": state.env_id, "generation_params": parameters})
        except ApiRefusedError as error:
            what = "group refused by the trajectory API, dropped"
            self._failures.note("group_refused_by_the_trajectory_API", what, str(error))
            return GroupOutcome.SEND_FAILED
        except ApiError as error:
            if error.code is not None:
                what = "group not accepted yet, it is sent again"
                self._failures.note("group_not_accepted_yet", what, str(error))
            if error.is_gone and state.env_id is not None:
                # The API may be back, as another process, before its status is requested again.
                self._outage.failed(str(error), NO_NEW_GROUPS)
            if error.may_have_arrived:
                what = "group sent again, the trainer may get it twice"
                self._failures.note(SENT_AGAIN, what, str(error))
            return None
        if not is_sent:
            return None
        self.sent += 1
        self._staleness.append(state.step - sampled_at)
        return GroupOutcome.SENT

    async def close(self) -> None:
        """Sign off. The caller has ended all deliveries."""
        try:
            await with_deadline(CLOSE_S, self._leave())
        except (ApiError, TimeoutError) as error:
            # The last checkpoint keeps the number and its mark.
            why = str(error) or "it is busy"
            logger.info("The trajectory API did not take the sign-off: %s. The next start of this run repeats it.", why)

    async def _leave(self) -> None:
        """Sign off, if the API still knows this environment. Raises ApiError."""
        env_id = self._state.env_id
        if env_id is None:
            return
        if await self._is_known():
            await self._sign_off(env_id)
        self._state.env_id = None

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
