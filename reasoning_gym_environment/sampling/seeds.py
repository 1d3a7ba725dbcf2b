"""Where every random choice comes from, and which questions are for training and which for evaluation.

A choice comes from a hash of named inputs, never from a shared stream. reasoning-gym seeds item i of a dataset with
`seed + i`, so neighbouring seeds share items. Deriving each item's seed from a hash of (run seed, split, task, index)
makes streams disjoint, lets any item be drawn again from its index alone, and leaves no generator state to save.

Whether a question is held out follows from its text alone: one in HELD_OUT_ONE_IN is, by a hash of its text. No
setting, seed, level, instance or machine comes into it, so no evaluation of this release, now or later, asks what a
training run of it has seen, and training needs no list of questions. Whoever trains elsewhere can apply the same rule:

    int.from_bytes(blake2b(question in UTF-8, digest_size=8, person=b"hold-out").digest(), "big") % 10 == 0

An evaluation that stands beside published results asks what comes, as those did. Training draws such questions too,
unless it is told to leave them out (`hold_out: published`).
"""

from __future__ import annotations

import hashlib
from random import Random
from typing import Literal, TypeAlias

SEED_BITS = 32
"""pool_matrix passes its seed to numpy, which rejects seeds of 2**32 and above."""


def derive_seed(*parts: str | int) -> int:
    """A seed in [0, 2**32) from named inputs; the same on every machine, process and Python version."""
    # The length keeps parts apart whatever characters they contain.
    text = "".join(f"{type(part).__name__}:{len(str(part))}:{part};" for part in parts)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=SEED_BITS // 8)
    return int.from_bytes(digest.digest(), "big")


def derive_random(*parts: str | int) -> Random:
    """A generator for one decision, seeded by `derive_seed`."""
    return Random(derive_seed(*parts))


# --- which questions are held out

HELD_OUT_ONE_IN = 10
"""A constant of the release: another number would be another rule, and give results of before away to training."""

Rule: TypeAlias = Literal["content", "published"]


def is_held_out(question: str) -> bool:
    """Whether a question is for evaluation only."""
    digest = hashlib.blake2b(question.encode("utf-8", "surrogatepass"), digest_size=8, person=b"hold-out").digest()
    return int.from_bytes(digest, "big") % HELD_OUT_ONE_IN == 0


def question_digest(question: str) -> str:
    """Names a question's text in 16 hex digits."""
    return hashlib.blake2b(question.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class HoldOut:
    """The questions that training leaves out: those of the rule, and those that were added."""

    def __init__(self) -> None:
        self._added: set[str] = set()

    def __contains__(self, question: object) -> bool:
        return isinstance(question, str) and (is_held_out(question) or question_digest(question) in self._added)

    def add(self, question: str) -> None:
        """Leave this question out too."""
        self._added.add(question_digest(question))
