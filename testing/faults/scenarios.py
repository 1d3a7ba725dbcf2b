"""Scenarios with faults. Each scenario is a run of real processes, and counts the losses after a fault.

The run has atroposlib's run-api, `serve`, a mock inference server and a small trainer, over real HTTP. After the fault
the run continues until SIGTERM ends it, and the scenario counts its losses.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import resource
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from testing.faults.world import World
from testing.inference_server import Generation

KILLS = 20
INSTANCES = 4
LONGEST_LIFE_S = 25.0
LONGEST_WORK_S = 10.0
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
                    await world.until(lambda before=items: world.items_drawn(number) > before, "an item")
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
    """While the disk is full, the dumps lose groups. The log reports and counts them, and training continues."""
    async with World(folder) as world:
        process = await world.serve()
        await world.groups(10)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (FILE_LIMIT, resource.RLIM_INFINITY))
        await world.until(lambda: "The disk of the dumps is unavailable" in world.log(), "the disk to refuse a group")
        await world.groups(groups)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await world.until(lambda: "The disk of the dumps is back" in world.log(), "the disk to be used again")
        await world.groups(10)
        end = await world.end(process)
        dropped = sum(map(int, re.findall(r"(\d+) groups of \S+ that could not be written", world.log())))
        return {"groups_trained_meanwhile": groups, "groups_dropped": dropped, "end": end, **world.losses()}


GROUPS_AFTER_OUTAGE = 40
"""More groups than are in flight at a time."""


async def inference(folder: Path, *, for_s: float = 10.0) -> dict[str, Any]:
    async with World(folder, "--env.worker_timeout", "20") as world:
        process = await world.serve()
        await world.groups(10)
        recovered = {}
        for fault, begin, end in _inference_faults(world):
            await begin()
            await asyncio.sleep(for_s)
            await end()
            began = asyncio.get_running_loop().time()
            await world.groups(10)
            recovered[fault] = round(asyncio.get_running_loop().time() - began, 1)
            # An item with a part in three outages in a row may be given up (sampling/pending_items.py). So the items
            # that this outage interrupted get their completions before the next.
            await world.groups(GROUPS_AFTER_OUTAGE)
        outages = len(re.findall(r"The inference server \S+ is unavailable \(", world.log()))
        end_of_it = await world.end(process)
        return {
            "seconds_to_ten_groups_after": recovered,
            "outages_reported": outages,
            "items_given_up": len(re.findall("Item (?:dropped|given up)", world.log())),
            "end": end_of_it,
            **world.losses(),
        }


Step = Callable[[], Awaitable[None]]


def _inference_faults(world: World) -> list[tuple[str, Step, Step]]:
    def setting(**values: Any) -> Step:
        async def put() -> None:
            for name, value in values.items():
                setattr(world.faults, name, value)

        return put

    return [
        ("gone", world.stop_inference, world.start_inference),
        ("answers 500", setting(failing=True), setting(failing=False)),
        ("cuts replies", setting(cut_next=10**9), setting(cut_next=0)),
        ("closes connections", setting(drop_next=10**9), setting(drop_next=0)),
        ("hangs", setting(hang=True), setting(hang=False)),
    ]


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


async def sigterm(folder: Path, *, in_flight: int = 32) -> dict[str, Any]:
    async with World(folder, "--env.max_num_workers", str(in_flight), "--env.max_batches_offpolicy", "100") as world:
        ends = []
        for _ in range(2):
            process = await world.serve()
            await world.groups(10)
            world.faults.latency_s = 3.0
            await asyncio.sleep(1.5)
            ends.append(await world.end(process))
            world.faults.latency_s = 0.0
        process = await world.serve()
        await world.groups(10)
        ends.append(await world.end(process))
        signed_off = (world.folder / "run-api.log").read_text().count("POST /disconnect-env")
        return {"ends": ends, "signed_off": signed_off, **world.losses()}


async def bad_replies(folder: Path, *, each: int = 10) -> dict[str, Any]:
    """`lost_batches`: answers 500 of run-api to its trainer."""
    async with World(folder) as world:
        process = await world.serve()
        await world.groups(10)
        for name, spoil in SPOILED.items():
            left = [each]

            def spoil_one(made: list[Generation], spoil: Spoil = spoil, left: list[int] = left) -> list[Generation]:
                left[0] -= 1
                return [*made[:-1], spoil(made[-1])] if left[0] >= 0 else made

            world.faults.spoil = spoil_one
            await world.until(lambda left=left: left[0] < 0, f"replies with {name}")
            world.faults.spoil = None
            await world.groups(10)
        end = await world.end(process)
        lost = (world.folder / "run-api.log").read_text().count('/batch HTTP/1.1" 500')
        lines = world.log().count("sent without advantage")
        return {"bad_replies": each * len(SPOILED), "lost_batches": lost, "lines": lines, "end": end, **world.losses()}


Spoil = Callable[[Generation], Generation]


def _with_logprob(value: Any) -> Spoil:
    return lambda made: replace(made, logprobs=[value, *made.logprobs[1:]])


SPOILED: dict[str, Spoil] = {
    "NaN": _with_logprob(math.nan),
    "-inf": _with_logprob(-math.inf),
    "null": _with_logprob(None),
    "positive": _with_logprob(0.5),
    "unknown tokens": lambda made: replace(made, token_ids=[300, *made.token_ids[1:]]),
    "no tokens": lambda made: replace(made, text="", token_ids=[], logprobs=[]),
}


async def hanging(folder: Path, *, count: int = 6, timeout_s: int = 30) -> dict[str, Any]:
    """`longest_stop_s`: the longest time without a group at the trainer, until requests time out and are repeated."""
    settings = ("--env.max_num_workers", str(count), "--env.max_batches_offpolicy", "100")
    async with World(folder, *settings, "--openai.timeout", str(timeout_s)) as world:
        process = await world.serve()
        await world.groups(40)
        world.faults.hang_next = count
        longest, last = 0.0, time.monotonic()
        while "no answer within" not in world.log() and longest < 10 * timeout_s:
            groups = len(world.received)
            await asyncio.sleep(0.1)
            if len(world.received) > groups:
                last = time.monotonic()
            longest = max(longest, time.monotonic() - last)
        await world.groups(10)
        lines = world.log().count("no answer within")
        end = await world.end(process)
        return {"longest_stop_s": round(longest, 1), "lines": lines, "end": end, **world.losses()}


async def removed(folder: Path) -> dict[str, Any]:
    async with World(folder) as world:
        process = await world.serve()
        await world.groups(10)
        shutil.rmtree(folder / "dumps")
        await world.groups(10)
        end = await world.end(process)
        told = [int(number) for number in re.findall(r"moved away with (\d+) groups of rollouts", world.log())]
        return {"told_to_be_lost": sum(told), "end": end, **world.losses()}


async def shares(folder: Path, *, restarts: int = 3, seed: int = 0) -> dict[str, Any]:
    """`registered_as`: the numbers of the instances after each restart. No two instances may have the same number."""
    chance = random.Random(seed)
    async with World(folder) as world:
        processes = [await world.serve(number) for number in range(INSTANCES)]
        await world.until(lambda: len(world.numbers()) == INSTANCES, "all instances to register")
        await world.groups(10)
        found = [{"after": "start", **await world.shares()}]
        for _ in range(restarts):
            world.trains.clear()
            await world.kill_api()
            # All instances are stopped, and continue in a random order, so they register in this order.
            order = chance.sample(range(INSTANCES), INSTANCES)
            for number in order:
                processes[number].send_signal(signal.SIGSTOP)
            # run-api never starts faster than an instance notices that it was stopped.
            await asyncio.sleep(2.0)
            await world.start_api()
            world.trains.set()
            for number in order:
                again = world.log(number).count("Registered again")
                processes[number].send_signal(signal.SIGCONT)
                await world.until(
                    lambda number=number, again=again: world.log(number).count("Registered again") > again,
                    "an instance to register again",
                )
            await world.groups(10)
            found.append({"after": "a restart of run-api", **await world.shares()})
        killed = chance.randrange(INSTANCES)
        processes[killed].kill()
        await processes[killed].wait()
        processes[killed] = await world.serve(killed)
        await world.until(
            lambda: "Signing off environment" in world.log(killed), "the killed instance to be signed off"
        )
        await world.groups(10)
        found.append({"after": "a kill", **await world.shares()})
        ends = await asyncio.gather(*(world.end(process) for process in processes))
        different = {json.dumps([shares["unallocated_fraction"], shares["env_weights"]]) for shares in found}
        return {"shares": found, "as_at_the_start": len(different) == 1, "ends": ends, **world.losses()}


SCENARIOS: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    "kill_9": kill_9,
    "disk_full": disk_full,
    "inference": inference,
    "api_restart": api_restart,
    "sigterm": sigterm,
    "bad_replies": bad_replies,
    "hanging": hanging,
    "removed": removed,
    "shares": shares,
}
