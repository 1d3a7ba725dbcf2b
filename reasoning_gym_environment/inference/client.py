"""Messages -> completions: prompt rendering, the token budget, and the two kinds of inference server.

    token servers (vllm, sglang, trl)   managed_server().completion: real token ids and logprobs, fit for training
    openai                              chat.completions: text only; tokens come from the configured tokenizer

A sequence must stay below the trainer's `max_token_len`, or Atropos throws its whole group away, so the budget
of a completion is what the prompt leaves of it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from atroposlib.envs.server_handling.openai_server import OpenAIServer
from atroposlib.envs.server_handling.server_manager import ServerManager
from tenacity import RetryError

from ..errors import EnvironmentSetupError, InferenceError
from ..records import MASKED, Completion
from ..scoring.rewards import MIN_COMPLETION_TOKENS
from .availability import ServerChoice
from .prompts import Message, as_dicts, build_messages

logger = logging.getLogger(__name__)

EVAL_BUDGET_FACTOR = 2
"""Evaluation may use this many times the training token budget."""

_TAGS = "<think>a</think><answer>b</answer>"


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt: its messages, the text sent, and that text's token ids."""

    messages: list[dict[str, str]]
    text: str
    tokens: list[int]

    @property
    def thinking_opened(self) -> bool:
        """Whether the chat template already opened `<think>` for the model."""
        return self.text.rstrip().lower().endswith("<think>")


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
    """Samples completions through Atropos' ServerManager, whatever kind of server stands behind it."""

    def __init__(self, server: ServerManager, tokenizer: Any, tokenizer_name: str) -> None:
        self._server = server
        self._choice = ServerChoice(server)
        self._tokenizer = tokenizer
        self._check_tokenizer(tokenizer_name)

    @property
    def has_tokens(self) -> bool:
        """Whether the servers report token ids, as training needs."""
        return not isinstance(self._server.servers[0], OpenAIServer)

    def metrics(self) -> dict[str, float]:
        """What became of several servers; empty while all work."""
        return self._choice.metrics()

    def render(self, messages: Sequence[Message]) -> Prompt:
        """Apply the chat template and tokenize; a beginning-of-sequence token is counted once."""
        chat = as_dicts(messages)
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        tokens = list(self._tokenizer.encode(text, add_special_tokens=True))
        if len(tokens) >= 2 and tokens[0] == tokens[1] == self._tokenizer.bos_token_id:
            tokens = tokens[1:]
        return Prompt(messages=chat, text=text, tokens=tokens)

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

    def _check_tokenizer(self, name: str) -> None:
        if not getattr(self._tokenizer, "chat_template", None):
            raise EnvironmentSetupError(
                f"The tokenizer {name!r} has no chat template; set env.tokenizer_name to that of a chat model."
            )
        try:
            self.render(build_messages("?"))
        except jinja2.TemplateError as error:
            raise EnvironmentSetupError(
                f"The chat template of the tokenizer {name!r} does not take a system and a user message ({error}); "
                "set env.tokenizer_name to one that does."
            ) from error
        ids = self._tokenizer.encode(_TAGS, add_special_tokens=False)
        if self._tokenizer.decode(ids, skip_special_tokens=True).replace(" ", "") != _TAGS:
            raise EnvironmentSetupError(
                f"The tokenizer {name!r} drops <think> or <answer> tags when it decodes, so no answer could be "
                "found; use a tokenizer in which they are not special tokens."
            )


def completion_budget(
    prompt_tokens: int, *, max_token_length: int, trainer_max_tokens: int, split: str = "train"
) -> int | None:
    """How many tokens a completion may have, or None if the prompt leaves no room for one.

    Training sequences stay within `max_token_length` and strictly below the trainer's limit (ignored when it is
    zero or negative, as Atropos does). Evaluation has twice `max_token_length`, and no trainer.
    """
    if split == "train":
        limit = min(max_token_length, trainer_max_tokens - 1) if trainer_max_tokens > 0 else max_token_length
    else:
        limit = EVAL_BUDGET_FACTOR * max_token_length
    room = limit - prompt_tokens
    return room if room >= MIN_COMPLETION_TOKENS else None


def prompt_check(inference: InferenceClient, budget: Callable[..., int | None], limit: int) -> Callable[[str], str]:
    """A function from a question to what is wrong with the length of its prompt, or ""."""

    def too_long(question: str) -> str:
        length = len(inference.render(build_messages(question)).tokens)
        if length > limit:
            return f"a prompt has {length} tokens, at most {limit} fit the prompt budget"
        return "" if budget(length) is not None else f"a prompt of {length} tokens leaves no room for a completion"

    return too_long


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
