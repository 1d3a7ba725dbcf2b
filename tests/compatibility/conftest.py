"""Environments of users, with a mock inference server and a trajectory API in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import ReasoningGymEnv
from testing.fake_api import FakeApi
from testing.inference_server import ThreadedMockServer
from testing.support import AddingStudent

from .commands import Command


@pytest.fixture
def server(byte_tokenizer: Any) -> Iterator[ThreadedMockServer]:
    """Every other completion is right."""
    with ThreadedMockServer(AddingStudent(wrong_every=2), byte_tokenizer) as server:
        yield server


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApi]:
    api = FakeApi(checkpoint_dir=str(tmp_path / "checkpoints"), checkpoint_interval=1, max_token_len=-1)
    await api.listen()
    yield api
    await api.close()


@pytest.fixture
def made(make_env: Any, server: ThreadedMockServer, api: FakeApi, tmp_path: Path) -> Command:
    """`made(kind, **settings)`: an environment of this class."""

    def make(kind: type[ReasoningGymEnv], **settings: Any) -> Any:
        values = {
            "include_tasks": "chain_sum",
            "rollout_server_url": api.address,
            "batch_size": 16,
            "total_steps": 3,
            "data_path_to_save_groups": None,
            "steps_per_eval": 0,
            # The last step of the trainer makes groups old that are still being sent.
            "max_staleness_steps": -1,
            **settings,
        }
        return make_env(server.base_url, kind, **values)

    return make
