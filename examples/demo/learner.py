"""The tiny model at work: completions for the inference server, steps for the trainer, and checks of every batch.

    request ── queue ──> sampled together, with the weights of that moment ──> Generations, remembered by their tokens
    batch of run-api ── check ──> Trainer.step ──> new weights, which sample the next request

One thread samples and trains in turn, so no completion is sampled with half of an update. The learner remembers what it
sampled for a while, and compares the `inference_logprobs` of each batch with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from reasoning_gym_environment.records import MASKED
from testing.inference_server import Generation, GenerationRequest, InferenceServer

from .model import Trainer, Transformer

TINY_MODEL = Path(__file__).resolve().parent / "tiny_model"
"""Tokenizer and initial weights, as a checkpoint of Hugging Face's; made by warm_start.py."""

MOST_AT_ONCE = 128
"""Sequences that are sampled together. More are hardly faster, and delay the first of them."""

KEPT_SEQUENCES = 50_000
TOLERANCE = 1e-4
"""How far a log probability in a batch may be from the sampled log probability."""


@dataclass
class Checks:
    """The number of groups and sequences that the trainer checked, and a count of each kind of fault."""

    groups: int = 0
    sequences: int = 0
    oldest: int = 0
    """The largest number of training steps between sampling a sequence and training on it."""
    faults: Counter[str] = field(default_factory=Counter)

    def describe(self) -> str:
        if not self.groups:
            return "no batch arrived, so there was nothing to check or to learn from"
        if self.faults:
            return "; ".join(f"{count}x {what}" for what, count in self.faults.items())
        return (
            f"{self.sequences} sequences in {self.groups} groups: all whole, masks exact, tokens decode to their "
            f"messages, log probabilities equal the sampled ones, at most {self.oldest} steps old"
        )


Waiting: TypeAlias = "tuple[GenerationRequest, asyncio.Future[list[Generation]]]"


class Learner(InferenceServer):
    """The model, its server and its trainer. All methods belong to the event loop that it was entered on."""

    def __init__(self, *, group_size: int, seed: int, rate: float | None = None) -> None:
        """Raises OSError if the model's files are missing."""
        # This import takes a second.
        from transformers import PreTrainedTokenizerFast

        self.tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(TINY_MODEL)
        super().__init__(self.tokenizer)
        self.model = Transformer.load(TINY_MODEL)
        self.checks = Checks()
        self.version = 0
        """The number of training steps so far."""
        self._trainer = Trainer(self.model) if rate is None else Trainer(self.model, rate=rate)
        self._group_size = group_size
        self._rng = np.random.default_rng(seed)
        self._sampled: OrderedDict[bytes, list[tuple[int, list[float]]]] = OrderedDict()
        """Tokens, prompt included -> version and log probabilities of each time that the model sampled them."""
        self._waiting: list[Waiting] = []
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

    async def generate(self, request: GenerationRequest) -> list[Generation]:
        """n completions. Raises ValueError for a prompt that leaves no room in the model's context."""
        done: asyncio.Future[list[Generation]] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, done))
        self._has_work.set()
        return await done

    async def _sample_for_ever(self) -> None:
        while True:
            await self._has_work.wait()
            taken = self._take()
            try:
                made = await asyncio.get_running_loop().run_in_executor(self._thread, self._sample, taken)
            # The clients of these requests get the error. Other requests are not affected.
            except Exception as error:  # noqa: BLE001
                made = [error] * len(taken)
            for (_, done), result in zip(taken, made, strict=True):
                # The client may have disconnected.
                if done.cancelled():
                    continue
                if isinstance(result, Exception):
                    done.set_exception(result)
                else:
                    done.set_result(result)

    def _take(self) -> list[Waiting]:
        """The next requests to sample together: all have the sampling parameters of the first."""
        first = self._waiting[0][0]
        size = 0
        taken: list[Waiting] = []
        for waiting in list(self._waiting):
            request = waiting[0]
            is_alike = (request.temperature, request.top_p) == (first.temperature, first.top_p)
            if is_alike and (not taken or size + request.n <= MOST_AT_ONCE):
                taken.append(waiting)
                self._waiting.remove(waiting)
                size += request.n
        if not self._waiting:
            self._has_work.clear()
        return taken

    def _sample(self, taken: Sequence[Waiting]) -> list[Any]:
        requests: list[GenerationRequest] = []
        for request, _ in taken:
            requests += [request] * request.n
        sampled = self.model.sample(
            [request.prompt.token_ids for request in requests],
            max_tokens=[request.max_tokens or self.model.shape.context for request in requests],
            end=self.tokenizer.eos_token_id,
            rng=self._rng,
            temperature=requests[0].temperature,
            top_p=requests[0].top_p,
        )
        for request, completion in zip(requests, sampled, strict=True):
            # A short answer to an easy question is sampled more than once, by other weights each time.
            known = self._sampled.setdefault(_key([*request.prompt.token_ids, *completion.tokens]), [])
            known.append((self.version, completion.logprobs))
        while len(self._sampled) > KEPT_SEQUENCES:
            self._sampled.popitem(last=False)
        texts = self.tokenizer.batch_decode([completion.tokens for completion in sampled], skip_special_tokens=True)
        generations = [
            Generation(text, completion.tokens, completion.logprobs, completion.finish_reason)
            for text, completion in zip(texts, sampled, strict=True)
        ]
        remaining = iter(generations)
        return [list(islice(remaining, request.n)) for request, _ in taken]

    # --- training

    async def train(self, batch: Sequence[Mapping[str, Any]]) -> None:
        """Check a batch and train on it."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._train, batch)

    def _train(self, batch: Sequence[Mapping[str, Any]]) -> None:
        self._trainer.step([group for group in batch if self._check(group)])
        self.version += 1

    def _check(self, group: Mapping[str, Any]) -> bool:
        """Compare one group with the sampled sequences; returns whether the trainer can use it."""
        checks = self.checks
        size = len(group["tokens"])
        checks.groups += 1
        checks.sequences += size
        names = ("masks", "scores", "inference_logprobs")
        if size != self._group_size or any(len(group[name] or []) != size for name in names):
            checks.faults["a group is not whole"] += 1
            return False
        messages = group.get("messages") or [None] * size
        prompt = next((at for at, mask in enumerate(group["masks"][0]) if mask != MASKED), 0)
        rows = zip(group["tokens"], group["masks"], group["inference_logprobs"], messages, strict=True)
        for tokens, masks, logprobs, conversation in rows:
            if masks != [MASKED] * prompt + tokens[prompt:] or len(logprobs) != len(tokens) or prompt < 1:
                checks.faults["a mask does not mark exactly the completion"] += 1
                continue
            if conversation is not None and not self._decodes_to(tokens, prompt, conversation):
                checks.faults["tokens do not decode to their messages"] += 1
            self._check_logprobs(tokens, logprobs[prompt:])
        return True

    def _decodes_to(self, tokens: list[int], prompt: int, messages: Sequence[Mapping[str, str]]) -> bool:
        """Whether the tokens decode to the messages, apart from special tokens inside a completion."""
        question = self.tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        reply = self.tokenizer.decode(tokens[prompt:], skip_special_tokens=True)
        return bool(self.tokenizer.decode(tokens[:prompt]) == question and messages[-1]["content"] == reply)

    def _check_logprobs(self, tokens: list[int], logprobs: Sequence[float]) -> None:
        gaps: list[tuple[float, int]] = []
        for version, sampled in self._sampled.get(_key(tokens), ()):
            gap = float(np.abs(np.subtract(sampled, logprobs)).max())
            gaps.append((gap, self.version - version))
        if not gaps:
            self.checks.faults["the learner did not sample a sequence, or no longer remembers it"] += 1
            return
        # The smallest gap, and of equal gaps the smallest age.
        gap, age = min(gaps)
        self.checks.oldest = max(self.checks.oldest, age)
        if gap > TOLERANCE:
            self.checks.faults[f"a log probability differs by more than {TOLERANCE:g} from the sampled one"] += 1


def _key(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()
