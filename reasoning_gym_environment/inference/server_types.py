"""The types of inference servers: what each request looks like, and where its reply has the completions.

openai.server_type   endpoint                                                 token ids and log probabilities
vllm                 /generate (Atropos' server) or /v1/completions (vLLM)    yes
sglang               /generate                                                yes
openai               /v1/chat/completions                                     no: text, fit for evaluation
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from ..errors import EnvironmentSetupError, InferenceError, RequestRefusedError, UnreadableReplyError
from .chat_tokenizer import Prompt
from .prompts import RequestParameters
from .servers import (
    BROKEN_OFF,
    CUT_OFF,
    MAY_DEPEND_ON_FORM,
    RawCompletion,
    Reply,
    ServerAdapter,
    known_finish_reason,
    sentence_in,
)

NO_SUCH_ENDPOINT = (404, 405)

MAY_LACK_GENERATE = (400, 401, 403, *NO_SUCH_ENDPOINT, 422, 501, 502, 503)
"""Statuses that a server or its gateway may return for `/generate` although it has `/v1/completions`."""

OTHER_SERVERS = {
    "input_ids": "an SGLang server: set openai.server_type to sglang",
    "`inputs`": "a text-generation-inference server, which reports no tokens to train on: set openai.server_type to "
    "openai, for evaluate and process",
    "'prompts'": "`trl vllm-serve` of TRL before 1.11, which is not supported: update TRL, whose newer releases start "
    "a vLLM server",
}
"""Servers that also have a `/generate`, by the name of the field that they miss in a request for vLLM."""

WHOLE_DISTRIBUTION = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sampling parameters that change nothing. If a request omits a parameter, vLLM and SGLang use its value in the model's
generation_config.json. Then the log probabilities that they report would not belong to the sampled distribution, and
the trainer's importance ratio would be wrong.
"""


class VllmAdapter(ServerAdapter):
    """A stock `vllm serve`, or Atropos' own server, which has `/generate`. The first answer shows which of the two."""

    _has_generate: bool | None = None

    async def sample(self, prompt: Prompt, parameters: RequestParameters) -> Reply:
        if self._has_generate is False:
            return await self._complete(prompt, parameters)
        try:
            reply = await self._generate(prompt, parameters)
        except InferenceError as error:
            if self._has_generate:
                raise
            self._refuse_other_server(error)
            if error.status not in MAY_LACK_GENERATE and not isinstance(error, UnreadableReplyError):
                raise
            return await self._complete_instead(prompt, parameters, error)
        self._has_generate = True
        return reply

    def _refuse_other_server(self, error: InferenceError) -> None:
        """Raise RequestRefusedError if the error of `/generate` shows a server of another type."""
        if error.status not in MAY_DEPEND_ON_FORM:
            return
        for field, remedy in OTHER_SERVERS.items():
            if field in str(error):
                advice = f"{error}. openai.server_type is vllm, and this seems to be {remedy}."
                raise RequestRefusedError(str(error), advice=advice, status=error.status) from error

    async def _complete_instead(self, prompt: Prompt, parameters: RequestParameters, error: InferenceError) -> Reply:
        """The reply of `/v1/completions` after the `error` of `/generate`. Raises the error that says more."""
        try:
            reply = await self._complete(prompt, parameters)
        except InferenceError as second:
            names_model = str(self.config.model_name) in str(second)
            is_no_endpoint = second.status in NO_SUCH_ENDPOINT and not names_model
            if error.status in NO_SUCH_ENDPOINT or not (is_no_endpoint or isinstance(second, UnreadableReplyError)):
                raise
            raise error from second
        self._has_generate = False
        return reply

    async def _generate(self, prompt: Prompt, parameters: RequestParameters) -> Reply:
        """With Atropos' own endpoint."""
        request = {
            **WHOLE_DISTRIBUTION,
            **parameters.body,
            "logprobs": 0,
            "prompt": {"prompt_token_ids": prompt.tokens},
        }
        return await self._read(f"{self.root}/generate", request, _of_lists, Lists)

    async def _complete(self, prompt: Prompt, parameters: RequestParameters) -> Reply:
        """With the endpoint of stock vLLM."""
        request = {
            **WHOLE_DISTRIBUTION,
            **parameters.body,
            "logprobs": 0,
            "model": self.config.model_name,
            "prompt": prompt.tokens,
            "return_token_ids": True,
        }
        return await self._read(f"{self.root}/v1/completions", request, _of_choices, Choices)


class Lists(msgspec.Struct):
    """The reply of Atropos' server: one element of each list for each completion.

    `logprobs` has, for each token, a list with a single mapping {token id: log probability}.
    """

    logprobs: list[list[Any]]
    finish_reasons: list[Any]
    token_ids: Any = None
    text: Any = None


def _of_lists(reply: Lists) -> Reply:
    completions = []
    number = len(reply.logprobs)
    for row, reason, given_ids, text in zip(
        reply.logprobs,
        reply.finish_reasons,
        _one_for_each(reply.token_ids, number),
        _one_for_each(reply.text, number),
        strict=True,
    ):
        has_ids = isinstance(given_ids, list) and len(given_ids) == len(row)
        ids = given_ids if has_ids else [int(next(iter(position[0]), "none")) for position in row]
        logprobs = [next(iter(position[0].values()), None) for position in row]
        completions.append(RawCompletion(reason, ids, logprobs, reported_text=_text_or_none(text)))
    return Reply(completions)


def _one_for_each(given: Any, number: int) -> list[Any]:
    """A list with one element for each completion, or with None if the server does not give it."""
    return given if isinstance(given, list) and len(given) == number else [None] * number


def _text_or_none(given: Any) -> str | None:
    return given if isinstance(given, str) else None


class Logprobs(msgspec.Struct):
    token_logprobs: Any = None


class Choice(msgspec.Struct):
    finish_reason: Any = None
    text: Any = None
    token_ids: Any = None
    logprobs: Logprobs | None = None


class Choices(msgspec.Struct):
    """The reply of stock vLLM, without the texts and the alternatives of each token, which are most of its bytes."""

    choices: list[Choice]


def _of_choices(reply: Choices) -> Reply:
    completions = []
    for choice in reply.choices:
        if choice.token_ids is None:
            raise ValueError("no token_ids, which vLLM gives from 0.10.2 on")
        logprobs = choice.logprobs.token_logprobs if choice.logprobs else None
        completion = RawCompletion(
            choice.finish_reason,
            list(choice.token_ids),
            list(logprobs or []),
            reported_text=_text_or_none(choice.text),
        )
        completions.append(completion)
    return Reply(completions)


class SglangAdapter(ServerAdapter):
    """SGLang's own `/generate`."""

    async def sample(self, prompt: Prompt, parameters: RequestParameters) -> Reply:
        sampling_params = WHOLE_DISTRIBUTION | parameters.body
        sampling_params["max_new_tokens"] = sampling_params.pop("max_tokens")
        request = {
            "input_ids": prompt.tokens,
            "sampling_params": sampling_params,
            "return_logprob": True,
        }
        return await self._read(f"{self.root}/generate", request, _of_meta_info)


def _of_meta_info(reply: Any) -> Reply:
    """`output_token_logprobs` has [log probability, token id, text] for each token."""
    completions = []
    for choice in reply if isinstance(reply, list) else [reply]:
        meta = choice["meta_info"]
        tokens = meta["output_token_logprobs"]
        ids = [token[1] for token in tokens]
        logprobs = [token[0] for token in tokens]
        text = _text_or_none(choice.get("text"))
        completions.append(RawCompletion(meta.get("finish_reason"), ids, logprobs, reported_text=text))
    return Reply(completions)


class ChatAdapter(ServerAdapter):
    """A server with OpenAI's chat API: text only.

    A provider that has spent the whole token budget on thinking replies without any choice, or with a choice without a
    message. Such a completion is empty and cut off.
    """

    has_tokens = False
    # Providers have limits. Atropos uses the same number.
    completions_per_request = 8
    # The chat template of a server may make a longer prompt than ours does.
    margin = 32
    _limit_names: tuple[str, ...] = ("max_tokens", "max_completion_tokens")
    """The names of the token limit to try. The first answer shows which name the server accepts."""
    _takes_several = False
    """Whether the server has answered a request for several completions."""

    @property
    def health_url(self) -> str:
        return f"{self.address}/models"

    async def sample(self, prompt: Prompt, parameters: RequestParameters) -> Reply:
        """Tries each name of the token limit, and then a single completion for each request."""
        counts = [parameters.n] if self._takes_several else sorted({parameters.n, 1}, reverse=True)
        refusals = []
        for n, name in itertools.product(counts, self._limit_names):
            try:
                reply = await self._complete(prompt, replace(parameters, n=n), name)
            except RequestRefusedError as error:
                refusals.append(error)
                if error.status not in MAY_DEPEND_ON_FORM:
                    break
            else:
                self._limit_names = (name,)
                self._takes_several |= n > 1
                if n < parameters.n:
                    self._note_completions(n, str(refusals[0]))
                return reply
        raise refusals[0]

    async def _complete(self, prompt: Prompt, parameters: RequestParameters, limit_name: str) -> Reply:
        request = {
            "model": self.config.model_name,
            "messages": prompt.messages,
            **parameters.body,
        }
        if prompt.template_kwargs:
            request["chat_template_kwargs"] = dict(prompt.template_kwargs)
        # Atropos' settings of reasoning models.
        request = self._server._inject_reasoning_kwargs(request)
        request |= request.pop("extra_body", {})
        # For OpenAI's own servers, Atropos has set `max_completion_tokens` already.
        if "max_tokens" in request:
            request[limit_name] = request.pop("max_tokens")
        completions_in = partial(self._completions_in, n=parameters.n, thinking_opened=prompt.thinking_opened)
        return await self._read(f"{self.address}/chat/completions", request, completions_in)

    def _completions_in(self, reply: Any, *, n: int, thinking_opened: bool) -> Reply:
        completions = []
        used = _used_tokens(reply.get("usage"))
        for choice in reply["choices"] or [{}] * n:
            reason = known_finish_reason(choice.get("finish_reason"))
            message = choice.get("message")
            error = choice.get("error")
            if error:
                reason = "error"
            elif message is None and reason not in BROKEN_OFF:
                if reason != CUT_OFF and not used:
                    raise ValueError("it has no message, and no token was spent")
                reason = CUT_OFF
            message = message or {}
            text = _text_of(message, thinking_opened)
            # JSON may hold half of a surrogate pair, which tokenizers and Atropos' writer of results refuse.
            text = text.encode(errors="replace").decode()
            explanation = sentence_in(json.dumps({"error": error})) if error else ""
            completions.append(RawCompletion(reason, self._tokenized(text, reason), text=text, error=explanation))
        return Reply(completions, used=used)

    def _tokenized(self, text: str, reason: Any) -> list[int]:
        """The tokens of a text as the model would have written it.

        The chat template is not used, because templates of reasoning models drop the thinking of earlier turns. An
        empty text has one token, because trainers divide by the number of tokens.
        """
        ids = list(self._tokenizer.encode(text, add_special_tokens=False))
        end = self._tokenizer.eos_token_id
        if (reason == "stop" or not ids) and end is not None:
            ids.append(end)
        return ids


def _used_tokens(usage: Any) -> int:
    """The completion tokens that a server reports; 0 if it reports none. Gemini counts thoughts only in the total."""
    if not isinstance(usage, Mapping):
        return 0
    completion = usage.get("completion_tokens")
    beside_prompt = 0
    if isinstance(usage.get("total_tokens"), int) and isinstance(usage.get("prompt_tokens"), int):
        beside_prompt = usage["total_tokens"] - usage["prompt_tokens"]
    return max(0, beside_prompt, completion if isinstance(completion, int) else 0)


def _text_of(message: Mapping[str, Any], thinking_opened: bool) -> str:
    """The reply, preceded by its reasoning if the server returned that in a separate field.

    Reasoning without content after it was cut off, so its tag stays open.
    """
    content = message.get("content") or message.get("refusal") or ""
    if isinstance(content, list):
        content = "".join(_text_of_part(part) for part in content)
    if not isinstance(content, str):
        raise TypeError("the content is not text")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if not isinstance(reasoning, str) or not reasoning or "</think>" in content:
        return content
    opened = reasoning.strip() if thinking_opened else f"<think>\n{reasoning.strip()}"
    return f"{opened}\n</think>\n{content}" if content else opened


def _text_of_part(part: Mapping[str, Any]) -> str:
    """The text of a part of a message. A refusal is text of the model too. Other parts, such as images, have none."""
    text = part.get("text") or part.get("refusal") or ""
    return text if isinstance(text, str) else ""


ADAPTERS: dict[str, type[ServerAdapter]] = {
    "VLLMServer": VllmAdapter,
    "SGLangServer": SglangAdapter,
    "OpenAIServer": ChatAdapter,
    "ServerHarness": ServerAdapter,
}
"""The adapter for each class of Atropos' servers. If the settings are a template, only the class shows the type.

With `testing`, Atropos replaces all servers by its harness, which takes no requests.
"""


def adapters_of(servers: Iterable[Any], tokenizer: Any) -> list[ServerAdapter]:
    """An adapter for each of Atropos' servers. Raises EnvironmentSetupError for a server of another kind."""
    return [_adapter_class(server)(server, tokenizer) for server in servers]


def _adapter_class(server: Any) -> type[ServerAdapter]:
    """The adapter for the server's class, or for its nearest base class that has one."""
    for base in type(server).__mro__:
        if base.__name__ in ADAPTERS:
            return ADAPTERS[base.__name__]
    raise EnvironmentSetupError(
        f"Expected a server class that is derived from {', '.join(ADAPTERS)} of Atropos; found "
        f"{type(server).__name__}. Derive it from the class whose requests and replies it shares."
    )
