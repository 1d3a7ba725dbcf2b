"""What a worker applies to a task's answers beside its verifier, by the run's settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..normalization import normalize
from ..verifiers import strict_score
from .grading import Standards


def standards_for(task: str, entry: Mapping[str, Any], *, strict: bool, lossless: bool) -> Standards:
    """The stricter check of `task` (of the part that an item of a composite comes from), and normalization."""
    metadata = entry.get("metadata")
    if task == "composite" and isinstance(metadata, Mapping):
        task = str(metadata.get("source_dataset", task))
    chosen: dict[str, Any] = {}
    if strict:
        chosen["strict"] = partial(strict_score, task)
    if lossless:
        chosen["normalize"] = normalize
    return Standards(**chosen)
