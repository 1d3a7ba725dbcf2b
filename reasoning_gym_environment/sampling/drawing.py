"""One plan of the item stream -> a problem, at the level that was planned or, if that cannot be had, at a lower one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from ..errors import GenerationCrashedError, GenerationError, GenerationTimeoutError
from ..records import Problem
from ..tasks.difficulty_ladder import Level
from .level_limits import FAILED, TIMED_OUT, TOO_LONG

SEEDS_TRIED = 5
"""How many seeds a level may have: countdown, for one, finds no item for one seed in three."""

Make = Callable[[Level | None, int], Awaitable[Problem]]
"""Makes the planned item at a level, None for the task's default, with the seed of the attempt of that number."""


@dataclass
class Drawn:
    """What became of a plan: a problem or a reason to skip it, and what was learned about levels on the way."""

    problem: Problem | None = None
    skipped: tuple[str, str] = ("", "")
    exceeded: list[tuple[int, str, str]] = field(default_factory=list)


async def carry_out(levels: Sequence[Level | None], make: Make, too_long: Callable[[str], str]) -> Drawn:
    """The item at the first of these levels at which it is made, in time, and fits; `too_long` says if it does not."""
    drawn = Drawn()
    for level in levels:
        try:
            problem = await _made(level, make)
            reason, detail = TOO_LONG, too_long(problem.question)
        except GenerationTimeoutError as error:
            reason, detail = TIMED_OUT, str(error)
        except GenerationError as error:
            reason, detail = FAILED, str(error)
        if not detail:
            return Drawn(problem, exceeded=drawn.exceeded)
        drawn.skipped = (reason, detail)
        if level is not None:
            drawn.exceeded.append((level.index, reason, detail))
    return drawn


async def _made(level: Level | None, make: Make) -> Problem:
    for attempt in range(SEEDS_TRIED - 1):
        try:
            return await make(level, attempt)
        except (GenerationTimeoutError, GenerationCrashedError):
            # Either took its time, and will again.
            raise
        except GenerationError:
            continue
    return await make(level, SEEDS_TRIED - 1)
