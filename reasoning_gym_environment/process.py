"""`process`: write exactly `total_steps` groups to a file, many at a time, in the order of their items.

    draw items ahead, in order of index ──> sample and score up to `process_concurrency` groups at once
        ──> hold finished groups back until those before them are written ──> file

The file does not depend on which reply came first. A group that could not be sampled is replaced by a later item.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from .atropos import preflight
from .atropos.shutdown import freeze_memory
from .errors import EnvironmentSetupError
from .report.group_page import write_group_page
from .utils.paths import place_of_page

if TYPE_CHECKING:
    from .env import ReasoningGymEnv

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 10
INFERENCE_LIMIT_S = 300.0
"""How long inference may be away before the command gives up; what is written by then stays."""

LOG_EVERY = 10
HELD_BACK = 4
"""Groups that are in progress or wait for an earlier one, as a multiple of the concurrency: a bound on memory."""


async def process_groups(env: ReasoningGymEnv) -> None:
    """Set up, then sample groups until `env.n_groups_to_process` are written, whatever their scores.

    Raises EnvironmentSetupError after ten groups in a row could not be sampled, or if the file takes no more.
    """
    if env.jsonl_writer is None:
        raise EnvironmentSetupError("process needs a file to write to: set env.data_path_to_save_groups.")
    groups = Path(str(env.config.data_path_to_save_groups))
    if env.config.include_messages:
        place_of_page(groups)
    await env.setup()
    env.curr_step = 0
    env.config.group_size = env.group_size_to_process
    # Equal scores are data here: without them the number of groups would not be the one asked for.
    env.config.ensure_scores_are_not_same = False
    # Groups stand in the order of their items: the next one takes the place of one that cannot be had.
    env.tries_items_again = False
    env.inference_limit_s = INFERENCE_LIMIT_S
    freeze_memory()
    with preflight.wandb_run(env.config, str(env.name)):
        await _write_groups(env)
    try:
        env.jsonl_writer.close()
    except OSError as error:
        raise EnvironmentSetupError(f"Cannot write groups to {groups}: {error}.") from error
    logger.info("Wrote %d groups to %s.", env.curr_step, groups)
    if env.config.include_messages:
        logger.info("A page to look at them: %s.", await asyncio.to_thread(write_group_page, groups))


async def _write_groups(env: ReasoningGymEnv) -> None:
    total = env.n_groups_to_process
    concurrency = max(1, min(env.config.process_concurrency, total))
    with tqdm(total=total, desc="process", unit="group", disable=None, smoothing=0.1) as bar:
        run = _Run(env, total, concurrency, bar)
        drawing = asyncio.create_task(run.draw())
        workers = [asyncio.create_task(run.work()) for _ in range(concurrency)]
        sampling = asyncio.gather(*workers)
        try:
            # Drawing ends only with an error, for which nobody would wait.
            await asyncio.wait((drawing, sampling), return_when=asyncio.FIRST_COMPLETED)
            await (drawing if drawing.done() else sampling)
        finally:
            run.is_over = True
            for task in (drawing, *workers):
                task.cancel()
            await asyncio.gather(drawing, sampling, *workers, return_exceptions=True)
            await run.write_rest()
    if env.config.use_wandb:
        await env.wandb_log()


@dataclass
class _Slot:
    """One item in order: `group` is None until it is sampled, and stays so if it `failed`."""

    item: Any
    group: Any = None
    failed: bool = False


class _Run:
    """What the workers share: the items to come, the groups in order, and how many are still to be claimed."""

    def __init__(self, env: ReasoningGymEnv, total: int, concurrency: int, bar: Any) -> None:
        self._env = env
        self._unclaimed = total
        self._bar = bar
        self._to_draw = asyncio.Semaphore(total)
        self._drawn: asyncio.Queue[Any] = asyncio.Queue(maxsize=concurrency)
        self._order: deque[_Slot] = deque()
        self._writing = asyncio.Lock()
        self._room = asyncio.Semaphore(HELD_BACK * concurrency)
        self._failures_in_a_row = 0
        self.is_over = False

    async def draw(self) -> None:
        """Keep items ready in order of index, as many as are still needed; runs until it is cancelled."""
        while True:
            await self._to_draw.acquire()
            await self._drawn.put(await self._env.get_next_item())

    async def work(self) -> None:
        """Sample one group after the other until all are claimed.

        A group that is being accepted when it is cancelled is accepted all the same (`lifecycle.to_the_end`), and the
        cancellation is spent: so it is asked whether the run is over.
        """
        while self._unclaimed > 0 and not self.is_over:
            self._unclaimed -= 1
            await self._room.acquire()
            slot = _Slot(await self._drawn.get())
            self._order.append(slot)
            slot.group, _ = await self._env.collect_trajectories(slot.item)
            if slot.group is None:
                slot.failed = True
                self._unclaimed += 1
                self._to_draw.release()
                self._note_failure()
            else:
                self._failures_in_a_row = 0
            await self._write_ready()

    def _note_failure(self) -> None:
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= MAX_CONSECUTIVE_FAILURES:
            last = self._env.failures.last_detail or "the prompts leave no room for a completion"
            raise EnvironmentSetupError(f"{self._failures_in_a_row} groups in a row could not be sampled: {last}")

    async def _write_ready(self) -> None:
        """Write the groups that nothing before them holds up."""
        async with self._writing:
            while self._order and (self._order[0].failed or self._order[0].group is not None):
                await self._write(self._order.popleft())

    async def write_rest(self) -> None:
        """After the end, wanted or not: write what is finished, although groups before it are missing."""
        async with self._writing:
            while self._order:
                await self._write(self._order.popleft())

    async def _write(self, slot: _Slot) -> None:
        self._room.release()
        if slot.group is None:
            return
        env = self._env
        processed = await env.postprocess_histories(slot.group)
        await env.handle_send_to_api(processed, slot.item, do_send_to_api=False, abort_on_any_max_length_exceeded=False)
        env.curr_step += 1
        self._bar.update()
        if env.config.use_wandb and env.curr_step % LOG_EVERY == 0:
            await env.wandb_log()
