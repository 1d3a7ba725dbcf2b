"""Simulates several environments at one run-api under a schedule of faults, and checks them afterwards.

    Schedule ──> Cluster: members, run-api, trainer, a disk for each member ──> faults, in order
                     ──> all faults end ──> check_members ──> all members end ──> check_items

A member is one environment of a training run. If its process ends, the next process resumes from its checkpoints. The
run-api is atroposlib's (simulated_api.py), and simulation.py has the processes. All of this runs in virtual time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from reasoning_gym_environment.atropos import serve_loop
from reasoning_gym_environment.trainer.checkpoints import KEY, LATEST
from reasoning_gym_environment.trainer.run_api import IN_DOUBT
from reasoning_gym_environment.utils.clock import now

from .simulated_api import SimulatedApi
from .simulation import GROUP_SIZE, World

TICK_S = 1.0
"""Seconds between the requests for the status. Fewer requests make the simulation faster."""

REPAIRED_S = 60.0
"""After the last fault, the cluster has this many seconds to recover completely."""

PROGRESS_S = 30.0
"""After the recovery, the newest group of every member must be younger than this."""

SHARE = 0.1
"""The share of each batch that every member reserves."""


@dataclass(frozen=True)
class Fault:
    """A fault that begins `after_s` seconds after the previous fault."""

    after_s: float

    def begin(self, cluster: Cluster) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class RestartApi(Fault):
    """run-api restarts, and then its trainer, which may continue from an earlier step."""

    down_s: float
    trainer_s: float
    steps_back: int

    def begin(self, cluster: Cluster) -> None:
        cluster.api.stop()
        cluster.later(self.down_s, cluster.start_api, self.trainer_s, self.steps_back)


@dataclass(frozen=True)
class LoseRequests(Fault):
    """The gateway, if there is one, refuses the next `refused` requests. The next `lost` answers are lost."""

    refused: int
    lost: int

    def begin(self, cluster: Cluster) -> None:
        cluster.api.gateway_failures = self.refused
        cluster.api.loses_answers = self.lost


@dataclass(frozen=True)
class BlockApi(Fault):
    """run-api encodes a batch, and answers no request meanwhile."""

    seconds: float

    def begin(self, cluster: Cluster) -> None:
        cluster.api.block(self.seconds)


@dataclass(frozen=True)
class EndProcess(Fault):
    """The process of a member ends, by SIGKILL or SIGTERM, and its successor starts later."""

    member: int
    is_killed: bool
    down_s: float

    def begin(self, cluster: Cluster) -> None:
        cluster.members[self.member % len(cluster.members)].end(is_killed=self.is_killed, down_s=self.down_s)


@dataclass(frozen=True)
class BreakDisk(Fault):
    """The disk of a member is full, or hangs."""

    member: int
    is_full: bool
    seconds: float

    def begin(self, cluster: Cluster) -> None:
        member = cluster.members[self.member % len(cluster.members)]
        if self.is_full:
            member.disk_is_full_until = now() + self.seconds
        else:
            member.disk_hangs_until = now() + self.seconds
        member.set_disk()
        cluster.later(self.seconds, member.set_disk)


@dataclass(frozen=True)
class FailInference(Fault):
    """The inference server of a member fails a few times."""

    member: int
    times: int

    def begin(self, cluster: Cluster) -> None:
        cluster.members[self.member % len(cluster.members)].world.fails = self.times


@dataclass(frozen=True)
class Schedule:
    """The settings of a cluster, and its faults."""

    members: int
    are_named: bool
    latency_s: float
    gateway_code: int | None
    faults: Sequence[Fault] = field(default=())


def seconds(*choices: float) -> st.SearchStrategy[float]:
    return st.sampled_from(choices)


members = st.integers(0, 3)
faults = st.one_of(
    st.builds(
        RestartApi,
        after_s=seconds(0.0, 0.5, 20.0, 40.0),
        down_s=seconds(0.01, 1.0, 8.0, 30.0),
        trainer_s=seconds(0.01, 0.5, 5.0),
        steps_back=st.sampled_from([0, 0, 3]),
    ),
    st.builds(
        LoseRequests,
        after_s=seconds(0.0, 0.5, 10.0),
        refused=st.integers(0, 9),
        lost=st.integers(0, 3),
    ),
    st.builds(BlockApi, after_s=seconds(0.5, 10.0), seconds=seconds(5.0, 40.0)),
    st.builds(
        EndProcess,
        after_s=seconds(0.0, 0.3, 3.0, 20.0),
        member=members,
        is_killed=st.booleans(),
        down_s=seconds(0.01, 2.0, 30.0),
    ),
    st.builds(
        BreakDisk,
        after_s=seconds(0.0, 10.0),
        member=members,
        is_full=st.booleans(),
        seconds=seconds(2.0, 30.0, 90.0),
    ),
    st.builds(FailInference, after_s=seconds(1.0, 10.0), member=members, times=st.integers(1, 6)),
)
schedules = st.builds(
    Schedule,
    members=st.integers(1, 4),
    are_named=st.booleans(),
    latency_s=seconds(0.0, 0.05, 1.0),
    gateway_code=st.sampled_from([None, 404, 502, 503]),
    faults=st.lists(faults, max_size=8),
)


class Member:
    """One environment of the training run: its current process, and its earlier processes."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster = cluster
        self._number = number
        self.worlds: list[World] = []
        self.saved: dict[World, int | None] = {}
        """The number in the newest checkpoint at the end of each process. The next process knows this number."""
        self.serving: asyncio.Task[None] | None = None
        self.disk_is_full_until = 0.0
        self.disk_hangs_until = 0.0

    @property
    def world(self) -> World:
        """The current process, or the last process if none is running."""
        return self.worlds[-1]

    @property
    def is_alive(self) -> bool:
        return self.serving is not None

    def start(self) -> None:
        schedule = self._cluster.schedule
        world = World(
            api=self._cluster.api,
            inference=lambda: 4.0,
            workers=2,
            levels=4,
            complexity_mode="curriculum",
            wandb_name="run",
            instance_id=f"member{self._number}" if schedule.are_named else None,
            min_batch_allocation=SHARE,
            inference_weight=1.0,
        )
        self.worlds.append(world)
        self.set_disk()
        self.serving = asyncio.create_task(world.serve_with_checkpoints())

    def set_disk(self) -> None:
        disk = self.world.disk
        disk.is_full = now() < self.disk_is_full_until
        disk.hangs_until = self.disk_hangs_until

    def end(self, *, is_killed: bool, down_s: float) -> None:
        """End the current process, if there is one, and start the next process after `down_s` seconds."""
        ended = self.serving
        if ended is None:
            return
        self.serving = None
        self._cluster.raise_error_of(ended)
        if is_killed:
            self._end_world()
        ended.cancel()
        self._cluster.ending.append(asyncio.create_task(self._start_after(ended, 0.0 if is_killed else None, down_s)))

    async def _start_after(self, ended: asyncio.Task[None], wait_s: float | None, down_s: float) -> None:
        """Start the next process. This does not wait for a killed process, which only cleans up for the simulation."""
        await asyncio.wait([ended], timeout=wait_s)
        if wait_s is None:
            self._end_world()
        await asyncio.sleep(down_s)
        if not self._cluster.is_ending:
            self.start()

    def _end_world(self) -> None:
        self.saved[self.world] = self._saved_number()
        self.world.kill()

    def _saved_number(self) -> int | None:
        folder: Path | None = vars(self.world.run.checkpoints).get("_folder")
        if folder is None or not (folder / LATEST).exists():
            return None
        number: int | None = json.loads((folder / LATEST).read_text())[KEY]["env_id"]
        return number

    @property
    def doubts(self) -> int:
        """How often a registration was in doubt, in all processes."""
        return sum(world.run.failures.counts[IN_DOUBT] for world in self.worlds)


class Cluster:
    """Members at one run-api. `figures` counts what has happened."""

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self.schedule = schedule
        self.api = SimulatedApi(
            latency=self._latency,
            batch_size=8 * GROUP_SIZE,
            trainer_step_s=0.5,
            checkpoint_dir=str(folder),
            checkpoint_interval=10,
        )
        self._random = Random(0)
        self.api.gateway_code = schedule.gateway_code
        self.members = [Member(self, number) for number in range(schedule.members)]
        self.is_ending = False
        self.ending: list[asyncio.Task[None]] = []
        self.figures: Counter[str] = Counter()

    def _latency(self) -> float:
        # The latency is random, so that the environments register again in another order after a restart of run-api.
        return self._random.uniform(0.0, 2.0 * self.schedule.latency_s)

    def later(self, seconds: float, call: Any, *arguments: Any) -> None:
        asyncio.get_running_loop().call_later(seconds, call, *arguments)

    def start_api(self, trainer_s: float, steps_back: int) -> None:
        if not self.api.is_up:
            self.api.start()
            self.later(trainer_s, self.start_trainer, steps_back)

    def start_trainer(self, steps_back: int) -> None:
        if self.api.is_up and not self.api.has_trainer:
            self.api.register_trainer(steps_back=steps_back)

    def raise_error_of(self, serving: asyncio.Task[None]) -> None:
        if serving.done() and not serving.cancelled():
            serving.result()
            raise AssertionError("a run has ended without a signal")

    async def run(self) -> None:
        """Run the schedule, and check the members and the items at the end."""
        trainer = asyncio.create_task(self.api.take_batches())
        try:
            for member in self.members:
                member.start()
            for fault in self.schedule.faults:
                await asyncio.sleep(fault.after_s)
                fault.begin(self)
                self.figures[type(fault).__name__] += 1
            await self._repair()
            await asyncio.sleep(REPAIRED_S)
            self.check_members()
            await self._end()
            self.check_items()
        finally:
            trainer.cancel()

    async def _repair(self) -> None:
        """Wait until every fault is over and every member has a process."""
        for _ in itertools.count():
            if self._is_repaired():
                return
            await asyncio.sleep(1.0)

    def _is_repaired(self) -> bool:
        disks_work_at = max(max(member.disk_is_full_until, member.disk_hangs_until) for member in self.members)
        return (
            self.api.has_trainer
            and self.api.blocked_until <= now()
            and disks_work_at <= now()
            and all(member.is_alive for member in self.members)
        )

    async def _end(self) -> None:
        self.is_ending = True
        for member in self.members:
            member.end(is_killed=False, down_s=0.0)
        await asyncio.gather(*self.ending)

    # --- the checks

    def check_members(self) -> None:
        """Check that every member has its own registration and serves, and that only members have a share."""
        live = [member.world for member in self.members]
        for member in self.members:
            assert member.serving is not None
            self.raise_error_of(member.serving)
            state = member.world.run.state
            assert member.world.run.api.is_available
            assert self.api.owners.get(state.env_id) is member.world, "another environment has its number"
            assert self.api.environments[state.env_id]["connected"], "a live member was signed off"
        for owner, sender in self.api.signed_off:
            assert owner is sender or owner not in live, "another member signed off a live member"
        phantoms = self._phantoms()
        self.figures["phantoms"] += len(phantoms)
        for number in phantoms:
            self._check_explained(number)
        if not phantoms:
            self._check_shares()
            for world in live:
                assert world.started[-1] >= now() - PROGRESS_S, "the member starts no groups"

    def _phantoms(self) -> list[int]:
        """The registrations that have a share, but no live process."""
        numbers = {member.world.run.state.env_id for member in self.members}
        with_share = [
            environment["registered_id"]
            for environment in self.api.environments
            if environment["connected"] and environment["weight"] > 0.0
        ]
        return [number for number in with_share if number not in numbers]

    def _check_explained(self, number: int) -> None:
        """Check that there is a reason why nobody could sign off this registration.

        Either no checkpoint had its number, or the next process was killed before it looked at the mark of its
        predecessor, or an answer of run-api was lost, which a counter shows.
        """
        owner = self.api.owners[number]
        [member] = [member for member in self.members if owner in member.worlds]
        # Members without names may use each other's folders.
        doubts = member.doubts if self.schedule.are_named else sum(other.doubts for other in self.members)
        is_unknown = owner in member.saved and member.saved[owner] != number
        assert is_unknown or doubts or self._has_lost(number), f"environment {number} has a share that nobody uses"

    def _has_lost(self, number: int) -> bool:
        """Whether a process knew this number of its predecessor, but ended before it looked at the mark."""
        for member in self.members:
            for world in member.worlds[:-1]:
                predecessor = world.run.checkpoints.predecessor
                if predecessor is not None and predecessor[0] == number and not world.has_looked:
                    return True
        return False

    def _check_shares(self) -> None:
        statuses = [
            self.api._answer("/status-env", {"env_id": member.world.run.state.env_id}, None) for member in self.members
        ]
        weight = sum(status["env_weight"] for status in statuses)
        assert abs(weight - 1.0) < 1e-9, f"the weights add up to {weight}"
        for status in statuses:
            assert abs(status["unallocated_fraction"] - (1.0 - SHARE * len(self.members))) < 1e-9

    def check_items(self) -> None:
        """Check that each item is in exactly one place, and that the counters match the delivered groups."""
        assert self.api.accepted_without_trainer == 0
        self.figures["groups"] += len(self.api.accepted)
        for member in self.members:
            member.world.check_items()
            self.figures["processes"] += len(member.worlds)


def run_cluster(schedule: Schedule, folder: Path) -> Cluster:
    """Run a schedule on a new cluster, and return the cluster. Raises AssertionError if a check fails."""
    from .virtual_time import run_virtually

    async def go() -> Cluster:
        cluster = Cluster(schedule, folder)
        await cluster.run()
        return cluster

    package = logging.getLogger("reasoning_gym_environment")
    level = package.level
    # The log would have thousands of lines.
    package.setLevel(logging.CRITICAL)
    try:
        with mock.patch.object(serve_loop, "TICK_S", TICK_S):
            return run_virtually(go())
    finally:
        package.setLevel(level)
