"""An inference server inside this process, for tests of what asks it, and retries that do not wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any

from atroposlib.envs.server_handling.server_baseline import AsyncSemWithAdaptiveWeight

from reasoning_gym_environment.inference.chat_tokenizer import Prompt
from reasoning_gym_environment.inference.client import InferenceClient
from reasoning_gym_environment.inference.prompts import RequestParameters
from reasoning_gym_environment.inference.server_pool import RetryPolicy, ServerPool
from reasoning_gym_environment.inference.servers import RawCompletion, Reply, ServerAdapter

QUICK = RetryPolicy(first_delay_s=0.001, max_delay_s=0.01)

Answer = Callable[[Prompt, RequestParameters], Awaitable[Reply]]


class FakeServer(ServerAdapter):
    """Answers as `answer` does, which may raise."""

    def __init__(self, answer: Answer, *, room: int = 1000, address: str = "http://fake/v1") -> None:
        slots = {name: AsyncSemWithAdaptiveWeight(room) for name in ("sem", "eval_sem")}
        config = SimpleNamespace(base_url=address, model_name="fake")
        super().__init__(SimpleNamespace(config=config, **slots), None)
        self._answer = answer

    async def sample(self, prompt: Prompt, sampling: RequestParameters) -> Reply:
        return await self._answer(prompt, sampling)


def tokens(*texts: str, reason: Any = "stop") -> Reply:
    """A completion of one token per byte for each text."""
    return Reply([RawCompletion(reason, list(text.encode()), [-0.5] * len(text.encode())) for text in texts])


def retry_quickly(inference: InferenceClient, *servers: ServerAdapter) -> None:
    """From now on `inference` does not wait between requests; and asks these servers, if there are any."""
    inference.adapters = servers or inference.adapters
    inference.servers = ServerPool(inference.adapters, QUICK, jitter=Random(0))
