"""How each kind of inference server is asked for completions, and what its answers mean.

    openai.server_type   endpoint                                                 token ids and log probabilities
    vllm                 /generate (Atropos' server) or /v1/completions (vLLM)    yes
    sglang               /generate                                                yes
    trl                  /generate/ (before TRL 1.11)                             yes; older releases: token ids only
    openai               /v1/chat/completions                                     no: text, fit for evaluation

    probe ───> n_per_request, max_tokens_field and context_length, where they are not set
    sample ──> Reply, or
               RequestRefusedError   the server does not take this request, however often it is made (400, 404, 422 ...)
               ServerBusyError       the server takes it later (429, or 503 with Retry-After)
               InferenceError        no connection, no answer in time, another status, a reply without completions

Servers of one kind mostly differ in three settings. One request at the start finds out those that the user has not set.
Whatever else a server refuses is reported in the server's own words, with the setting to change.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import aiohttp

from ..errors import InferenceError, RequestRefusedError, ServerBusyError, UnreadableReplyError
from ..records import MIN_COMPLETION_TOKENS
from .prompts import Prompt, Sampling

logger = logging.getLogger(__name__)

REFUSED = (400, 401, 402, 403, 404, 405, 413, 422)
"""Answers that no repetition changes."""

LONGEST_PAUSE_S = 600.0
"""Between two requests to a server that asks for a pause."""

UNREADABLE = (LookupError, TypeError, AttributeError, ValueError)
"""What reading a reply of another shape raises."""


@dataclass(frozen=True)
class ServerSettings:
    """How servers are asked. The probe finds out the first three where they are None."""

    n_per_request: int | None = None
    max_tokens_field: str | None = None
    context_length: int | None = None
    request_timeout_s: float = 1200.0

    @classmethod
    def of(cls, config: Any) -> ServerSettings:
        """Those of an environment's settings, which have the same names."""
        return cls(**{one.name: getattr(config, one.name) for one in fields(cls)})


@dataclass(frozen=True)
class Sampled:
    """One completion as the server gave it, unchecked. `text` is that of a server without token ids."""

    finish_reason: Any
    ids: list[Any]
    logprobs: list[Any] | None = None
    text: str | None = None


@dataclass(frozen=True)
class Reply:
    """The completions of one request; `used` is how many tokens the server says they took, 0 if it does not say."""

    completions: list[Sampled]
    prompt_ids: list[int] | None = None
    used: int = 0


class ServerAdapter:
    """One inference server. A subclass has `sample` and `_completions_in`."""

    has_tokens = True
    most_choices: int | None = None
    """Completions of one request at most, unless a setting says otherwise; None: any number."""
    margin = 1
    """Tokens of the context that stay unused: SGLang takes one less than its context."""

    def __init__(self, server: Any, tokenizer: Any, settings: ServerSettings) -> None:
        self._server, self._tokenizer = server, tokenizer
        # None in Atropos' test harness.
        self.config: Any = getattr(server, "config", None)
        given = getattr(self.config, "base_url", None) or os.environ.get("OPENAI_BASE_URL")
        self.address = str(given or "https://api.openai.com/v1").rstrip("/")
        self.root = self.address.removesuffix("/v1").rstrip("/")
        ignores_n = getattr(self.config, "n_kwarg_is_ignored", False)
        self._settings = replace(settings, n_per_request=1) if ignores_n else settings
        self.found: dict[str, Any] = {}
        """What the probe found out, by setting."""

    @property
    def health_url(self) -> str:
        """What answers once the server is up."""
        return f"{self.root}/health"

    @property
    def n_per_request(self) -> int | None:
        return self._settings.n_per_request or self.most_choices

    @property
    def context_length(self) -> int | None:
        """Tokens that a prompt and its completion may have together; None: unknown."""
        length = self._settings.context_length
        return None if length is None else length - self.margin

    def slots(self, split: str) -> Any:
        """Atropos' semaphore of the requests to this server."""
        return self._server.sem if split == "train" else self._server.eval_sem

    def note_duration(self, split: str, seconds: float) -> None:
        """For Atropos' own metrics of this server."""
        for name, value in (("request_timings", seconds), ("attempts_list", 1)):
            getattr(self._server, name if split == "train" else f"eval_{name}", []).append(value)

    # --- one request

    async def sample(self, prompt: Prompt, sampling: Sampling) -> Reply:
        """The reply to one request. Raises InferenceError or a kind of it."""
        raise InferenceError("This server takes no requests.")

    def _completions_in(self, reply: Any, prompt: Prompt) -> Reply:
        """May raise any of UNREADABLE for a reply of another shape."""
        raise NotImplementedError

    async def _read(self, url: str, request: Mapping[str, Any], prompt: Prompt) -> Reply:
        timeout_s = min(self._settings.request_timeout_s, float(self.config.timeout))
        try:
            status, text, headers = await self._exchange("POST", url, timeout_s, request)
        except TimeoutError as error:
            raise InferenceError(f"{self.address}: no answer within {timeout_s:g} s, env.request_timeout_s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise InferenceError(f"{self.address}: {_line(error)}") from error
        if status >= 400:
            raise self._error_of(status, text, headers)
        try:
            return self._completions_in(json.loads(text), prompt)
        except UNREADABLE as error:
            # Some servers report an error with status 200.
            found = sentence_in(text) or _line(error)
            raise UnreadableReplyError(
                f"{self.address}: the reply is not as those of openai.server_type {self.config.server_type} ({found}): "
                "check openai.base_url, which mostly ends in /v1, and openai.server_type"
            ) from error

    async def _exchange(
        self, method: str, url: str, timeout_s: float, body: Any = None
    ) -> tuple[int, str, Mapping[str, str]]:
        """Status, text and headers of an answer. Connections are not kept: a server may be restarted at any time."""
        headers = {"Authorization": f"Bearer {self.config.api_key}"} if self.config.api_key else {}
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        # Providers may be behind a proxy of the environment; one's own servers are asked directly.
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=not self.has_tokens) as session,
            session.request(method, url, json=body, headers=headers) as response,
        ):
            return response.status, await response.text(errors="replace"), response.headers

    def _error_of(self, status: int, text: str, headers: Mapping[str, str]) -> InferenceError:
        sentence = sentence_in(text) or "nothing more"
        said = f"{self.address} answers {status}: {sentence}"
        # What OpenAI calls a 429 that no waiting ends.
        has_credit = "insufficient_quota" not in text
        if (status == 429 and has_credit) or (status == 503 and "Retry-After" in headers):
            return ServerBusyError(said, pause_in(headers))
        if status not in (*REFUSED, 429):
            return InferenceError(said)
        asked = f"{self.address} answers {status} to a request for {self.config.model_name!r}"
        advice = f"{asked}: {sentence.rstrip('.')}. Check {REMEDIES.get(status, SAMPLING)}."
        return RequestRefusedError(said, advice=advice, status=status)

    # --- the three settings

    async def probe(self, prompt: Prompt, sampling: Sampling) -> None:
        """Make the first request, and find out the three settings by it. Raises what `sample` raises.

        A request that is refused is made with the other name of its limit, and with one completion.
        """
        await self.find_context()
        if self.context_length is not None:
            room = max(MIN_COMPLETION_TOKENS, self.context_length - len(prompt.tokens))
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        field, one = {"max_tokens_field": "max_completion_tokens"}, {"n_per_request": 1}
        as_set, refusal = self._settings, None
        for other in ({}, field, one, field | one):
            if any(getattr(as_set, name) is not None for name in other):
                continue
            self._settings = replace(as_set, **other)
            n = min(sampling.n, self.n_per_request or sampling.n)
            try:
                given = len((await self.sample(prompt, replace(sampling, n=n))).completions)
            except RequestRefusedError as error:
                self._settings, refusal = as_set, refusal or error
                if error.status not in (400, 422):
                    break
                continue
            if refusal is not None:
                self._find(str(refusal), **other)
            elif 0 < given < n:
                self._find(f"it gives {given} of {n} completions", n_per_request=given)
            return
        assert refusal is not None
        raise refusal

    async def find_context(self) -> None:
        """Ask for the length of the model's context, unless it is set. Nobody charges for that."""
        if self._settings.context_length is None and (length := await self._context_of_model()):
            self._find("as it says of its model", context_length=length)

    def _find(self, why: str, **settings: Any) -> None:
        self._settings = replace(self._settings, **settings)
        self.found |= settings
        for name, value in settings.items():
            logger.info("%s: env.%s is taken to be %s (%s).", self.address, name, value, why.rstrip("."))

    async def _context_of_model(self) -> int | None:
        """What `/v1/models` says of our model: `max_model_len` (vLLM, SGLang) or `context_length` (providers)."""
        # Nothing depends on it: the request that follows says what is wrong.
        with contextlib.suppress(aiohttp.ClientError, OSError, asyncio.TimeoutError, *UNREADABLE):
            _, text, _ = await self._exchange("GET", f"{self.root}/v1/models", timeout_s=10.0)
            models = json.loads(text)["data"]
            [model] = [one for one in models if one["id"] == self.config.model_name] or models
            return int(model.get("max_model_len") or model.get("context_length") or 0) or None
        return None


CREDIT = "the credit at the provider"
PLACE = (
    "openai.base_url, which mostly ends in /v1, openai.model_name, and openai.server_type (vllm for a vLLM server, "
    "which `trl vllm-serve` is too from TRL 1.11 on; openai for others with an OpenAI API)"
)
KEY = "openai.api_key"
REMEDIES = {401: KEY, 402: CREDIT, 403: f"{KEY} and what it may use", 404: PLACE, 405: PLACE, 429: CREDIT}
"""What to look at, by the status of a refusal."""

SAMPLING = (
    "the setting that this is about: env.n_per_request, env.max_tokens_field, env.context_length, env.max_token_length "
    "(of which evaluation asks for twice), openai.model_name, temperature, top_p or thinking"
)


# --- the kinds of server


class VllmAdapter(ServerAdapter):
    """A stock `vllm serve`, or Atropos' own server, which has `/generate`. The first answer shows which of the two."""

    _has_generate: bool | None = None

    async def sample(self, prompt: Prompt, sampling: Sampling) -> Reply:
        request = {"logprobs": 0, **sampling.parameters}
        if self._has_generate is not False:
            given = {"prompt": {"prompt_token_ids": prompt.tokens}}
            try:
                reply = await self._read(f"{self.root}/generate", request | given, prompt)
            except RequestRefusedError as error:
                if self._has_generate or error.status not in (404, 405):
                    raise
            else:
                self._has_generate = True
                return reply
        request |= {"model": self.config.model_name, "prompt": prompt.tokens, "return_token_ids": True}
        reply = await self._read(f"{self.root}/v1/completions", request, prompt)
        self._has_generate = False
        return reply

    def _completions_in(self, reply: Any, prompt: Prompt) -> Reply:
        if "choices" not in reply:
            sampled = []
            for row, reason in zip(reply["logprobs"], reply["finish_reasons"], strict=True):
                # Of each token [{id: logprob}].
                pairs = [next(iter(one[0].items())) for one in row]
                sampled.append(Sampled(reason, [int(token) for token, _ in pairs], [value for _, value in pairs]))
            return Reply(sampled)
        choices = reply["choices"]
        if any(one.get("token_ids") is None for one in choices):
            raise ValueError("no token_ids, which vLLM gives from 0.10.2 on")
        sampled = []
        for one in choices:
            logprobs = (one.get("logprobs") or {}).get("token_logprobs") or []
            sampled.append(Sampled(one.get("finish_reason"), one["token_ids"], logprobs))
        return Reply(sampled, choices[0].get("prompt_token_ids") if choices else None)


class SglangAdapter(ServerAdapter):
    """SGLang's own `/generate`."""

    async def sample(self, prompt: Prompt, sampling: Sampling) -> Reply:
        parameters = sampling.parameters
        parameters["max_new_tokens"] = parameters.pop("max_tokens")
        request = {"input_ids": prompt.tokens, "sampling_params": parameters, "return_logprob": True}
        return await self._read(f"{self.root}/generate", request, prompt)

    def _completions_in(self, reply: Any, prompt: Prompt) -> Reply:
        sampled = []
        for meta in [one["meta_info"] for one in (reply if isinstance(reply, list) else [reply])]:
            # For each token [logprob, id, text].
            tokens, reason = meta["output_token_logprobs"], meta.get("finish_reason")
            reason = reason.get("type") if isinstance(reason, dict) else reason
            sampled.append(Sampled(reason, [one[1] for one in tokens], [one[0] for one in tokens]))
        return Reply(sampled)


class TrlAdapter(ServerAdapter):
    """TRL's `vllm-serve` before 1.11, which takes text. Older releases report no log probabilities."""

    async def sample(self, prompt: Prompt, sampling: Sampling) -> Reply:
        # vLLM adds its own beginning-of-sequence token to a text.
        request = {"prompts": [prompt.text.removeprefix(self._tokenizer.bos_token or "")], **sampling.parameters}
        return await self._read(f"{self.root}/generate/", request, prompt)

    def _completions_in(self, reply: Any, prompt: Prompt) -> Reply:
        completions, reported, prompts = reply["completion_ids"], reply.get("logprobs"), reply.get("prompt_ids")
        # Newer releases wrap each log probability in a list of the top k.
        rows: list[Any] = [[one[0] if isinstance(one, list) else one for one in row] for row in reported or []]
        reasons = ["stop" if self._tokenizer.eos_token_id in ids[-1:] else "length" for ids in completions]
        sampled = zip(reasons, completions, rows or [None] * len(completions), strict=True)
        return Reply([Sampled(*one) for one in sampled], prompts[0] if prompts else None)


class ChatAdapter(ServerAdapter):
    """A server with OpenAI's chat API: text only."""

    has_tokens = False
    # As in Atropos: providers have limits. And the chat template of a server may make a prompt longer than ours does.
    most_choices, margin = 8, 32

    @property
    def health_url(self) -> str:
        return f"{self.address}/models"

    async def sample(self, prompt: Prompt, sampling: Sampling) -> Reply:
        request = {"model": self.config.model_name, "messages": prompt.messages, **sampling.parameters}
        # Atropos' settings of reasoning models.
        request = self._server._inject_reasoning_kwargs(request)
        request |= request.pop("extra_body", {})
        if (field := self._settings.max_tokens_field) and "max_tokens" in request:
            request[field] = request.pop("max_tokens")
        return await self._read(f"{self.address}/chat/completions", request, prompt)

    def _completions_in(self, reply: Any, prompt: Prompt) -> Reply:
        sampled = []
        for one in reply["choices"]:
            text, reason = _text_of(one["message"], prompt.thinking_opened), one.get("finish_reason")
            sampled.append(Sampled(reason, self._tokenized(text, reason), text=text))
        used = (reply.get("usage") or {}).get("completion_tokens")
        return Reply(sampled, used=used if isinstance(used, int) else 0)

    def _tokenized(self, text: str, reason: Any) -> list[int]:
        """The tokens of a text as the model would have written it.

        Not through the chat template: templates of reasoning models drop the thinking of earlier turns.
        """
        end = self._tokenizer.eos_token_id
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return [*ids, end] if reason == "stop" and end is not None else list(ids)


def _text_of(message: Mapping[str, Any], thinking_opened: bool) -> str:
    """The reply, with the reasoning put back in front where the server split it off into its own field.

    Reasoning with no content after it was cut off, so it stays open.
    """
    content = message.get("content") or ""
    if not isinstance(content, str):
        raise TypeError("the content is not text")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if not isinstance(reasoning, str) or not reasoning or "</think>" in content:
        return content
    opened = reasoning.strip() if thinking_opened else f"<think>\n{reasoning.strip()}"
    return f"{opened}\n</think>\n{content}" if content else opened


KINDS = {
    "VLLMServer": VllmAdapter,
    "SGLangServer": SglangAdapter,
    "TrlVllmServer": TrlAdapter,
    "OpenAIServer": ChatAdapter,
}
"""By the class of Atropos' server: where the settings are a template, they do not say the type."""


def adapters_of(servers: Any, tokenizer: Any, settings: ServerSettings) -> list[ServerAdapter]:
    """One for each of Atropos' servers; its test harness gets one that takes no requests."""
    return [KINDS.get(type(one).__name__, ServerAdapter)(one, tokenizer, settings) for one in servers]


# --- what a server says


def sentence_in(text: str) -> str:
    """The sentence in the body of an error, in one line, whatever shape the body has.

    `{"error": {"message": ...}}` (OpenAI and most), `{"message": ...}` (older vLLM), `{"error": "..."}` (TGI, Ollama),
    `{"detail": ...}` (FastAPI), a page of a proxy.
    """
    try:
        body = json.loads(text)
    except ValueError:
        body = {"message": re.sub(r"<[^>]*>", " ", text)}
    error = body.get("error", body) if isinstance(body, dict) else None
    found = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return " ".join("".join(one if one.isprintable() else " " for one in str(found or "")).split())[:300]


def pause_in(headers: Mapping[str, str]) -> float:
    """Seconds to wait, as Retry-After has them; 0 where it has a date or nothing."""
    try:
        return min(LONGEST_PAUSE_S, max(0.0, float(headers.get("Retry-After", 0))))
    except ValueError:
        return 0.0


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
