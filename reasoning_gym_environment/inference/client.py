"""From a prompt to completions that are checked.

    complete ──> requests, each for the completions that a server makes ──> ServerPool.turn (server_pool.py) ──> server
        ├─> answered (servers.py): the completions are checked
        ├─> busy: the request waits for a server again
        ├─> refused by the network: the request waits, because it cannot be the cause
        └─> failed, or broken off by a provider: the request is repeated, according to the RetryPolicy

No other code repeats requests.

A server that reports token ids can serve training once the ids and the log probabilities are checked. A completion that
a trainer cannot use has an `invalid_reason`. Its tokens are replaced by a single harmless token, it is sent without
advantage, and the log names its server. The check comes before the decoding, because a tokenizer ignores ids that it
does not know.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from ..errors import (
    BrokenOffError,
    EnvironmentSetupError,
    InferenceError,
    RequestRefusedError,
    RequestTimeoutError,
    ServerBusyError,
    UnavailableError,
)
from ..records import MASKED, Completion, MaskReason
from ..utils.clock import now
from ..utils.resilience import RepeatedEvents, cancel_and_wait, with_deadline
from .chat_tokenizer import ChatTokenizer, Prompt
from .prompts import RequestParameters
from .server_pool import RetryPolicy, ServerPool
from .servers import BROKEN_OFF, RawCompletion, Reply, ServerAdapter
from .spending import Spending

logger = logging.getLogger(__name__)

REFUSED_PROMPTS = 3
"""If the servers refuse this many prompts and answer none, the prompts are not the cause, and the run ends."""

REFUSED_FOR_S = 1800.0
"""Servers that have answered before may refuse prompts for this long: a proxy refuses them while a model loads."""

LARGEST_LOGPROB = 1e-3
"""Log probabilities are rounded, so slightly positive values are accepted."""

MINUS_INFINITY = -9999.0
"""vLLM writes this in place of minus infinity, which JSON does not know. No sampled token is this improbable."""

NEVER_REPEATED = (RequestRefusedError, RequestTimeoutError, UnavailableError)
"""Failures after which a request is not repeated.

After a timeout another item is tried: its answer shows whether the server or the first item was the cause.
"""

TrainerStep = Callable[[], int | None]
"""Returns the trainer's current step, or None without a trainer."""


class InferenceClient:
    """Samples completions."""

    def __init__(
        self,
        adapters: Sequence[ServerAdapter],
        tokenizer: ChatTokenizer,
        *,
        jitter: Random,
        policy: RetryPolicy | None = None,
        spending: Spending | None = None,
    ) -> None:
        """`jitter` makes the pauses between requests random."""
        self.adapters = adapters
        self.spending = spending or Spending()
        self.servers = ServerPool(adapters, policy or RetryPolicy(), jitter=jitter)
        self.events = RepeatedEvents(logger)
        """Failed requests, busy servers and invalid completions."""
        self._tokenizer = tokenizer
        self._refused: set[str] = set()
        """The prompts that the servers refused since their last answer."""
        self._refused_since = 0.0
        self._was_answered = False

    @property
    def has_tokens(self) -> bool:
        """Whether the servers report token ids, which training needs."""
        return self.adapters[0].has_tokens

    @property
    def model_name(self) -> str:
        """The model that is requested from the first server."""
        return str(self.adapters[0].config.model_name)

    @property
    def context_length(self) -> int | None:
        """Tokens that a prompt and its completion may have together at every server; None if it is unknown."""
        lengths = [adapter.context_length for adapter in self.adapters]
        return min((length for length in lengths if length is not None), default=None)

    def room(self, split: str) -> int:
        """How many more requests the servers take by their settings."""
        return sum(state.room(split) for state in self.servers.states)

    def metrics(self) -> dict[str, float]:
        """Outages, and the numbers of failed requests, busy servers and invalid completions."""
        values = self.servers.metrics()
        for name, count in self.events.metrics("inference").items():
            values[name.replace("_", "/", 1)] = count
        return values

    async def complete(
        self, prompt: Prompt, parameters: RequestParameters, *, step: TrainerStep = lambda: None
    ) -> list[Completion]:
        """Exactly `sampling.n` completions. `step` gives the trainer's step, for `Completion.sampled_at`.

        For training, some completions may have an `invalid_reason`, but not all of them. An evaluation reads the text
        only. Raises InferenceError if this prompt gets no completions, RequestTimeoutError if a server does not answer
        in time, RequestRefusedError if the servers refuse the prompt, and EnvironmentSetupError if they refuse every
        prompt.
        """
        sizes = self.request_sizes(parameters.n)
        requests = []
        for n in sizes:
            request = self._complete_request(prompt, replace(parameters, n=n), step)
            requests.append(asyncio.ensure_future(request))
        try:
            with self.spending.in_flight(len(sizes) * len(prompt.tokens), parameters.n):
                answers = await asyncio.gather(*requests)
        except RequestRefusedError as error:
            self._note_refusal(error, prompt)
            raise
        finally:
            await cancel_and_wait(requests)
        self._refused.clear()
        self._was_answered = True
        return list(itertools.chain.from_iterable(answers))

    def request_sizes(self, n: int) -> list[int]:
        """How many completions each request asks for, so that every server takes it."""
        limits = [adapter.completions_per_request or n for adapter in self.adapters]
        most = min(limits, default=n)
        return [min(most, n - begin) for begin in range(0, n, most)]

    async def _complete_request(
        self, prompt: Prompt, parameters: RequestParameters, step: TrainerStep
    ) -> list[Completion]:
        """The completions of one request. This is the only loop that repeats requests.

        A request that a busy server puts off, or that no server has accepted, waits as long as that lasts. A request
        that a server accepted and did not answer is sent `policy.tries` times at most, counted anew after each answer.
        """
        completions: list[Completion] = []
        failures = 0
        # Received completions cost money, so further requests only ask for missing completions.
        while len(completions) < parameters.n:
            missing = replace(parameters, n=parameters.n - len(completions))
            try:
                completions += await self._ask(prompt, missing, step)
                failures = 0
            except ServerBusyError as error:
                self.events.note("requests_put_off", "requests put off, the server is busy", str(error))
            except InferenceError as error:
                is_late = isinstance(error, RequestTimeoutError)
                name = "requests_timed_out" if is_late else "requests_failed"
                self.events.note(name, name.replace("_", " "), str(error))
                # A request may crash a server, and its repetition may find nothing that listens.
                error.was_sent = error.was_sent or failures > 0
                failures += error.was_sent
                if isinstance(error, NEVER_REPEATED) or failures == self.servers.policy.tries:
                    raise
                await self.servers.pause(failures)
                is_suspect = failures > 0 and self._waits_for_ever(parameters)
                if is_suspect and self.servers.unavailable_since() is not None:
                    # The request may have crashed the servers, and would crash them again as soon as they are back. The
                    # item stream decides when its item is due again (sampling/pending_items.py).
                    raise
        return completions[: parameters.n]

    @staticmethod
    def _waits_for_ever(parameters: RequestParameters) -> bool:
        return parameters.split == "train" and parameters.patience_s is None

    async def _ask(self, prompt: Prompt, parameters: RequestParameters, step: TrainerStep) -> list[Completion]:
        """The completions in the reply of the next available server."""
        async with self.servers.turn(parameters.split, parameters.patience_s) as server:
            sampled_at = step()
            reply = await _reply_in_time(server, prompt, parameters)
            return await self._completions_of(reply, server, prompt, parameters.split, sampled_at)

    def _note_refusal(self, error: RequestRefusedError, prompt: Prompt) -> None:
        """Raise EnvironmentSetupError if the servers refuse every prompt, after REFUSED_PROMPTS different prompts."""
        if not self._refused:
            self._refused_since = now()
        self._refused.add(prompt.text)
        # A server that has answered may be starting again behind its proxy.
        patience_s = REFUSED_FOR_S if self._was_answered else 0.0
        waited_s = now() - self._refused_since
        if len(self._refused) >= REFUSED_PROMPTS and waited_s >= patience_s:
            raise EnvironmentSetupError(error.advice) from error

    # --- the completions of an answer, checked

    async def _completions_of(
        self,
        reply: Reply,
        server: ServerAdapter,
        prompt: Prompt,
        split: str,
        sampled_at: int | None,
    ) -> list[Completion]:
        """Raises InferenceError if no completion is valid, and BrokenOffError if a chat server broke them all off."""
        completions = []
        problem = "there are none"
        is_broken_off = False
        # The tokens of invalid completions are replaced, but they were generated.
        returned = sum(len(raw.ids) for raw in reply.completions)
        self.spending.note(len(prompt.tokens), len(reply.completions), max(returned, reply.used))
        for raw in reply.completions:
            # Long completions take milliseconds each. Other groups get their turn in between.
            await asyncio.sleep(0)
            known = [] if raw.text is not None else self._tokenizer.known(raw.ids)
            invalid_reason, detail = self._invalid(raw, known, split)
            if invalid_reason:
                problem = detail
                is_broken_off = raw.text is not None
                consequence = "sent without advantage" if split == "train" else "not scored"
                what = f"completions with {invalid_reason}, {consequence}"
                name = f"completions with {invalid_reason}".replace(" ", "_")
                self.events.note(name, what, f"{server.address}: {detail}")
            completions.append(self._completion(raw, known, prompt.tokens, split, invalid_reason, sampled_at))
        if all(completion.invalid_reason for completion in completions):
            count = f"none of its {len(completions)} completions can be used"
            kind = BrokenOffError if is_broken_off else InferenceError
            raise kind(f"{server.address}: {count}: {problem}")
        return completions

    def _invalid(self, raw: RawCompletion, known: list[int], split: str) -> tuple[MaskReason | None, str]:
        """The reason why a completion must not count, and its details; (None, "") for a valid completion.

        `known` are the token ids that the tokenizer has.
        """
        if split == "train" and not raw.ids:
            return MaskReason.NO_TOKENS, "it has no tokens"
        if raw.finish_reason in BROKEN_OFF:
            words = f" ({raw.error})" if raw.error else ""
            return BROKEN_OFF[raw.finish_reason], f"its finish reason is {raw.finish_reason}{words}"
        if raw.text is not None:
            return None, ""
        if raw.finish_reason is None:
            return MaskReason.ABORTED, "it has no finish reason"
        if split == "eval":
            # An evaluation reads the text only.
            return None, ""
        if len(known) < len(raw.ids):
            unknown = next(token for token, kept in itertools.zip_longest(raw.ids, known) if token is not kept)
            return MaskReason.UNKNOWN_TOKENS, f"the tokenizer has no token {unknown!r:.60}"
        problem = _problem_of(raw.logprobs or [], len(raw.ids))
        if problem:
            return MaskReason.BAD_LOGPROBS, problem
        return None, ""

    def _completion(
        self,
        raw: RawCompletion,
        known: list[int],
        prompt_ids: list[int],
        split: str,
        invalid_reason: MaskReason | None,
        sampled_at: int | None,
    ) -> Completion:
        ids = raw.ids
        logprobs = raw.logprobs
        text = raw.text
        if text is None:
            text = self._tokenizer.decode(known)
            if split == "eval":
                ids = known
                logprobs = None
        if invalid_reason:
            # One token remains, because trainers divide by the number of tokens.
            ids = [self._tokenizer.end_token]
            logprobs = None if logprobs is None else [0.0]
        return Completion(
            text=text,
            tokens=prompt_ids + ids,
            masks=[MASKED] * len(prompt_ids) + ids,
            logprobs=None if logprobs is None else [1.0] * len(prompt_ids) + logprobs,
            finish_reason=str(raw.finish_reason),
            invalid_reason=invalid_reason,
            sampled_at=sampled_at,
        )


async def _reply_in_time(server: ServerAdapter, prompt: Prompt, parameters: RequestParameters) -> Reply:
    try:
        return await with_deadline(parameters.timeout_s, server.sample(prompt, parameters))
    except TimeoutError as error:
        raise RequestTimeoutError(
            f"{server.address}: no answer within {parameters.timeout_s:g} s. Raise env.worker_timeout, or lower "
            "env.max_token_length or openai.num_max_requests_at_once."
        ) from error


def _are_plain(logprobs: list[Any]) -> bool:
    """Whether all are numbers in the right range, without a look at each of them in Python."""
    if not set(map(type, logprobs)) <= {float, int}:
        return False
    # The sum shows a NaN, with which no comparison means anything.
    is_in_range = min(logprobs, default=0.0) > MINUS_INFINITY and max(logprobs, default=0.0) <= LARGEST_LOGPROB
    return is_in_range and not math.isnan(sum(logprobs))


def _problem_of(logprobs: list[Any], count: int) -> str:
    """The fault of the log probabilities of `count` tokens, or ""."""
    if len(logprobs) != count:
        return f"{len(logprobs)} log probabilities for {count} tokens"
    if _are_plain(logprobs):
        return ""
    for logprob in logprobs:
        is_number = isinstance(logprob, (int, float))
        if not (is_number and MINUS_INFINITY < logprob <= LARGEST_LOGPROB):
            return f"a log probability is {logprob!r:.60}"
    return ""
