"""The tiny model at work: completions for the inference server, steps for the trainer, and checks of every batch.

    request ── queue ──> sampled together, with the weights of that moment ──> Generations, remembered by their tokens
    batch of run-api ── check ──> Trainer.step ──> new weights, which the next request is sampled with

One thread does both in turn, so nothing is sampled with half of an update. What was sampled is remembered for a while:
what `inference_logprobs` say of a sequence is compared with it.

    GET  /health
    POST /generate ── parse_vllm ──> GenerationRequest ── generate ──> Generations ── reply_vllm ──>

The server answers as vLLM answers atroposlib's client: token ids, log probabilities, n completions, truncation at the
token limit. `Learner` has the one with the tiny model; the tests have one that speaks for other servers too
(tests/mock_dialects.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from aiohttp import web

from ..records import MASKED
from .model import Trainer, Transformer

TINY_MODEL = Path(__file__).resolve().parent.parent / "data" / "tiny_model"
"""Tokenizer and warm start, as a checkpoint of Hugging Face's; made by benchmarks/facts/make_warm_start.py."""

MOST_AT_ONCE = 128
"""Sequences that are sampled together: more are hardly faster, and make the first of them wait."""

KEPT_SEQUENCES = 50_000
TOLERANCE = 1e-4
"""How far a log probability may be from the one that was sampled."""


# --- the inference server


@dataclass(frozen=True)
class GivenPrompt:
    """A prompt as text, chat markup included, and as token ids."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True)
class GenerationRequest:
    """`n` completions are wanted; `max_tokens` None means that nothing limits them."""

    prompt: GivenPrompt
    n: int
    max_tokens: int | None
    with_logprobs: bool = False
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True)
class Generation:
    """One completion: `text` without special tokens, and one negative logprob per token id."""

    text: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str


class InferenceServer:
    """The server, on the event loop that awaits `start`. The port is known then; after `close` it stays the same.

    A subclass has `generate`. When it raises, the client gets status 500 and the traceback is logged.
    """

    def __init__(self, tokenizer: Any, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """`port` 0 takes a free one."""
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
        app = web.Application(client_max_size=64 * 2**20)
        app.add_routes(self.routes())
        # A client that goes away cancels its request, as it does on the real servers. (0 seconds would mean for ever.)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.05)
        await runner.setup()
        await web.TCPSite(runner, self._host, self._port).start()
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
        """n generations."""
        raise NotImplementedError


def parse_vllm(body: Mapping[str, Any], tokenizer: Any) -> GenerationRequest:
    given = body["prompt"]
    ids = given["prompt_token_ids"] if isinstance(given, dict) else tokenizer.encode(given)
    prompt = GivenPrompt(tokenizer.decode(ids), ids)
    return GenerationRequest(
        prompt,
        body.get("n", 1),
        body.get("max_tokens", 16),
        with_logprobs=body.get("logprobs") is not None,
        temperature=body.get("temperature", 1.0),
        top_p=body.get("top_p", 1.0),
    )


def reply_vllm(request: GenerationRequest, generations: list[Generation]) -> dict[str, Any]:
    reply: dict[str, Any] = {
        "text": [g.text for g in generations],
        "prompt": request.prompt.text,
        "finish_reasons": [g.finish_reason for g in generations],
    }
    if request.with_logprobs:
        sampled = [zip(g.token_ids, g.logprobs, strict=True) for g in generations]
        reply["logprobs"] = [[[{token: logprob}] for token, logprob in pairs] for pairs in sampled]
        reply["prompt_token_ids"] = request.prompt.token_ids
        reply["token_ids"] = [g.token_ids for g in generations]
    return reply


# --- the learner


@dataclass
class Checks:
    """What the trainer looked at, and what was wrong: counted by a sentence for each kind."""

    groups: int = 0
    sequences: int = 0
    oldest: int = 0
    """Steps between the weights that sampled a sequence and those that it trained."""
    faults: Counter[str] = field(default_factory=Counter)

    def describe(self) -> str:
        if not self.groups:
            return "no batch came, so nothing was checked and nothing learned"
        if self.faults:
            return "; ".join(f"{count}x {what}" for what, count in self.faults.items())
        return (
            f"{self.sequences} sequences in {self.groups} groups: all whole, masks exact, tokens decode to their "
            f"messages, log probabilities those that were sampled, at most {self.oldest} steps old"
        )


Asked: TypeAlias = "tuple[GenerationRequest, asyncio.Future[list[Generation]]]"


class Learner(InferenceServer):
    """The model, its server and its trainer. All methods belong to the event loop that it was entered on."""

    def __init__(self, *, group_size: int, seed: int, rate: float | None = None) -> None:
        """Raises OSError if the package's model is not there."""
        # It takes a second, and whoever wants the server alone does without.
        from transformers import PreTrainedTokenizerFast

        self.tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(TINY_MODEL)
        super().__init__(self.tokenizer)
        self.model = Transformer.load(TINY_MODEL)
        self.checks = Checks()
        self.version = 0
        """Training steps made."""
        self._trainer = Trainer(self.model) if rate is None else Trainer(self.model, rate=rate)
        self._group_size = group_size
        self._rng = np.random.default_rng(seed)
        self._sampled: OrderedDict[bytes, list[tuple[int, list[float]]]] = OrderedDict()
        """Tokens, prompt included -> version and log probabilities of each time that they were sampled."""
        self._waiting: list[Asked] = []
        self._has_work = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def __aenter__(self) -> Learner:
        await self.start()
        self._sampling = asyncio.create_task(self._sample_for_ever())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        self._sampling.cancel()
        await asyncio.gather(self._sampling, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)

    # --- sampling

    async def generate(self, asked: GenerationRequest) -> list[Generation]:
        """n completions. Raises ValueError for a prompt that leaves no room in the model's context."""
        done: asyncio.Future[list[Generation]] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, done))
        self._has_work.set()
        return await done

    async def _sample_for_ever(self) -> None:
        while True:
            await self._has_work.wait()
            taken = self._take()
            try:
                made = await asyncio.get_running_loop().run_in_executor(self._thread, self._sample, taken)
            # Whoever asked is told; the others go on.
            except Exception as error:  # noqa: BLE001
                made = [error] * len(taken)
            for (_, done), result in zip(taken, made, strict=True):
                # Whoever asked may be gone.
                if done.cancelled():
                    continue
                if isinstance(result, Exception):
                    done.set_exception(result)
                else:
                    done.set_result(result)

    def _take(self) -> list[Asked]:
        """As many requests with the sampling parameters of the first as are sampled together."""
        first, size = self._waiting[0][0], 0
        taken: list[Asked] = []
        for one in list(self._waiting):
            asked = one[0]
            is_alike = (asked.temperature, asked.top_p) == (first.temperature, first.top_p)
            if is_alike and (not taken or size + asked.n <= MOST_AT_ONCE):
                taken.append(one)
                self._waiting.remove(one)
                size += asked.n
        if not self._waiting:
            self._has_work.clear()
        return taken

    def _sample(self, taken: Sequence[Asked]) -> list[Any]:
        requests = [asked for asked, _ in taken for _ in range(asked.n)]
        sampled = self.model.sample(
            [asked.prompt.token_ids for asked in requests],
            max_tokens=[asked.max_tokens or self.model.shape.context for asked in requests],
            end=self.tokenizer.eos_token_id,
            rng=self._rng,
            temperature=requests[0].temperature,
            top_p=requests[0].top_p,
        )
        for asked, one in zip(requests, sampled, strict=True):
            # A short answer to an easy question is sampled more than once, by other weights each time.
            known = self._sampled.setdefault(_key([*asked.prompt.token_ids, *one.tokens]), [])
            known.append((self.version, one.logprobs))
        while len(self._sampled) > KEPT_SEQUENCES:
            self._sampled.popitem(last=False)
        texts = self.tokenizer.batch_decode([one.tokens for one in sampled], skip_special_tokens=True)
        made = iter(
            Generation(text, one.tokens, one.logprobs, one.finish_reason)
            for text, one in zip(texts, sampled, strict=True)
        )
        return [[next(made) for _ in range(asked.n)] for asked, _ in taken]

    # --- training

    async def train(self, batch: Sequence[Mapping[str, Any]]) -> None:
        """Check a batch and learn from it."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._train, batch)

    def _train(self, batch: Sequence[Mapping[str, Any]]) -> None:
        self._trainer.step([group for group in batch if self._check(group)])
        self.version += 1

    def _check(self, group: Mapping[str, Any]) -> bool:
        """Compare one group with what was sampled here; returns whether it can be trained on."""
        checks, size = self.checks, len(group["tokens"])
        checks.groups += 1
        checks.sequences += size
        names = ("masks", "scores", "inference_logprobs")
        if size != self._group_size or any(len(group[name] or []) != size for name in names):
            checks.faults["a group is not whole"] += 1
            return False
        messages = group.get("messages") or [None] * size
        prompt = next((at for at, mask in enumerate(group["masks"][0]) if mask != MASKED), 0)
        rows = zip(group["tokens"], group["masks"], group["inference_logprobs"], messages, strict=True)
        for tokens, masks, logprobs, said in rows:
            if masks != [MASKED] * prompt + tokens[prompt:] or len(logprobs) != len(tokens) or prompt < 1:
                checks.faults["a mask does not mark exactly the completion"] += 1
                continue
            if said is not None and not self._decodes_to(tokens, prompt, said):
                checks.faults["tokens do not decode to their messages"] += 1
            self._check_logprobs(tokens, logprobs[prompt:])
        return True

    def _decodes_to(self, tokens: list[int], prompt: int, messages: Sequence[Mapping[str, str]]) -> bool:
        """A special token in the middle of a completion is in the tokens alone, as in any chat."""
        asked = self.tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        said = self.tokenizer.decode(tokens[prompt:], skip_special_tokens=True)
        return bool(self.tokenizer.decode(tokens[:prompt]) == asked and messages[-1]["content"] == said)

    def _check_logprobs(self, tokens: list[int], logprobs: Sequence[float]) -> None:
        gaps = [
            (float(np.abs(np.subtract(said, logprobs)).max()), -version)
            for version, said in self._sampled.get(_key(tokens), ())
        ]
        if not gaps:
            self.checks.faults["a sequence was not sampled here, or too long ago to tell"] += 1
            return
        gap, version = min(gaps)
        self.checks.oldest = max(self.checks.oldest, self.version + version)
        if gap > TOLERANCE:
            self.checks.faults[f"a log probability differs by more than {TOLERANCE:g} from the one sampled"] += 1


def _key(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()
