"""From a prompt to completions that are checked.

    complete ──> requests of at most n_per_request ──> retried (retries.py) ──> asked (servers.py) ──> checked here

Servers that give token ids are fit for training once ids and log probabilities are checked. A completion that a
trainer cannot use has a flaw: it is mended, so that it does no harm where it is sent without advantage, and its server
is named. This is done before anything is decoded, for a tokenizer leaves out the ids that it does not know.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..errors import EnvironmentSetupError, InferenceError, RequestRefusedError, ServerBusyError
from ..records import MASKED, Completion
from ..utils.outage_log import RepeatedEvents
from .prompts import Message, Prompt, Sampling, check_tokenizer, render
from .retries import RetryPolicy, ServerPool
from .servers import Reply, Sampled, ServerAdapter

logger = logging.getLogger(__name__)

REFUSED_PROMPTS = 3
"""How many prompts in a row the servers must refuse before it is not the prompts."""

REFUSED_FOR_S = 1800.0
"""And for how long, if they have answered before: longer than it takes to load a large model behind a proxy."""


class InferenceClient:
    """Samples completions. Raises EnvironmentSetupError for a tokenizer that does not fit."""

    def __init__(
        self,
        adapters: Sequence[ServerAdapter],
        tokenizer: Any,
        tokenizer_name: str,
        *,
        policy: RetryPolicy | None = None,
        spending: Spending | None = None,
    ) -> None:
        check_tokenizer(tokenizer, tokenizer_name)
        self.adapters = adapters
        self.spending = spending or Spending()
        self.policy = policy or RetryPolicy()
        self.servers = ServerPool(adapters, self.policy)
        self._events, self._flaws = RepeatedEvents(logger), RepeatedEvents(logger)
        self._tokenizer = tokenizer
        self._vocabulary = Vocabulary(tokenizer)
        self._refused: set[str] = set()
        self._refused_since = 0.0
        self._was_answered = False

    @property
    def has_tokens(self) -> bool:
        """Whether the servers give token ids, as training needs."""
        return self.adapters[0].has_tokens

    @property
    def context_length(self) -> int | None:
        """Tokens that a prompt and its completion may have together at every server; None: unknown."""
        return min((one.context_length for one in self.adapters if one.context_length is not None), default=None)

    def room(self, split: str) -> int:
        """How many requests the servers take at once by their settings."""
        return sum(one.room(split) for one in self.servers.states)

    @property
    def found(self) -> dict[str, Any]:
        """The settings of servers that the first requests found out."""
        return {name: value for one in self.adapters for name, value in one.found.items()}

    def metrics(self) -> dict[str, float]:
        """Outages, and how often requests failed, were refused for a while, or gave what cannot be used."""
        counts = {name.replace("_", "/", 1): count for name, count in self._events.metrics("inference").items()}
        return {**self.servers.metrics(), **counts}

    def render(self, messages: Sequence[Message]) -> Prompt:
        """The prompt of these messages; see `prompts.render`."""
        return render(self._tokenizer, messages)

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, on_request: Callable[[], None] = lambda: None
    ) -> list[Completion]:
        """Exactly `sampling.n` completions; `on_request` is called whenever a request goes out.

        A request that fails is made again a few times, and while all servers are unavailable it waits. For training
        some of the completions may have a flaw, not all; an evaluation reads the text, whatever else came with it.
        Raises InferenceError when no completions come of this prompt, RequestRefusedError when the servers do not take
        it, and EnvironmentSetupError when they take none.
        """
        most = min((one.n_per_request or sampling.n for one in self.adapters), default=sampling.n)
        sizes = [min(most, sampling.n - begin) for begin in range(0, sampling.n, most)]
        parts = [asyncio.ensure_future(self._part(prompt, replace(sampling, n=n), on_request)) for n in sizes]
        try:
            completions = [one for part in await asyncio.gather(*parts) for one in part]
        except RequestRefusedError as error:
            self._note_refusal(error, prompt)
            raise
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        self.spending.note(len(prompt.tokens), completions)
        self._refused.clear()
        self._was_answered = True
        return completions

    async def _part(self, prompt: Prompt, sampling: Sampling, on_request: Callable[[], None]) -> list[Completion]:
        completions: list[Completion] = []
        # What has come is paid for: only what is missing is asked for again.
        while (missing := sampling.n - len(completions)) > 0:
            async for attempt in self.policy.attempts():
                with attempt:
                    made = await self._request(prompt, replace(sampling, n=missing), on_request)
            if len(made) != missing:
                detail = f"{len(made)} of {missing}"
                self._events.note("replies with another number of completions, the difference is made up", detail)
            completions += made[:missing]
        return completions

    async def _request(self, prompt: Prompt, sampling: Sampling, on_request: Callable[[], None]) -> list[Completion]:
        while True:
            try:
                async with self.servers.turn(sampling.split) as server:
                    on_request()
                    reply = await server.sample(prompt, sampling)
                    return self._completions_of(reply, server, prompt, sampling)
            except ServerBusyError as error:
                self._events.note("requests put off, the server is busy", str(error))
            except InferenceError as error:
                self._events.note("requests failed", str(error))
                raise

    def _note_refusal(self, error: RequestRefusedError, prompt: Prompt) -> None:
        if not self._refused:
            self._refused_since = time.monotonic()
        self._refused.add(prompt.text)
        # A server that has answered may be starting again behind its proxy.
        patience_s = REFUSED_FOR_S if self._was_answered else 0.0
        if len(self._refused) >= REFUSED_PROMPTS and time.monotonic() - self._refused_since >= patience_s:
            raise EnvironmentSetupError(error.advice) from error

    # --- what came, checked

    def _completions_of(
        self, reply: Reply, server: ServerAdapter, prompt: Prompt, sampling: Sampling
    ) -> list[Completion]:
        """Raises InferenceError if none of them can be used."""
        if not server.has_tokens:
            completions = [self._tokenized(prompt, one) for one in reply.completions]
            self.spending.note_unseen(reply.used, completions)
            if not completions:
                raise InferenceError(f"{server.address}: asked for {sampling.n} completions, got none")
            return completions
        completions, problem = [], "there are none"
        if any(one.logprobs is None for one in reply.completions):
            # Of TRL newer releases report them; Atropos' example trainer fails without.
            self._flaws.note("replies without log probabilities, groups are sent without them", server.address)
        for sampled in reply.completions:
            completion, what = self._checked(reply.prompt_ids or prompt.tokens, sampled)
            if completion.flaw is not None:
                problem = what
                if sampling.split == "train":
                    kind = f"completions from {server.address} sent without advantage, {completion.flaw}"
                    self._flaws.note(kind, what)
                elif completion.flaw != ABORTED:
                    completion = replace(completion, flaw=None)
            completions.append(completion)
        if all(one.flaw for one in completions):
            raise InferenceError(f"{server.address}: none of its {len(completions)} completions can be used: {problem}")
        return completions

    def _checked(self, prompt_ids: list[int], sampled: Sampled) -> tuple[Completion, str]:
        """A completion as it came, or mended; and what was wrong with it, in words."""
        ids, logprobs, reason = sampled.ids or [], sampled.logprobs, sampled.finish_reason
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
        if unknown := [one for one in ids if not self._vocabulary.knows(one)]:
            return UNKNOWN_TOKENS, f"the tokenizer has no token {unknown[0]!r:.60}"
        if logprobs is not None and (problem := _problem_of(logprobs, len(ids))):
            return BAD_LOGPROBS, problem
        if reason in UNFINISHED:
            return ABORTED, f"its finish reason is {reason}"
        return None, ""

    def _tokenized(self, prompt: Prompt, sampled: Sampled) -> Completion:
        """A chat choice with tokens from our tokenizer: prompt + text, as the model would have read it.

        The text is tokenized as it came, not through the chat template, because templates of reasoning models
        drop the thinking of earlier turns.
        """
        tokens = list(self._tokenizer.encode(sampled.text, add_special_tokens=False))
        if sampled.finish_reason == "stop" and self._tokenizer.eos_token_id is not None:
            tokens.append(self._tokenizer.eos_token_id)
        return Completion(
            text=sampled.text,
            tokens=prompt.tokens + tokens,
            masks=[MASKED] * len(prompt.tokens) + tokens,
            logprobs=None,
            finish_reason=str(sampled.finish_reason),
        )


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

    def knows(self, one: Any) -> bool:
        return self.may_be_padding(one) and one < self._size and one not in self._holes

    def may_be_padding(self, one: Any) -> bool:
        """Whether a model may have sampled it: an id that is known or not far beyond."""
        return isinstance(one, int) and 0 <= one < self._size + PADDING


def _problem_of(logprobs: list[Any], count: int) -> str:
    if len(logprobs) != count:
        return f"{len(logprobs)} log probabilities for {count} tokens"
    bad = [one for one in logprobs if not _is_logprob(one)]
    return f"a log probability is {bad[0]!r:.60}" if bad else ""


def _is_logprob(value: Any) -> bool:
    return isinstance(value, (int, float)) and -LARGEST <= value <= ROUNDING


def _safe(logprobs: list[Any], count: int) -> list[float]:
    """As many as tokens, and JSON: 0 for each that is none."""
    found = [float(one) if _is_logprob(one) else 0.0 for one in logprobs[:count]]
    return found + [0.0] * (count - len(found))


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
        return f"{self.completion_tokens:,} of ~{tokens:,} tokens{spent}" + self._money(prompts, tokens, " of ~{}")

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
