"""From a prompt to completions that are checked: which server is asked, how often, and what came of it.

    complete ──> requests of at most n_per_request ──> ServerPool.turn: wait for a server that may be asked
        ├─> answered (servers.py): the completions are checked
        ├─> busy (429): the server rests as long as it says; then it gets one request, and one more for each answer
        └─> failed: made again a few times. After 3 failures in a row the server is unavailable, and one request tries
            it after 1, 2, 4 ... 30 s

This is the one place where requests are repeated. While all servers are unavailable nothing is held against the prompt.

Servers that give token ids are fit for training once ids and log probabilities are checked. A completion that a
trainer cannot use has a flaw: a single harmless token takes its place, it is sent without advantage, and its server is
named. This is done before anything is decoded, for a tokenizer leaves out the ids that it does not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import tenacity

from ..errors import EnvironmentSetupError, InferenceError, RequestRefusedError, ServerBusyError, UnavailableError
from ..records import MASKED, Completion
from ..utils.clock import now
from ..utils.resilience import Outage, RepeatedEvents, ended, within
from .prompts import Message, Prompt, Sampling, as_dicts, build_messages, check_tokenizer, render
from .servers import Reply, Sampled, ServerAdapter

logger = logging.getLogger(__name__)

UNAVAILABLE_AFTER = 3
"""Failures in a row after which a server is unavailable."""

SILENT_S = 60.0
"""A server that answers none of its requests for so long is reported."""

REFUSED_PROMPTS = 3
"""How many prompts in a row the servers must refuse before it is not the prompts."""

REFUSED_FOR_S = 1800.0
"""And for how long, if they have answered before: longer than it takes to load a large model behind a proxy."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often a request is made, with a random pause that doubles; the delays are also those of outages."""

    tries: int = 5
    first_delay_s: float = 1.0
    max_delay_s: float = 30.0

    def attempts(self) -> tenacity.AsyncRetrying:
        """For `async for attempt in policy.attempts()`. What a server refuses is not repeated."""
        final = (RequestRefusedError, UnavailableError)
        return tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, InferenceError) and not isinstance(e, final)),
            stop=tenacity.stop_after_attempt(self.tries),
            wait=tenacity.wait_random_exponential(multiplier=self.first_delay_s / 2, max=self.max_delay_s / 4),
            reraise=True,
        )


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
        self.servers = ServerPool(adapters, policy or RetryPolicy())
        self._events = RepeatedEvents(logger)
        self._tokenizer = tokenizer
        # A prompt is rendered when its item is drawn, to see whether it fits, and again when it is asked.
        self._rendered = lru_cache(maxsize=64)(partial(render, tokenizer))
        self._refused: set[str] = set()
        self._refused_since = 0.0
        self._was_answered = False

    @property
    def has_tokens(self) -> bool:
        """Whether the servers give token ids, as training needs."""
        return self.adapters[0].has_tokens

    @property
    def model_name(self) -> str:
        """The model that the first server is asked for."""
        return str(self.adapters[0].config.model_name)

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

    def render(self, messages: Sequence[Message | dict[str, str]]) -> Prompt:
        """The prompt of these messages; see `prompts.render`."""
        return self._rendered(tuple(tuple(message.items()) for message in as_dicts(messages)))

    def prompt_length(self, question: str) -> int:
        """Tokens of the prompt of a question."""
        return len(self.render(build_messages(question)).tokens)

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, step: Callable[[], int | None] = lambda: None
    ) -> list[Completion]:
        """Exactly `sampling.n` completions. `step` gives the trainer's step, for `Completion.sampled_at`.

        For training some of them may have a flaw, not all; an evaluation reads the text, whatever else came with it.
        Raises InferenceError when no completions come of this prompt, RequestRefusedError when the servers do not take
        it, and EnvironmentSetupError when they take none.
        """
        most = min((one.n_per_request or sampling.n for one in self.adapters), default=sampling.n)
        sizes = [min(most, sampling.n - begin) for begin in range(0, sampling.n, most)]
        parts = [asyncio.ensure_future(self._part(prompt, replace(sampling, n=n), step)) for n in sizes]
        try:
            with self.spending.under_way(len(prompt.tokens), sampling.n):
                completions = [one for part in await asyncio.gather(*parts) for one in part]
        except RequestRefusedError as error:
            self._note_refusal(error, prompt)
            raise
        finally:
            await ended(parts)
        self._refused.clear()
        self._was_answered = True
        return completions

    async def _part(self, prompt: Prompt, sampling: Sampling, step: Callable[[], int | None]) -> list[Completion]:
        completions: list[Completion] = []
        # What has come is paid for: only what is missing is asked for again.
        while (missing := sampling.n - len(completions)) > 0:
            async for attempt in self.servers.policy.attempts():
                with attempt:
                    made = await self._request(prompt, replace(sampling, n=missing), step)
            completions += made[:missing]
        return completions

    async def _request(self, prompt: Prompt, sampling: Sampling, step: Callable[[], int | None]) -> list[Completion]:
        while True:
            try:
                async with self.servers.turn(sampling.split, sampling.patience_s) as server:
                    sampled_at = step()
                    reply = await server.sample(prompt, sampling)
                    completions = self._completions_of(reply, server, prompt, sampling)
                    return [replace(completion, sampled_at=sampled_at) for completion in completions]
            except ServerBusyError as error:
                self._events.note("requests put off, the server is busy", str(error))
            except InferenceError as error:
                self._events.note("requests failed", str(error))
                raise

    def _note_refusal(self, error: RequestRefusedError, prompt: Prompt) -> None:
        if not self._refused:
            self._refused_since = now()
        self._refused.add(prompt.text)
        # A server that has answered may be starting again behind its proxy.
        patience_s = REFUSED_FOR_S if self._was_answered else 0.0
        if len(self._refused) >= REFUSED_PROMPTS and now() - self._refused_since >= patience_s:
            raise EnvironmentSetupError(error.advice) from error

    # --- what came, checked

    def _completions_of(
        self, reply: Reply, server: ServerAdapter, prompt: Prompt, sampling: Sampling
    ) -> list[Completion]:
        """Raises InferenceError if none of them can be used."""
        completions, problem = [], "there are none"
        for one in reply.completions:
            completion, found = self._checked(one, reply.prompt_ids or prompt.tokens, sampling.split)
            completions.append(completion)
            if completion.flaw:
                problem = found
                kind = f"completions with {completion.flaw}, sent without advantage"
                self._events.note(kind, f"{server.address}: {found}")
            if one.logprobs is None and server.has_tokens:
                # Of TRL newer releases report them; Atropos' example trainer fails without.
                self._events.note("completions without log probabilities, sent as they are", server.address)
        self.spending.note(len(prompt.tokens), completions, reply.used)
        if all(one.flaw for one in completions):
            count = f"none of its {len(completions)} completions can be used"
            raise InferenceError(f"{server.address}: {count}: {problem}")
        return completions

    def _checked(self, sampled: Sampled, prompt_ids: list[int], split: str) -> tuple[Completion, str]:
        """A completion, and what is wrong with it."""
        ids, logprobs, text = sampled.ids, sampled.logprobs, sampled.text
        flaw, problem = None, ""
        if text is None:
            unknown = [one for one in ids if type(one) is not int or one not in self._vocabulary]
            known = [one for one in ids if one not in unknown]
            text = self._tokenizer.decode(known, skip_special_tokens=True)
            if sampled.finish_reason in (None, "abort"):
                flaw, problem = "aborted", f"its finish reason is {sampled.finish_reason}"
            elif split == "eval":
                # The text is read, and nothing else.
                ids, logprobs = known, None
            elif unknown:
                flaw, problem = "unknown_tokens", f"the tokenizer has no token {unknown[0]!r:.60}"
            elif problem := _problem_of(logprobs, len(ids)):
                flaw = "bad_logprobs"
        if not ids and split == "train":
            flaw, problem = "no_tokens", "it has no tokens"
        if flaw:
            # One token at least: trainers divide by their number.
            ids, logprobs = [self._tokenizer.eos_token_id or 0], None if logprobs is None else [0.0]
        completion = Completion(
            text=text,
            tokens=prompt_ids + ids,
            masks=[MASKED] * len(prompt_ids) + ids,
            logprobs=None if logprobs is None else [1.0] * len(prompt_ids) + logprobs,
            finish_reason=str(sampled.finish_reason),
            flaw=flaw,
        )
        return completion, problem

    @cached_property
    def _vocabulary(self) -> frozenset[int]:
        return frozenset(self._tokenizer.get_vocab().values())


def _problem_of(logprobs: list[Any] | None, count: int) -> str:
    """What is wrong with the log probabilities of so many tokens, or ""."""
    if logprobs is None:
        return ""
    if len(logprobs) != count:
        return f"{len(logprobs)} log probabilities for {count} tokens"
    # They are rounded, and trainers read them as 32-bit floats.
    bad = [one for one in logprobs if not (isinstance(one, (int, float)) and -3.4e38 <= one <= 1e-3)]
    return f"a log probability is {bad[0]!r:.60}" if bad else ""


# --- the servers: which of them works, and how many requests each takes at once


class ServerState:
    """One server."""

    def __init__(self, adapter: ServerAdapter, policy: RetryPolicy, clock: Callable[[], float]) -> None:
        self.adapter = adapter
        who, delays = f"The inference server {adapter.address}", (policy.first_delay_s, policy.max_delay_s)
        self.outage = Outage(logger, who, first_delay_s=delays[0], max_delay_s=delays[1], clock=clock)
        self._clock, self._first_delay_s = clock, policy.first_delay_s
        self._failures = 0
        self._answered_at = self._rested_at = self._reported_at = -math.inf
        self._resumes_at = 0.0
        # Requests at once since the last rest: one, and one more for each answer.
        self._limit = math.inf
        self._began: dict[object, float] = {}

    @property
    def due_s(self) -> float:
        """Seconds until it may be asked at all."""
        return max(0.0, self._resumes_at - self._clock())

    @property
    def is_free(self) -> bool:
        return not self.due_s and sum(began > self._rested_at for began in self._began.values()) < self._limit

    def room(self, split: str) -> int:
        """How many more requests it takes by its settings."""
        return int(getattr(self.adapter.slots(split), "max_val", 1)) - len(self._began)

    @asynccontextmanager
    async def request(self, split: str) -> AsyncIterator[ServerAdapter]:
        """While one is made. An InferenceError from inside counts as a failure, and is passed on."""
        key = object()
        began = self._began[key] = self._clock()
        reminder = asyncio.get_running_loop().call_later(SILENT_S, self._report_silence)
        try:
            async with self.adapter.slots(split):
                began = self._began[key] = self._clock()
                yield self.adapter
            self._note_answer(began)
            self.adapter.note_duration(split, self._clock() - began)
        except InferenceError as error:
            self._note_failure(error, began)
            raise
        finally:
            del self._began[key]
            reminder.cancel()

    def _note_answer(self, began: float) -> None:
        self._failures, self._answered_at = 0, self._clock()
        self.outage.over()
        if began > self._rested_at:
            self._limit += 1.0

    def _note_failure(self, error: InferenceError, began: float) -> None:
        rest_s = max(self._first_delay_s, error.pause_s) if isinstance(error, ServerBusyError) else 0.0
        # A request from before a rest says nothing of what comes after it; nor does one that failed while others were
        # answered.
        if began <= self._rested_at or (began < self._answered_at and not rest_s):
            return
        self._failures += 1
        if self._failures >= UNAVAILABLE_AFTER:
            rest_s = max(rest_s, self.outage.failed(str(error), "requests wait, and are made again"))
        if rest_s:
            self._rested_at, self._limit = self._clock(), 1.0
            # Clients that were refused together must not come back together.
            self._resumes_at = self._rested_at + rest_s * random.uniform(1.0, 1.1)

    def _report_silence(self) -> None:
        """A request has waited for SILENT_S: report it, unless another was answered or reported meanwhile."""
        if self._clock() - max(self._answered_at, self._reported_at) >= SILENT_S:
            self._reported_at = self._clock()
            silent = f"No answer from {self.adapter.address} for {SILENT_S:.0f} s; {len(self._began)} requests wait"
            logger.warning("%s. Each fails after env.request_timeout_s.", silent)


class ServerPool:
    """Chooses a server for each request: the available server with the most room."""

    def __init__(
        self, adapters: Sequence[ServerAdapter], policy: RetryPolicy, *, clock: Callable[[], float] = now
    ) -> None:
        self.policy = policy
        self.states = [ServerState(adapter, policy, clock) for adapter in adapters]
        self._changed = asyncio.Event()

    @property
    def is_unavailable(self) -> bool:
        return all(one.outage.is_on for one in self.states)

    @asynccontextmanager
    async def turn(self, split: str, patience_s: float | None = None) -> AsyncIterator[ServerAdapter]:
        """The server for one request, once one is available. An InferenceError from inside counts as its failure.

        Raises UnavailableError once all servers have been unavailable for `patience_s` seconds; None: never.
        """
        state = await self._next(split, patience_s)
        try:
            async with state.request(split) as adapter:
                yield adapter
        finally:
            # Wake the waiters.
            self._changed.set()
            self._changed = asyncio.Event()

    async def _next(self, split: str, patience_s: float | None) -> ServerState:
        while True:
            unavailable_s = min((state.outage.lasted_s for state in self.states), default=0.0)
            if patience_s is not None and unavailable_s > patience_s:
                raise UnavailableError(f"no inference server has answered for {unavailable_s:.0f} s")
            free = [state for state in self.states if state.is_free]
            if free:
                return max(free, key=lambda state: state.room(split))
            due_s = min((state.due_s for state in self.states if state.due_s), default=None)
            with contextlib.suppress(asyncio.TimeoutError):
                await within(due_s, self._changed.wait())

    def metrics(self) -> dict[str, float]:
        """Outages since the start, their seconds, and the servers that are unavailable now."""
        values = Counter({"inference/servers_unavailable": float(sum(one.outage.is_on for one in self.states))})
        for one in self.states:
            values.update(one.outage.metrics("inference/server"))
        return dict(values)


# --- what inference costs: said before it is spent, and counted while it is


class Spending:
    """Counts requests and tokens. `price` is that of a million prompt and of a million completion tokens.

    An answered request counts its prompt and every token of its completions, as most providers charge, or as many as
    the server says if those are more: some think unseen. What a provider caches is not known here.
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
        """While so many completions of a prompt are asked for."""
        self._prompt_tokens_under_way += prompt_tokens
        self._completions_under_way += completions
        try:
            yield
        finally:
            self._prompt_tokens_under_way -= prompt_tokens
            self._completions_under_way -= completions

    def note(self, prompt_tokens: int, completions: Sequence[Completion], used: int = 0) -> None:
        """A request was answered. `used` is how many tokens the server says its completions took, if it does."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.completions += len(completions)
        self.completion_tokens += max(used, sum(one.num_completion_tokens for one in completions))

    def plan(self, requests: int, prompt_tokens: int, most: int) -> str:
        """One sentence on what is to be asked; `most` completion tokens if every one takes all that it may."""
        return f"To ask: {self._words(requests, prompt_tokens, most, 'at most ')}."

    def total(self) -> str:
        """What was spent."""
        return self._words(self.requests, self.prompt_tokens, self.completion_tokens)

    def _words(self, requests: int, prompt_tokens: int, completion_tokens: int, most: str = "") -> str:
        said = f"{requests:,} requests, {prompt_tokens:,} prompt tokens, {most}{completion_tokens:,} completion tokens"
        if self._price is None:
            return said
        cost = (prompt_tokens * self._price[0] + completion_tokens * self._price[1]) / 1e6
        return f"{said} ({most}{cost:,.{2 if cost >= 0.01 else 4}f})"
