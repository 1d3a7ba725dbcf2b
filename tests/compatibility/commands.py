"""The commands as tests run them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testing.fake_api import FakeApi
from testing.process_table import until

Command = Callable[..., Any]


async def serve(env: Any, api: FakeApi, is_done: Callable[[], Any]) -> None:
    """The command `serve`, whose trainer takes a step, until the condition is true. Then the run is over."""
    serving = asyncio.ensure_future(env.env_manager())
    try:
        await until(lambda: serving.done() or env.state.env_id is not None)
        api.step += 1
        await until(lambda: serving.done() or is_done())
    finally:
        before, api.step = api.step, api.num_steps + 1
        await asyncio.wait_for(serving, 60)
        api.step = before


async def process(env: Any) -> list[dict[str, Any]]:
    """The command `process`. Returns the lines of its file."""
    await env.process_manager()
    with Path(env.config.data_path_to_save_groups).open(encoding="utf-8") as file:  # noqa: ASYNC230
        return [json.loads(line) for line in file]
