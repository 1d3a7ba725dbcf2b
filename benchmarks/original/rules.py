"""The rules of reward that both environments follow, written a third time, so that both can be held to them.

base scores ── length_penalty ──> scores ── is_sent ──> a group, or nothing
"""

from __future__ import annotations

from collections.abc import Sequence

CORRECT = 0.5
PENALTY_START = 0.75
TOLERANCE = 1e-9


def length_penalty(bases: Sequence[float], lengths: Sequence[int], max_token_length: int) -> list[float]:
    """Scores of a group. If all base scores are at least 0.5, long sequences lose a share of their score."""
    if any(base < CORRECT for base in bases):
        return list(bases)
    return [base * _share(length, max_token_length) for base, length in zip(bases, lengths, strict=True)]


def _share(length: int, max_token_length: int) -> float:
    """1 up to 75 % of the limit, then linearly down to 0 at the limit."""
    start = PENALTY_START * max_token_length
    return min(1.0, max(0.0, (max_token_length - length) / (max_token_length - start)))


def is_sent(scores: Sequence[float]) -> bool:
    """Whether a group with these scores has a signal."""
    return any(score != scores[0] for score in scores)


def differs_only_where_masked(scores: Sequence[float], masked: Sequence[bool]) -> bool:
    """Whether every score that the trainer learns from equals the mean of the group."""
    mean = sum(scores) / len(scores)
    return all(is_masked or abs(score - mean) < TOLERANCE for score, is_masked in zip(scores, masked, strict=True))
