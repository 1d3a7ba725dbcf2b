"""A tiny language model in numpy, a transformer with sampling, log probabilities and gradients; and its GRPO trainer.

    Weights ── Transformer.sample(prompts, n) ──> completions, with the log probability of every token
            ── Transformer.logprobs(sequences) ──> the same numbers again, all positions at once
            ── Transformer.gradient(sequences, d loss / d logprob) ──> Adam.step ──> new weights

A decoder of the usual shape: rotary positions (arXiv 2104.09864), RMS normalisation before each block without gains
(1910.07467), squared ReLU (2109.08668), and one matrix for embedding and head. No biases, no dropout. All weights are
views into one flat float32 vector, so that copying a model or updating it is one operation.

At this size (half a million weights) numpy is as fast as a tensor library, and it is installed anyway.

    batch of run-api ── advantages ── clipped ratio ──> slopes of the loss ──> gradient ──> Adam

Advantages are a group's rewards less their mean, over their standard deviation (GRPO, arXiv 2402.03300); the loss is
the clipped surrogate of PPO (1707.06347) at every token, averaged over all tokens of the batch (DAPO, 2503.14476). No
KL term. The importance ratio compares the present weights with the weights that sampled, whose log probabilities are
the batch's `inference_logprobs`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from reasoning_gym_environment.records import MASKED

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

EPS = 1e-6
_NEVER = -1e9
BASE = 10000.0
"""Of the rotary positions."""

EMBEDDING = "model.embed_tokens.weight"
SIZES = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "context": "max_position_embeddings",
}
"""Our name of each size, and its name in a checkpoint's config.json."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a model. `width` is divisible by `heads`, and `width / heads` is even."""

    vocabulary: int
    width: int = 96
    layers: int = 4
    heads: int = 4
    context: int = 512
    """Positions that a sequence may have, prompt and completion together."""

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each weight matrix, in the order in which they lie in the flat vector."""
        d = self.width
        named: dict[str, tuple[int, ...]] = {"embedding": (self.vocabulary, d)}
        for layer in range(self.layers):
            named |= {
                f"{layer}.qkv": (d, 3 * d),
                f"{layer}.out": (d, d),
                f"{layer}.up": (d, 4 * d),
                f"{layer}.down": (4 * d, d),
            }
        return named

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(math.prod(shape) for shape in self.arrays().values())


@dataclass(frozen=True)
class Sampled:
    """One completion: its token ids, the log probability of each at temperature 1, and why it ended."""

    tokens: list[int]
    logprobs: list[float]
    finish_reason: str
    """`stop` after the end token, which is the last of `tokens`; `length` at the limit."""


class Transformer:
    """One model. `flat` is its whole state; writing into it changes the model."""

    def __init__(self, shape: Shape, flat: Floats) -> None:
        self.shape = shape
        self.flat = flat
        self.weights = views(shape, flat)
        half = shape.head_width // 2
        angles = np.outer(np.arange(shape.context), BASE ** (-np.arange(half) / half))
        self._cos, self._sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    @classmethod
    def load(cls, folder: Path) -> Transformer:
        """The checkpoint in a folder. Raises OSError, KeyError, ValueError or safetensors' own error."""
        config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
        shape = Shape(**{field: config[name] for field, name in SIZES.items()})
        model = cls(shape, np.empty(shape.size, np.float32))
        stored = load_file(Path(folder, "model.safetensors"))
        for name, view in stored_views(model.weights, shape).items():
            view[...] = stored[name] if name == EMBEDDING else stored[name].T
        return model

    # --- all positions at once

    def logprobs(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> list[Floats]:
        """For each sequence the log probability of its tokens from position `start` (at least 1) on."""
        batch = _Batch.of(sequences, starts)
        logits = self._hidden(batch.tokens)[0][batch.rows, batch.columns] @ self.weights["embedding"].T
        return batch.split(_log_softmax(logits)[np.arange(len(batch.targets)), batch.targets])

    def gradient(
        self,
        sequences: Sequence[Sequence[int]],
        starts: Sequence[int],
        slopes: Callable[[list[Floats]], Sequence[Floats]],
    ) -> Floats:
        """The gradient of a loss by all weights, flat.

        `slopes` takes the result of `logprobs` and returns the derivative of the loss by each number, in the same form.
        """
        batch = _Batch.of(sequences, starts)
        final, kept = self._hidden(batch.tokens)
        picked = final[batch.rows, batch.columns]
        all_logprobs = _log_softmax(picked @ self.weights["embedding"].T)
        slope = np.concatenate(slopes(batch.split(all_logprobs[np.arange(len(batch.targets)), batch.targets])))[:, None]
        # d logprob[target] / d logits = onehot(target) - softmax
        d_logits = -np.exp(all_logprobs) * slope
        d_logits[np.arange(len(batch.targets)), batch.targets] += slope[:, 0]
        flat = np.zeros_like(self.flat)
        grads = views(self.shape, flat)
        grads["embedding"] += d_logits.T @ picked
        d_final = np.zeros_like(final)
        d_final[batch.rows, batch.columns] = d_logits @ self.weights["embedding"]
        d_input = self._backward(d_final, kept, grads)
        np.add.at(grads["embedding"], batch.tokens, d_input)
        return flat

    def _hidden(self, tokens: Ints) -> tuple[Floats, list[Any]]:
        """tokens (B, T) -> normalised output of the last layer (B, T, width), and what the gradient needs."""
        size = tokens.shape[1]
        if size > self.shape.context:
            raise ValueError(f"a sequence of {size} tokens does not fit into a context of {self.shape.context}")
        hidden = np.triu(np.full((size, size), _NEVER, np.float32), 1)
        cos, sin = self._cos[:size], self._sin[:size]
        x = self.weights["embedding"][tokens]
        kept: list[Any] = []
        for layer in range(self.shape.layers):
            normed, scale = _normalised(x)
            q, k, v = self._heads(normed @ self.weights[f"{layer}.qkv"])
            q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
            attention = _softmax(q @ k.swapaxes(-1, -2) * self._temper + hidden)
            mixed = _joined(attention @ v)
            x = x + mixed @ self.weights[f"{layer}.out"]
            normed_2, scale_2 = _normalised(x)
            up = np.maximum(normed_2 @ self.weights[f"{layer}.up"], 0.0)
            x = x + (up * up) @ self.weights[f"{layer}.down"]
            kept.append((normed, scale, q, k, v, attention, mixed, normed_2, scale_2, up))
        final, scale = _normalised(x)
        kept.append((final, scale))
        return final, kept

    def _backward(self, d_final: Floats, kept: list[Any], grads: dict[str, Floats]) -> Floats:
        """From d loss / d output to d loss / d input embeddings; adds what it meets to `grads`."""
        size = d_final.shape[1]
        cos, sin = self._cos[:size], self._sin[:size]
        d_x = _normalised_back(d_final, *kept[-1])
        for layer in reversed(range(self.shape.layers)):
            normed, scale, q, k, v, attention, mixed, normed_2, scale_2, up = kept[layer]
            grads[f"{layer}.down"] += _outer(up * up, d_x)
            d_up = 2.0 * up * (d_x @ self.weights[f"{layer}.down"].T)
            grads[f"{layer}.up"] += _outer(normed_2, d_up)
            d_x = d_x + _normalised_back(d_up @ self.weights[f"{layer}.up"].T, normed_2, scale_2)
            grads[f"{layer}.out"] += _outer(mixed, d_x)
            d_mixed = self._split(d_x @ self.weights[f"{layer}.out"].T)
            d_attention = d_mixed @ v.swapaxes(-1, -2)
            d_scores = attention * (d_attention - (d_attention * attention).sum(-1, keepdims=True)) * self._temper
            # The transpose of a rotation turns back.
            d_q, d_k = _rotated(d_scores @ k, cos, -sin), _rotated(d_scores.swapaxes(-1, -2) @ q, cos, -sin)
            d_qkv = np.concatenate([_joined(part) for part in (d_q, d_k, attention.swapaxes(-1, -2) @ d_mixed)], -1)
            grads[f"{layer}.qkv"] += _outer(normed, d_qkv)
            d_x = d_x + _normalised_back(d_qkv @ self.weights[f"{layer}.qkv"].T, normed, scale)
        return d_x

    # --- one token after another

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: Sequence[int],
        end: int,
        rng: np.random.Generator,
        temperature: float = 1.0,
        top_p: float = 1.0,
    ) -> list[Sampled]:
        """One completion for each prompt (repeat a prompt to get several), each of at most its `max_tokens`.

        The log probabilities are the model's own, before temperature and top_p, as vLLM reports them.
        """
        lengths = np.array([len(prompt) for prompt in prompts])
        limits = np.minimum(np.asarray(max_tokens), self.shape.context - lengths)
        if (limits < 1).any():
            raise ValueError(f"a prompt of {lengths.max()} tokens leaves no room in a context of {self.shape.context}")
        cache, logits = self._prefilled(prompts, lengths, int((lengths + limits).max()))
        tokens: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        live, position = np.arange(len(prompts)), lengths.copy()
        while True:
            all_logprobs = _log_softmax(logits)
            chosen = _draw(all_logprobs, temperature, top_p, rng)
            for row, token, logprob in zip(live, chosen, all_logprobs[np.arange(len(live)), chosen], strict=True):
                tokens[row].append(int(token))
                logprobs[row].append(float(logprob))
            goes_on = (chosen != end) & (position - lengths[live] + 1 < limits[live])
            if not goes_on.any():
                break
            if not goes_on.all():
                live, position, chosen = live[goes_on], position[goes_on], chosen[goes_on]
                # Most of a cache was never touched, and must not be by copying it.
                used = int(position.max())
                kept = np.zeros((*cache.shape[:2], len(live), *cache.shape[3:]), np.float32)
                kept[..., :used, :] = cache[:, :, goes_on, :, :used]
                cache = kept
            logits = self._next(chosen, position, cache)
            position = position + 1
        return [
            Sampled(ids, values, "stop" if ids[-1] == end else "length")
            for ids, values in zip(tokens, logprobs, strict=True)
        ]

    def _prefilled(self, prompts: Sequence[Sequence[int]], lengths: Ints, size: int) -> tuple[Floats, Floats]:
        """Keys and values (layers, 2, B, heads, size, head width) of the prompts, and the logits after each."""
        distinct = {tuple(prompt): number for number, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
        final, kept = self._hidden(_padded(list(distinct)))
        which = np.array([distinct[tuple(prompt)] for prompt in prompts])
        shape = self.shape
        cache = np.zeros((shape.layers, 2, len(prompts), shape.heads, size, shape.head_width), np.float32)
        for layer, (_, _, _, keys, values, *_) in enumerate(kept[:-1]):
            cache[layer, 0, :, :, : keys.shape[2]] = keys[which]
            cache[layer, 1, :, :, : keys.shape[2]] = values[which]
        return cache, final[which, lengths - 1] @ self.weights["embedding"].T

    def _next(self, tokens: Ints, position: Ints, cache: Floats) -> Floats:
        """Logits (B, vocabulary) after one more token each, which goes to its `position` in the cache."""
        rows, size = np.arange(len(tokens)), int(position.max()) + 1
        # Beyond a row's own position the cache holds padding.
        hidden = np.where(np.arange(size) > position[:, None], _NEVER, 0.0).astype(np.float32)[:, None, None]
        cos, sin = self._cos[position, None, None], self._sin[position, None, None]
        x = self.weights["embedding"][tokens]
        for layer in range(self.shape.layers):
            q, k, v = self._heads((_normalised(x)[0] @ self.weights[f"{layer}.qkv"])[:, None])
            q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
            keys, values = cache[layer]
            keys[rows, :, position], values[rows, :, position] = k[:, :, 0], v[:, :, 0]
            attention = _softmax(q @ keys[:, :, :size].swapaxes(-1, -2) * self._temper + hidden)
            x = x + _joined(attention @ values[:, :, :size])[:, 0] @ self.weights[f"{layer}.out"]
            up = np.maximum(_normalised(x)[0] @ self.weights[f"{layer}.up"], 0.0)
            x = x + (up * up) @ self.weights[f"{layer}.down"]
        return np.asarray(_normalised(x)[0] @ self.weights["embedding"].T)

    @property
    def _temper(self) -> np.float32:
        return np.float32(self.shape.head_width**-0.5)

    def _heads(self, qkv: Floats) -> tuple[Floats, Floats, Floats]:
        d = self.shape.width
        return self._split(qkv[..., :d]), self._split(qkv[..., d : 2 * d]), self._split(qkv[..., 2 * d :])

    def _split(self, x: Floats) -> Floats:
        """(B, T, width) -> (B, heads, T, head width)."""
        return x.reshape(*x.shape[:2], self.shape.heads, self.shape.head_width).swapaxes(1, 2)


class Adam:
    """Adam (arXiv 1412.6980) with the gradient's norm clipped, over a model's flat weights."""

    def __init__(self, size: int, *, rate: float, betas: tuple[float, float] = (0.9, 0.99), clip: float = 1.0) -> None:
        self.rate = rate
        self._betas = betas
        self._clip = clip
        self._first, self._second = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self._steps = 0

    def step(self, flat: Floats, gradient: Floats) -> None:
        """Change the weights in place."""
        norm = float(np.sqrt(np.square(gradient, dtype=np.float64).sum()))
        gradient = gradient * np.float32(min(1.0, self._clip / (norm + 1e-9)))
        self._steps += 1
        for moment, beta, new in ((self._first, self._betas[0], gradient), (self._second, self._betas[1], gradient**2)):
            moment += np.float32(1.0 - beta) * (new - moment)
        first, second = (1.0 - beta**self._steps for beta in self._betas)
        flat -= np.float32(self.rate / first) * self._first / (np.sqrt(self._second / np.float32(second)) + 1e-8)


@dataclass(frozen=True)
class _Batch:
    """Padded sequences, and the positions of the tokens whose log probabilities the caller needs.

    The token at (row, column + 1) is `targets`; what the model says of it comes out at (row, column).
    """

    tokens: Ints
    rows: Ints
    columns: Ints
    targets: Ints
    counts: list[int]

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> _Batch:
        tokens = _padded(sequences)
        counts = [len(sequence) - start for sequence, start in zip(sequences, starts, strict=True)]
        rows = np.repeat(np.arange(len(sequences)), counts)
        columns = np.concatenate([np.arange(s - 1, len(q) - 1) for q, s in zip(sequences, starts, strict=True)])
        return cls(tokens, rows, columns, tokens[rows, columns + 1], counts)

    def split(self, values: Floats) -> list[Floats]:
        return np.split(values, np.cumsum(self.counts)[:-1])


def views(shape: Shape, flat: Floats) -> dict[str, Floats]:
    """Each weight matrix by its name, as a view into the flat vector."""
    made, at = {}, 0
    for name, size in shape.arrays().items():
        made[name] = flat[at : at + math.prod(size)].reshape(size)
        at += math.prod(size)
    return made


def stored_views(weights: Mapping[str, Floats], shape: Shape) -> dict[str, Floats]:
    """The weights by their names in a checkpoint, where all but the embedding are transposed."""
    named, d = {EMBEDDING: weights["embedding"]}, shape.width
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        for place, one in enumerate("qkv"):
            named[f"{at}.self_attn.{one}_proj.weight"] = weights[f"{layer}.qkv"][:, place * d : (place + 1) * d]
        named[f"{at}.self_attn.o_proj.weight"] = weights[f"{layer}.out"]
        named[f"{at}.mlp.up_proj.weight"] = weights[f"{layer}.up"]
        named[f"{at}.mlp.down_proj.weight"] = weights[f"{layer}.down"]
    return named


def _padded(sequences: Sequence[Sequence[int]]) -> Ints:
    # Later positions do not act on earlier ones, so any token serves as padding on the right.
    tokens = np.zeros((len(sequences), max(map(len, sequences))), np.int64)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
    return tokens


def _draw(logprobs: Floats, temperature: float, top_p: float, rng: np.random.Generator) -> Ints:
    if temperature <= 0.0:
        return np.asarray(logprobs.argmax(-1))
    scaled = _log_softmax(logprobs / np.float32(temperature)) if temperature != 1.0 else logprobs
    if top_p < 1.0:
        order = np.argsort(-scaled, -1)
        before = np.cumsum(np.exp(np.take_along_axis(scaled, order, -1)), -1)
        outside = np.empty(scaled.shape, bool)
        # A token is kept while those before it have less than top_p: the first always is.
        np.put_along_axis(
            outside, order, np.concatenate([np.zeros_like(before[:, :1]), before[:, :-1]], -1) >= top_p, -1
        )
        scaled = np.where(outside, np.float32(_NEVER), scaled)
    # The largest of log p + Gumbel noise is a draw from p.
    return np.asarray((scaled + rng.gumbel(size=scaled.shape).astype(np.float32)).argmax(-1))


def _normalised(x: Floats) -> tuple[Floats, Floats]:
    """x / rms(x), and 1 / rms(x)."""
    scale = 1.0 / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(EPS))
    return x * scale, scale


def _normalised_back(d: Floats, normed: Floats, scale: Floats) -> Floats:
    return np.asarray((d - normed * np.mean(d * normed, -1, keepdims=True)) * scale)


def _rotated(x: Floats, cos: Floats, sin: Floats) -> Floats:
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], -1)


def _joined(x: Floats) -> Floats:
    """(B, heads, T, head width) -> (B, T, width)."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def _softmax(x: Floats) -> Floats:
    raised = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def _log_softmax(x: Floats) -> Floats:
    shifted = x - x.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _outer(x: Floats, d: Floats) -> Floats:
    """Sum over batch and positions of the outer products."""
    return np.asarray(x.reshape(-1, x.shape[-1]).T @ d.reshape(-1, d.shape[-1]))


# --- the trainer


CLIP = 0.2
RATE = 3e-4
"""Adam's step size."""


@dataclass(frozen=True)
class TrainedSequence:
    """One rollout as the trainer reads it. `start` is the position of the completion's first token."""

    tokens: list[int]
    start: int
    logprobs: Floats
    advantage: float


def sequences_of(group: Mapping[str, Any]) -> list[TrainedSequence]:
    """The rollouts of one group of a batch, with their advantages; zero where an override asks for that."""
    scores = np.asarray(group["scores"], np.float32)
    advantages = (scores - scores.mean()) / (scores.std() + 1e-4)
    overrides = group.get("overrides") or [{}] * len(scores)
    made = []
    for number, (tokens, masks) in enumerate(zip(group["tokens"], group["masks"], strict=True)):
        start = sum(mask == MASKED for mask in masks)
        logprobs = np.asarray(group["inference_logprobs"][number][start:], np.float32)
        is_off = bool((overrides[number] or {}).get("set_advantage_to_zero"))
        made.append(TrainedSequence(tokens, start, logprobs, 0.0 if is_off else float(advantages[number])))
    return made


class Trainer:
    """Changes the weights of `model` in place, one Adam step for each batch."""

    def __init__(self, model: Transformer, *, rate: float = RATE, clip: float = CLIP) -> None:
        self._model = model
        self._adam = Adam(model.shape.size, rate=rate, betas=(0.9, 0.95))
        self._clip = clip

    def step(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Learn from the groups of one batch."""
        sequences = [one for group in groups for one in sequences_of(group) if one.advantage]
        total = sum(len(one.logprobs) for one in sequences)
        gradient = np.zeros_like(self._model.flat)
        # Sequences of like length share a pass, so that little of it is padding.
        ordered = sorted(sequences, key=lambda one: len(one.tokens))
        for part in (ordered[at : at + 64] for at in range(0, len(ordered), 64)):

            def slopes(now: list[Floats], part: Sequence[TrainedSequence] = part) -> list[Floats]:
                return [self._slope(one, new) / np.float32(total) for one, new in zip(part, now, strict=True)]

            gradient += self._model.gradient([one.tokens for one in part], [one.start for one in part], slopes)
        if sequences:
            self._adam.step(self._model.flat, gradient)

    def _slope(self, one: TrainedSequence, now: Floats) -> Floats:
        ratio = np.exp(now - one.logprobs)
        # Beyond the clip in the direction of the advantage there is nothing more to gain.
        is_out = ratio > 1.0 + self._clip if one.advantage > 0 else ratio < 1.0 - self._clip
        return np.where(is_out, 0.0, -one.advantage * ratio).astype(np.float32)
