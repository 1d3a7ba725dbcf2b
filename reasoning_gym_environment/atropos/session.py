"""This environment at the trajectory API: its number there, the trainer's limits and step, and groups delivered.

register ──> status, ten times a second ──> ...     away: waits, and no group is started meanwhile
    └──(restarted or reset: register again)──┘      back: goes on, with the items and levels it was at

group ──> outbox ──> API     each gets an outcome, and only then is its item done
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..errors import EnvironmentSetupError
from ..utils.outage_log import REMIND_S, Outage
from .conversions import ProblemDataset
from .trajectory_api import ApiUnavailableError, Outbox, RefusedError, TrajectoryApi, UnknownEnvironmentError

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_DELAY_S = 0.2
MAX_DELAY_S = 5.0
TRAINER_POLL_S = 1.0


@dataclass
class RunState:
    """What a run learns and what changes while it goes on, apart from its settings, which do not.

    `batch_size` and `total_steps` begin as the settings' and are the trainer's where it sets its own; `max_token_len`
    is its limit for a whole sequence, none if it is not positive. `is_offline` while groups are written to a file and
    not for a trainer. `steps_again` are those that a restarted trainer takes once more, since this process began.
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


def note_sampling(item: Any, run: RunState) -> None:
    """A request for the completions of this item goes out now, at the step where the trainer is."""
    # A caller's own dataset may be that of many items.
    if isinstance(item[2], ProblemDataset):
        item[2].sampled_at = run.step


def steps_of(item: Any, run: RunState) -> tuple[int, int] | None:
    """The trainer's steps at which sampling for this item began, and now; None without item or trainer."""
    began = None if item is None or run.is_offline else getattr(item[2], "sampled_at", None)
    # A trainer that was restarted counts from its last checkpoint.
    return None if began is None else (min(began, run.step), run.step)


class NumberKeeper(Protocol):
    """Keeps the number that the API gave, beyond the end of the process; see checkpoints.RunCheckpoints."""

    async def keep_number(self, api: Mapping[str, Any]) -> set[int]:
        """Keep the present one; returns the one of before, if it was not signed off and this API gave it."""
        ...


class ApiSession:
    """The dealings with one trajectory API. `registration` is what is told of this environment."""

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
    def is_away(self) -> bool:
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
        run.step = data["starting_step"]
        run.metrics_prefix = data["wandb_name"]
        run.checkpoint_dir = data["checkpoint_dir"]
        run.checkpoint_interval = data["checkpoint_interval"]
        if run.total_steps == -1:
            run.total_steps = data["num_steps"]
        if run.total_steps == -1:
            raise EnvironmentSetupError("Neither env.total_steps nor the trainer says how many steps there are.")
        logger.info("Registered as environment %d at step %d.", run.env_id, run.step)

    async def take_over_limits(self) -> None:
        """Ask for the trainer's limits. Raises EnvironmentSetupError if a group is larger than its batch."""
        run = self._run
        info = await self._until_answered(self._api.info, "waiting for the trainer's batch size")
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
            api = {"url": self._api.url, **await self._api.trainer()}
        except ApiUnavailableError as error:
            logger.warning("The API did not name its trainer (%s): a number of before stays registered.", error)
        else:
            before |= await self._numbers.keep_number(api)
        for number in sorted(before):
            await self._sign_off_old(number)

    async def _sign_off_old(self, old: int) -> None:
        # One that is not below the present number was given before a restart, and may be another's by now.
        if self._run.env_id is None or old >= self._run.env_id:
            return
        try:
            await self._api.sign_off(old)
        except ApiUnavailableError as error:
            logger.warning("Environment %d could not be signed off (%s): its share of batches stays.", old, error)
        else:
            logger.warning("Signed off environment %d, which this one was before.", old)

    async def sign_off(self) -> None:
        """Tell the API that this environment is gone, so that its share goes to the others."""
        if self._run.env_id is None:
            return
        try:
            await self._api.sign_off(self._run.env_id)
        except ApiUnavailableError as error:
            logger.info("The trajectory API did not take our sign-off: %s", error)

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
        """The API's answer, however long it is away."""
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
        """A moment; says once in a while what is being waited for."""
        if time.monotonic() >= self._remind_at:
            self._remind_at = time.monotonic() + REMIND_S
            logger.warning(
                "The trajectory API has no trainer yet: waiting until one has registered and asks for batches."
            )
        await asyncio.sleep(TRAINER_POLL_S)

    # --- where the run stands

    async def status(self) -> dict[str, Any]:
        """What the API says of the run; registers again if it was restarted. Does not return while it is away."""
        was_away = was_unknown = False
        while True:
            try:
                status = await self._status()
                break
            except ApiUnavailableError as error:
                self._was_gone |= error.was_gone
                delay = self._outage.failed(str(error), "groups wait, no new ones are started")
            except UnknownEnvironmentError as error:
                # Twice, for any error inside the API looks like this.
                self._was_gone = was_unknown
                was_unknown = True
                delay = self._outage.failed(str(error))
            was_away = True
            await asyncio.sleep(delay)
        self._outage.over()
        if was_away:
            self.outbox.try_now()
        return status

    async def _status(self) -> dict[str, Any]:
        assert self._run.env_id is not None, "registered before its status is asked for"
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
            "Registered again with the trajectory API, as environment %d instead of %d (%s): going on at step %d.",
            *(self._run.env_id, old, reason, self._run.step),
        )

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
        again = {"api/registered_again": float(self._registrations - 1)} if self._registrations > 1 else {}
        if self._run.steps_again:
            again["api/steps_again"] = float(self._run.steps_again)
        return {**self._outage.metrics("api/server"), **again, **self.outbox.metrics()}
