"""The helper that ends the processes of the demo and of the benchmarks."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from testing.processes import stop


async def test_a_process_that_has_ended_gets_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(3)")
    await process.wait()
    signals: list[tuple[int, int]] = []
    # Another process may have its number.
    monkeypatch.setattr(os, "kill", lambda *sent: signals.append(sent))
    assert await stop(process) == 3
    assert signals == []
