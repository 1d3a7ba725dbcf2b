"""Where verifiers run, away from the event loop.

`AnswerGrader` is what the rest of the environment knows: hand over a problem's recipe and the extracted
answers of one group, await one verdict per answer. How and where the verifier runs is this room's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from ..records import Verdict

__all__ = ["AnswerGrader", "Sandbox"]

Sandbox = Literal["auto", "require", "off"]


class AnswerGrader(Protocol):
    """Grades the answers of one group against one item."""

    async def grade(
        self, task: str, config: Mapping[str, Any], entry: dict[str, Any], answers: Sequence[str]
    ) -> list[Verdict]:
        """One verdict per answer, in order. Raises nothing for what an answer does."""
        ...

    def metrics(self) -> dict[str, float]:
        """Counters since the start, by name."""
        ...

    async def close(self) -> None:
        """Stop everything that was started. Safe to call twice."""
        ...
