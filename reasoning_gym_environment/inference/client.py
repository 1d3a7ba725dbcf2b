"""From a prompt to completions, through Atropos' ServerManager, whatever kind of server stands behind it.

    token servers (vllm, sglang, trl)   managed_server().completion: real token ids and logprobs, fit for training
    openai                              chat.completions: text only; tokens come from the configured tokenizer

atroposlib's client of TRL's vLLM server (`trl vllm-serve`) decodes the token ids away and cannot train; the one at the
end of this file keeps them. Older releases of TRL reply with `completion_ids` alone, newer ones add `prompt_ids` and
`logprobs`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import aiohttp
from atroposlib.envs.server_handling.openai_server import OpenAIServer
from atroposlib.envs.server_handling.server_baseline import APIServer, APIServerConfig, ReasoningConfig
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.envs.server_handling.trl_vllm_server import TrlVllmServer
from tenacity import RetryError
from transformers import AutoTokenizer

from ..errors import InferenceError
from ..records import MASKED, Completion
from .availability import ServerChoice
from .prompts import Message, Prompt, check_tokenizer, render

logger = logging.getLogger(__name__)


request_goes_out: ContextVar[Callable[[], None]] = ContextVar("request_goes_out", default=lambda: None)
"""Called when a request for completions of this context really goes out: Atropos' clients wait for a healthy server and
for room before, and repeat what failed, without a word."""


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled; `split` chooses the server's training or evaluation queue.

    Without `top_p` the server's own default holds.
    """

    n: int
    max_tokens: int
    temperature: float
    top_p: float | None = None
    split: str = "train"

    def as_request(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


class InferenceClient:
    """Samples completions. Raises EnvironmentSetupError for a tokenizer that does not fit."""

    def __init__(self, server: ServerManager, tokenizer: Any, tokenizer_name: str) -> None:
        self._server = server
        for one in server.servers:
            _tell_of_requests(one)
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
        ask = self._complete_with_tokens if self.has_tokens else self._complete_as_chat
        # What is raised inside counts against the server that was chosen.
        with self._choice.one(sampling.split) as manager:
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


def _tell_of_requests(server: Any) -> None:
    """Let each attempt of this client call `request_goes_out`; Atropos' test harness makes none."""

    def told(ask: Callable[..., Any]) -> Callable[..., Any]:
        async def asked(**kwargs: Any) -> Any:
            request_goes_out.get()()
            return await ask(**kwargs)

        return asked

    for name in ("_tokens_and_logprobs_completion_wrapper", "_chat_completion_wrapper"):
        if (ask := getattr(server, name, None)) is not None:
            setattr(server, name, told(ask))


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


class TrlTokenServer(TrlVllmServer):
    """Adds token ids to atroposlib's TRL client. A `/v1` at the end of `base_url` is ignored."""

    reports_logprobs = True

    def __init__(self, config: APIServerConfig, reasoning_config: ReasoningConfig | None = None) -> None:
        # Not the parent's constructor: it loads the tokenizer by the model's name and ignores tokenizer_name.
        APIServer.__init__(self, config, reasoning_config=reasoning_config)
        named = config.tokenizer_name != "none"
        self.tokenizer = AutoTokenizer.from_pretrained(config.tokenizer_name if named else config.model_name)

    async def _tokens_and_logprobs_completion_wrapper(
        self, **kwargs: Any
    ) -> tuple[list[int], list[list[int]], list[list[float]], list[str]]:
        """(prompt ids, and per completion: ids, logprobs, finish reason)."""
        prompt = str(kwargs["prompt"])
        bos = self.tokenizer.bos_token
        request = {
            # vLLM adds its own beginning-of-sequence token to a text prompt.
            "prompts": [prompt.removeprefix(bos) if bos else prompt],
            "n": kwargs.get("n", 1),
            "temperature": kwargs.get("temperature", 1.0),
            "top_p": kwargs.get("top_p", 1.0),
            "max_tokens": kwargs.get("max_tokens", 1024),
        }
        reply = await self._post(f"{server_root(self.config.base_url)}/generate/", request)
        completions: list[list[int]] = reply["completion_ids"]
        prompts = reply.get("prompt_ids")
        return (
            prompts[0] if prompts else list(kwargs["input_ids"]),
            completions,
            self._logprobs(reply, completions),
            ["stop" if self.tokenizer.eos_token_id in ids[-1:] else "length" for ids in completions],
        )

    async def _post(self, url: str, request: dict[str, Any]) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=self.config.timeout)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, json=request) as response,
        ):
            response.raise_for_status()
            reply: dict[str, Any] = await response.json()
            return reply

    def _logprobs(self, reply: dict[str, Any], completions: list[list[int]]) -> list[list[float]]:
        reported = reply.get("logprobs")
        if reported:
            return [[_first(value) for value in row] for row in reported]
        if self.reports_logprobs:
            logger.warning(
                "The TRL server reports no logprobs: groups are sent without inference_logprobs, and trainers that "
                "need them fail (Atropos' example trainer with a TypeError). Newer releases of TRL report them."
            )
            self.reports_logprobs = False
        return [[] for _ in completions]


def server_root(base_url: str | None) -> str:
    """The address of the server itself: `base_url` without a slash or `/v1` at its end."""
    return str(base_url or "").rstrip("/").removesuffix("/v1").rstrip("/")


def _first(value: Any) -> float:
    """A logprob; newer servers wrap each in a list of the top k."""
    return float(value[0] if isinstance(value, list) else value)
