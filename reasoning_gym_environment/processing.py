"""`process`: write exactly `total_steps` groups to a file, several at a time."""

from __future__ import annotations

import asyncio
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from . import preflight
from .errors import EnvironmentSetupError
from .group_page import write_group_page

if TYPE_CHECKING:
    from .env import ReasoningGymEnv

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 10
LOG_EVERY = 10


async def process_groups(env: ReasoningGymEnv) -> None:
    """Set up, then sample groups until `env.n_groups_to_process` are written, whatever their scores.

    Raises EnvironmentSetupError after ten groups in a row could not be sampled.
    """
    if env.jsonl_writer is None:
        raise EnvironmentSetupError("process needs a file to write to: set env.data_path_to_save_groups.")
    await env.setup()
    env.curr_step = 0
    env.config.group_size = env.group_size_to_process
    # Equal scores are data here: without them the number of groups would not be the one asked for.
    env.config.ensure_scores_are_not_same = False
    with preflight.wandb_run(env.config, str(env.name)):
        await _write_groups(env)
    env.jsonl_writer.close()
    groups = Path(str(env.config.data_path_to_save_groups))
    logger.info("Wrote %d groups to %s.", env.curr_step, groups)
    if env.config.include_messages:
        logger.info("A page to look at them: %s.", await asyncio.to_thread(write_group_page, groups))


async def _write_groups(env: ReasoningGymEnv) -> None:
    total = env.n_groups_to_process
    slots = min(max(1, env.max_num_workers), max(1, total))
    queue = _Countdown(total)
    with tqdm(total=total, desc="process", unit="group", disable=None) as bar:
        workers = [asyncio.create_task(_worker(env, queue, bar)) for _ in range(slots)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    if env.config.use_wandb:
        await env.wandb_log()


class _Countdown:
    """How many groups are still to be claimed, and how many attempts in a row have failed."""

    def __init__(self, total: int) -> None:
        self.unclaimed = total
        self.failures_in_a_row = 0


async def _worker(env: ReasoningGymEnv, queue: _Countdown, bar: Any) -> None:
    while queue.unclaimed > 0:
        queue.unclaimed -= 1
        item = await env.get_next_item()
        group, _ = await env.collect_trajectories(item)
        if group is None:
            queue.unclaimed += 1
            queue.failures_in_a_row += 1
            if queue.failures_in_a_row >= MAX_CONSECUTIVE_FAILURES:
                last = env.failures.last_detail or "the prompts leave no room for a completion"
                raise EnvironmentSetupError(f"{queue.failures_in_a_row} groups in a row could not be sampled: {last}")
            continue
        queue.failures_in_a_row = 0
        await _write(env, group, item)
        bar.update()


async def _write(env: ReasoningGymEnv, group: Any, item: Any) -> None:
    processed = await env.postprocess_histories(group)
    with warnings.catch_warnings():
        # There is no trainer here, so its missing length limit is no news.
        warnings.filterwarnings("ignore", message="Trainer requested to ignore max length")
        await env.handle_send_to_api(processed, item, do_send_to_api=False, abort_on_any_max_length_exceeded=False)
    env.curr_step += 1
    if env.config.use_wandb and env.curr_step % LOG_EVERY == 0:
        await env.wandb_log()
