"""Scenarios with faults. Each scenario is a run of real processes, and counts the losses after a fault.

The run has atroposlib's run-api, `serve`, a mock inference server and a small trainer, over real HTTP. After the fault
the run continues until SIGTERM ends it, and the scenario counts its losses.
"""

from __future__ import annotations

import asyncio
import random
import re
import resource
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from testing.faults.world import FaultKind, World
from testing.process_table import until

KILLS = 20
INSTANCES = 4
LONGEST_LIFE_S = 15.0
LONGEST_WORK_S = 5.0
FILE_LIMIT = 200_000
"""Bytes: some forty groups."""


async def kill_9(folder: Path, *, kills: int = KILLS, seed: int = 0) -> dict[str, Any]:
    chance = random.Random(seed)
    async with World(folder) as world:

        async def live_and_die(number: int, times: int) -> list[int]:
            left = []
            for life in range(times):
                items = world.items_drawn(number)
                process = await world.serve(number)
                if life % 2:
                    # On a loaded machine no other life would get beyond its set-up.
                    await until(lambda before=items: world.items_drawn(number) > before, "an item")
                    await asyncio.sleep(chance.uniform(0, LONGEST_WORK_S))
                else:
                    await asyncio.sleep(chance.uniform(0, LONGEST_LIFE_S))
                process.kill()
                await process.wait()
                left.append(await world.left_of(process))
            return left

        left = await asyncio.gather(*(live_and_die(number, kills // INSTANCES) for number in range(INSTANCES)))
        last = [await world.serve(number) for number in range(INSTANCES)]
        before = len(world.received)
        await world.groups(40)
        ends = await asyncio.gather(*(world.end(process) for process in last))
        return {
            "kills": sum(map(len, left)),
            "orphans": sum(map(sum, left)),
            "groups_before_the_last_start": before,
            "ends": ends,
            **world.losses(),
        }


async def disk_full(folder: Path, *, groups: int = 60) -> dict[str, Any]:
    """While the disk is full, training continues. The dumps get the groups later, up to a limit."""
    async with World(folder) as world:
        process = await world.serve()
        await world.groups(10)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (FILE_LIMIT, resource.RLIM_INFINITY))
        await until(lambda: "The disk of the dumps is unavailable" in world.log(), "the disk to refuse a group")
        await world.groups(groups)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await until(lambda: "The disk of the dumps is back" in world.log(), "the disk to be used again")
        await world.groups(10)
        end = await world.end(process)
        dropped = sum(map(int, re.findall(r"The disk did not take (\d+) dumps", world.log())))
        return {"groups_trained_meanwhile": groups, "groups_dropped": dropped, "end": end, **world.losses()}


GROUPS_AFTER_OUTAGE = 40
"""More groups than are in flight at a time."""

INFERENCE_FAULTS: tuple[FaultKind, ...] = ("gone", "fail", "cut", "drop", "hang")


async def inference(folder: Path, *, for_s: float = 10.0) -> dict[str, Any]:
    """The inference server is gone, and then fails in each way of `Faults`."""
    async with World(folder, "--env.worker_timeout", "20") as world:
        process = await world.serve()
        await world.groups(10)
        recovered = {}
        for kind in INFERENCE_FAULTS:
            async with world.broken_inference(kind):
                await asyncio.sleep(for_s)
            began = asyncio.get_running_loop().time()
            await world.groups(10)
            recovered[kind] = round(asyncio.get_running_loop().time() - began, 1)
            # An item with a part in three outages in a row may be given up (sampling/pending_items.py). So the items
            # that this outage interrupted get their completions before the next.
            await world.groups(GROUPS_AFTER_OUTAGE)
        outages = len(re.findall(r"The inference server \S+ is unavailable \(", world.log()))
        end = await world.end(process)
        return {
            "seconds_to_ten_groups_after": recovered,
            "outages_reported": outages,
            "items_given_up": len(re.findall("Item (?:dropped|given up)", world.log())),
            "end": end,
            **world.losses(),
        }


async def api_restart(folder: Path, *, for_s: float = 5.0) -> dict[str, Any]:
    async with World(folder) as world:
        process = await world.serve()
        await world.groups(10)
        for _ in range(2):
            world.trains.clear()
            await world.kill_api()
            await asyncio.sleep(for_s)
            await world.start_api()
            await asyncio.sleep(for_s)
            world.trains.set()
            await world.groups(10)
        again = world.log().count("Registered again")
        world.signal_api(signal.SIGSTOP)
        await asyncio.sleep(2 * for_s + 2)
        world.signal_api(signal.SIGCONT)
        await world.groups(10)
        world.trains.clear()
        await asyncio.sleep(for_s)
        world.trains.set()
        await world.groups(10)
        end = await world.end(process)
        return {
            "restarts": 2,
            "registered_again": again,
            "registered_again_after_a_hang": world.log().count("Registered again") - again,
            "end": end,
            **world.losses(),
        }


SCENARIOS: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    "kill_9": kill_9,
    "disk_full": disk_full,
    "inference": inference,
    "api_restart": api_restart,
}
