"""Random choices from named inputs, and the rule that says which questions are held out.

Every random choice comes from a hash of named inputs, never from a shared stream. reasoning-gym seeds item i of a
dataset with `seed + i`, so neighbouring seeds share items. Deriving each item's seed from a hash of (run seed, split,
task, index) makes streams disjoint, lets any item be drawn again from its index alone, and leaves no generator state to
save.

The text of a question, as reasoning-gym wrote it, decides whether it is held out: a hash of the text selects one in
HELD_OUT_ONE_IN. The rule depends on no setting, seed, level, instance or machine. Verification may add a clarifying
sentence to a question, but `Problem.library_question` keeps the text without it. Therefore no evaluation of this
release, now or later, asks a question that a training run of this release has seen, and training needs no list of
questions. Other training code can apply the same rule to the questions of reasoning-gym:

    int.from_bytes(blake2b(question in UTF-8, digest_size=8, person=b"hold-out").digest(), "big") % 10 == 0

Two tasks ask for a few hundred sentences in ever new ways: sentence_reordering shuffles the words, and emoji_mystery
hides the sentence in ever new emojis. There `held_out_by` takes the sentence, and not the text of the question.
"""

from __future__ import annotations

import hashlib
import re
from random import Random


def derive_seed(*parts: str | int) -> int:
    """A seed in [0, 2**32) from named inputs; the same on every machine, process and Python version."""
    # No more bits: pool_matrix passes its seed to numpy. The length keeps parts apart whatever characters they contain.
    text = "".join(f"{type(part).__name__}:{len(str(part))}:{part};" for part in parts)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4)
    return int.from_bytes(digest.digest(), "big")


def derive_random(*parts: str | int) -> Random:
    """A generator for one decision, seeded by `derive_seed`."""
    return Random(derive_seed(*parts))


HELD_OUT_ONE_IN = 10
"""A constant of the release. With another number, training could draw the questions of earlier evaluations."""


_SHUFFLED = re.compile(r"Restore the correct order of words in the following sentence: (.*?)(\n|$)")
_HIDDEN = re.compile("[\U000e0100-\U000e01ef]")
"""emoji_mystery hides each character of its sentence as a variation selector."""


def held_out_by(question: str) -> str:
    """The text whose hash decides whether a question is held out: the question, or the sentence that it asks for.

    The question is the text of reasoning-gym, which is `library_question` of a Problem. For sentence_reordering, the
    result is the words of the sentence in alphabetical order. For emoji_mystery, it is the sentence in its hidden form.
    """
    shuffled = _SHUFFLED.match(question)
    if shuffled is not None:
        return " ".join(sorted(shuffled.group(1).split()))
    if question.startswith("The following emoji is encoded with a sentence."):
        return "".join(_HIDDEN.findall(question))
    return question


def is_held_out(question: str) -> bool:
    """Whether a question is for evaluation only."""
    digest = hashlib.blake2b(
        held_out_by(question).encode("utf-8", "surrogatepass"),
        digest_size=8,
        person=b"hold-out",
    ).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_ONE_IN == 0


def question_digest(question: str) -> str:
    """Names a question's text in 16 hex digits."""
    return hashlib.blake2b(question.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
