"""The command `process`: groups for a file, many made at a time.

    items, in the order of their index ──> up to process_concurrency groups at once ──> a line of the file, each at once

A group that could not be made is replaced by a later item. A finished group never waits for another, so a process that
is killed loses only what was in progress, and the same command resumes there. At the end the lines are sorted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from pathlib import Path
from statistics import fmean
from typing import Any

from atroposlib.envs.base import BaseEnv, BaseEnvConfig
from tqdm import tqdm

from ..errors import EnvironmentSetupError
from ..records import plain
from ..storage.json_lines import AppendLog, described, open_groups
from ..telemetry.telemetry import GroupOutcome
from ..utils.resilience import ended
from . import preflight

logger = logging.getLogger(__name__)

PLANNED_FROM = 16
"""Items whose prompts are measured to estimate what all of them will take."""

MAX_CONSECUTIVE_FAILURES = 10

FOLLOW_FROM = (
    *("seed", "instance_id", "group_size", "max_token_length", "max_prompt_tokens", "train_temperature", "train_top_p"),
    *("include_tasks", "exclude_tasks", "task_weights", "task_overrides"),
    *("complexity_mode", "difficulty_range", "curriculum_target_accuracy", "task_sampling", "hold_out"),
    *("verification", "partial_credit", "mask_too_long_completions"),
)
"""Settings that the groups follow from: a file is resumed only under the same."""


def settings_of(config: BaseEnvConfig, model_name: str) -> dict[str, Any]:
    """What stands in every line as its settings."""
    return {"model_name": model_name, **{name: plain(getattr(config, name)) for name in FOLLOW_FROM}}


async def process(env: BaseEnv) -> None:
    """Write `total_steps` groups, whatever their scores, with an environment that is not set up yet.

    Raises EnvironmentSetupError.
    """
    total = env.config.total_steps
    if (path := env.config.data_path_to_save_groups) is None:
        raise EnvironmentSetupError("process needs a file to write to: set env.data_path_to_save_groups.")
    settings = settings_of(env.config, env.server.servers[0].config.model_name)
    groups = await asyncio.to_thread(open_groups, Path(path), settings, is_resumed=True)
    try:
        env.run.begin_offline(len(groups.done))
        if groups.done:
            logger.info("%d of %d groups are there already.", len(groups.done), total)
        if len(groups.done) < total:
            await _make(env, total - len(groups.done), groups)
        if not env.config.dry_run:
            await _finish(env, groups)
    finally:
        await asyncio.to_thread(groups.close)


async def _make(env: BaseEnv, missing: int, groups: AppendLog) -> None:
    await preflight.check_offline_use(env)
    await env.setup()
    # Their items are not drawn again, and the choosers see what they have earned.
    env.stream.leave_out({group.index for group in groups.done.values()})
    for group in groups.done.values():
        if group.credits and group.task in env.parts.catalog:
            env.sampler.learn(group.task, group.level, group.credits, group.has_signal)
    drawn = deque([await env.get_next_item() for _ in range(min(missing, PLANNED_FROM))])
    size = round(fmean(len(env.inference.render(item[0]).tokens) for item in drawn))
    most = missing * env.run.group_size * (env.token_budget.of_completion(size) or 0)
    logger.info("%s", env.inference.spending.plan(missing, missing * size, most))
    if env.config.dry_run:
        return
    preflight.begin_wandb_run(env)
    await _make_at_once(env, missing, drawn, groups)
    if env.config.use_wandb:
        await env.wandb_log()


async def _make_at_once(env: BaseEnv, missing: int, drawn: deque[Any], groups: AppendLog) -> None:
    """When this is cancelled or fails, what has its completions is written all the same."""
    spending = env.inference.spending
    most = max(1, min(env.config.process_concurrency, missing))
    # With a limit of tokens the first group shows what one takes.
    at_once = 1 if env.config.limit_tokens is not None else most
    failures, under_way = 0, set[asyncio.Task[bool]]()
    total, done = env.config.total_steps, env.run.step
    bar = tqdm(total=total, initial=done, desc="process", unit="group", disable=None, smoothing=0.1)
    try:
        while missing > 0:
            while len(under_way) < min(at_once, missing) and not spending.is_over:
                item = drawn.popleft() if drawn else await env.get_next_item()
                under_way.add(asyncio.create_task(_work(env, item, groups)))
            if not under_way:
                return
            done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            # If several fail at once, the first error is raised, and none is left to be reported as never retrieved.
            for is_written in await asyncio.gather(*done):
                if not is_written:
                    failures += 1
                    continue
                missing, failures, at_once = missing - 1, 0, most
                bar.set_postfix_str(spending.total(), refresh=False)
                bar.update()
            # Groups in progress at the same time fail together, for one reason.
            if failures >= most - 1 + MAX_CONSECUTIVE_FAILURES:
                why = env.failures.last_detail or "the prompts leave no room for a completion"
                raise EnvironmentSetupError(f"{failures} groups in a row could not be sampled: {why}")
    finally:
        bar.close()
        await ended(under_way)


async def _work(env: BaseEnv, item: Any, groups: AppendLog) -> bool:
    """Whether a group of the item was made and written."""
    episode = item[2].episode
    group, _ = await env.collect_trajectories(item)
    if group is None:
        return False
    group = await env.postprocess_histories(group)
    await env.log_group(group, item)
    try:
        groups.append({**group, **described(episode, env.parts.library.version, groups.identity or {})})
    except OSError as error:
        env.settle(episode, GroupOutcome.FAULT)
        raise EnvironmentSetupError(f"Cannot write groups to {groups.path}: {error}.") from error
    env.settle(episode, GroupOutcome.WRITTEN)
    env.run.step += 1
    if env.config.use_wandb and env.run.step % 10 == 0:
        await env.wandb_log()
    return True


async def _finish(env: BaseEnv, groups: AppendLog) -> None:
    spending = env.inference.spending
    if spending.requests:
        logger.info("Spent: %s.", spending.total())
    if groups.count < env.config.total_steps:
        logger.warning("limit_tokens is reached: the same command with a higher one resumes here.")
    try:
        await asyncio.to_thread(groups.sort, lambda record: record["index"])
    except OSError as error:
        logger.warning("%s has its groups in the order in which they were finished: %s.", groups.path, error)
    logger.info("%d groups are in %s. To see them: reasoning-gym-env report %s", groups.count, groups.path, groups.path)
