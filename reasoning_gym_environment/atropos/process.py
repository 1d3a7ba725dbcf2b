"""The command `process`: make many groups concurrently (loop.py), and write them to a file.

    items, in the order of their index ──> up to CONCURRENT_GROUPS groups in progress ──> a line for each finished group

If the group of an item cannot be made, the command makes the group of a later item instead. It writes each group as
soon as the group is finished. Therefore a killed process loses only the groups in progress, and the same command
resumes. The lines are in the order in which the groups finish. `index` in a line is the index of its item.
"""

from __future__ import annotations

import logging
import shlex
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ..errors import EnvironmentSetupError
from ..inference.spending import plan
from ..ledger import Attempt
from ..records import GroupOutcome, to_json
from ..settings.environment import ReasoningGymEnvConfig
from ..storage.append_log import AppendLog
from ..storage.disk_queue import DiskQueue
from ..storage.lines import open_groups
from ..tasks import reasoning_gym_source as library
from ..trainer.sinks import FileSink
from ..utils.resilience import BackgroundCalls, supervise
from ..utils.shutdown import shutdown_step
from . import preflight
from .loop import GroupLoop
from .run_watch import RunWatch

if TYPE_CHECKING:
    from ..env import ReasoningGymEnv

logger = logging.getLogger(__name__)

CONCURRENT_GROUPS = 64
"""At most this many groups are sampled and graded at the same time."""

MEASURED_PROMPTS = 16
"""The plan uses the mean length of this many prompts."""

MAX_CONSECUTIVE_FAILURES = 10
"""The command ends with an error after this many failures in a row. It allows one more failure for each further group
that it makes at the same time."""

LOG_EVERY = 10
"""The command logs the metrics once in this many groups. Each log entry covers the groups since the previous entry."""

IDENTITY_SETTINGS = (
    "seed",
    "instance_id",
    "group_size",
    "max_token_length",
    "answer_format",
    "system_prompt",
    "chat_template",
    "chat_template_kwargs",
    "train_temperature",
    "train_top_p",
    "include_tasks",
    "exclude_tasks",
    "task_weights",
    "task_overrides",
    "task_modules",
    "complexity_mode",
    "curriculum_target_accuracy",
    "eval_complexity",
    "verification",
    "partial_credit",
    "mask_too_long_completions",
)
"""Settings that determine the groups. The command resumes a file only if their values are the same."""


def settings_of(config: ReasoningGymEnvConfig, model_name: str) -> dict[str, Any]:
    """The settings that every line of the file has."""
    determining = {name: to_json(getattr(config, name)) for name in IDENTITY_SETTINGS}
    return {
        "model_name": model_name,
        "reasoning_gym": library.load().version,
        **determining,
    }


async def process(env: ReasoningGymEnv) -> None:
    """Write `total_steps` groups, including groups whose scores are all equal. `env` is not set up yet.

    Raises EnvironmentSetupError if a setting is wrong, the file cannot be written, or too many groups fail in a row.
    """
    preflight.refuse_testing(env.inference)
    config = env.config
    if config.data_path_to_save_groups is None:
        raise EnvironmentSetupError("process needs a file to write to: set env.data_path_to_save_groups.")
    path = Path(config.data_path_to_save_groups)
    wanted = env.state.total_steps
    settings = settings_of(config, env.inference.model_name)
    opening = partial(open_groups, path, settings, is_resumed=True)
    groups = await BackgroundCalls("open the file of groups").submit(opening)
    sink = FileSink(groups, settings["reasoning_gym"], has_tokens=env.inference.has_tokens)
    try:
        if groups.count:
            logger.info("%d of %d groups already exist.", groups.count, wanted)
        if groups.count >= wanted:
            logger.info("For more groups, increase env.total_steps, or name another env.data_path_to_save_groups.")
        if groups.count < wanted:
            await preflight.check_offline_use(config, env.inference, env.prompts)
            if not env.inference.has_tokens:
                logger.warning("The server reports text only: tokens and masks are null in the lines of %s.", path)
            env.sink = sink
            await env.setup()
            await ProcessLoop(env, groups, sink.queue).run()
        try:
            await sink.close()
        except OSError as error:
            raise EnvironmentSetupError(f"The last groups may be missing from {path}: {error}.") from error
        _report(env, groups)
    finally:
        await shutdown_step("finishing the file of groups", sink.close())


class ProcessLoop(GroupLoop):
    """Makes the groups that a file still lacks."""

    to_api = False

    def __init__(self, env: ReasoningGymEnv, groups: AppendLog, queue: DiskQueue) -> None:
        super().__init__(env)
        self._spending = env.inference.spending
        self._groups = groups
        self._queue = queue
        self._failures_in_a_row = 0
        self._at_once = max(1, min(CONCURRENT_GROUPS, self._missing))
        # With limit_tokens, the first group runs alone. It shows how many tokens the next groups will need.
        self._limit = self._at_once if self._config.limit_tokens is None else 1

    @property
    def _missing(self) -> int:
        return self._state.total_steps - self._groups.count

    @property
    def room(self) -> int:
        """Groups that the file lacks. There is no room without items or tokens, and while groups wait for the disk."""
        has_items = bool(self.items) or not self.has_no_item
        if not has_items or self._spending.is_over or self._queue.is_stuck:
            return 0
        return min(self._limit, self._missing) - len(self.tasks)

    @property
    def is_finished(self) -> bool:
        return not self.tasks and self.room <= 0

    async def run(self) -> None:
        """Write the missing groups. Raises EnvironmentSetupError."""
        self._replay()
        await self._log_plan()
        preflight.begin_wandb_run(self._config)
        try:
            await supervise(self.make_groups(), RunWatch(self._run, self._waits_for).follow())
        finally:
            # Groups remain only after an error or a signal. Those that have completions are still written, but the
            # command must not wait for space on the disk any longer.
            self._queue.stop()
            await self.stop()
        await self.log_metrics()

    def _replay(self) -> None:
        """Bring the stream to the state that follows the groups in the file.

        The stream skips the items of these groups, and the item source learns from their rewards.
        """
        run = self._run
        done = self._groups.done
        written = done.values()
        # Training may exclude tasks of the catalog, and an earlier release may have served them.
        served = run.task_names
        run.state.groups_written = len(written)
        run.stream.leave_out({group.index for group in written})
        for group in written:
            if group.credits and group.task in served:
                run.item_source.learn(group.task, group.level, group.credits)

    async def _log_plan(self) -> None:
        """Draw the first items, and log the requests and tokens that all items will need."""
        run = self._run
        while len(self.items) < min(self._missing, MEASURED_PROMPTS) and not self.has_no_item:
            await self.draw()
        if not self.items:
            return
        lengths = [len(run.prompts.render(messages).tokens) for messages, _, _ in self.items]
        length = round(fmean(lengths))
        completion = run.prompts.room_for_training(length) or 0
        most = self._missing * run.state.group_size * completion
        requests = self._missing * len(run.inference.request_sizes(run.state.group_size))
        logger.info("%s", plan(requests, requests * length, most))

    def _waits_for(self) -> str:
        return "space on the disk" if self._queue.is_stuck else ""

    async def note_no_item(self) -> None:
        logger.warning("get_next_item returned no item: process ends with the groups of the items before it.")

    async def note_end(self, attempt: Attempt) -> None:
        """Count the groups and the failures. Raises EnvironmentSetupError after too many failures in a row."""
        if attempt.outcome is GroupOutcome.WRITTEN:
            self._limit = self._at_once
            self._failures_in_a_row = 0
            self._state.groups_written += 1
            if self._state.groups_written % LOG_EVERY == 0:
                await self.log_metrics()
        elif not attempt.is_given_back:
            self._failures_in_a_row += 1
            # One outage can make all groups in progress fail. They count as one failure.
            self._check_failures(self._at_once - 1 + MAX_CONSECUTIVE_FAILURES)

    def _check_failures(self, most: int) -> None:
        if self._failures_in_a_row >= most:
            why = self._failures.last_detail or "the prompts leave no room for a completion"
            raise EnvironmentSetupError(
                f"{self._failures_in_a_row} groups in a row could not be sampled: {why.rstrip('.')}. The groups so far "
                "are in the file. Check the inference server, its settings (openai.*) and env.max_token_length, and "
                "start the same command again to resume."
            )


def _report(env: ReasoningGymEnv, groups: AppendLog) -> None:
    spending = env.inference.spending
    if spending.requests:
        logger.info("Spent: %s.", spending.total())
    if groups.count < env.state.total_steps and spending.is_over:
        logger.warning("limit_tokens is reached. The same command with a higher limit resumes here.")
    logger.info(
        "%d groups are in %s. To see them: reasoning-gym-env report %s",
        groups.count,
        groups.path,
        shlex.quote(str(groups.path)),
    )
