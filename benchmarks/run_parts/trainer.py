"""A trainer reduced to its dealings with run-api: registers, takes batches as fast as they come, counts groups."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import aiohttp

GROUP_SIZE = 8
POLL_S = 0.05
COUNT_EVERY_S = 0.5


class Trainer:
    """`async with`; then `register`, and `run` until it is cancelled."""

    def __init__(self, api: str, checkpoints: Path, groups_per_batch: int, max_tokens: int) -> None:
        self._api = api
        self._checkpoints = checkpoints
        self._groups_per_batch = groups_per_batch
        self._max_tokens = max_tokens
        self._taken = 0
        self.received: list[tuple[float, int]] = []
        """Times on the monotonic clock, and the groups that had reached run-api until then; every COUNT_EVERY_S."""

    async def __aenter__(self) -> Trainer:
        # Unpacking gzip here, and packing it in run-api, is not what is measured.
        timeout = aiohttp.ClientTimeout(total=60)
        self._session = aiohttp.ClientSession(self._api, headers={"Accept-Encoding": "identity"}, timeout=timeout)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._session.close()

    async def register(self) -> None:
        """Wait until run-api answers, register, and ask for a batch, which lets environments in."""
        registration = {
            "wandb_group": "benchmark",
            "wandb_project": "benchmark",
            "batch_size": GROUP_SIZE * self._groups_per_batch,
            "max_token_len": self._max_tokens,
            "checkpoint_dir": str(self._checkpoints / "checkpoints"),
            "save_checkpoint_interval": 5,
            "starting_step": 0,
            "num_steps": 10**6,
        }
        while True:
            try:
                async with self._session.post("/register", json=registration) as response:
                    response.raise_for_status()
                    break
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(POLL_S)
        await self._take()

    async def run(self) -> None:
        while True:
            has_batch = await self._take()
            await self._count()
            if not has_batch:
                await asyncio.sleep(POLL_S)

    async def _take(self) -> bool:
        async with self._session.get("/batch") as response:
            batch = (await response.json())["batch"]
        if batch is None:
            return False
        self._taken += len(batch)
        return True

    async def _count(self) -> None:
        """Note the groups so far, if it is time."""
        if not self.received or time.monotonic() - self.received[-1][0] >= COUNT_EVERY_S:
            async with self._session.get("/status") as response:
                queued = int((await response.json())["queue_size"])
            self.received.append((time.monotonic(), self._taken + queued))
