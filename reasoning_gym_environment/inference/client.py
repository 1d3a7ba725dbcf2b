"""From a prompt to completions, through Atropos' ServerManager, whatever kind of server stands behind it.

    token servers (vllm, sglang, trl)   real token ids and logprobs, fit for training once they are checked
    openai                              chat.completions: text only; tokens come from the configured tokenizer

What a server refuses is asked otherwise where it can be (dialects); a reply that is not what was asked for is an error.
A completion whose ids or logprobs a trainer cannot use has a flaw:
it is mended, so that it does no harm where it is sent without advantage, and its server is named. This is done before
anything is decoded, for a tokenizer leaves out the ids that it does not know.
"""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from atroposlib.envs.server_handling.openai_server import OpenAIServer
from atroposlib.envs.server_handling.server_manager import ServerManager
from tenacity import RetryError

from ..errors import EnvironmentSetupError, GivenUpError, InferenceError, RequestRefusedError
from ..records import MASKED, Completion
from ..utils.outage_log import RepeatedEvents
from .availability import HangLimits, ServerChoice, Standing
from .dialects import Dialect, Refusal, tokens_used
from .prompts import Message, Prompt, Sampling, check_tokenizer, render

logger = logging.getLogger(__name__)


REFUSED_PROMPTS = 3
"""How many prompts in a row the servers must refuse before it is not the prompts."""

REFUSED_FOR_S = 1800.0
"""And for how long, if they have answered before: longer than it takes to load a large model behind a proxy."""


class InferenceClient:
    """Samples completions. Raises EnvironmentSetupError for a tokenizer that does not fit."""

    def __init__(
        self,
        server: ServerManager,
        tokenizer: Any,
        tokenizer_name: str,
        limits: HangLimits | None = None,
        spending: Spending | None = None,
    ) -> None:
        self.spending = spending or Spending()
        self._server = server
        self._dialects = [Dialect.of(one) for one in server.servers]
        self._choice = ServerChoice(server, limits)
        self._tokenizer = tokenizer
        check_tokenizer(tokenizer, tokenizer_name)
        self._vocabulary = Vocabulary(tokenizer)
        self._flaws = RepeatedEvents(logger)
        self._pauses = RepeatedEvents(logger)
        self._refused: set[str] = set()
        self._refused_since = 0.0
        self._was_answered = False

    @property
    def has_tokens(self) -> bool:
        """Whether the servers report token ids, as training needs."""
        return not isinstance(self._server.servers[0], OpenAIServer)

    @property
    def hanging(self) -> int:
        """How many requests for training hang now; see `availability`."""
        return self._choice.hanging("train")

    def metrics(self) -> dict[str, float]:
        """How long requests take, whether some hang, and what became of several servers."""
        counts = sum((one.counts for one in self._dialects), Counter[str]())
        counts["pauses_asked_for"] = self._pauses.counts.total()
        told = {f"inference/{name}": float(count) for name, count in counts.items() if count}
        return {**self._choice.metrics(), **told}

    @property
    def changes(self) -> list[str]:
        """What the servers are asked otherwise than set, because they refuse what is set."""
        return sorted({change for one in self._dialects for change in one.changes})

    def render(self, messages: Sequence[Message]) -> Prompt:
        """The prompt of these messages; see `prompts.render`."""
        return render(self._tokenizer, messages)

    async def complete(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Exactly `sampling.n` completions. Raises InferenceError if the server does not deliver them.

        For training some of them may have a flaw; a reply in which all have one is an error too. An evaluation reads
        the text, whatever else came with it, if it is whole. Raises EnvironmentSetupError when the servers refuse all
        that they are asked, which no waiting ends.
        """
        try:
            completions = await self._complete(prompt, sampling)
        except RequestRefusedError as error:
            self._note_refusal(error, prompt)
            raise
        self.spending.note(len(prompt.tokens), completions)
        self._refused.clear()
        self._was_answered = True
        return completions

    def _note_refusal(self, error: RequestRefusedError, prompt: Prompt) -> None:
        if error.is_of_prompt:
            return
        if not self._refused:
            self._refused_since = time.monotonic()
        self._refused.add(prompt.text)
        # A server that has answered may be starting again behind its proxy.
        patience_s = REFUSED_FOR_S if self._was_answered else 0.0
        if len(self._refused) >= REFUSED_PROMPTS and time.monotonic() - self._refused_since >= patience_s:
            raise EnvironmentSetupError(error.advice) from error

    async def _complete(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        ask = self._complete_with_tokens if self.has_tokens else self._complete_as_chat

        def longest(reply: list[Completion]) -> int:
            return max((one.num_tokens for one in reply), default=0) - len(prompt.tokens)

        while True:
            # What is raised inside counts against the server that was chosen.
            with self._choice.one(sampling.split) as chosen:
                await Dialect.of(chosen.server).pause()
                request = ask(chosen, prompt, sampling)
                # Clients of four kinds of server raise their own errors, usually wrapped by tenacity.
                try:
                    limit = sampling.max_tokens
                    completions = await self._choice.watched(chosen, sampling.split, limit, request, longest)
                    if len(completions) != sampling.n:
                        raise InferenceError(f"asked for {sampling.n} completions, got {len(completions)}")
                    return completions
                except RequestRefusedError as error:
                    if error.pause_s is None:
                        raise
                    self._pauses.note("pauses that the server asks for", f"{error.pause_s:.0f} s, {error}")
                    pause_s = error.pause_s
                except Exception as error:
                    kind = GivenUpError if isinstance(error, GivenUpError) else InferenceError
                    raise kind(f"{chosen.address}: {_root_cause(error)}") from error
            # With several servers the others are asked meanwhile.
            self._choice.rest(chosen, pause_s)

    async def _complete_with_tokens(self, chosen: Standing, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        server = chosen.server
        reply = await server.tokens_and_logprobs_completion(
            prompt=prompt.text, input_ids=prompt.tokens, **sampling.as_request()
        )
        _raise_refusal(server, reply)
        prompt_ids, ids, logprobs, reasons = reply
        if not len(ids) == len(logprobs) == len(reasons):
            raise InferenceError(f"got {len(ids)} completions with {len(logprobs)} rows of log probabilities")
        if not getattr(server, "reports_logprobs", True):
            logprobs = [None] * len(ids)
        completions, problem = [], ""
        for sampled in zip(ids, logprobs, reasons, strict=True):
            completion, what = self._checked(prompt_ids, *sampled)
            if completion.flaw is not None:
                problem = what
                if sampling.split == "train":
                    kind = f"completions from {chosen.address} sent without advantage, {completion.flaw}"
                    self._flaws.note(kind, what)
                elif completion.flaw != ABORTED:
                    completion = replace(completion, flaw=None)
            completions.append(completion)
        if completions and all(completion.flaw for completion in completions):
            raise InferenceError(f"none of its {len(completions)} completions can be used: {problem}")
        return completions

    def _checked(
        self, prompt_ids: list[int], ids: list[Any], logprobs: list[Any] | None, reason: Any
    ) -> tuple[Completion, str]:
        """A completion as it came, or mended; and what was wrong with it, in words."""
        # SGLang's reason is an object.
        reason = reason.get("type") if isinstance(reason, dict) else reason
        flaw, problem = self._flaw(ids, logprobs, reason)
        known = ids
        if flaw is not None:
            known = [one for one in ids if self._vocabulary.knows(one)]
            # One token at least: trainers divide by their number.
            ids = [one if self._vocabulary.may_be_padding(one) else self._vocabulary.end for one in ids or [-1]]
            logprobs = None if logprobs is None else _safe(logprobs, len(ids))
        completion = Completion(
            text=self._tokenizer.decode(known, skip_special_tokens=True),
            tokens=prompt_ids + ids,
            masks=[MASKED] * len(prompt_ids) + ids,
            logprobs=None if logprobs is None else [1.0] * len(prompt_ids) + logprobs,
            finish_reason=str(reason),
            flaw=flaw,
        )
        return completion, problem

    def _flaw(self, ids: list[Any], logprobs: list[Any] | None, reason: Any) -> tuple[str | None, str]:
        """Why a trainer cannot use what was sampled, as a name to count by and in words; None if it can."""
        if not ids:
            return NO_TOKENS, "it has no tokens"
        if not self._vocabulary.knows_all(ids):
            unknown = [one for one in ids if not self._vocabulary.knows(one)]
            return UNKNOWN_TOKENS, f"the tokenizer has no token {unknown[0]!r:.60}"
        if logprobs is not None and (problem := _problem_of(logprobs, len(ids))):
            return BAD_LOGPROBS, problem
        if reason in UNFINISHED:
            return ABORTED, f"its finish reason is {reason}"
        return None, ""

    async def _complete_as_chat(self, chosen: Standing, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="n kwarg is ignored")
            shapes = [replace(sampling, n=n) for n in _at_most(chosen.manager.max_n_completions, sampling.n)]
            request = {"messages": prompt.messages, "prompt_tokens": len(prompt.tokens)}
            asking = [chosen.server.chat_completion(**request, **shape.as_request()) for shape in shapes]
            replies = await asyncio.gather(*asking)
        for reply in replies:
            _raise_refusal(chosen.server, reply)
        completions = [self._tokenized(prompt, choice) for reply in replies for choice in reply.choices]
        self.spending.note_unseen(sum(map(tokens_used, replies)), completions)
        return completions

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


def _at_most(most: int, count: int) -> list[int]:
    """The sizes of as few requests as have `count` completions together, each with at most so many."""
    return [min(most, count - begin) for begin in range(0, count, most)]


def _raise_refusal(server: Any, reply: Any) -> None:
    if isinstance(reply, Refusal):
        address = Dialect.of(server).address
        raise RequestRefusedError(
            f"{address} answers {reply.status}: {reply.sentence}",
            advice=reply.advice(address, getattr(server.config, "model_name", "")),
            pause_s=reply.pause_s,
            is_of_prompt=reply.is_too_long,
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


NO_TOKENS = "no_tokens"
UNKNOWN_TOKENS = "unknown_tokens"
BAD_LOGPROBS = "bad_logprobs"
ABORTED = "aborted"
UNFINISHED = (None, "abort")

ROUNDING = 1e-3
"""How far above 0 a log probability may be."""

LARGEST = 3.4e38
"""Of a 32-bit float, which trainers read."""

PADDING = 1024
"""How many more ids than its tokenizer a model may have, whose vocabulary is padded to a round number."""


class Vocabulary:
    """Which token ids a tokenizer knows; `end` stands in for one that no model has."""

    def __init__(self, tokenizer: Any) -> None:
        # Not from `get_vocab`, which takes half a second for a large one: gaps are among the tokens that were added.
        base, added = int(tokenizer.vocab_size), set(tokenizer.get_added_vocab().values())
        self._size = max(base, *(one + 1 for one in added), 0)
        self._holes = frozenset(range(base, self._size)) - added
        self.end = int(tokenizer.eos_token_id or 0)

    def knows_all(self, ids: list[Any]) -> bool:
        try:
            return min(ids) >= 0 and max(ids) < self._size and self._holes.isdisjoint(ids)
        except TypeError:
            return False

    def knows(self, one: Any) -> bool:
        return self.may_be_padding(one) and one < self._size and one not in self._holes

    def may_be_padding(self, one: Any) -> bool:
        """Whether a model may have sampled it: an id that is known or not far beyond."""
        return isinstance(one, int) and 0 <= one < self._size + PADDING


def _problem_of(logprobs: list[Any], count: int) -> str:
    if len(logprobs) != count:
        return f"{len(logprobs)} log probabilities for {count} tokens"
    bad = [one for one in logprobs if not _is_logprob(one)] if not _are_logprobs(logprobs) else []
    return f"a log probability is {bad[0]!r:.60}" if bad else ""


def _are_logprobs(values: list[Any]) -> bool:
    """The same as `_is_logprob` of each, but for all at once: there are thousands in a completion."""
    try:
        # What is not a number makes the sum one; comparisons with it are false.
        return abs(sum(values)) <= LARGEST and max(values) <= ROUNDING
    except TypeError:
        return False


def _is_logprob(value: Any) -> bool:
    return isinstance(value, (int, float)) and -LARGEST <= value <= ROUNDING


def _safe(logprobs: list[Any], count: int) -> list[float]:
    """As many as tokens, and JSON: 0 for each that is none."""
    found = [float(one) if _is_logprob(one) else 0.0 for one in logprobs[:count]]
    return found + [0.0] * (count - len(found))


def _root_cause(error: BaseException) -> str:
    """One line about what really went wrong, below the layers of retries."""
    while isinstance(error, RetryError) and error.last_attempt.exception() is not None:
        error = error.last_attempt.exception() or error
    kind = "" if isinstance(error, InferenceError) else f"{type(error).__name__}: "
    return f"{kind}{error}".splitlines()[0][:300]


# --- what inference costs: said before it is spent, and counted while it is


class Spending:
    """Counts requests and tokens. `price` is that of a million prompt and of a million completion tokens.

    A request counts its prompt once and every token of its completions, as most providers charge, or as many as the
    server says if those are more: some think unseen. What a provider caches is not known here.
    Once `limit_tokens` are spent, prompts included, `is_over` is true. What is under way counts too, each of its
    completions with the mean of those that have come: it is still finished.
    """

    def __init__(self, price: tuple[float, float] | None = None, limit_tokens: int | None = None) -> None:
        self.requests = self.prompt_tokens = self.completions = self.completion_tokens = 0
        self._prompt_tokens_under_way = self._completions_under_way = 0
        self._price = price
        self._limit = limit_tokens

    @property
    def is_over(self) -> bool:
        if self._limit is None:
            return False
        more = self._completions_under_way * self.completion_tokens / max(1, self.completions)
        return self.prompt_tokens + self._prompt_tokens_under_way + self.completion_tokens + more >= self._limit

    @contextmanager
    def under_way(self, prompt_tokens: int, completions: int) -> Iterator[None]:
        """While a request for so many completions is."""
        self._prompt_tokens_under_way += prompt_tokens
        self._completions_under_way += completions
        try:
            yield
        finally:
            self._prompt_tokens_under_way -= prompt_tokens
            self._completions_under_way -= completions

    def note(self, prompt_tokens: int, completions: Sequence[Completion]) -> None:
        """A request was answered."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.completions += len(completions)
        self.completion_tokens += sum(one.num_completion_tokens for one in completions)

    def note_unseen(self, used: int, completions: Sequence[Completion]) -> None:
        """The server says that these completions, of which `note` will hear, took so many tokens."""
        self.completion_tokens += max(0, used - sum(one.num_completion_tokens for one in completions))

    def plan(self, requests: int, prompt_tokens: int, most: int) -> str:
        """One sentence on what is to be asked; `most` completion tokens if every one takes all that it may."""
        return (
            f"To ask: {requests:,} requests, {prompt_tokens:,} prompt tokens, at most {most:,} completion tokens"
            f"{self._money(prompt_tokens, most, ' (at most {})')}."
        )

    def expected(self, completions: int) -> str:
        """Completion tokens so far, and of that many completions if the rest is like those that have come."""
        if not self.completions:
            return ""
        share = completions / self.completions
        prompts, tokens = round(self.prompt_tokens * share), round(self.completion_tokens * share)
        spent = self._money(self.prompt_tokens, self.completion_tokens, ", {}")
        return f"{_short(self.completion_tokens)} of ~{_short(tokens)} tokens{spent}" + self._money(
            prompts, tokens, " of ~{}"
        )

    def total(self) -> str:
        """One sentence on what was spent."""
        return (
            f"Spent: {self.requests:,} requests, {self.prompt_tokens:,} prompt and {self.completion_tokens:,} "
            f"completion tokens{self._money(self.prompt_tokens, self.completion_tokens, ' ({})')}."
        )

    def _money(self, prompt_tokens: int, completion_tokens: int, text: str) -> str:
        if self._price is None:
            return ""
        cost = (prompt_tokens * self._price[0] + completion_tokens * self._price[1]) / 1e6
        return text.format(f"{cost:,.2f}" if cost >= 0.01 else f"{cost:.4f}")


def _short(tokens: int) -> str:
    for size, unit in ((10**6, "M"), (10**3, "k")):
        if tokens >= size:
            return f"{tokens / size:.1f}{unit}"
    return str(tokens)
