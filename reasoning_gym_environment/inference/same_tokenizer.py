"""Whether a server's tokenizer is ours: its own text of a completion is the text that we decode from the token ids.

The two texts may differ for good reasons. The server may keep special tokens or remove them, put the prompt in front,
leave out a string that ended the completion, or write a replacement character where a character was cut in two. So the
comparison looks at the pieces of the text and not at the whole. The text of another tokenizer has hardly a piece in
common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PIECE = 4
"""Characters of a piece."""

SHORTEST = 8
"""Shorter texts, without their blanks, decide nothing."""

SHARE_IN_COMMON = 0.5
"""Texts of the same tokenizer have at least this share of their pieces in common."""

LONGEST = 2000
"""The number of token ids that are compared at most."""


def is_same_tokenizer(tokenizer: Any, ids: Sequence[Any], reported: str) -> bool | None:
    """Whether `reported` is the text of the token ids `ids`; None if the texts are too short to tell.

    The ids are as a server sent them, so they may be no integers.
    """
    theirs = _condensed(reported)
    some_ids = ids[:LONGEST]
    if len(theirs) < SHORTEST or not some_ids:
        return None
    known = known_ids(tokenizer, some_ids)
    if len(known) < len(some_ids) / 2:
        return False
    ours = [_condensed(tokenizer.decode(known, skip_special_tokens=skips)) for skips in (True, False)]
    if any(_are_alike(text, theirs) for text in ours):
        return True
    return None if min(map(len, ours)) < SHORTEST else False


def known_ids(tokenizer: Any, ids: Sequence[Any]) -> list[int]:
    """The ids that the tokenizer can decode."""
    vocabulary = set(tokenizer.get_vocab().values())
    return [token for token in ids if type(token) is int and token in vocabulary]


def _condensed(text: str) -> str:
    """The text without blanks and replacement characters."""
    return "".join(text.replace("\ufffd", "").split())


def _are_alike(ours: str, theirs: str) -> bool:
    our_pieces = _pieces(ours)
    their_pieces = _pieces(theirs)
    smaller = min(len(our_pieces), len(their_pieces))
    return smaller > 0 and len(our_pieces & their_pieces) >= SHARE_IN_COMMON * smaller


def _pieces(text: str) -> set[str]:
    return {text[begin : begin + PIECE] for begin in range(len(text) - PIECE + 1)}
