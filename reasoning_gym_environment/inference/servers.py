"""One inference server: how completions are requested, what its errors mean, and which settings it needs.

    probe ───> context_length and completions_per_request
    sample ──> Reply, or
               RequestRefusedError   the server refuses this request, however often it is repeated (400, 404, 422 ...)
               ServerBusyError       the server accepts it later (429, or 503 with Retry-After)
               InferenceError        no connection, no answer in time, another status, a reply without completions
               EnvironmentSetupError the server's tokenizer is not ours

server_types.py has the types of servers. Servers of the same type mostly differ in these two numbers, which a request
at the start finds out. The report of any other refusal quotes the server and names the setting to change.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from ..errors import (
    EnvironmentSetupError,
    InferenceError,
    RequestRefusedError,
    ServerBusyError,
    UnreadableReplyError,
)
from ..records import MIN_COMPLETION_TOKENS, MaskReason
from ..settings.environment import STARS
from ..utils.http import HttpReply, NoAnswerError, exchange, is_local
from .chat_tokenizer import Prompt
from .prompts import RequestParameters

logger = logging.getLogger(__name__)

OPENAI = "https://api.openai.com/v1"
"""The address of servers without one, as in the openai client."""

REFUSED = (400, 401, 402, 403, 404, 405, 413, 422)
"""Statuses that stay the same however often a request is repeated."""

MAY_DEPEND_ON_FORM = (400, 422)
"""Statuses of a refusal that another form of the same request may avoid."""

MOST_TIMINGS = 100_000
"""Atropos' lists of request timings keep at most this many values, which are a few megabytes for each list."""

LONGEST_PAUSE_S = 600.0
"""A server that asks for a longer pause gets its next request after this many seconds."""

MALFORMED = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""The exceptions that reading a reply of another shape raises."""

EVENTS = ("data:", "event:", "id:", ":")
"""The beginnings of a stream of server-sent events, and of the comments that keep a connection open."""

KEY = "openai.api_key"
ACCOUNT = "the account balance at the provider"
ADDRESS = (
    "openai.base_url, which usually ends in /v1, openai.model_name, and openai.server_type (vllm for a vLLM server and "
    "for `trl vllm-serve`; openai for others with an OpenAI API)"
)
REMEDIES = {
    401: KEY,
    402: ACCOUNT,
    403: f"{KEY} and its permissions",
    404: ADDRESS,
    405: ADDRESS,
    429: ACCOUNT,
}
"""The cause to check, by the status of a refusal."""

FILTER = "content.?(filter|management|policy)|responsible.?ai|flagged|moderation|content exists risk"
NO_SYSTEM = "system (role|message|prompt|instruction)|'system'|developer instruction|roles must alternate"
REMEDIES_BY_TEXT = {
    FILTER: "the task of this question, which the content filter of the server refuses: exclude the task with "
    "env.exclude_tasks, or change the filter",
    NO_SYSTEM: "env.system_prompt, because this model takes no system message. With env.tokenizer_name set to the "
    "model's tokenizer, the text of the system message goes in front of the question. With env.system_prompt none "
    "there is no such text",
}
"""The cause to check, by a pattern in the words of a refusal."""

SAMPLING_REMEDY = (
    "the setting that this is about: env.max_token_length (evaluation requests twice as many tokens), "
    "openai.model_name, env.chat_template_kwargs, env.thinking_mode; or env.train_temperature, env.train_top_p and "
    "env.eval_temperature, which `none` leaves out of the requests"
)
"""The cause to check after a refusal with any other status."""


NO_SERVER_IN_TESTING = (
    "testing is on, so Atropos replaces the inference servers by a test harness, and no completions can be requested. "
    "Turn it off, and set openai.base_url to a mock server on this machine, such as the demo's server in "
    "testing/inference_server.py."
)
"""The error of everything that needs completions. Atropos' harness has neither the health nor the semaphores that its
own manager of servers reads, so no environment gets completions from it.
"""


CUT_OFF = "length"
"""The finish reason of a completion that the token limit cut off."""

LONG_COMPLETION = 30
"""Completions with fewer tokens or characters than this do not show whether the server's tokenizer is ours. Their tags
do not count, because the tags are the same in many tokenizers.
"""

MOST_COMPARED = 2000
"""The number of tokens of this completion that are compared at most."""

PIECE = 8
"""The texts are compared in pieces of this many characters."""

BROKEN_OFF = {
    "abort": MaskReason.ABORTED,
    "error": MaskReason.ERROR,
    "content_filter": MaskReason.CONTENT_FILTER,
    "insufficient_system_resource": MaskReason.INSUFFICIENT_SYSTEM_RESOURCE,
}
"""The finish reasons of completions that the server broke off, so that they say nothing about the model."""

FINISH_REASONS = {
    **dict.fromkeys(("model_length", "max_tokens", "max_output_tokens"), CUT_OFF),
    **dict.fromkeys(("safety", "recitation", "blocklist", "prohibited_content", "spii"), "content_filter"),
    **dict.fromkeys(("sensitive", "content_filtered", "guardrail_intervened"), "content_filter"),
    "network_error": "error",
}
"""The finish reasons of OpenAI, by the names that Mistral, Gemini, Zhipu, Bedrock and others have for them."""

ERROR_FIELDS = ("error", "errors", "base_resp")
"""Fields of a body that hold its error. MiniMax has `base_resp`, and Cloudflare a list `errors`."""

MESSAGE_FIELDS = ("message", "detail", "status_msg")
"""Fields of an error that hold its message."""

CODE_FIELDS = ("code", "status", "status_code")
"""Fields of an error that may hold its status."""


@dataclass(frozen=True)
class RawCompletion:
    """A completion as the server returned it, unchecked. `text` is None if the server returned token ids.

    `finish_reason` gets the name that the rest of the package knows, whatever the type of the server.
    `reported_text` is the server's own text of the token ids, or None if it gives none. `error` says in the words of
    the server why it broke the completion off, or is empty.
    """

    finish_reason: Any
    ids: list[Any]
    logprobs: list[Any] | None = None
    text: str | None = None
    reported_text: str | None = None
    error: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "finish_reason", known_finish_reason(self.finish_reason))


def known_finish_reason(reason: Any) -> Any:
    """The finish reason by the name that OpenAI's servers use. SGLang has its name in the field `type`."""
    if isinstance(reason, Mapping):
        reason = reason.get("type")
    if not isinstance(reason, str):
        return reason
    name = reason.lower()
    return FINISH_REASONS.get(name, name)


@dataclass(frozen=True)
class Reply:
    """The completions of one request. `used` is the number of completion tokens that the server reports, or 0."""

    completions: list[RawCompletion]
    used: int = 0


@dataclass(frozen=True)
class Address:
    """A base_url taken apart. `shown` has neither credentials nor a query, and no slash at its end."""

    shown: str
    query: dict[str, str]
    authorization: str | None

    @classmethod
    def of(cls, base_url: str) -> Address:
        """Raises EnvironmentSetupError if this is no address."""
        try:
            url = URL(base_url)
            shown = str(url.with_user(None).with_query(None).with_fragment(None)).rstrip("/")
        except ValueError as error:
            # The address is not shown, because it may hold a password.
            raise EnvironmentSetupError(f"openai.base_url: expected an address such as {OPENAI}.") from error
        authorization = None
        if url.user is not None:
            credentials = f"{url.user}:{url.password or ''}".encode()
            authorization = f"Basic {base64.b64encode(credentials).decode()}"
        return cls(shown, dict(url.query), authorization)


def without_credentials(base_url: str) -> str:
    """The address with stars for the name and the password that may stand in front of the host."""
    return re.sub("//[^/]*@", f"//{STARS}@", base_url)


class ServerAdapter:
    """An inference server. Subclasses implement `sample`.

    Atropos' test harness has this class itself, because it takes no requests.

    `probe` queries the server for its context length.
    """

    has_tokens = True
    """Whether the server reports token ids."""
    completions_per_request: int | None = None
    """Completions of a request at most; None: any number."""
    margin = 1
    """Tokens of the context that stay unused: SGLang takes one less than its context."""

    def __init__(self, server: Any, tokenizer: Any) -> None:
        self._server = server
        self._tokenizer = tokenizer
        # None for Atropos' test harness.
        self.config: Any = getattr(server, "config", None)
        base_url = getattr(self.config, "base_url", None) or os.environ.get("OPENAI_BASE_URL") or OPENAI
        address = Address.of(str(base_url))
        self._query = address.query | getattr(self.config, "default_query", {})
        self._headers = self._headers_of(address)
        self.address = address.shown
        self.root = self.address.removesuffix("/v1").rstrip("/")
        self._context_length: int | None = None
        if getattr(self.config, "n_kwarg_is_ignored", False):
            self.completions_per_request = 1
        self._has_our_tokenizer = False
        """Whether a long completion has shown that the server's tokenizer is ours."""

    def _headers_of(self, address: Address) -> CIMultiDict[str]:
        """The headers of each request, with one authorization. As in the openai client, a name in the address wins."""
        headers: CIMultiDict[str] = CIMultiDict()
        key = getattr(self.config, "api_key", None)
        if address.authorization or key:
            headers["Authorization"] = address.authorization or f"Bearer {key}"
        headers.update(getattr(self.config, "default_headers", {}))
        return headers

    @property
    def health_url(self) -> str:
        """The address that answers once the server has started."""
        return f"{self.root}/health"

    @property
    def context_length(self) -> int | None:
        """Tokens that a prompt and its completion may have together; None if it is unknown."""
        return None if self._context_length is None else self._context_length - self.margin

    def slots(self, split: str) -> Any:
        """Atropos' semaphore of the requests to this server."""
        return self._server.sem if split == "train" else self._server.eval_sem

    def note_duration(self, split: str, seconds: float) -> None:
        """Record an answered request for Atropos' own metrics of this server."""
        prefix = "" if split == "train" else "eval_"
        for name, value in ((f"{prefix}request_timings", seconds), (f"{prefix}attempts_list", 1)):
            values = getattr(self._server, name, [])
            values.append(value)
            # A log step empties the lists, and there is none for as long as no group is sent.
            del values[:-MOST_TIMINGS]

    # --- one request

    async def sample(self, prompt: Prompt, parameters: RequestParameters) -> Reply:
        """The reply to one request. Raises InferenceError or a subclass of it."""
        raise EnvironmentSetupError(NO_SERVER_IN_TESTING)

    async def _read(
        self,
        url: str,
        request: Mapping[str, Any],
        completions_in: Callable[[Any], Reply],
        schema: Any = Any,
    ) -> Reply:
        """Make a request, and read the completions in its reply, whose JSON has the type `schema`.

        `completions_in` may raise any exception of MALFORMED for a reply of another shape. Raises InferenceError.
        """
        timeout_s = self.config.timeout
        try:
            answer = await self._exchange("POST", url, timeout_s, request)
        except NoAnswerError as error:
            reason = f"no answer within {timeout_s:g} s, openai.timeout" if error.is_late else str(error)
            failed = InferenceError(f"{self.address}: {reason}")
            failed.was_sent = not error.is_unsent
            raise failed from error
        if answer.status >= 400:
            raise self._error_of(answer)
        try:
            with _without_garbage_collection():
                reply = completions_in(answer.parsed(schema))
        except MALFORMED as error:
            raise self._why_malformed(answer, error) from error
        for completion in reply.completions:
            self._compare_tokenizers(completion)
        return reply

    def _compare_tokenizers(self, completion: RawCompletion) -> None:
        """Raise EnvironmentSetupError if the server's text is not the text of its token ids.

        With another tokenizer than the model's, every reward would be 0. The first long completion decides it.
        """
        reported = _condensed(completion.reported_text or "")
        if self._has_our_tokenizer or min(len(reported), len(completion.ids)) < LONG_COMPLETION:
            return
        ids = completion.ids[:MOST_COMPARED]
        vocabulary = set(self._tokenizer.get_vocab().values())
        known = [token for token in ids if type(token) is int and token in vocabulary]
        decoded = _condensed(self._tokenizer.decode(known, skip_special_tokens=True))
        if len(known) < len(ids) / 2 or not _is_mostly_in(decoded, reported):
            raise EnvironmentSetupError(
                f"The tokenizer {self.config.tokenizer_name!r} is not the tokenizer of the model "
                f"{self.config.model_name!r} at {self.address}: the server reports the text {reported[:60]!r}, but "
                f"the tokenizer decodes its token ids as {decoded[:60]!r}. Set env.tokenizer_name to the tokenizer of "
                "this model."
            )
        self._has_our_tokenizer = True

    async def _exchange(self, method: str, url: str, timeout_s: float, body: Any = None) -> HttpReply:
        """Make one request. Connections are not reused, because a server may restart any time."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        # Providers may be behind a proxy of the environment. The user's own servers are addressed directly.
        uses_proxy = not self.has_tokens and not is_local(url)
        async with aiohttp.ClientSession(trust_env=uses_proxy) as session:
            return await exchange(
                session, method, url, timeout=timeout, json=body, headers=self._headers, params=self._query
            )

    def _why_malformed(self, answer: HttpReply, error: Exception) -> InferenceError:
        """The error of a reply that has no completions, whatever its status."""
        if has_error(answer.text):
            return self._error_of(answer)
        if answer.text.lstrip().startswith(EVENTS):
            return UnreadableReplyError(
                f"{self.address}: expected one JSON object, and the reply is a stream of events, or has comments in "
                "front of its JSON. Let the server or its gateway answer without streaming"
            )
        return UnreadableReplyError(
            f"{self.address}: the reply does not have the format of openai.server_type {self.config.server_type} "
            f"({_found_in(answer, error)}): check openai.base_url, which usually ends in /v1, and openai.server_type"
        )

    def _error_of(self, answer: HttpReply) -> InferenceError:
        status = code_in(answer.text) or answer.status
        sentence = sentence_in(answer.text) or "no explanation"
        if answer.redirected_to:
            sentence = f"it redirected the request to {answer.redirected_to}: {sentence}"
        answers = f"answers {status}" if status >= 400 else "answers with an error"
        message = f"{self.address} {answers}: {sentence}"
        # OpenAI reports an empty account as a 429, which no waiting ends.
        is_rate_limit = status == 429 and "insufficient_quota" not in answer.text
        is_overload = status == 503 and "Retry-After" in answer.headers
        if is_rate_limit or is_overload:
            return ServerBusyError(message, pause_in(answer.headers), status=status)
        if status not in (*REFUSED, 429):
            error = InferenceError(message)
            error.status = status
            return error
        remedy = _remedy_of(status, answer.text)
        request = f"{self.address} answers {status} to a request for {self.config.model_name!r}"
        advice = f"{request}: {sentence.rstrip('.')}. Check {remedy}."
        return RequestRefusedError(message, advice=advice, status=status)

    # --- what the server supports

    async def why_unreachable(self, timeout_s: float) -> str | None:
        """None if something answers at `health_url`, else one line why not.

        502 and above: a proxy without its server, or a server that still loads. A server may have no list of models and
        answer 500 there; the server is available nevertheless.
        """
        try:
            answer = await self._exchange("GET", self.health_url, timeout_s)
        except NoAnswerError as error:
            return f"{self.health_url}: {error}"
        return f"{self.health_url} answers {answer.status}" if answer.status >= 502 else None

    async def probe(self, prompt: Prompt, parameters: RequestParameters) -> None:
        """Make the first request, and find out the context length and the completions of a request.

        Raises what `sample` raises.
        """
        await self.find_context()
        parameters = self._within_context(prompt, parameters)
        requested = min(parameters.n, self.completions_per_request or parameters.n)
        reply = await self.sample(prompt, replace(parameters, n=requested))
        received = len(reply.completions)
        if 0 < received < requested:
            self._note_completions(received, f"it returns {received} of {requested} completions")

    def _note_completions(self, count: int, reason: str) -> None:
        self.completions_per_request = count
        self._note("completions_per_request", count, reason)

    def _within_context(self, prompt: Prompt, parameters: RequestParameters) -> RequestParameters:
        if self.context_length is None:
            return parameters
        room = max(MIN_COMPLETION_TOKENS, self.context_length - len(prompt.tokens))
        return replace(parameters, max_tokens=min(parameters.max_tokens, room))

    async def find_context(self) -> None:
        """Query the length of the model's context, unless it is known. No provider charges for that."""
        if self._context_length is None:
            self._context_length = await self._context_of_model()
            if self._context_length is not None:
                self._note("context_length", self._context_length, "the server reports it for its model")

    def _note(self, name: str, value: int, reason: str) -> None:
        logger.info("%s: %s is %d (%s).", self.address, name, value, reason.rstrip("."))

    async def _context_of_model(self) -> int | None:
        """The context of our model at `/v1/models`: `max_model_len` (vLLM, SGLang) or `context_length` (providers).

        vLLM reports no length for a LoRA adapter. The adapter has the length of its `parent`.
        """
        # An error is ignored here, because the request that follows reports it.
        with contextlib.suppress(NoAnswerError, *MALFORMED):
            answer = await self._exchange("GET", f"{self.root}/v1/models", timeout_s=10.0)
            models = answer.parsed()["data"]
            by_name = {model["id"]: model for model in models}
            model = by_name.get(self.config.model_name)
            if model is None:
                [model] = models
            return _context_in(model) or _context_in(by_name.get(model.get("parent"), {}))
        return None


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Search for no cycles in the block.

    A reply can have a mapping for each token. The collector would go through these mappings several times while the
    parser builds them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _context_in(model: Mapping[str, Any]) -> int | None:
    length = int(model.get("max_model_len") or model.get("context_length") or 0)
    return length or None


# --- the texts and headers of an answer


def _remedy_of(status: int, text: str) -> str:
    """The cause to check after a refusal."""
    for pattern, remedy in REMEDIES_BY_TEXT.items():
        if re.search(pattern, text, re.IGNORECASE):
            return remedy
    return REMEDIES.get(status, SAMPLING_REMEDY)


def _without_tags(text: str) -> str:
    # Without `<` inside of a tag, the time is linear. A broken reply can hold a long completion of nothing but `<`.
    return re.sub(r"<[^<>]*>", " ", text)


def _condensed(text: str) -> str:
    """The text without tags, blanks and replacement characters."""
    return "".join(_without_tags(text).replace("\ufffd", "").split())


def _is_mostly_in(decoded: str, reported: str) -> bool:
    """Whether at least half of the pieces of one text are in the other text, which may have more.

    A server may keep special tokens, put the prompt in front, or leave out the end of a completion.
    """
    pieces = [decoded[begin : begin + PIECE] for begin in range(0, len(decoded), PIECE)]
    return 2 * sum(piece in reported for piece in pieces) >= len(pieces)


def sentence_in(text: str) -> str:
    """The message in the body of an error, in a single line, for any shape of the body.

    `{"error": {"message": ...}}` (OpenAI and most), `{"message": ...}` (older vLLM), `{"error": "..."}` (TGI, Ollama),
    `{"detail": ...}` (FastAPI), a list of such objects (Gemini, Cloudflare), a page of a proxy.
    """
    message = _error_in(text)
    if isinstance(message, dict):
        message = next((message[name] for name in MESSAGE_FIELDS if message.get(name)), "")
    return _in_one_line(str(message or ""))


def _in_one_line(text: str) -> str:
    printable = [character if character.isprintable() else " " for character in text]
    return " ".join("".join(printable).split())[:300]


def _found_in(answer: HttpReply, error: Exception) -> str:
    """What a reply of another shape has, in a few words."""
    beginning = _in_one_line(answer.text[:100])
    if not beginning:
        return f"it is empty, and its status is {answer.status}"
    return sentence_in(answer.text) or f"{type(error).__name__}: {error}; it begins with {beginning}"[:300]


def has_error(text: str) -> bool:
    """Whether the body is JSON that reports an error, as some servers do with status 200."""
    body = _body_in(text)
    has_field = isinstance(body, dict) and any(body.get(name) for name in ERROR_FIELDS)
    return has_field or code_in(text) > 0


def code_in(text: str) -> int:
    """The status that an error in the body names, which gateways pass on with a status of their own; else 0."""
    error = _error_in(text)
    for name in CODE_FIELDS:
        code = str(error.get(name)) if isinstance(error, dict) else ""
        if re.fullmatch("[45][0-9][0-9]", code):
            return int(code)
    return 0


def _error_in(text: str) -> Any:
    """The error in a body, of any type."""
    body = _body_in(text)
    if not isinstance(body, dict):
        return None
    error = next((body[name] for name in ERROR_FIELDS if body.get(name)), body)
    return error[0] if isinstance(error, list) else error


def _body_in(text: str) -> Any:
    """The JSON of a body, or `{"message": text}`. The first element of a list stands for the list."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return {"message": _without_tags(text)}
    if isinstance(body, list) and body:
        return body[0] if isinstance(body[0], dict) else {"message": body[0]}
    return body


def pause_in(headers: Mapping[str, str]) -> float:
    """The seconds to wait according to Retry-After, which may be a date; 0 if it is missing or malformed."""
    given = headers.get("Retry-After", "")
    seconds = 0.0
    for read in (float, _seconds_until):
        with contextlib.suppress(ValueError):
            seconds = read(given)
    return min(LONGEST_PAUSE_S, max(0.0, seconds))


def _seconds_until(date: str) -> float:
    return parsedate_to_datetime(date).timestamp() - time.time()
