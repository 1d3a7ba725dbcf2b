"""From a prompt to completions, through Atropos' ServerManager, whatever kind of server stands behind it.

token servers (vllm, sglang, trl)   managed_server().completion: real token ids and logprobs, fit for training
openai                              chat.completions: text only; tokens come from the configured tokenizer
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.envs.server_handling.openai_server import OpenAIServer
from atroposlib.envs.server_handling.server_manager import ServerManager
from tenacity import RetryError

from ..errors import InferenceError
from ..records import MASKED, Completion
from .availability import ServerChoice
from .prompts import Message, Prompt, check_tokenizer, render


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled; `split` chooses the server's training or evaluation queue."""

    n: int
    max_tokens: int
    temperature: float
    top_p: float | None = None
    split: str = "train"

    def as_request(self) -> dict[str, Any]:
        request: dict[str, Any] = {
            "n": self.n,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "split": self.split,
        }
        if self.top_p is not None:
            request["top_p"] = self.top_p
        return request


class InferenceClient:
    """Samples completions. Raises EnvironmentSetupError for a tokenizer that does not fit."""

    def __init__(self, server: ServerManager, tokenizer: Any, tokenizer_name: str) -> None:
        self._server = server
        self._choice = ServerChoice(server)
        self._tokenizer = tokenizer
        check_tokenizer(tokenizer, tokenizer_name)

    @property
    def has_tokens(self) -> bool:
        """Whether the servers report token ids, as training needs."""
        return not isinstance(self._server.servers[0], OpenAIServer)

    def metrics(self) -> dict[str, float]:
        """What became of several servers; empty while all work."""
        return self._choice.metrics()

    def render(self, messages: Sequence[Message]) -> Prompt:
        """The prompt of these messages; see `prompts.render`."""
        return render(self._tokenizer, messages)

    async def complete(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Exactly `sampling.n` completions. Raises InferenceError if the server does not deliver them."""
        with self._choice.one(sampling.split) as manager:
            return await self._complete_on(manager, prompt, sampling)

    async def _complete_on(self, manager: ServerManager, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        ask = self._complete_with_tokens if self.has_tokens else self._complete_as_chat
        # Clients of four kinds of server raise their own errors, usually wrapped by tenacity.
        try:
            completions = await ask(manager, prompt, sampling)
        except Exception as error:
            raise InferenceError(_root_cause(error)) from error
        if len(completions) != sampling.n:
            raise InferenceError(f"asked for {sampling.n} completions, got {len(completions)}")
        return completions

    async def _complete_with_tokens(
        self, manager: ServerManager, prompt: Prompt, sampling: Sampling
    ) -> list[Completion]:
        async with manager.managed_server(tokenizer=self._tokenizer) as managed:
            response = await managed.completion(prompt=prompt.text, **sampling.as_request())
            nodes = managed.get_state()["nodes"]
            reports_logprobs = getattr(managed.server, "reports_logprobs", True)
        return [
            Completion(
                text=choice.text,
                tokens=node.tokens,
                masks=node.masked_tokens,
                logprobs=node.logprobs if reports_logprobs else None,
                finish_reason=str(choice.finish_reason),
            )
            for choice, node in zip(response.choices, nodes, strict=True)
        ]

    async def _complete_as_chat(self, manager: ServerManager, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="n kwarg is ignored")
            response = await manager.chat_completion(messages=prompt.messages, **sampling.as_request())
        return [self._tokenized(prompt, choice) for choice in response.choices]

    def _tokenized(self, prompt: Prompt, choice: Any) -> Completion:
        """A chat choice with tokens from our tokenizer: prompt + text, as the model would have read it.

        The text is tokenized as it came, not through the chat template, because templates of reasoning models
        drop the thinking of earlier turns.
        """
        text = _message_text(choice.message, thinking_opened=prompt.thinking_opened)
        tokens = list(self._tokenizer.encode(text, add_special_tokens=False))
        if choice.finish_reason == "stop" and self._tokenizer.eos_token_id is not None:
            tokens.append(self._tokenizer.eos_token_id)
        return Completion(
            text=text,
            tokens=prompt.tokens + tokens,
            masks=[MASKED] * len(prompt.tokens) + tokens,
            logprobs=None,
            finish_reason=str(choice.finish_reason),
        )


def _message_text(message: Any, *, thinking_opened: bool = False) -> str:
    """The reply, with the reasoning put back in front where the server split it off into its own field.

    Reasoning with no content after it was cut off, so it stays open.
    """
    content = message.content or ""
    extra = getattr(message, "model_extra", None) or {}
    reasoning = extra.get("reasoning_content") or extra.get("reasoning")
    if not isinstance(reasoning, str) or not reasoning or "</think>" in content:
        return content
    opened = reasoning.strip() if thinking_opened else f"<think>\n{reasoning.strip()}"
    return f"{opened}\n</think>\n{content}" if content else opened


def _root_cause(error: BaseException) -> str:
    """One line about what really went wrong, below the layers of retries."""
    while isinstance(error, RetryError) and error.last_attempt.exception() is not None:
        error = error.last_attempt.exception() or error
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
