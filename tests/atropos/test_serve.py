"""The command `serve`, without a loop: how it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from reasoning_gym_environment.atropos import serve as module
from reasoning_gym_environment.trainer.run_state import RunState


@pytest.mark.parametrize("trainer_steps", [-1, 250, 200, 251])
async def test_an_environment_that_ends_before_its_trainer_says_so(
    trainer_steps: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("check_serve", "check_first_request"):
        monkeypatch.setattr(module.preflight, name, AsyncMock())
    for name in ("refuse_testing", "raise_open_file_limit"):
        monkeypatch.setattr(module.preflight, name, Mock())
    loop = SimpleNamespace(run=AsyncMock(), close=AsyncMock())
    monkeypatch.setattr(module, "ServeLoop", Mock(return_value=loop))
    monkeypatch.setattr(module, "register", AsyncMock())
    monkeypatch.setattr(module, "sign_off_predecessor", AsyncMock())
    env: Any = Mock(setup=AsyncMock(), setup_wandb=AsyncMock())
    env.run.state = RunState(4, 16, 250, trainer_steps=trainer_steps)
    env.run.api.take_over_limits = AsyncMock()
    await module.serve(env)
    is_early = trainer_steps > 250
    assert env.run.state.ends_before_trainer == is_early
    assert ("250 steps, before the trainer, which makes 251." in caplog.text) == is_early
    loop.close.assert_awaited_once()
