"""The types of inference servers: what each request looks like, and where its reply has the completions.

openai.server_type   endpoint                                                 token ids and log probabilities
vllm                 /generate (Atropos' server) or /v1/completions (vLLM)    yes
sglang               /generate                                                yes
openai               /v1/chat/completions                                     no: text, fit for evaluation
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from ..errors import EnvironmentSetupError, RequestRefusedError
from .chat_tokenizer import Prompt
from .prompts import RequestParameters
from .servers import MAY_DEPEND_ON_FORM, RawCompletion, Reply, ServerAdapter

NO_SUCH_ENDPOINT = (404, 405)

WHOLE_DISTRIBUTION = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sampling parameters that change nothing. vLLM and SGLang use those in the model's generation_config.json for all that
a request leaves out. The log probabilities that they report would then not be those of the sampled distribution, and
the trainer's importance ratio would be wrong.
"""


class VllmAdapter(ServerAdapter):
    """A stock `vllm serve`, or Atropos' own server, which has `/generate`. The first answer shows which of the two."""

    _has_generate: bool | None = None

    async def sample(self, prompt: Prompt, parameters: RequestParameters) -> Reply:
        if self._has_generate is not False:
            try:
                reply = await self._generate(prompt, parameters)
            except RequestRefusedError as error:
                if self._has_generate or error.status not in NO_SUCH_ENDPOINT:
                    raise
            else:
                self._has_generate = True
                return reply
        reply = await self._complete(prompt, parameters)
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
        return await self._read(f"{self.root}/generate", request, _of_lists)

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
        return await self._read(f"{self.root}/v1/completions", request, _of_choices)


def _of_lists(reply: Any) -> Reply:
    """`logprobs` has, for each token of a completion, a list with a single mapping {token id: log probability}."""
    completions = []
    for row, reason in zip(reply["logprobs"], reply["finish_reasons"], strict=True):
        ids = []
        logprobs = []
        for position in row:
            [(token, logprob), *_] = position[0].items()
            ids.append(int(token))
            logprobs.append(logprob)
        completions.append(RawCompletion(reason, ids, logprobs))
    return Reply(completions)


def _of_choices(reply: Any) -> Reply:
    completions = []
    choices = reply["choices"]
    for choice in choices:
        if choice.get("token_ids") is None:
            raise ValueError("no token_ids, which vLLM gives from 0.10.2 on")
        reported = choice.get("logprobs") or {}
        logprobs = list(reported.get("token_logprobs") or [])
        completions.append(RawCompletion(choice.get("finish_reason"), list(choice["token_ids"]), logprobs))
    prompt_ids = choices[0].get("prompt_token_ids") if choices else None
    return Reply(completions, prompt_ids)


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
        reason = meta.get("finish_reason")
        if isinstance(reason, dict):
            reason = reason.get("type")
        completions.append(RawCompletion(reason, ids, logprobs))
    return Reply(completions)


class ChatAdapter(ServerAdapter):
    """A server with OpenAI's chat API: text only."""

    has_tokens = False
    # Providers have limits. Atropos uses the same number.
    completions_per_request = 8
    # The chat template of a server may make a longer prompt than ours does.
    margin = 32
    _limit_names: tuple[str, ...] = ("max_tokens", "max_completion_tokens")
    """The names of the token limit to try. The first answer shows which name the server accepts."""

    @property
    def health_url(self) -> str:
        return f"{self.address}/models"

    async def sample(self, prompt: Prompt, parameters: RequestParameters) -> Reply:
        refusals = []
        for name in self._limit_names:
            try:
                reply = await self._complete(prompt, parameters, name)
            except RequestRefusedError as error:
                refusals.append(error)
                if error.status not in MAY_DEPEND_ON_FORM:
                    break
            else:
                self._limit_names = (name,)
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
        # For OpenAI's own servers, Atropos has set the other name.
        if "max_tokens" in request:
            request[limit_name] = request.pop("max_tokens")
        completions_in = partial(self._completions_in, thinking_opened=prompt.thinking_opened)
        return await self._read(f"{self.address}/chat/completions", request, completions_in)

    def _completions_in(self, reply: Any, *, thinking_opened: bool) -> Reply:
        completions = []
        for choice in reply["choices"]:
            text = _text_of(choice["message"], thinking_opened)
            # JSON may hold half of a surrogate pair, which tokenizers and Atropos' writer of results refuse.
            text = text.encode(errors="replace").decode()
            reason = choice.get("finish_reason")
            completions.append(RawCompletion(reason, self._tokenized(text, reason), text=text))
        usage = reply.get("usage") or {}
        used = usage.get("completion_tokens")
        return Reply(completions, used=used if isinstance(used, int) else 0)

    def _tokenized(self, text: str, reason: Any) -> list[int]:
        """The tokens of a text as the model would have written it.

        The chat template is not used, because templates of reasoning models drop the thinking of earlier turns.
        """
        ids = list(self._tokenizer.encode(text, add_special_tokens=False))
        end = self._tokenizer.eos_token_id
        if reason == "stop" and end is not None:
            ids.append(end)
        return ids


def _text_of(message: Mapping[str, Any], thinking_opened: bool) -> str:
    """The reply, preceded by its reasoning if the server returned that in a separate field.

    Reasoning without content after it was cut off, so its tag stays open.
    """
    content = message.get("content") or ""
    if not isinstance(content, str):
        raise TypeError("the content is not text")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if not isinstance(reasoning, str) or not reasoning or "</think>" in content:
        return content
    opened = reasoning.strip() if thinking_opened else f"<think>\n{reasoning.strip()}"
    return f"{opened}\n</think>\n{content}" if content else opened


ADAPTERS: dict[str, type[ServerAdapter]] = {
    "VLLMServer": VllmAdapter,
    "SGLangServer": SglangAdapter,
    "OpenAIServer": ChatAdapter,
    "ServerHarness": ServerAdapter,
}
"""The adapter for each class of Atropos' servers. If the settings are a template, only the class shows the type.

With `testing`, Atropos replaces all servers by its harness, which takes no requests.
"""


def adapters_of(servers: Iterable[Any], tokenizer: Any, context_length: int | None) -> list[ServerAdapter]:
    """An adapter for each of Atropos' servers. Raises EnvironmentSetupError for a server of another kind."""
    return [_adapter_class(server)(server, tokenizer, context_length) for server in servers]


def _adapter_class(server: Any) -> type[ServerAdapter]:
    """The adapter for the server's class, or for its nearest base class that has one."""
    for base in type(server).__mro__:
        if base.__name__ in ADAPTERS:
            return ADAPTERS[base.__name__]
    raise EnvironmentSetupError(
        f"Expected a server class that is derived from {', '.join(ADAPTERS)} of Atropos; found "
        f"{type(server).__name__}. Derive it from the class whose requests and replies it shares."
    )
