"""A real HTTP inference server around one function, `respond(prompt) -> text`, and a tokenizer: no model, no network.

    GET  /health
    POST /generate ── parse_vllm ──> GenerationRequest ── respond, make_generation ──> Generations ── reply_vllm ──>

It answers as vLLM answers atroposlib's client: token ids, logprobs, n completions, truncation at the token limit.
Parameters that shape the sampling distribution (temperature, top_p, penalties, seed) have no effect. The tests have one
that speaks for other servers too, refuses what they refuse, and fails when it is told to (tests/mock_dialects.py).

The tokenizer is built in code, for machines where no model hub can be reached. One token is one byte, so a prompt of n
UTF-8 bytes has n tokens, and any text survives `decode(encode(text))` unchanged. The chat template is ChatML, as Hermes
and Qwen models use it.

    token id 0 .. 255     the UTF-8 byte of that value; there are no merges
    token id 256 .. 258   <|im_start|>, <|im_end|> (eos), <|endoftext|> (pad)
"""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Respond = Callable[[str], str | Awaitable[str]]
"""Called once per completion asked for, with the prompt's whole text (chat markup included)."""

MAX_BODY_BYTES = 64 * 2**20
CLOSE_S = 0.05
"""How long `close` waits for requests in flight before it drops them (aiohttp reads 0 as "for ever")."""


@dataclass(frozen=True)
class GivenPrompt:
    """A prompt as text, chat markup included, and as token ids."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True)
class GenerationRequest:
    """`n` completions are wanted for each prompt; `max_tokens` None means that nothing limits them."""

    prompts: tuple[GivenPrompt, ...]
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


class InferenceServer:
    """The server, on the event loop that awaits `start`. The port is known then; after `close` it stays the same.

    `respond` runs on the same loop: a slow one must be async. When it raises, the client gets status 500 and the
    traceback is logged.
    """

    def __init__(
        self, respond: Respond, tokenizer: PreTrainedTokenizerBase, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        """`port` 0 takes a free one. Raises ValueError for a tokenizer without an eos token."""
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no eos token; a completion could not end by itself")
        self._respond = respond
        self._tokenizer = tokenizer
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def base_url(self) -> str:
        """atroposlib's `base_url` for this server. Server type trl alone wants `url` there."""
        return f"{self.url}/v1"

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/health", self.health), web.post("/generate", self.complete)]

    async def start(self) -> None:
        """Listen. Raises OSError when the port is taken."""
        if self._runner is not None:
            return
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes(self.routes())
        # A client that goes away cancels its request, as it does on the real servers.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=CLOSE_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except OSError:
            await runner.cleanup()
            raise
        self._port = runner.addresses[0][1]
        self._runner = runner

    async def close(self) -> None:
        """Stop listening and drop the requests in flight, as a killed server would. Safe to call twice."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def __aenter__(self) -> InferenceServer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        asked = parse_vllm(await request.json(), self._tokenizer)
        return web.json_response(reply_vllm(asked, await self.generate(asked)))

    async def generate(self, asked: GenerationRequest) -> list[Generation]:
        """n generations for each prompt, in the order of the prompts."""
        prompts = [prompt.text for prompt in asked.prompts for _ in range(asked.n)]
        return list(await asyncio.gather(*(self._generate(text, asked.max_tokens) for text in prompts)))

    async def _generate(self, prompt: str, max_tokens: int | None) -> Generation:
        answer = self._respond(prompt)
        text = await answer if inspect.isawaitable(answer) else answer
        return make_generation(self._tokenizer, text, max_tokens)


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


def parse_vllm(body: Mapping[str, Any], tokenizer: Any) -> GenerationRequest:
    given = body["prompt"]
    ids = given["prompt_token_ids"] if isinstance(given, dict) else tokenizer.encode(given)
    prompt = GivenPrompt(tokenizer.decode(ids), ids)
    return GenerationRequest((prompt,), body.get("n", 1), body.get("max_tokens", 16), body.get("logprobs") is not None)


def reply_vllm(request: GenerationRequest, generations: list[Generation]) -> dict[str, Any]:
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


# --- a tokenizer without a hub

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

MAX_LENGTH = 1 << 30
"""Bytes are many: a limit no prompt reaches keeps the tokenizer from warning about long ones."""


def build_byte_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, with no file read and nothing downloaded.

    `encode(text)` is `list(text.encode("utf-8"))`, except that the three special tokens are recognised
    in text and become one id each; `decode(..., skip_special_tokens=True)` leaves those out. Tags such
    as `<think>` and `<answer>` are ordinary text. No token is added at either end. Text with a lone
    surrogate has no UTF-8 form: `encode` raises TypeError for it.
    """
    vocabulary = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    # Added here, in order, and not by the wrapper below: that fixes their ids in every transformers version.
    core.add_special_tokens([AddedToken(t, special=True) for t in (IM_START, IM_END, END_OF_TEXT)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[IM_START],
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def save_byte_tokenizer(directory: str | Path) -> Path:
    """Write the tokenizer so that `AutoTokenizer.from_pretrained(directory)` loads it; return the path.

    The directory is made when missing. Saving again writes the same content: each file is replaced
    whole, so a process that loads from the directory meanwhile never reads half a file.
    """
    target = Path(directory).resolve()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".saving-") as staging:
        build_byte_tokenizer().save_pretrained(staging)
        for path in sorted(Path(staging).iterdir()):
            path.replace(target / path.name)
    return target


def _byte_symbols() -> list[str]:
    """The character that the ByteLevel pre-tokenizer writes for each byte, by byte value.

    Printable Latin-1 bytes stand for themselves; the others, in ascending order, are written with
    the characters from U+0100 on.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    itself = {ord(symbol): symbol for symbol in alphabet if ord(symbol) < 256}
    substitutes = iter(symbol for symbol in alphabet if ord(symbol) >= 256)
    return [itself.get(byte) or next(substitutes) for byte in range(256)]
