"""Atropos' example trainer in the loop: its inference server, its registration and its reading of batches are the real
ones, and so are run-api and the environment.

Only what needs a GPU is not: vLLM's engine is a student, tensors are numpy arrays, and model and loss are not run.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import multiprocessing
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import uvicorn

from reasoning_gym_environment.demo.main import free_port

from ..env_support import RIGHT, SILENT, WRONG, ReadyEnv, Student
from ..support import trajectory_api, wait_for

LOGPROB = -0.25


class Tensor(np.ndarray):
    def view(self, *shape: int) -> Tensor:  # type: ignore[override]
        return self.reshape(shape)


def tensor(array: np.ndarray) -> Tensor:
    assert array.dtype.kind in "if", f"no tensor can be made of {array.dtype}"
    return array.view(Tensor)


@dataclass
class SamplingParams:
    """Of vLLM's parameters those that we send; another name is an error, as there."""

    n: int
    temperature: float
    top_p: float
    max_tokens: int
    logprobs: int
    output_kind: str


TORCH = {"Tensor": Tensor, "tensor": tensor, "cuda": SimpleNamespace(is_available=lambda: False)}
VLLM: dict[str, dict[str, Any]] = {
    "": {},
    ".engine.arg_utils": {"AsyncEngineArgs": object},
    ".entrypoints.launcher": {"serve_http": object},
    ".entrypoints.utils": {"with_cancellation": lambda handler: handler},
    ".envs": {},
    ".logger": {"init_logger": logging.getLogger},
    ".outputs": {"RequestOutput": object},
    ".sampling_params": {"RequestOutputKind": SimpleNamespace(FINAL_ONLY="final"), "SamplingParams": SamplingParams},
    ".usage.usage_lib": {"UsageContext": object},
    ".utils": {"random_uuid": lambda: "0"},
    ".v1.engine.async_llm": {"AsyncLLM": object},
    ".version": {"__version__": "0"},
}


@pytest.fixture(scope="module")
def trainer() -> SimpleNamespace:
    """Those of its modules that do not need the rest of the package."""
    spec = importlib.util.find_spec("example_trainer")
    assert spec is not None
    stubs = {"torch": TORCH, "example_trainer": {"__path__": spec.submodule_search_locations}}
    stubs |= {f"vllm{name}": content for name, content in VLLM.items()}
    with pytest.MonkeyPatch.context() as patch:
        # Nobody else is to meet these, or what was imported with them, or what the server sets for its process.
        for name, content in stubs.items():
            module = ModuleType(name)
            vars(module).update(content)
            patch.setitem(sys.modules, name, module)
        patch.setattr(multiprocessing, "set_start_method", lambda *args, **options: None)
        for variable in ("VLLM_USE_V1", "VLLM_WORKER_MULTIPROC_METHOD"):
            patch.setenv(variable, "")
        names = ("api", "config", "data", "vllm_api_server")
        parts = {name: importlib.import_module(f"example_trainer.{name}") for name in names}
        for name in names:
            del sys.modules[f"example_trainer.{name}"]
    return SimpleNamespace(**parts)


class Engine:
    """What the server asks of vLLM's engine, with a student in it."""

    def __init__(self, student: Student, tokenizer: Any) -> None:
        self._student = student
        self.tokenizer = tokenizer

    async def generate(
        self, prompt: dict[str, list[int]], sampling: SamplingParams, request_id: str, lora_request: None
    ) -> AsyncIterator[Any]:
        ids = prompt["prompt_token_ids"]
        outputs = [self._completion(self.tokenizer.decode(ids), sampling.max_tokens) for _ in range(sampling.n)]
        yield SimpleNamespace(prompt=None, prompt_token_ids=ids, outputs=outputs)

    def _completion(self, prompt: str, limit: int) -> Any:
        text = self._student(prompt)
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id][:limit]
        return SimpleNamespace(
            text=text,
            token_ids=ids,
            finish_reason="length" if len(ids) == limit else "stop",
            logprobs=[{token: SimpleNamespace(logprob=LOGPROB)} for token in ids],
        )


@contextmanager
def inference_server(trainer: SimpleNamespace, engine: Engine) -> Iterator[str]:
    trainer.vllm_api_server.engine = engine
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(trainer.vllm_api_server.app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started, "the inference server")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.should_exit = True
        thread.join()


async def test_groups_are_sampled_by_its_server_and_load_in_its_trainer(
    ready_env: ReadyEnv, trainer: SimpleNamespace, byte_tokenizer: Any, tmp_path: Path
) -> None:
    student = Student()
    settings = {"batch_size": 2, "gradient_accumulation_steps": 4, "seq_len": 1024, "save_path": str(tmp_path)}
    with trajectory_api(tmp_path) as api, inference_server(trainer, Engine(student, byte_tokenizer)) as url:
        config = trainer.config.TrainingConfig(model_name="student", atropos_url=api, **settings)
        trainer.api.register_trainer(config)
        assert trainer.api.get_batch(api) == {"batch": None}
        env = await ready_env(url, include_tasks="chain_sum", rollout_server_url=api)
        await env.register_env()
        await env.get_server_info()
        for plan in ((RIGHT, WRONG), (RIGHT, WRONG, RIGHT, SILENT + "." * 2000)):
            item = await env.get_next_item()
            student.learn(item[1])
            student.follow(*plan)
            group, _ = await env.collect_trajectories(item)
            await env.handle_send_to_api(group, item)
        (batch,), _ = await asyncio.to_thread(trainer.data.get_data, 2, 1024, api)

    assert [len(part) for part in batch] == [4] * 5
    tokens, labels, advantages, temperatures, logprobs = (np.concatenate(part) for part in batch)
    assert tokens.shape == labels.shape == logprobs.shape == (8, 1024), "1023 tokens, up to a multiple of 64"
    trained = labels != -100
    assert trained.any(axis=1).all()
    assert (labels[:, :-1] == tokens[:, 1:])[trained[:, :-1]].all()
    assert (logprobs == np.where(trained, LOGPROB, 1.0)).all()
    assert sorted(advantages[:, 0]) == [-1.0] * 3 + [0.0] + [1.0] * 4
    assert (temperatures == 1.0).all()
