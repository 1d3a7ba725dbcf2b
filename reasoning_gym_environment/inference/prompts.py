"""From a question to its prompt, and the room that the prompt leaves for a completion.

    question ── messages ──> messages ── ChatTokenizer.render ──> Prompt: the text and its tokens ──> max_tokens

A sequence must stay below the trainer's `max_token_len`, or Atropos discards its whole group. Therefore the budget of a
completion is the rest of that length after the prompt. The stream checks the length of a prompt when it draws the item,
so that it can draw another item instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..errors import EnvironmentSetupError
from ..records import MIN_COMPLETION_TOKENS, AnswerFormat
from ..settings.components import DEFAULT_PROMPT, TasksSettings
from .chat_tokenizer import ChatTokenizer, Prompt

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

_BOXED_PROMPT = (
    "You are a careful problem solver. Reason about the problem step by step before you commit to a result: explore, "
    "check intermediate steps, and correct yourself where needed.\n\n"
    "When you are done reasoning, give exactly one final answer inside \\boxed{}, for example \\boxed{42}. The box "
    "must hold only the answer itself, in the form that the problem asks for, with no explanation or extra text, and "
    "must appear once, after the reasoning."
)

_TEXT_PROMPT = (
    "You are a careful problem solver. Think about the problem step by step before you reply: explore, check "
    "intermediate steps, and correct yourself where needed.\n\n"
    "Your reply must be the final answer alone, in the form that the problem asks for, with no explanation, no markup "
    "and no extra text."
)

SYSTEM_PROMPTS = {
    AnswerFormat.TAGS: system_prompt,
    AnswerFormat.BOXED: _BOXED_PROMPT,
    AnswerFormat.TEXT: _TEXT_PROMPT,
}
"""The system message that asks for the answer in each format."""

EVAL_BUDGET_FACTOR = 2
"""Evaluation may use this many times the training token budget."""


def _digest(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()[:16]


def system_message(settings: TasksSettings) -> str | None:
    """The text of the system message; None for prompts without a system message."""
    if settings.system_prompt == DEFAULT_PROMPT:
        return SYSTEM_PROMPTS[settings.answer_format]
    return settings.system_prompt


def unnamed_format(settings: TasksSettings) -> str:
    """What to change if the system message of the user does not name the format in which answers are read, or ""."""
    mark = {AnswerFormat.TAGS: "<answer>", AnswerFormat.BOXED: "\\boxed"}.get(settings.answer_format, "")
    message = system_message(settings)
    if message is None or mark in message:
        return ""
    return (
        f"env.system_prompt does not mention {mark}, and answers are read only there: completions without it are "
        "unreadable and score 0. Ask for it in env.system_prompt, or set env.answer_format."
    )


def build_messages(question: str, system: str | None = system_prompt) -> tuple[Message, ...]:
    """The prompt of a problem: the system message, if there is one, then the question as the user message."""
    user = (("role", "user"), ("content", question))
    if system is None:
        return (user,)
    return (("role", "system"), ("content", system)), user


def as_dicts(messages: Iterable[Message | Mapping[str, str]]) -> list[dict[str, str]]:
    """Messages in the form of chat APIs: `[{"role", "content"}, ...]`."""
    return [dict(message) for message in messages]


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
    temperature: float | None
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


def prompt_budget(max_token_length: int) -> int:
    """Tokens that a prompt for training may have: half of the limit, or more of a short limit."""
    # The system prompt and most questions have 512 tokens together.
    ordinary_prompt = min(512, 3 * max_token_length // 4)
    return max(max_token_length // 2, ordinary_prompt)


class Prompts:
    """The prompts of a run: their messages, their rendering, and the tokens that they leave for a completion.

    The limits of the trainer and of the servers are looked up at each use, because both are unknown until a trainer
    has registered and the servers have answered, and both can change.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        settings: TasksSettings,
        *,
        max_token_length: int,
        trainer: Any,
        servers: Any,
    ) -> None:
        """`trainer.max_token_len` is the trainer's limit for a whole sequence, and `servers.context_length` the
        servers' limit for a prompt and its completion together, or None if it is unknown.
        """
        self.identity = {
            "answer_format": settings.answer_format.value,
            "system_prompt": _digest(system_message(settings)),
            **tokenizer.identity,
        }
        """The settings of the prompts, as JSON: two runs or results compare only if these are the same."""
        self._system = system_message(settings)
        self._max_token_length = max_token_length
        self._trainer = trainer
        self._servers = servers
        # Each prompt is rendered twice: to see whether its item fits, and for the request.
        self._rendered = lru_cache(maxsize=64)(lambda messages: tokenizer.render(as_dicts(messages)))
        self.thinking_opened = self.of_question("").thinking_opened
        """Whether the chat template opens the thinking for the model."""

    # --- from a question to a prompt

    def messages(self, question: str) -> tuple[Message, ...]:
        """The messages of a question, which can be hashed."""
        return build_messages(question, self._system)

    def of_question(self, question: str) -> Prompt:
        """The prompt of a question."""
        return self.render(self.messages(question))

    def render(self, messages: Iterable[Message | Mapping[str, str]]) -> Prompt:
        """The prompt of these messages."""
        return self._rendered(tuple(tuple(dict(message).items()) for message in messages))

    # --- in a checkpoint

    def state_dict(self) -> dict[str, Any]:
        """The settings of the prompts."""
        return dict(self.identity)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise EnvironmentSetupError unless the settings are the same as before: a run must not mix two prompts."""
        changed = [name for name, value in self.identity.items() if state[name] != value]
        if changed:
            raise EnvironmentSetupError(
                f"it was written with another {' and '.join(changed)}. Set this as before, or start a new run with "
                "another env.run_id"
            )

    # --- tokens

    @property
    def longest_sequence(self) -> int:
        """The limit of a training sequence, prompt included.

        A sequence stays within `max_token_length` and strictly below the trainer's limit, which is ignored if it is
        zero or negative, as Atropos does.
        """
        trainer_max_tokens = self._trainer.max_token_len
        if trainer_max_tokens > 0:
            return min(self._max_token_length, trainer_max_tokens - 1)
        return self._max_token_length

    @property
    def longest_evaluation(self) -> int:
        """The limit of a sequence of an evaluation, which has no trainer."""
        return EVAL_BUDGET_FACTOR * self._max_token_length

    def room_for_training(self, prompt_tokens: int) -> int | None:
        """Tokens that a completion for training may have, or None if the prompt leaves no room for a completion."""
        return self._room(self.longest_sequence, prompt_tokens)

    def room_for_evaluation(self, prompt_tokens: int) -> int | None:
        """Like `room_for_training`, for a completion of an evaluation."""
        return self._room(self.longest_evaluation, prompt_tokens)

    def too_long(self, question: str) -> str:
        """Why training skips the prompt of a question, or "" if the prompt fits."""
        prompt_tokens = len(self.of_question(question).tokens)
        longest = prompt_budget(self._max_token_length)
        if prompt_tokens > longest:
            return f"a prompt has {prompt_tokens} tokens, and env.max_token_length allows {longest} for a prompt"
        if self.room_for_training(prompt_tokens) is None:
            return f"a prompt of {prompt_tokens} tokens leaves no room for a completion"
        return ""

    def _room(self, limit: int, prompt_tokens: int) -> int | None:
        context_length = self._servers.context_length or limit
        room = min(limit, context_length) - prompt_tokens
        return room if room >= MIN_COMPLETION_TOKENS else None
