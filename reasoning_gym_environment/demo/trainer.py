"""A small GRPO trainer.

    batch of run-api ── advantages ── clipped ratio ──> slopes of the loss ──> gradient ──> Adam

Advantages are a group's rewards less their mean, over their standard deviation (GRPO, arXiv 2402.03300); the loss is
the clipped surrogate of PPO (1707.06347) at every token, averaged over all tokens of the batch (DAPO, 2503.14476). No
KL term. The importance ratio is that of the weights now to those that sampled, as `inference_logprobs` say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..records import MASKED
from .model import Adam, Floats, Transformer

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

    def step(self, groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Learn from the groups of one batch; returns loss, ratio and gradient figures for the log."""
        sequences = [one for group in groups for one in sequences_of(group) if one.advantage]
        if not sequences:
            return {}
        total = sum(len(one.logprobs) for one in sequences)
        gradient = np.zeros_like(self._model.flat)
        loss, clipped, gap = 0.0, 0, 0.0
        # Sequences of like length share a pass, so that little of it is padding.
        ordered = sorted(sequences, key=lambda one: len(one.tokens))
        for at in range(0, len(ordered), 64):
            part = ordered[at : at + 64]
            tokens, starts = [one.tokens for one in part], [one.start for one in part]

            def slopes(now: list[Floats], part: Sequence[TrainedSequence] = part) -> list[Floats]:
                nonlocal loss, clipped, gap
                made = []
                for one, new in zip(part, now, strict=True):
                    ratio = np.exp(new - one.logprobs)
                    # Beyond the clip in the direction of the advantage there is nothing more to gain.
                    is_out = ratio > 1.0 + self._clip if one.advantage > 0 else ratio < 1.0 - self._clip
                    bounded = np.clip(ratio, 1.0 - self._clip, 1.0 + self._clip)
                    loss -= float(np.minimum(ratio * one.advantage, bounded * one.advantage).sum()) / total
                    clipped += int(is_out.sum())
                    gap += float(np.abs(new - one.logprobs).sum())
                    made.append(np.where(is_out, 0.0, -one.advantage * ratio / total).astype(np.float32))
                return made

            gradient += self._model.gradient(tokens, starts, slopes)
        norm = self._adam.step(self._model.flat, gradient)
        return {"loss": loss, "clipped": clipped / total, "logprob_gap": gap / total, "gradient_norm": norm}
