"""The tiny model at work: completions for the inference server, steps for the trainer, and checks of every batch.

    request ── queue ──> sampled together, with the weights of that moment ──> Generations, remembered by their tokens
    batch of run-api ── check ──> Trainer.step ──> new weights, which the next request is sampled with

One thread does both in turn, so nothing is sampled with half of an update. The weights that sampled a sequence are kept
for a while: what `inference_logprobs` say is compared with what those very weights say.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from ..records import MASKED
from .inference_server import Generation, GenerationRequest, InferenceServer
from .model import Floats, Transformer
from .trainer import Trainer

TINY_MODEL = Path(__file__).resolve().parent.parent / "data" / "tiny_model"
"""Tokenizer and warm start, made by benchmarks/make_warm_start.py."""

MOST_AT_ONCE = 128
"""Sequences that are sampled together: more are hardly faster, and make the first of them wait."""

KEPT_WEIGHTS = 64
"""Versions of the weights that are kept for the checks, two megabytes each."""

KEPT_SEQUENCES = 50_000
TOLERANCE = 1e-4
"""How far a log probability may be from what the weights that sampled it say of it."""


@dataclass
class Checks:
    """What the trainer looked at, and what was wrong: counted by a sentence for each kind."""

    groups: int = 0
    sequences: int = 0
    largest_gap: float = 0.0
    """Of `inference_logprobs` to what the sampling weights say."""
    oldest: int = 0
    """Steps between the weights that sampled a sequence and those that it trained."""
    faults: Counter[str] = field(default_factory=Counter)

    def describe(self) -> str:
        if self.faults:
            return "; ".join(f"{count}x {what}" for what, count in self.faults.items())
        return (
            f"{self.sequences} sequences in {self.groups} groups: all whole, masks exact, tokens decode to their "
            f"messages, log probabilities within {self.largest_gap:.0e} of what the sampling weights say, at most "
            f"{self.oldest} steps old"
        )


@dataclass
class _Wanted:
    request: GenerationRequest
    temperature: float
    top_p: float
    done: asyncio.Future[list[Generation]]


class Learner:
    """The model, its server and its trainer. All methods belong to the event loop that `start` was awaited on."""

    def __init__(self, *, group_size: int, seed: int, rate: float | None = None) -> None:
        """Raises OSError if the package's model is not there."""
        self.tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(TINY_MODEL)
        self.model = Transformer.load(TINY_MODEL / "weights.npz")
        self.checks = Checks()
        self.version = 0
        """Training steps made."""
        self.tokens_sampled = 0
        self._trainer = Trainer(self.model) if rate is None else Trainer(self.model, rate=rate)
        self._group_size = group_size
        self._rng = np.random.default_rng(seed)
        self._weights: OrderedDict[int, Floats] = OrderedDict({0: self.model.flat.copy()})
        self._sampled_by: OrderedDict[bytes, set[int]] = OrderedDict()
        self._waiting: list[_Wanted] = []
        self._has_work = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._sampling: asyncio.Task[None] | None = None
        self.server = _Server(self)

    async def __aenter__(self) -> Learner:
        await self.server.start()
        self._sampling = asyncio.create_task(self._sample_for_ever())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)

    # --- sampling

    async def generate(self, request: GenerationRequest) -> list[Generation]:
        """n completions of each prompt. Raises ValueError for a prompt that leaves no room in the model's context."""
        wanted = _Wanted(request, request.temperature, request.top_p, asyncio.get_running_loop().create_future())
        self._waiting.append(wanted)
        self._has_work.set()
        return await wanted.done

    async def _sample_for_ever(self) -> None:
        while True:
            await self._has_work.wait()
            taken = self._take()
            try:
                made = await asyncio.get_running_loop().run_in_executor(self._thread, self._sample, taken)
            # Whoever asked is told; the others go on.
            except Exception as error:  # noqa: BLE001
                for wanted in taken:
                    if not wanted.done.cancelled():
                        wanted.done.set_exception(error)
                continue
            for wanted, generations in zip(taken, made, strict=True):
                # Whoever asked may be gone.
                if not wanted.done.cancelled():
                    wanted.done.set_result(generations)

    def _take(self) -> list[_Wanted]:
        """As many requests with the sampling parameters of the first as are sampled together."""
        first, size = self._waiting[0], 0
        taken: list[_Wanted] = []
        for wanted in list(self._waiting):
            alike = (wanted.temperature, wanted.top_p) == (first.temperature, first.top_p)
            more = len(wanted.request.prompts) * wanted.request.n
            if alike and (not taken or size + more <= MOST_AT_ONCE):
                taken.append(wanted)
                self._waiting.remove(wanted)
                size += more
        if not self._waiting:
            self._has_work.clear()
        return taken

    def _sample(self, taken: Sequence[_Wanted]) -> list[list[Generation]]:
        prompts = [list(p.token_ids) for one in taken for p in one.request.prompts for _ in range(one.request.n)]
        room = self.model.shape.context
        limits = [
            one.request.max_tokens or room for one in taken for _ in range(len(one.request.prompts) * one.request.n)
        ]
        sampled = self.model.sample(
            prompts,
            max_tokens=limits,
            end=self.tokenizer.eos_token_id,
            rng=self._rng,
            temperature=taken[0].temperature,
            top_p=taken[0].top_p,
        )
        for prompt, one in zip(prompts, sampled, strict=True):
            # A short answer to an easy question is sampled more than once, by other weights each time.
            key = _key([*prompt, *one.tokens])
            self._sampled_by[key] = {*self._sampled_by.pop(key, ()), self.version}
            self.tokens_sampled += len(one.tokens)
        while len(self._sampled_by) > KEPT_SEQUENCES:
            self._sampled_by.popitem(last=False)
        texts = self.tokenizer.batch_decode([one.tokens for one in sampled], skip_special_tokens=True)
        made = iter(
            Generation(text, one.tokens, one.logprobs, one.finish_reason)
            for text, one in zip(texts, sampled, strict=True)
        )
        return [[next(made) for _ in range(len(one.request.prompts) * one.request.n)] for one in taken]

    # --- training

    async def train(self, batch: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Check a batch and learn from it; returns the trainer's figures."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._train, batch)

    def _train(self, batch: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        figures = self._trainer.step([group for group in batch if self._check(group)])
        self.version += 1
        self._weights[self.version] = self.model.flat.copy()
        while len(self._weights) > KEPT_WEIGHTS:
            self._weights.popitem(last=False)
        return figures

    def _check(self, group: Mapping[str, Any]) -> bool:
        """Compare one group with what was sampled here; returns whether it can be trained on."""
        checks, size = self.checks, len(group["tokens"])
        checks.groups += 1
        checks.sequences += size
        if size != self._group_size or any(
            len(group[name] or []) != size for name in ("masks", "scores", "inference_logprobs")
        ):
            checks.faults["a group is not whole"] += 1
            return False
        messages = group.get("messages") or [None] * size
        prompt = next((at for at, mask in enumerate(group["masks"][0]) if mask != MASKED), 0)
        for number, (tokens, masks, logprobs) in enumerate(
            zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True)
        ):
            if masks != [MASKED] * prompt + tokens[prompt:] or len(logprobs) != len(tokens) or prompt < 1:
                checks.faults["a mask does not mark exactly the completion"] += 1
                continue
            if messages[number] is not None and not self._decodes_to(tokens, prompt, messages[number]):
                checks.faults["tokens do not decode to their messages"] += 1
            self._check_logprobs(tokens, prompt, logprobs)
        return True

    def _decodes_to(self, tokens: list[int], prompt: int, messages: Sequence[Mapping[str, str]]) -> bool:
        """A special token in the middle of a completion is in the tokens alone, as in any chat."""
        asked = self.tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        said = self.tokenizer.decode(tokens[prompt:], skip_special_tokens=True)
        return bool(self.tokenizer.decode(tokens[:prompt]) == asked and messages[-1]["content"] == said)

    def _check_logprobs(self, tokens: list[int], prompt: int, logprobs: Sequence[float]) -> None:
        gaps: dict[float, int] = {}
        for version in sorted(self._weights.keys() & self._sampled_by.get(_key(tokens), set()), reverse=True):
            (again,) = Transformer(self.model.shape, self._weights[version]).logprobs([tokens], [prompt])
            gaps[float(np.abs(again - np.asarray(logprobs[prompt:], np.float32)).max())] = version
            if min(gaps) <= TOLERANCE:
                break
        if not gaps:
            self.checks.faults["a sequence was not sampled here, or too long ago to tell"] += 1
            return
        gap = min(gaps)
        self.checks.oldest = max(self.checks.oldest, self.version - gaps[gap])
        self.checks.largest_gap = max(self.checks.largest_gap, gap)
        if gap > TOLERANCE:
            self.checks.faults[f"a log probability differs by more than {TOLERANCE:g} from the sampling weights'"] += 1


class _Server(InferenceServer):
    """vLLM's endpoint in front of the learner."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner.tokenizer)
        self._learner = learner

    async def generate(self, request: GenerationRequest) -> list[Generation]:
        return await self._learner.generate(request)


def _key(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()
