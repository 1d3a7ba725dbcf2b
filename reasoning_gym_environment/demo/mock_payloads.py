"""What the mock inference server reads and writes, as pure functions: one dialect per kind of endpoint.

    request body ── Dialect.parse ──> GenerationRequest          (or MalformedRequest, one line)
    text of respond ── make_generation ──> Generation            (token ids, logprobs, finish reason)
    GenerationRequest + its Generations ── Dialect.reply ──> reply body

Parameters that shape the sampling distribution (temperature, top_p, penalties, seed) are accepted and have
no effect. Those that would change where a completion ends or what a reply holds (stop, stream, ...) are
refused, as are unknown ones where the real server refuses them. Context length and model name are free.
"""

from __future__ import annotations

import reprlib
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

Body = Mapping[str, Any]
Reply = dict[str, Any] | list[dict[str, Any]]

GREEDY_BELOW = 1e-5
"""At lower temperatures vLLM samples greedily, and then refuses more than one completion."""

_SHARED = {
    *("n", "temperature", "top_p", "top_k", "min_p", "stream_interval"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("skip_special_tokens", "spaces_between_special_tokens"),
}
_VLLM_PARAMETERS = _SHARED | {"max_tokens", "logprobs", "seed", "detokenize"}
_SGLANG_PARAMETERS = _SHARED | {"max_new_tokens", "sampling_seed"}


class MalformedRequest(ValueError):
    """The request cannot be served; the message is one line for the client."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as text, chat markup included, and as token ids."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True)
class GenerationRequest:
    """`n` completions are wanted for each prompt; `max_tokens` None means that nothing limits them."""

    prompts: tuple[Prompt, ...]
    n: int
    max_tokens: int | None
    with_logprobs: bool = False


@dataclass(frozen=True)
class Generation:
    """One completion: `text` without special tokens, and one negative logprob per token id."""

    text: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str


@dataclass(frozen=True)
class Dialect:
    """How one kind of endpoint asks and answers; `server_type` is atroposlib's name for it.

    `parse(body, tokenizer)` raises MalformedRequest. `reply(request, generations, model_name)` takes the
    generations of all prompts in order, n for each.
    """

    server_type: str
    parse: Callable[[Body, Any], GenerationRequest]
    reply: Callable[[GenerationRequest, list[Generation], str], Reply]


def make_generation(tokenizer: Any, text: str, max_tokens: int | None) -> Generation:
    """Tokenise `text` as if a model had sampled it.

    It ends with eos and "stop", or, where text and eos do not fit in `max_tokens`, is cut there with
    "length". An eos inside the text ends the completion, as it would end a model's.
    """
    eos = tokenizer.eos_token_id
    sampled: list[int] = [*tokenizer.encode(text, add_special_tokens=False), eos]
    sampled = sampled[: sampled.index(eos) + 1]
    token_ids = sampled[:max_tokens]
    finish_reason = "stop" if len(token_ids) == len(sampled) else "length"
    logprobs = [_logprob(position, token_id) for position, token_id in enumerate(token_ids)]
    visible = tokenizer.decode(token_ids, skip_special_tokens=True)
    return Generation(visible, token_ids, logprobs, finish_reason)


def _logprob(position: int, token_id: int) -> float:
    # A fixed hash, spread over (-4.1, 0) with most values near 0, as those of a confident model are.
    fraction = ((token_id * 2654435761 + position * 40503) % 9973) / 9973
    return -round(0.001 + 4.0 * fraction**4, 6)


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise MalformedRequest(reason)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse(body: Body, *names: str) -> None:
    for name in names:
        _require(not body.get(name), f"{name} is not simulated by the mock server, leave it out")


def _refuse_others(params: Body, accepted: set[str]) -> None:
    for name in sorted(set(params) - accepted):
        raise MalformedRequest(f"sampling parameter {reprlib.repr(name)} does not exist or is not simulated")


def _count(params: Body) -> int:
    """n, once the sampling parameters that every kind of server has in common are found valid."""
    n, temperature, top_p = params.get("n", 1), params.get("temperature", 1.0), params.get("top_p", 1.0)
    _require(_is_integer(n) and n >= 1, f"n must be an integer of at least 1, got {reprlib.repr(n)}")
    for name, value in (("temperature", temperature), ("top_p", top_p)):
        number = isinstance(value, float) or _is_integer(value)
        _require(number, f"{name} must be a number, got {reprlib.repr(value)}")
    _require(0.0 <= temperature < float("inf"), f"temperature must be finite and >= 0, got {temperature}")
    _require(0.0 < top_p <= 1.0, f"top_p must be in (0, 1], got {top_p}")
    return int(n)


def _limit(params: Body, name: str, default: int | None) -> int | None:
    value = params.get(name, default)
    valid = value is None or (_is_integer(value) and value >= 1)
    _require(valid, f"{name} must be an integer of at least 1, got {reprlib.repr(value)}")
    return value


def _prompt(tokenizer: Any, given: Any, name: str, add_special_tokens: bool = True) -> Prompt:
    """A prompt given as text or as a list of token ids."""
    _require(isinstance(given, (str, list)) and len(given) > 0, f"{name} must be non-empty text or token ids")
    if isinstance(given, str):
        try:
            given.encode("utf-8")
        except UnicodeEncodeError as error:
            raise MalformedRequest(f"{name} is not valid Unicode: {error.reason}") from error
        return Prompt(given, tokenizer.encode(given, add_special_tokens=add_special_tokens))
    in_vocabulary = all(_is_integer(token) and 0 <= token < len(tokenizer) for token in given)
    _require(in_vocabulary, f"{name} must hold token ids from 0 to {len(tokenizer) - 1} only")
    return Prompt(tokenizer.decode(given), given)


def _parse_vllm(body: Body, tokenizer: Any) -> GenerationRequest:
    params = {name: value for name, value in body.items() if name != "prompt"}
    _refuse_others(params, _VLLM_PARAMETERS)
    n, logprobs, given = _count(params), params.get("logprobs"), body.get("prompt")
    greedy = params.get("temperature", 1.0) < GREEDY_BELOW
    _require(n == 1 or not greedy, f"n must be 1 when sampling greedily (temperature 0), got {n}")
    # A higher number asks for the likeliest alternatives to each token, and there are none to give.
    _require(logprobs in (None, 0), f"logprobs must be 0 or left out, got {reprlib.repr(logprobs)}")
    prompt = _prompt(tokenizer, given.get("prompt_token_ids") if isinstance(given, dict) else given, "prompt")
    return GenerationRequest((prompt,), n, _limit(params, "max_tokens", 16), logprobs is not None)


def _reply_vllm(request: GenerationRequest, generations: list[Generation], model_name: str) -> Reply:
    (prompt,) = request.prompts
    reply: dict[str, Any] = {
        "text": [g.text for g in generations],
        "prompt": prompt.text,
        "finish_reasons": [g.finish_reason for g in generations],
    }
    if request.with_logprobs:
        sampled = [zip(g.token_ids, g.logprobs, strict=True) for g in generations]
        reply["logprobs"] = [[[{token: logprob}] for token, logprob in pairs] for pairs in sampled]
        reply["prompt_token_ids"] = prompt.token_ids
        reply["token_ids"] = [g.token_ids for g in generations]
    return reply


def _parse_sglang(body: Body, tokenizer: Any) -> GenerationRequest:
    params = body.get("sampling_params") or {}
    _require(isinstance(params, dict), "sampling_params must be an object")
    _refuse(body, "stream", "top_logprobs_num", "token_ids_logprob", "return_text_in_logprobs")
    _refuse_others(params, _SGLANG_PARAMETERS)
    n = _count({name: value for name, value in params.items() if value is not None})
    prompt = _prompt(tokenizer, body.get("input_ids"), "input_ids")
    limit = _limit(params, "max_new_tokens", 128)
    return GenerationRequest((prompt,), n, limit, bool(body.get("return_logprob")))


def _reply_sglang(request: GenerationRequest, generations: list[Generation], model_name: str) -> Reply:
    """A list of results, or the bare result where one completion was asked for."""
    results = [_sglang_result(request, generation) for generation in generations]
    return results if request.n > 1 else results[0]


def _sglang_result(request: GenerationRequest, generation: Generation) -> dict[str, Any]:
    stopped = generation.finish_reason == "stop"
    detail = {"matched": generation.token_ids[-1]} if stopped else {"length": request.max_tokens}
    meta: dict[str, Any] = {
        "id": uuid.uuid4().hex,
        "finish_reason": {"type": generation.finish_reason, **detail},
        "prompt_tokens": len(request.prompts[0].token_ids),
        "completion_tokens": len(generation.token_ids),
        "cached_tokens": 0,
    }
    if request.with_logprobs:
        # The third place is the token's text, null unless return_text_in_logprobs is set.
        pairs = zip(generation.logprobs, generation.token_ids, strict=True)
        meta |= {"input_token_logprobs": [], "output_token_logprobs": [[*pair, None] for pair in pairs]}
    return {"text": generation.text, "output_ids": generation.token_ids, "meta_info": meta}


def _parse_trl(body: Body, tokenizer: Any) -> GenerationRequest:
    _refuse(body, "images", "guided_decoding_regex", "structured_outputs_regex", "generation_kwargs")
    texts = body.get("prompts")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise MalformedRequest("prompts must be a non-empty list of texts")
    prompts = tuple(_prompt(tokenizer, text, "prompts") for text in texts)
    return GenerationRequest(prompts, _count(body), _limit(body, "max_tokens", 16))


def _reply_trl(request: GenerationRequest, generations: list[Generation], model_name: str) -> Reply:
    return {
        "prompt_ids": [prompt.token_ids for prompt in request.prompts],
        "completion_ids": [g.token_ids for g in generations],
        "logprobs": [g.logprobs for g in generations],
    }


def _parse_completion(body: Body, tokenizer: Any) -> GenerationRequest:
    params = _openai_params(body)
    prompt = _prompt(tokenizer, params.get("prompt"), "prompt")
    return GenerationRequest((prompt,), _count(params), _limit(params, "max_tokens", 16))


def _parse_chat(body: Body, tokenizer: Any) -> GenerationRequest:
    params = _openai_params(body)
    messages = params.get("messages")
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise MalformedRequest("messages must be a list of objects with a text role and a text content")
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (TemplateError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise MalformedRequest(f"the chat template rejects these messages: {reason}") from error
    name = "max_completion_tokens" if "max_completion_tokens" in params else "max_tokens"
    prompt = _prompt(tokenizer, text, "messages", add_special_tokens=False)
    return GenerationRequest((prompt,), _count(params), _limit(params, name, None))


def _is_message(given: Any) -> bool:
    return isinstance(given, dict) and all(isinstance(given.get(key), str) for key in ("role", "content"))


def _openai_params(body: Body) -> dict[str, Any]:
    """The body without nulls, which stand for the default; names nobody refuses are let through."""
    _refuse(body, "stream", "stop", "logprobs", "top_logprobs", "echo", "suffix", "tools", "response_format")
    return {name: value for name, value in body.items() if value is not None}


def _reply_completion(request: GenerationRequest, generations: list[Generation], model_name: str) -> Reply:
    choices: list[Body] = [{"text": g.text} for g in generations]
    return _openai_reply("text_completion", choices, request, generations, model_name)


def _reply_chat(request: GenerationRequest, generations: list[Generation], model_name: str) -> Reply:
    choices: list[Body] = [{"message": {"role": "assistant", "content": g.text}} for g in generations]
    return _openai_reply("chat.completion", choices, request, generations, model_name)


def _openai_reply(
    kind: str, choices: list[Body], request: GenerationRequest, generations: list[Generation], model_name: str
) -> Reply:
    numbered = [
        {"index": index, **choice, "logprobs": None, "finish_reason": generation.finish_reason}
        for index, (choice, generation) in enumerate(zip(choices, generations, strict=True))
    ]
    read, written = len(request.prompts[0].token_ids), sum(len(g.token_ids) for g in generations)
    return {
        "id": uuid.uuid4().hex,
        "object": kind,
        "created": int(time.time()),
        "model": model_name,
        "choices": numbered,
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }


VLLM = Dialect("vllm", _parse_vllm, _reply_vllm)
SGLANG = Dialect("sglang", _parse_sglang, _reply_sglang)
TRL = Dialect("trl", _parse_trl, _reply_trl)
COMPLETION = Dialect("openai", _parse_completion, _reply_completion)
CHAT = Dialect("openai", _parse_chat, _reply_chat)
