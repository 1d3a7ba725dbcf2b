"""Atropos' example trainer reads our batches: its registration, its loading of data and run-api are the real ones.

Tensors are numpy arrays, and model and loss are not run.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from reasoning_gym_environment.atropos.serve import register
from testing.env_support import RIGHT, SILENT, WRONG, ReadyEnv, Student
from testing.inference_server import ThreadedMockServer
from testing.process_table import until
from testing.support import trajectory_api


class Tensor(np.ndarray):
    def view(self, *shape: int) -> Tensor:  # type: ignore[override]
        return self.reshape(shape)


@pytest.fixture
def trainer() -> Iterator[SimpleNamespace]:
    """Those of its modules that do not need the rest of the package."""
    spec = importlib.util.find_spec("example_trainer")
    assert spec is not None
    package = ModuleType("example_trainer")
    package.__path__ = list(spec.submodule_search_locations or ())
    torch = Mock(Tensor=Tensor, tensor=lambda array: array.view(Tensor))
    torch.cuda.is_available.return_value = False
    names = ("api", "config", "data")
    with pytest.MonkeyPatch.context() as patch:
        # Nobody else is to meet these, or what is imported with them.
        patch.setitem(sys.modules, "torch", torch)
        patch.setitem(sys.modules, "example_trainer", package)
        yield SimpleNamespace(**{name: importlib.import_module(f"example_trainer.{name}") for name in names})
        for name in names:
            del sys.modules[f"example_trainer.{name}"]


async def test_groups_load_in_its_trainer(
    ready_env: ReadyEnv, trainer: SimpleNamespace, byte_tokenizer: Any, tmp_path: Path
) -> None:
    student = Student()
    settings = {"batch_size": 2, "gradient_accumulation_steps": 4, "seq_len": 1024, "save_path": str(tmp_path)}
    sent = []
    with trajectory_api(tmp_path) as api, ThreadedMockServer(student, byte_tokenizer) as server:
        config = trainer.config.TrainingConfig(model_name="student", atropos_url=api, **settings)
        trainer.api.register_trainer(config)
        assert trainer.api.get_batch(api) == {"batch": None}
        env = await ready_env(server.base_url, include_tasks="chain_sum", rollout_server_url=api)
        await register(env)
        await env.run.api.take_over_limits()
        for plan in ((RIGHT, WRONG), (RIGHT, WRONG, RIGHT, SILENT + "." * 2000)):
            item = await env.get_next_item()
            student.learn(item[1])
            student.follow(*plan)
            group, _ = await env.collect_trajectories(item)
            sent += group["inference_logprobs"]
            await env.handle_send_to_api(group, item)
            await until(lambda: not env.run.api.in_delivery)
        (batch,), _ = await asyncio.to_thread(trainer.data.get_data, 2, 1024, api)

    assert [len(part) for part in batch] == [4] * 5
    tokens, labels, advantages, temperatures, logprobs = (np.concatenate(part) for part in batch)
    assert tokens.shape == labels.shape == logprobs.shape == (8, 1024), "1023 tokens, up to a multiple of 64"
    trained = labels != -100
    assert trained.any(axis=1).all()
    assert (labels[:, :-1] == tokens[:, 1:])[trained[:, :-1]].all()
    assert (logprobs[~trained] == 1.0).all() and (logprobs[trained] <= 0.0).all()
    assert sorted(logprobs[trained]) == pytest.approx(sorted(one for row in sent for one in row if one <= 0.0))
    assert sorted(advantages[:, 0]) == [-1.0] * 3 + [0.0] + [1.0] * 4
    assert (temperatures == 1.0).all()
