"""From a question to its prompt, and the room that the prompt leaves for a completion.

    question ── build_messages ──> messages ── render ──> Prompt: the text and its tokens ── TokenBudget ──> max_tokens

A sequence must stay below the trainer's `max_token_len`, or Atropos discards its whole group. Therefore the budget of a
completion is the rest of that length after the prompt. The stream checks the length of a prompt when it draws the item,
so that it can draw another item instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jinja2

from ..errors import EnvironmentSetupError
from ..records import MIN_COMPLETION_TOKENS

Message = tuple[tuple[str, str], tuple[str, str]]
"""A chat message that can be hashed: `dict(message)` gives `{"role": ..., "content": ...}`."""

system_prompt = (
    "You are a careful problem solver. Reason about the problem step by step before you commit to a "
    "result: explore, check intermediate steps, and correct yourself where needed. Put all of this "
    "reasoning inside <think> </think> tags.\n\n"
    "When you are done reasoning, close the thinking section and give exactly one final answer inside "
    "<answer></answer> tags, for example <answer>42</answer>. The answer tags must hold only the answer "
    "itself, in the form that the problem asks for, with no explanation or extra text, and must appear "
    "once, after the thinking section."
)

EVAL_BUDGET_FACTOR = 2
"""Evaluation may use this many times the training token budget."""

_TAGS = "<think>a</think><answer>b</answer>"


def build_messages(question: str) -> tuple[Message, Message]:
    """The prompt of a problem: the system message, then the question as the user message."""
    system = (("role", "system"), ("content", system_prompt))
    user = (("role", "user"), ("content", question))
    return system, user


def as_dicts(messages: Iterable[Message | Mapping[str, str]]) -> list[dict[str, str]]:
    """Messages in the form of chat APIs: `[{"role", "content"}, ...]`."""
    return [dict(message) for message in messages]


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt: its messages, its text, and the token ids of the text."""

    messages: list[dict[str, str]]
    text: str
    tokens: list[int]

    @property
    def thinking_opened(self) -> bool:
        """Whether the chat template already opened `<think>` for the model."""
        return self.text.rstrip().lower().endswith("<think>")


@dataclass(frozen=True)
class RequestParameters:
    """How completions are sampled. `split` chooses the server's training or evaluation queue.

    Without `top_p`, vLLM and SGLang sample from the whole distribution, and other servers use their own default. A
    request fails once all servers have been unavailable for `patience_s` seconds; with None it waits without limit. A
    request that a server has not answered after `timeout_s` seconds fails and is not repeated; with None, the timeout
    of the server applies alone.
    """

    n: int
    max_tokens: int
    temperature: float
    top_p: float | None = None
    split: str = "train"
    patience_s: float | None = None
    timeout_s: float | None = None

    @property
    def body(self) -> dict[str, Any]:
        """The sampling parameters as the body of a request names them."""
        given = {
            "n": self.n,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
        }
        return {name: value for name, value in given.items() if value is not None}


def render(tokenizer: Any, messages: Sequence[Message | dict[str, str]]) -> Prompt:
    """Apply the chat template and tokenize; a beginning-of-sequence token is counted once."""
    chat = as_dicts(messages)
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    tokens = list(tokenizer.encode(text, add_special_tokens=True))
    # A template that writes the token itself gets a second one from the tokenizer.
    if len(tokens) >= 2 and tokens[0] == tokens[1] == tokenizer.bos_token_id:
        tokens = tokens[1:]
    return Prompt(messages=chat, text=text, tokens=tokens)


class EstimatedTokens:
    """A substitute for a missing tokenizer. It splits text into pieces, somewhat more than a model's tokens.

    A piece is up to five letters with the space before them, or any other byte. The id of a piece holds its bytes, so
    decoding restores the text. No model knows these ids.
    """

    chat_template = "role and content of each message"
    bos_token = None
    bos_token_id = None
    eos_token = "<|end|>"
    eos_token_id = 0

    def apply_chat_template(self, chat: Sequence[dict[str, str]], **_: Any) -> str:
        turns = [f"<|{message['role']}|>\n{message['content']}{self.eos_token}\n" for message in chat]
        return "".join([*turns, "<|assistant|>\n"])

    def encode(self, text: str, **_: Any) -> list[int]:
        pieces = re.findall(rb"(?s) ?[A-Za-z]{1,5}|.", text.encode(errors="replace"))
        return [int.from_bytes(piece, "big") for piece in pieces]

    def decode(self, ids: Iterable[int], **_: Any) -> str:
        pieces = [piece.to_bytes(8, "big").lstrip(b"\0") for piece in ids]
        return b"".join(pieces).decode(errors="replace")


def check_tokenizer(tokenizer: Any, name: str) -> None:
    """Raise EnvironmentSetupError unless the tokenizer renders our messages and keeps the tags of answers."""
    if not getattr(tokenizer, "chat_template", None):
        raise EnvironmentSetupError(
            f"The tokenizer {name!r} has no chat template; set env.tokenizer_name to the tokenizer of a chat model."
        )
    try:
        render(tokenizer, build_messages("?"))
    except jinja2.TemplateError as error:
        raise EnvironmentSetupError(
            f"The chat template of the tokenizer {name!r} does not take a system and a user message ({error}); "
            "set env.tokenizer_name to the tokenizer of a chat model."
        ) from error
    ids = tokenizer.encode(_TAGS, add_special_tokens=False)
    if tokenizer.decode(ids, skip_special_tokens=True).replace(" ", "") != _TAGS:
        raise EnvironmentSetupError(
            f"The tokenizer {name!r} drops <think> or <answer> tags when it decodes, so no answer could be found; "
            "use a tokenizer in which they are not special tokens."
        )


def prompt_budget(max_token_length: int) -> int:
    """Tokens that a prompt for training may have: half of the limit, or more of a short limit."""
    # The system prompt and most questions have 512 tokens together.
    ordinary_prompt = min(512, 3 * max_token_length // 4)
    return max(max_token_length // 2, ordinary_prompt)


class Trainer(Protocol):
    """The trainer's limit for a whole sequence, in tokens; there is none if it is not positive."""

    max_token_len: int


class Servers(Protocol):
    """The servers' limit for a prompt and its completion together, and the length of a prompt, in tokens."""

    @property
    def context_length(self) -> int | None:
        """None if it is unknown."""

    def prompt_length(self, question: str) -> int:
        """Tokens in the prompt of a question."""


@dataclass(frozen=True)
class TokenBudget:
    """The limits of a run, in tokens.

    The limits of the trainer and of the servers are looked up at each use, because both are unknown until a trainer
    has registered and the servers have answered, and both can change.
    """

    max_token_length: int
    trainer: Trainer
    servers: Servers

    @property
    def longest_sequence(self) -> int:
        """The limit of a training sequence, prompt included.

        A sequence stays within `max_token_length` and strictly below the trainer's limit, which is ignored if it is
        zero or negative, as Atropos does.
        """
        trainer_max_tokens = self.trainer.max_token_len
        if trainer_max_tokens > 0:
            return min(self.max_token_length, trainer_max_tokens - 1)
        return self.max_token_length

    def of_completion(self, prompt_tokens: int) -> int | None:
        """Tokens that a completion for training may have, or None if the prompt leaves no room for a completion."""
        return self._room(self.longest_sequence, prompt_tokens)

    def of_evaluation(self, prompt_tokens: int) -> int | None:
        """Like `of_completion`, for evaluation, which has twice `max_token_length` and no trainer."""
        return self._room(EVAL_BUDGET_FACTOR * self.max_token_length, prompt_tokens)

    def too_long(self, question: str) -> str:
        """Why training skips the prompt of a question, or "" if the prompt fits."""
        prompt_tokens = self.servers.prompt_length(question)
        longest = prompt_budget(self.max_token_length)
        if prompt_tokens > longest:
            return f"a prompt has {prompt_tokens} tokens, and env.max_token_length allows {longest} for a prompt"
        if self.of_completion(prompt_tokens) is None:
            return f"a prompt of {prompt_tokens} tokens leaves no room for a completion"
        return ""

    def _room(self, limit: int, prompt_tokens: int) -> int | None:
        context_length = self.servers.context_length or limit
        room = min(limit, context_length) - prompt_tokens
        return room if room >= MIN_COMPLETION_TOKENS else None
