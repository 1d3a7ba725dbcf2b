"""Where every random choice comes from: a hash of named inputs, never a shared stream.

reasoning-gym seeds item i of a dataset with `seed + i`, so neighbouring seeds share items. Deriving
each item's seed from a hash of (run seed, split, task, index) instead makes streams disjoint,
lets any item be drawn again from its index alone, and leaves no generator state to save.
"""

from __future__ import annotations

import hashlib
from random import Random

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
