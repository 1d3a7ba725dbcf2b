"""Tasks whose own verifier pays full credit to wrong answers, and the stricter check applied to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def _is_halting(entry: Mapping[str, Any], answer: str) -> bool:
    return answer.strip().lower() == str(entry["answer"]).lower()


CHECKS: Mapping[str, Callable[[Mapping[str, Any], str], bool]] = {"game_of_life_halting": _is_halting}


def strict_score(task: str, entry: Mapping[str, Any], answer: str, native: float) -> float:
    """What `answer` is worth where reasoning-gym's verifier pays `native`."""
    check = CHECKS.get(task)
    return native if check is None or check(entry, answer) else 0.0
