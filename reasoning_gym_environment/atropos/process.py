"""The command `process`: make many groups concurrently, and write them to a file.

    items, in the order of their index ──> up to CONCURRENT_GROUPS groups in progress ──> a line for each finished group

If the group of an item cannot be made, the command makes the group of a later item instead. It writes each group as
soon as the group is finished. Therefore a killed process loses only the groups in progress, and the same command
resumes. The lines are in the order in which the groups finish. `index` in a line is the index of its item.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from ..errors import EnvironmentSetupError
from ..inference.spending import plan
from ..items import group_of
from ..records import Group, to_json
from ..settings.environment import ReasoningGymEnvConfig
from ..storage.append_log import AppendLog
from ..storage.lines import described, open_groups
from ..storage.patient_writer import PatientWriter
from ..tasks import reasoning_gym_source as library
from ..telemetry.telemetry import GroupOutcome
from ..utils.resilience import BackgroundCalls, cancel_and_wait, supervise
from ..utils.shutdown import shutdown_step, uninterrupted
from . import preflight
from .hooks import DROPPED_BY_SUBCLASS, Hooks
from .run_watch import RunWatch

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


async def process(env: Hooks) -> None:
    """Write `total_steps` groups, including groups whose scores are all equal. `env` is not set up yet.

    Raises EnvironmentSetupError if a setting is wrong, the file cannot be written, or too many groups fail in a row.
    """
    preflight.refuse_testing(env.inference)
    config = env.config
    if config.data_path_to_save_groups is None:
        raise EnvironmentSetupError("process needs a file to write to: set env.data_path_to_save_groups.")
    path = Path(config.data_path_to_save_groups)
    settings = settings_of(config, env.inference.model_name)
    opening = partial(open_groups, path, settings, is_resumed=True)
    groups = await BackgroundCalls("open the file of groups").submit(opening)
    file = ProcessFile(groups, settings["reasoning_gym"], has_tokens=env.inference.has_tokens)
    try:
        if groups.count:
            logger.info("%d of %d groups already exist.", groups.count, config.total_steps)
        if groups.count >= config.total_steps:
            logger.info("For more groups, increase env.total_steps, or name another env.data_path_to_save_groups.")
        if groups.count < config.total_steps:
            await preflight.check_offline_use(config, env.inference, env.prompts)
            if not env.inference.has_tokens:
                logger.warning("The server reports text only: tokens and masks are null in the lines of %s.", path)
            env.group_file = file
            await env.setup()
            await GroupWriter(env, groups, file).run()
        try:
            await file.close()
        except OSError as error:
            raise EnvironmentSetupError(f"The last groups may be missing from {path}: {error}.") from error
        _report(env, groups)
    finally:
        await shutdown_step("finishing the file of groups", file.close())


WITHOUT_TOKENS = {"tokens": None, "masks": None}
"""What the line of a group has in place of token ids that the server did not report."""


class ProcessFile:
    """Writes each group as a line of the file, with its item and the settings of the run. Implements `GroupSink`."""

    def __init__(self, groups: AppendLog, version: str, *, has_tokens: bool) -> None:
        """`version` is the release of reasoning-gym. `has_tokens` is whether the servers report token ids."""
        self._groups = groups
        self._version = version
        self._has_tokens = has_tokens
        self._writer = PatientWriter(
            groups.append,
            name="groups",
            remedy="process starts no further group and tries again every few seconds. Free some space",
        )
        self._writes: dict[int, asyncio.Task[None]] = {}
        """The writes for which `is_written` was not called yet, by the identity of the item's entry."""

    def write(self, payload: Mapping[str, Any], group: Group | None) -> None:
        """Begin to append a group."""
        assert group is not None, "process gives every group its item"
        details = described(group, self._version, self._groups.settings or {})
        if not self._has_tokens:
            details |= WITHOUT_TOKENS
        write = asyncio.create_task(self._writer.write({**payload, **details}))
        self._writes[id(group.problem.entry)] = write

    async def is_written(self, item: Any) -> bool:
        """Wait until the group of this item is on the disk. Returns False if it was not passed to `write`.

        `handle_send_to_api` does not say so, and may drop the group. Raises EnvironmentSetupError if the disk refuses
        the group, or has not taken it when the command must end.
        """
        _, entry, _ = item
        write = self._writes.pop(id(entry), None)
        if write is None:
            return False
        try:
            await write
        except OSError as error:
            raise EnvironmentSetupError(f"Cannot write groups to {self._groups.path}: {error}.") from error
        return True

    @property
    def is_waiting(self) -> bool:
        """Whether groups wait until the disk takes them."""
        return self._writer.is_waiting

    def stop_waiting(self) -> None:
        """Make one last attempt to write the groups that wait."""
        self._writer.stop_waiting()

    def report_lost(self) -> None:
        """Log how many groups were not written, if there are any."""
        if self._writer.lost:
            logger.error(
                "%d groups that had their completions were not written to %s. The same command makes them again.",
                self._writer.lost,
                self._groups.path,
            )

    async def close(self) -> None:
        """Release the file. Safe to call twice. Raises OSError."""
        await self._writer.finish(self._groups.close)


class GroupWriter:
    """Makes the groups that a file still lacks."""

    def __init__(self, env: Hooks, groups: AppendLog, file: ProcessFile) -> None:
        self._env = env
        self._file = file
        self._run = env.run
        self._config = env.config
        self._groups = groups
        self._drawn: deque[Any] = deque()
        self._working: set[asyncio.Task[bool]] = set()
        self._failures_in_a_row = 0
        self._has_more_items = True
        """Whether `get_next_item` has always returned an item. A subclass returns None after its last item."""

    @property
    def _missing(self) -> int:
        return self._config.total_steps - self._groups.count

    async def run(self) -> None:
        """Write the missing groups. Raises EnvironmentSetupError."""
        self._replay()
        await self._log_plan()
        preflight.begin_wandb_run(self._config)
        await supervise(self._write_all(), RunWatch(self._run, self._waits_for).follow())
        await self._env.wandb_log()

    def _replay(self) -> None:
        """Bring the stream to the state that follows the groups in the file.

        The stream skips the items of these groups, and the item source learns from their rewards.
        """
        run = self._run
        written = self._groups.done.values()
        # Training may exclude tasks of the catalog, and an earlier release may have served them.
        served = run.stream.maker.catalog
        run.state.groups_written = len(written)
        run.stream.leave_out({group.index for group in written})
        for group in written:
            if group.credits and group.task in served:
                run.item_source.learn(group.task, group.level, group.credits)

    async def _log_plan(self) -> None:
        """Draw the first items, and log the requests and tokens that all items will need."""
        run = self._run
        while len(self._drawn) < min(self._missing, MEASURED_PROMPTS) and self._has_more_items:
            await self._draw()
        if not self._drawn:
            return
        lengths = [len(run.prompts.render(messages).tokens) for messages, _, _ in self._drawn]
        length = round(fmean(lengths))
        completion = run.prompts.room_for_training(length) or 0
        most = self._missing * run.state.group_size * completion
        requests = self._missing * len(run.inference.request_sizes(run.state.group_size))
        logger.info("%s", plan(requests, requests * length, most))

    async def _draw(self) -> None:
        """Draw the next item, if there is one."""
        item = await self._env.get_next_item()
        if item is None:
            self._has_more_items = False
            logger.warning("get_next_item returned no item: process ends with the groups of the items before it.")
        else:
            self._drawn.append(item)

    async def _write_all(self) -> None:
        """Write the missing groups.

        After a cancellation or an error, groups that already have their completions are still written, unless the disk
        refuses them.
        """
        at_once = max(1, min(CONCURRENT_GROUPS, self._missing))
        # With limit_tokens, the first group runs alone. It shows how many tokens the next groups will need.
        limit = at_once if self._config.limit_tokens is None else 1
        try:
            while True:
                await self._fill(limit)
                if not self._working:
                    return
                for is_written in await self._some_finished():
                    if is_written:
                        limit = at_once
                        self._failures_in_a_row = 0
                    else:
                        self._failures_in_a_row += 1
                # One outage can make all groups in progress fail. They count as one failure.
                self._check_failures(at_once - 1 + MAX_CONSECUTIVE_FAILURES)
        finally:
            # Groups remain only after an error or a signal. Then the command must not wait for disk space any longer.
            self._file.stop_waiting()
            await cancel_and_wait(self._working)
            self._file.report_lost()

    def _waits_for(self) -> str:
        return "space on the disk" if self._file.is_waiting else ""

    async def _fill(self, limit: int) -> None:
        """Start groups until `limit` of them are in progress, or the file needs no more.

        Starts none if there is no item or token left, and while groups wait for the disk.
        """
        while len(self._working) < min(limit, self._missing) and not self._run.inference.spending.is_over:
            if self._file.is_waiting:
                return
            if not self._drawn and self._has_more_items:
                await self._draw()
            if not self._drawn:
                return
            item = self._drawn.popleft()
            self._working.add(asyncio.create_task(self._write_one(item)))

    async def _some_finished(self) -> list[bool]:
        """Wait until at least one group has ended. Returns, for each group that has ended, whether it was written.

        If a group has ended with an error, raises this error.
        """
        finished, self._working = await asyncio.wait(self._working, return_when=asyncio.FIRST_COMPLETED)
        return await asyncio.gather(*finished)

    def _check_failures(self, most: int) -> None:
        if self._failures_in_a_row >= most:
            why = self._run.failures.last_detail or "the prompts leave no room for a completion"
            raise EnvironmentSetupError(
                f"{self._failures_in_a_row} groups in a row could not be sampled: {why.rstrip('.')}. The groups so far "
                "are in the file. Check the inference server, its settings (openai.*) and env.max_token_length, and "
                "start the same command again to resume."
            )

    async def _write_one(self, item: Any) -> bool:
        """Make and write the group of an item. Returns whether there was a group.

        Raises EnvironmentSetupError if the group cannot be written.
        """
        payload, _ = await self._env.collect_trajectories(item)
        if payload is None:
            self._env.pipeline.drop_if_unfinished(group_of(item))
            return False
        # The completions have been paid for, so the group is written even if the run is stopped now.
        is_written: bool = await uninterrupted(self._write(payload, item))
        return is_written

    async def _write(self, payload: Any, item: Any) -> bool:
        env = self._env
        group = group_of(item)
        payload = await env.postprocess_histories(payload)
        if payload is None:
            env.pipeline.drop(group, GroupOutcome.DROPPED, DROPPED_BY_SUBCLASS)
            return False
        await env.handle_send_to_api(payload, item, do_send_to_api=False, abort_on_any_max_length_exceeded=False)
        try:
            is_written = await self._file.is_written(item)
        except EnvironmentSetupError:
            env.pipeline.abandon(group)
            raise
        if not is_written:
            env.pipeline.drop_if_not_handed_on(group)
            return False
        env.pipeline.finish(group, GroupOutcome.WRITTEN)
        self._run.state.groups_written += 1
        if self._run.state.groups_written % LOG_EVERY == 0:
            await env.wandb_log()
        return True


def _report(env: Hooks, groups: AppendLog) -> None:
    spending = env.inference.spending
    if spending.requests:
        logger.info("Spent: %s.", spending.total())
    if groups.count < env.config.total_steps and spending.is_over:
        logger.warning("limit_tokens is reached. The same command with a higher limit resumes here.")
    logger.info(
        "%d groups are in %s. To see them: reasoning-gym-env report %s",
        groups.count,
        groups.path,
        shlex.quote(str(groups.path)),
    )
