"""From a prompt to completions, through Atropos' ServerManager, whatever kind of server stands behind it.

    token servers (vllm, sglang, trl)   real token ids and logprobs, fit for training once they are checked
    openai                              chat.completions: text only; tokens come from the configured tokenizer

A reply that is not what was asked for is an error. A completion whose ids or logprobs a trainer cannot use has a flaw:
it is mended, so that it does no harm where it is sent without advantage, and its server is named. This is done before
anything is decoded, for a tokenizer leaves out the ids that it does not know.

atroposlib's client of TRL's vLLM server (`trl vllm-serve`) decodes the token ids away and cannot train; the one at the
end of this file keeps them. Older releases of TRL reply with `completion_ids` alone, newer ones add `prompt_ids` and
`logprobs`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
from atroposlib.envs.server_handling.openai_server import OpenAIServer
from atroposlib.envs.server_handling.server_baseline import APIServer, APIServerConfig, ReasoningConfig
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.envs.server_handling.trl_vllm_server import TrlVllmServer
from tenacity import RetryError
from transformers import AutoTokenizer

from ..errors import GivenUpError, InferenceError
from ..records import MASKED, Completion
from ..utils.outage_log import RepeatedEvents
from .availability import HangLimits, ServerChoice, Standing
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

    def __init__(
        self, server: ServerManager, tokenizer: Any, tokenizer_name: str, limits: HangLimits | None = None
    ) -> None:
        self._server = server
        for one in server.servers:
            _tell_of_requests(one)
        self._choice = ServerChoice(server, limits)
        self._tokenizer = tokenizer
        check_tokenizer(tokenizer, tokenizer_name)
        self._vocabulary = Vocabulary(tokenizer)
        self._flaws = RepeatedEvents(logger)

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
        return self._choice.metrics()

    def render(self, messages: Sequence[Message]) -> Prompt:
        """The prompt of these messages; see `prompts.render`."""
        return render(self._tokenizer, messages)

    async def complete(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Exactly `sampling.n` completions. Raises InferenceError if the server does not deliver them.

        For training some of them may have a flaw; a reply in which all have one is an error too. An evaluation reads
        the text, whatever else came with it, if it is whole.
        """
        ask = self._complete_with_tokens if self.has_tokens else self._complete_as_chat

        def longest(reply: list[Completion]) -> int:
            return max((one.num_tokens for one in reply), default=0) - len(prompt.tokens)

        # What is raised inside counts against the server that was chosen.
        with self._choice.one(sampling.split) as chosen:
            request = ask(chosen, prompt, sampling)
            # Clients of four kinds of server raise their own errors, usually wrapped by tenacity.
            try:
                completions = await self._choice.watched(chosen, sampling.split, sampling.max_tokens, request, longest)
                if len(completions) != sampling.n:
                    raise InferenceError(f"asked for {sampling.n} completions, got {len(completions)}")
            except Exception as error:
                kind = GivenUpError if isinstance(error, GivenUpError) else InferenceError
                raise kind(f"{chosen.address}: {_root_cause(error)}") from error
            return completions

    async def _complete_with_tokens(self, chosen: Standing, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        server = chosen.server
        prompt_ids, ids, logprobs, reasons = await server.tokens_and_logprobs_completion(
            prompt=prompt.text, input_ids=prompt.tokens, **sampling.as_request()
        )
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
            response = await chosen.manager.chat_completion(messages=prompt.messages, **sampling.as_request())
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


def _first(value: Any) -> Any:
    """A logprob; newer servers wrap each in a list of the top k."""
    return value[0] if isinstance(value, list) else value
