"""This environment's dealings with the trajectory API: registration, status, and the way of a scored group.

register ──> status, every 0.1 s ──> ...          away: waits, and starts no group
    └────(restarted or reset: register again)──┘  back: goes on, with the items and levels it was at

group ──> checks ──> file of groups, if any ──> outbox ──> API   each gets an outcome in the log; its item is settled
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from atroposlib.envs.base import BaseEnv

from ..errors import EnvironmentSetupError
from ..records import Problem
from ..training_log.group_outcomes import GroupOutcome
from ..training_log.training_log import TrainingLog
from ..utils.outage_log import REMIND_S, Outage, RepeatedEvents
from .conversions import problem_of
from .outbox import Delivery, Outbox
from .trajectory_api import ApiUnavailableError, TrajectoryApi, UnknownEnvironmentError

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_DELAY_S = 0.2
MAX_DELAY_S = 5.0
TRAINER_POLL_S = 1.0

OPTIONAL_KEYS = ("ref_logprobs", "overrides", "group_overrides", "distill_token_ids", "distill_logprobs")
"""What a group may leave out, and is None then."""

_OUTCOMES = {
    Delivery.SENT: GroupOutcome.SENT,
    Delivery.REFUSED: GroupOutcome.SEND_FAILED,
    Delivery.STALE: GroupOutcome.STALE,
}


class ApiLink(BaseEnv):
    """Mixin for a BaseEnv subclass that counts in `log` and `failures`, and hears of problems that are settled."""

    log: TrainingLog
    failures: RepeatedEvents

    def __init__(self, config: Any, *args: Any, **options: Any) -> None:
        super().__init__(config, *args, **options)
        self._api = TrajectoryApi(config.rollout_server_url)
        self._api_outage = Outage(logger, "The trajectory API", first_delay_s=FIRST_DELAY_S, max_delay_s=MAX_DELAY_S)
        self._was_gone = False
        self._registrations = 0
        self._remind_at = 0.0
        self.outbox = Outbox(
            self._post_group,
            self._is_api_ready,
            step=lambda: self.curr_step,
            max_staleness_steps=config.max_staleness_steps,
        )

    def _settled(self, problem: Problem) -> None:
        """Called once nothing more is to be done for a problem."""
        raise NotImplementedError

    def _not_sent(self, problem: Problem) -> None:
        """Called when a problem's group is lost on the way, and is to be made again."""
        raise NotImplementedError

    # --- registration and status

    async def setup_wandb(self) -> None:
        """Wait for the trainer, whose wandb project is used; then let Atropos start the wandb run."""
        if self.config.use_wandb:
            await self._until_answered(self._trainer_is_there, "waiting for the name of the wandb project")
        await super().setup_wandb()

    async def _trainer_is_there(self) -> None:
        while not await self._api.has_trainer():
            await self._wait_for_trainer()

    async def get_server_info(self) -> None:
        """Take over the trainer's limits. Raises EnvironmentSetupError if a group is larger than its batch."""
        info = await self._until_answered(self._api.info, "waiting for the trainer's batch size")
        if info["batch_size"] != -1:
            self.config.batch_size = info["batch_size"]
        if info["max_token_len"] != -1:
            self.max_token_len = info["max_token_len"]
        if self.config.batch_size == -1:
            logger.warning("Neither env.batch_size nor the trainer sets a batch size: no group is started.")
        elif self.config.group_size > self.config.batch_size:
            raise EnvironmentSetupError(
                f"A group of {self.config.group_size} does not fit the trainer's batch of {self.config.batch_size}: "
                "lower env.group_size or raise the batch size."
            )

    async def _until_answered(self, ask: Callable[[], Awaitable[T]], remedy: str) -> T:
        """The API's answer, however long it is away."""
        while True:
            try:
                answer = await ask()
            except ApiUnavailableError as error:
                await asyncio.sleep(self._api_outage.failed(str(error), remedy))
            else:
                self._api_outage.over()
                return answer

    async def register_env(self) -> None:
        """Register, and take over where the run stands; waits for the API and for a trainer.

        Raises EnvironmentSetupError if neither the settings nor the trainer say how many steps there are.
        """
        data = await self._registered()
        self.wandb_prepend = data["wandb_name"]
        self.curr_step = data["starting_step"]
        self.checkpoint_dir = data["checkpoint_dir"]
        self.checkpoint_interval = data["checkpoint_interval"]
        if self.config.total_steps == -1:
            self.config.total_steps = data["num_steps"]
        if self.config.total_steps == -1:
            raise EnvironmentSetupError("Neither env.total_steps nor the trainer says how many steps there are.")
        logger.info("Registered as environment %d at step %d.", self.env_id, self.curr_step)

    async def _registered(self) -> dict[str, Any]:
        registration = {
            "max_token_length": self.config.max_token_length,
            "desired_name": self.config.wandb_name,
            "weight": self.config.inference_weight,
            "min_batch_allocation": self.config.min_batch_allocation,
            "group_size": self.config.group_size,
        }
        while True:
            data = await self._until_answered(lambda: self._api.register(registration), "waiting to register")
            if data is not None:
                self.env_id = data["env_id"]
                self._registrations += 1
                return data
            await self._wait_for_trainer()

    async def _wait_for_trainer(self) -> None:
        """A moment; says once in a while what is being waited for."""
        if time.monotonic() >= self._remind_at:
            self._remind_at = time.monotonic() + REMIND_S
            logger.warning(
                "The trajectory API has no trainer yet: waiting until one has registered and asks for batches."
            )
        await asyncio.sleep(TRAINER_POLL_S)

    async def has_registered(self, *old: int) -> None:
        """Called with every new number; `old` are those that it had before."""
        for number in old:
            await self._sign_off(number)

    async def _sign_off(self, old: int) -> None:
        """Give up a number that this environment had; the API would go on reserving its share of every batch.

        One that is not below the present number was given before a restart, and may be another's by now.
        """
        if old >= self.env_id:
            return
        try:
            await self._api.sign_off(old)
        except ApiUnavailableError as error:
            logger.warning("Environment %d could not be signed off (%s): its share of batches stays.", old, error)
        else:
            logger.warning("Signed off environment %d, which this one was before.", old)

    async def get_status(self) -> None:
        """Ask the API where the run stands. While it is away this does not return, so no group is started."""
        was_away = was_unknown = False
        while True:
            try:
                if self._was_gone:
                    # Another environment may have our number by now: ask under a new one.
                    await self._register_again("it was restarted")
                status = await self._api.status(self.env_id)
                if status["current_step"] < self.curr_step:
                    await self._register_again(f"it went from step {self.curr_step} to {status['current_step']}")
                    status = await self._api.status(self.env_id)
                break
            except ApiUnavailableError as error:
                self._was_gone |= error.was_gone
                delay = self._api_outage.failed(str(error), "groups wait, no new ones are started")
            except UnknownEnvironmentError as error:
                # Twice, for any error inside the API looks like this.
                self._was_gone = was_unknown
                was_unknown = True
                delay = self._api_outage.failed(str(error))
            was_away = True
            await asyncio.sleep(delay)
        self._api_outage.over()
        if was_away:
            self.outbox.try_now()
        self.status_dict = status
        per_node = self.config.max_num_workers_per_node * len(self.server.servers)
        self.max_num_workers = per_node if self.config.max_num_workers == -1 else self.config.max_num_workers
        await self.server.update_weight(status["env_weight"])

    async def _register_again(self, reason: str) -> None:
        old = self.env_id
        data = await self._registered()
        await self.has_registered(old)
        self._was_gone = False
        self.curr_step = data["starting_step"]
        await self.get_server_info()
        logger.warning(
            "Registered again with the trajectory API, as environment %d instead of %d (%s): going on at step %d.",
            *(self.env_id, old, reason, self.curr_step),
        )

    # --- the way of a scored group

    async def handle_send_to_api(
        self,
        scored_data: Any,
        item: Any = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> None:
        """Check a scored group, write it to the file of groups if there is one, and deliver it to the API.

        In place of Atropos' own, which drops a group that the file does not take, and says nothing of what it drops.
        Raises EnvironmentSetupError if a group that is only to be written cannot be.
        """
        problem = None if item is None else problem_of(*item[1:])
        limit = self.max_token_len if abort_on_any_max_length_exceeded else 0
        try:
            self.completion_lengths.extend(sum(m != -100 for m in mask) for mask in scored_data["masks"])
            outcome = self._why_useless(scored_data, limit)
            if outcome is None:
                scored_data.update({key: None for key in OPTIONAL_KEYS if key not in scored_data})
                await self.add_rollouts_for_wandb(scored_data, item)
                self._write_to_file(scored_data, is_only_written=not do_send_to_api)
        except Exception:
            # Atropos logs it and forgets the item.
            self._note(GroupOutcome.FAULT, problem)
            raise
        if outcome is None and do_send_to_api:
            await self._deliver(scored_data, problem)
        else:
            self._note(outcome or GroupOutcome.WRITTEN, problem)

    def _why_useless(self, group: Any, max_token_len: int) -> GroupOutcome | None:
        """Why the trainer has no use for a group, None if it does; a limit of 0 or less is none."""
        if len(group["tokens"]) != self.config.group_size:
            outcome, reason = (
                GroupOutcome.DROPPED,
                f"it has {len(group['tokens'])} rollouts, expected {self.config.group_size}",
            )
        elif self.config.ensure_scores_are_not_same and len(set(group["scores"])) == 1:
            outcome, reason = GroupOutcome.EQUAL_SCORES, "its scores are equal"
        elif 0 < max_token_len <= (longest := max(map(len, group["tokens"]))):
            outcome, reason = (
                GroupOutcome.TOO_LONG,
                f"a sequence has {longest} tokens, the trainer's limit is {max_token_len}",
            )
        else:
            return None
        self.failures.note("group left out", reason)
        return outcome

    def _write_to_file(self, group: Any, *, is_only_written: bool) -> None:
        if self.jsonl_writer is None:
            return
        try:
            self.jsonl_writer.write(group)
        except OSError as error:
            problem = f"{self.config.data_path_to_save_groups}: {error}"
            if is_only_written:
                raise EnvironmentSetupError(f"Cannot write groups to {problem}.") from error
            self.failures.note("group not written to data_path_to_save_groups, it is sent all the same", problem)

    async def _deliver(self, group: Any, problem: Problem | None) -> None:
        """Hand a group to the outbox, and wait until it is delivered; it is delivered also if nobody waits."""
        self.items_sent_this_step += 1
        try:
            delivery = await self.outbox.put(group, lambda outcome: self._note(_OUTCOMES[outcome], problem))
        except asyncio.CancelledError:
            # It did not get into the outbox, and Atropos has forgotten its item.
            if problem is not None:
                self._not_sent(problem)
            raise
        await asyncio.shield(delivery)

    def _note(self, outcome: GroupOutcome, problem: Problem | None) -> None:
        self.log.outcome(outcome, problem.task if problem else "unknown")
        if problem:
            self._settled(problem)

    async def _post_group(self, group: Any) -> str | None:
        return await self._api.post_group({**group, "env_id": getattr(self, "env_id", None)})

    async def _is_api_ready(self) -> bool:
        if self._api_outage.is_on or self._was_gone:
            return False
        try:
            return await self._api.has_trainer()
        except ApiUnavailableError as error:
            # It may be back, as another process, before its status is asked for again.
            self._was_gone = error.was_gone and hasattr(self, "env_id")
            raise

    def _link_metrics(self) -> dict[str, float]:
        again = {"api/registered_again": float(self._registrations - 1)} if self._registrations > 1 else {}
        return {**self._api_outage.metrics("api/server"), **again, **self.outbox.metrics()}
