"""What a server will not take, and what it is asked instead.

    request ── shaped as this server takes it ──> server ── refuses ──> asked otherwise, from now on, with one line
                                                        └─ still refuses ──> Refusal, with the server's own sentence

Servers of one protocol differ in what they refuse: a completion that might not fit the context, `n` above 1,
`max_tokens` under that name, a temperature. What can be asked otherwise is. The rest is nothing that waiting mends, so
it is neither repeated nor taken for an outage: Atropos' clients, which ask nine times for whatever failed, are handed
the refusal as if it were a reply. So it is with a server that says how long to wait (429 with Retry-After).

At the end is the client of TRL's vLLM server. atroposlib's own decodes the token ids away and cannot train. Older
releases of TRL reply with `completion_ids` alone, newer ones add `prompt_ids` and `logprobs`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import openai
from atroposlib.envs.server_handling.openai_server import OpenAIServer
from atroposlib.envs.server_handling.server_baseline import APIServer, APIServerConfig, ReasoningConfig
from atroposlib.envs.server_handling.sglang_server import SGLangServer
from atroposlib.envs.server_handling.trl_vllm_server import TrlVllmServer
from transformers import AutoTokenizer

from ..errors import InferenceError
from ..records import MIN_COMPLETION_TOKENS

logger = logging.getLogger(__name__)

request_goes_out: ContextVar[Callable[[], None]] = ContextVar("request_goes_out", default=lambda: None)
"""Called when a request for completions of this context really goes out: Atropos' clients wait for a healthy server and
for room before, and repeat what failed, without a word."""

REFUSED = (400, 402, 404, 413, 422)
"""Answers that no repetition changes."""

OK, LIMITED = 200, 429
SERVER_FAILS = 500
NO_CREDIT = "insufficient_quota"
"""What OpenAI calls a 429 that no waiting ends."""

LONGEST_PAUSE_S = 600.0
"""A server that asks for a longer one is away."""

SHORTEST_PAUSE_S, LONGEST_OWN_PAUSE_S = 1.0, 60.0
"""In place of a shorter one, or none: 1, 2, 4 ... 60 s until it answers."""

MOST_CHANGES = 16
"""How often one request is asked otherwise: once for each kind of change, the budget several times."""
SHORT_REPLIES = 3
"""So many in a row with some of the choices are its way; one may be a choice that was withheld."""

CHAT, TOKENS = "_chat_completion_wrapper", "_tokens_and_logprobs_completion_wrapper"
"""What Atropos' clients make each attempt with."""


@dataclass(frozen=True)
class Refusal:
    """What stands in the place of a reply; `sentence` is the server's own.

    `pause_s` is how long it asks to wait, None if it refuses. `is_too_long`: it is about this one prompt.
    `may_pass`: it is an error with status 200, which does not tell whether it stays.
    """

    status: int
    sentence: str
    pause_s: float | None = None
    is_too_long: bool = False
    may_pass: bool = False

    def advice(self, address: str, model: str) -> str:
        """One sentence: who says what, and which settings to look at."""
        found = (remedy for pattern, remedy in _REMEDIES if re.search(pattern, self.sentence.lower()))
        remedy = _BY_STATUS.get(self.status) or next(found, "what the sections openai: and env: ask for")
        return f"{address} answers {self.status} to a request for {model!r}: check {remedy} ({self.sentence})."


class NoCompletionsError(InferenceError):
    """A reply with status 200 that has none in it."""

    def __init__(self, sentence: str, check: str = "") -> None:
        super().__init__(f"{sentence}: check {check}" if check else sentence)
        self.refusal = Refusal(OK, sentence, may_pass=not check)


_WHERE = "openai.base_url, which mostly ends in /v1, and openai.server_type"
_BY_STATUS = {
    401: "openai.api_key",
    403: "openai.api_key and what it may use",
    402: "the credit at the provider",
    404: "openai.base_url, which mostly ends in /v1, openai.model_name, and openai.server_type (a plain vLLM "
    "server has no /generate, it is of type openai)",
}
_REMEDIES = (
    (r"^the reply is not", _WHERE),
    (r"quota|credit|billing", "the credit at the provider"),
    (r"top_p", "env.train_top_p"),
    (r"reasoning", "env.thinking_mode, env.reasoning_effort and env.max_reasoning_tokens"),
    (r"temperature", "env.train_temperature and env.eval_temperature"),
    (r"\brole|template", "openai.model_name, whose chat template must take a system message"),
    (
        r"context|tokens|too l",
        "env.max_prompt_tokens and env.max_token_length, of which evaluation asks for twice",
    ),
    (r"model", "openai.model_name"),
)


class Dialect:
    """How one server wants to be asked, as its refusals taught it. `Dialect.of` gives that of a server."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._ways: dict[str, Callable[..., Any]] = {}
        self._one_choice = False
        self._short_replies = 0
        self._limit_name = ""
        self._left_out: set[str] = set()
        self._context: int | None = None
        self._most: int | None = None
        self._surplus = 0
        """How many more tokens it finds in a prompt than we do."""
        self._rests_until = 0.0
        self._own_pause_s = 0.0
        self.changes: dict[str, str] = {}
        """What it is asked otherwise, in words; told once each."""
        self.counts: Counter[str] = Counter()

    @classmethod
    def of(cls, server: Any) -> Dialect:
        """The dialect of this server, through which every attempt of its client goes from now on."""
        if isinstance(found := getattr(server, "dialect", None), cls):
            return found
        it = cls(server)
        for name in (CHAT, TOKENS):
            # Atropos' test harness has neither.
            if (way := getattr(server, name, None)) is not None:
                is_openai = getattr(way, "__func__", None) is OpenAIServer._chat_completion_wrapper
                it._ways[name] = it._chat if is_openai else way
                setattr(server, name, it._asking(name))
                server.dialect = it
        return it

    @property
    def address(self) -> str:
        """Where the server listens."""
        config = getattr(self._server, "config", None)
        return str(getattr(config, "base_url", None) or "the inference server")

    def _asking(self, name: str) -> Callable[..., Any]:
        async def ask(**request: Any) -> Any:
            return await self._ask(name, request)

        return ask

    async def try_out(self, messages: list[dict[str, str]], text: str, tokens: list[int], request: Any) -> Any:
        """One attempt at a request: its reply, or the Refusal, which no completions are too at this time.

        Raises what the client raises.
        """
        request = {**request, "model": self._server.config.model_name}
        try:
            if isinstance(self._server, OpenAIServer):
                asked = self._server._inject_reasoning_kwargs({**request, "messages": messages})
                return await self._ask(CHAT, {**asked, "prompt_tokens": len(tokens)})
            return await self._ask(TOKENS, {**request, "prompt": text, "input_ids": tokens})
        except NoCompletionsError as error:
            return error.refusal

    async def pause(self) -> None:
        """Wait for as long as the server asked all of us to."""
        await asyncio.sleep(max(0.0, self._rests_until - time.monotonic()))

    async def _ask(self, name: str, request: dict[str, Any]) -> Any:
        """The reply to a request, changed until the server takes it; or the Refusal. `prompt_tokens` is not sent."""
        known = request.pop("prompt_tokens", None)
        prompt_tokens = len(request["input_ids"]) if known is None and request.get("input_ids") else known or 0
        for _ in range(MOST_CHANGES):
            shaped, lessons = self._shaped(request, prompt_tokens), self.counts["changed_requests"]
            if isinstance(shaped, Refusal):
                return shaped
            try:
                reply = await self._made(name, shaped)
                self._own_pause_s = 0.0
                return reply
            except (openai.APIStatusError, aiohttp.ClientResponseError) as error:
                refusal, details = await self._heard(error, shaped)
                if refusal is None:
                    raise
                if refusal.pause_s is not None:
                    return replace(refusal, pause_s=self._rest(refusal.pause_s))
                # Another request may have taught it meanwhile.
                is_learned = lessons != self.counts["changed_requests"]
                if not is_learned and not self._learn(refusal.sentence, details, shaped, prompt_tokens):
                    if refusal.status >= SERVER_FAILS:
                        raise
                    break
        self.counts["refused_requests"] += 1
        return refusal

    def _rest(self, asked_s: float) -> float:
        """Seconds for which nothing is asked now."""
        now = time.monotonic()
        if asked_s < SHORTEST_PAUSE_S:
            # Those under way together are refused together.
            if now >= self._rests_until:
                self._own_pause_s = min(LONGEST_OWN_PAUSE_S, 2 * self._own_pause_s)
            asked_s = self._own_pause_s = max(SHORTEST_PAUSE_S, self._own_pause_s)
        self._rests_until = max(self._rests_until, now + asked_s)
        return asked_s

    async def _made(self, name: str, request: dict[str, Any]) -> Any:
        """The reply of the client, or of several requests for one choice each."""
        config = self._server.config
        if getattr(config, "n_kwarg_is_ignored", False):
            # Atropos' client finds that out by itself, and then pays twice for each request for one choice.
            config.n_kwarg_is_ignored = False
            self._one_choice = True
            self._tell("one choice a request", "it ignores n")
        came: list[Any] = []
        count = request.get("n", 1)
        if not self._one_choice:
            request_goes_out.get()()
            reply = self._first(count, await self._reply(name, request))
            size = _size(reply)
            if not 0 < size < count:
                self._short_replies = 0
                return reply
            self._short_replies += 1
            if not self.counts["choices_missing"]:
                logger.warning("%s gives %d of %d choices: the others are asked for again.", self.address, size, count)
            self.counts["choices_missing"] += count - size
            if size == 1 or self._short_replies >= SHORT_REPLIES:
                self._one_choice = True
                self._tell("one choice a request", "it ignores n" if size == 1 else f"it gives {size} of {count}")
            came, count = [reply], count - size
        request.pop("n", None)
        replies: list[Any] = []
        for last in (False, False, True):
            request_goes_out.get()()
            asked = (self._reply(name, request) for _ in range(count - len(replies)))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            replies += [self._first(1, one) for one in answers if not isinstance(one, BaseException)]
            failed = [one for one in answers if isinstance(one, BaseException)]
            # Those that came are paid for: only what is missing is asked for again.
            if failed and (last or _status_of(failed[0]) in (*REFUSED, LIMITED, SERVER_FAILS)):
                raise failed[0]
            if not failed:
                break
        return _joined([*came, *replies])

    def _first(self, count: int, reply: Any) -> Any:
        """The reply with so many choices and no more."""
        if (more := _size(reply) - count) > 0:
            if not self.counts["choices_too_many"]:
                logger.warning("%s gives %d choices more than asked for: those are dropped.", self.address, more)
            self.counts["choices_too_many"] += more
            if isinstance(reply, tuple):
                return reply[0], *(rows[:count] for rows in reply[1:])
            del reply.choices[count:]
        return reply

    async def _chat(self, **request: Any) -> Any:
        """In place of Atropos' client, which takes whatever comes for a chat completion."""
        try:
            reply = await self._server.openai.chat.completions.create(**request)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise NoCompletionsError("the reply is not JSON", _WHERE) from error
        if _is_chat_completion(reply):
            return reply
        # The library reads whatever JSON there is into its own type, and gives a page as it came.
        said, _ = said_in(json.dumps(getattr(reply, "model_extra", None) or {}, default=str))
        if said:
            raise NoCompletionsError(f"an error in place of completions: {said}")
        page = f" ({said_in(reply)[0][:100]})" if isinstance(reply, str) else ""
        raise NoCompletionsError(f"the reply is not a chat completion{page}", _WHERE)

    async def _reply(self, name: str, request: dict[str, Any]) -> Any:
        """That of the client. Raises NoCompletionsError for one in which it finds none."""
        try:
            return await self._ways[name](**request)
        except (LookupError, TypeError, AttributeError, ValueError, aiohttp.ContentTypeError) as error:
            if name == CHAT or (isinstance(error, aiohttp.ClientError) and _status_of(error) != OK):
                raise
            if isinstance(error, LookupError) and not isinstance(self._server, TrlVllmServer):
                said, _ = said_in(await _why(self._server, request) or "")
                if said:
                    raise NoCompletionsError(f"an error in place of completions: {said}") from error
            is_json = not isinstance(error, (aiohttp.ContentTypeError, json.JSONDecodeError))
            why = f"{type(error).__name__}: {error}".splitlines()[0][:100] if is_json else "it is not JSON"
            sentence = f"the reply is not as that of {self._kind}'s /generate ({why})"
            raise NoCompletionsError(sentence, _WHERE) from error

    @property
    def _kind(self) -> str:
        kinds = ((SGLangServer, "SGLang"), (TrlVllmServer, "TRL"))
        return next((name for kind, name in kinds if isinstance(self._server, kind)), "vLLM")

    # --- what it takes

    def _shaped(self, request: Mapping[str, Any], prompt_tokens: int) -> dict[str, Any] | Refusal:
        shaped = {name: value for name, value in request.items() if name not in self._left_out}
        name = next((one for one in ("max_tokens", "max_completion_tokens") if one in shaped), None)
        if name is not None:
            limit, room = shaped.pop(name), self._room(prompt_tokens)
            if room is not None and room < min(limit, MIN_COMPLETION_TOKENS):
                sentence = f"a prompt of {prompt_tokens} tokens leaves no room for a completion"
                return Refusal(400, sentence, is_too_long=True)
            shaped[self._limit_name or name] = limit if room is None else min(limit, room)
        return shaped

    def _room(self, prompt_tokens: int) -> int | None:
        """For a completion, as far as it is known. SGLang wants one token less than its context to be asked for."""
        rooms = [] if self._most is None else [self._most]
        if self._context is not None:
            rooms.append(self._context - prompt_tokens - self._surplus - 1)
        return min(rooms, default=None)

    def _learn(self, sentence: str, details: Mapping[str, Any], asked: Mapping[str, Any], prompt_tokens: int) -> bool:
        """Whether something can be asked otherwise, after what was said to the request `asked`."""
        said = re.sub(r"(?<=\d)[,_](?=\d{3}\b)", "", sentence.lower())
        about = str(details.get("param") or "")
        if "max_tokens" in asked and "max_completion_tokens" in said and ("instead" in said or "unsupported" in said):
            self._limit_name = "max_completion_tokens"
            return self._tell("max_completion_tokens in place of max_tokens", sentence)
        if "n" in asked and not self._one_choice and (about == "n" or _N_REFUSED.search(said)):
            self._one_choice = True
            return self._tell("one choice a request", sentence)
        # Some take one of the two and not both: then the temperature, which makes more of a difference, stays.
        for name in ("top_p", "temperature"):
            if name in asked and (about == name or name in said) and _NOT_TAKEN.search(said):
                self._left_out.add(name)
                return self._tell(f"its own {name}", sentence)
        return self._learn_budget(sentence, said, details, asked, prompt_tokens)

    def _learn_budget(
        self, sentence: str, said: str, details: Mapping[str, Any], asked: Mapping[str, Any], prompt_tokens: int
    ) -> bool:
        limit = asked.get("max_completion_tokens", asked.get("max_tokens"))
        if limit is None or not re.search(r"token|context", f"{said} {details.get('param')}"):
            return False
        if (context := details.get("n_ctx") or _number(_CONTEXT, said)) is not None:
            counted = details.get("n_prompt_tokens") or _number(_PROMPT, said) or 0
            # Newer releases of vLLM count a prompt only until it is too much.
            more = max(MARGIN, 2 * self._surplus) if "at least" in said else 0
            self._surplus = max(self._surplus, counted - prompt_tokens + more)
            self._context = min(context, self._context or context)
            if (room := self._room(prompt_tokens)) is not None and room >= limit:
                self._surplus += room - limit + max(MARGIN, self._surplus)
            return self._tell(f"completions that fit its context of {self._context} tokens", sentence)
        if (most := _number(_MOST, said)) is not None and most < limit:
            self._most = most
            return self._tell(f"at most {most} tokens a completion", sentence)
        return False

    def _tell(self, change: str, sentence: str) -> bool:
        self.counts["changed_requests"] += 1
        if change not in self.changes:
            self.changes[change] = sentence
            logger.warning("%s is asked for %s from now on (%s).", self.address, change, sentence.rstrip("."))
        return True

    # --- what it says

    async def _heard(self, error: Any, request: Mapping[str, Any]) -> tuple[Refusal | None, dict[str, Any]]:
        """What the server said, if it refuses; None for what may pass."""
        status = _status_of(error)
        is_openai = isinstance(error, openai.APIStatusError)
        headers = (error.response.headers if is_openai else error.headers) or {}
        text: str | None = error.response.text if is_openai else error.message
        if not is_openai and status in REFUSED and not isinstance(self._server, TrlVllmServer):
            text = await _why(self._server, request)
        if text is None:
            return None, {}
        sentence, details = said_in(text)
        sentence = sentence or f"no more than the status {status}"
        if status == LIMITED and NO_CREDIT not in (details.get("code"), details.get("type")):
            pause_s = _pause_of(headers)
            return (None if pause_s is None else Refusal(status, sentence, pause_s)), details
        # Older releases of llama.cpp have 500 for what others have 400 for.
        if status in (*REFUSED, LIMITED, SERVER_FAILS):
            return Refusal(status, sentence), details
        return None, {}


MARGIN = 32
"""Tokens by which a budget is lowered where the server does not say by how many."""

_N_REFUSED = re.compile(
    r"one completion choice|multiple (choices|completions|candidates)|candidate_?count|['\"`]n['\"`]"
    r"|\bn (must|should|is not)|\bn: "
)
_NOT_TAKEN = re.compile(
    r"support|only the default|not (allowed|permitted)|deprecated|cannot|unknown|unrecognized|extra"
)
_CONTEXT = re.compile(
    r"(?:context|model) (?:length|size|window)(?: is| of|:)? ?\(?(\d+)|max_new_tokens`? must be <= (\d+)"
    r"|max_(?:model_len|total_tokens)(?:=max_total_tokens)?=(\d+)"
    r"|maximum of (\d+) tokens|exceed context window of (\d+)"
)
_MOST = re.compile(
    r"at most (\d+) (?:completion|output)? ?tokens|: \d+ > (\d+)|less than or equal to [`'\"]?(\d+)"
    r"|range\D*\[\s*\d+\s*,\s*(\d+)\s*\]|must be (?:at most|<=) [`'\"]?(\d+)"
)
_PROMPT = re.compile(
    r"(\d+) (?:in the messages|input tokens|tokens from the input|`inputs` tokens)|(?:input|request) \((\d+) tokens"
)


def _is_chat_completion(reply: Any) -> bool:
    choices = getattr(reply, "choices", None)
    if not isinstance(choices, list) or not choices:
        return False
    messages = (getattr(choice, "message", None) for choice in choices)
    return all(one is not None and isinstance(one.content, (str, type(None))) for one in messages)


def _status_of(error: Any) -> int:
    return int(getattr(error, "status_code", None) or getattr(error, "status", None) or 0)


def _number(pattern: re.Pattern[str], said: str) -> int | None:
    found = pattern.search(said)
    return None if found is None else int(next(one for one in found.groups() if one is not None))


def said_in(text: str) -> tuple[str, dict[str, Any]]:
    """The sentence in the body of a refusal, in one line, and what stands beside it, whatever shape it has.

    `{"error": {"message": ...}}` (OpenAI and most), `{"message": ...}` (older vLLM), `{"error": "..."}` (TGI, Ollama),
    `{"detail": ...}` (FastAPI), a page of a proxy.
    """
    try:
        body = json.loads(text)
    except ValueError:
        body = {"message": re.sub(r"<[^>]*>", " ", text)}
    error = body.get("error", body) if isinstance(body, dict) else body
    details = error if isinstance(error, dict) else {"message": error}
    message = details.get("message") or details.get("detail") or ""
    if isinstance(message, list):
        message = "; ".join(f"{_place(one)}{one.get('msg')}" if isinstance(one, dict) else str(one) for one in message)
    printable = (one if one.isprintable() else " " for one in str(message))
    return " ".join("".join(printable).split())[:300], details


def _place(problem: Mapping[str, Any]) -> str:
    place = [str(one) for one in problem.get("loc", ()) if one != "body"]
    return f"'{'.'.join(place)}': " if place else ""


def _pause_of(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, as Retry-After has them or the time it names; None if it has neither, or too many."""
    given = headers.get("Retry-After", "")
    try:
        pause_s = float(given)
    except ValueError:
        try:
            pause_s = parsedate_to_datetime(given).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, pause_s) if pause_s <= LONGEST_PAUSE_S else None


async def _why(server: Any, request: Mapping[str, Any]) -> str | None:
    """Ask a token server once more for what it says, which Atropos' client drops; None if it does not fail now."""
    params = {name: value for name, value in request.items() if name not in ("model", "prompt", "input_ids")}
    if isinstance(server, SGLangServer):
        params["max_new_tokens"] = params.pop("max_tokens", None)
        body = {"input_ids": request["input_ids"], "sampling_params": params, "return_logprob": True}
    else:
        body = {"prompt": {"prompt_token_ids": request["input_ids"]}, "logprobs": 0, **params}
    try:
        reply = await _post(f"{server_root(server.config.base_url)}/generate", body, server.config)
    except aiohttp.ClientResponseError as error:
        return error.message
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError):
        return None
    is_error = isinstance(reply, dict) and any(reply.get(name) for name in ("error", "message", "detail"))
    return json.dumps(reply) if is_error else None


async def _post(url: str, request: Mapping[str, Any], config: APIServerConfig) -> Any:
    """The JSON reply. Raises ClientResponseError with the body as its message, and what aiohttp raises."""
    headers = {"Authorization": f"Bearer {config.api_key}"} if config.api_key else {}
    timeout = aiohttp.ClientTimeout(total=config.timeout)
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
        session.post(url, json=request) as response,
    ):
        if not response.ok:
            message, context = await response.text(), (response.request_info, response.history)
            raise aiohttp.ClientResponseError(
                *context, status=response.status, message=message, headers=response.headers
            )
        return await response.json()


def _size(reply: Any) -> int:
    return len(reply[1] if isinstance(reply, tuple) else reply.choices)


def _joined(replies: list[Any]) -> Any:
    """The replies to several requests as one: chat completions, or Atropos' tuples of lists."""
    first, *others = replies
    if isinstance(first, tuple):
        return first[0], *([one for reply in replies for one in reply[at]] for at in range(1, len(first)))
    used = sum(map(tokens_used, replies))
    for other in others:
        first.choices.extend(other.choices)
    if first.usage is not None:
        first.usage.completion_tokens = used
    return first


def tokens_used(reply: Any) -> int:
    """Completion tokens of a chat completion, as the server says, those of reasoning that it hides included; or 0."""
    used = getattr(getattr(reply, "usage", None), "completion_tokens", None)
    return used if isinstance(used, int) else 0


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
        reply: dict[str, Any] = await _post(url, request, self.config)
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
