"""What a worker applies to a task's answers beside its verifier, by the run's settings."""

from __future__ import annotations

from functools import partial
from typing import Any

from .grade import Standards
from .normalization import normalize
from .strict_checks import strict_score


def standards_for(task: str, *, strict: bool, lossless: bool) -> Standards:
    """The stricter check of `task`, if it has one, and normalization."""
    chosen: dict[str, Any] = {}
    if strict:
        chosen["strict"] = partial(strict_score, task)
    if lossless:
        chosen["normalize"] = normalize
    return Standards(**chosen)
