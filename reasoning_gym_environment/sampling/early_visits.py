"""Whether the first groups of a run have visited every task often enough.

A task that earns nothing at first may still be learnable, and draws that are too rare never show it. After
FIRST_GROUPS scored groups the log names the tasks with fewer than ENOUGH_COMPLETIONS scored completions.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import NonNegativeInt, TypeAdapter

from .item_maker import loading

logger = logging.getLogger(__name__)

FIRST_GROUPS = 1000

ENOUGH_COMPLETIONS = 22
"""With so many completions, a task with a success rate of 10 % has had a success with 90 % probability, as
1 - 0.9 ** 22 = 0.90.
"""

_COMPLETIONS = TypeAdapter(dict[str, NonNegativeInt])
_GROUPS = TypeAdapter(NonNegativeInt)


class EarlyVisits:
    """Counts the scored completions of each task in the first groups of a run."""

    def __init__(self, tasks: Iterable[str]) -> None:
        self._tasks = list(tasks)
        self._groups = 0
        self._completions: Counter[str] = Counter()

    def note(self, task: str, completions: int) -> None:
        """Count a scored group. The last of the first groups writes the log line."""
        if self._groups >= FIRST_GROUPS:
            return
        self._groups += 1
        self._completions[task] += completions
        if self._groups == FIRST_GROUPS:
            self._report()

    @property
    def rarely_visited(self) -> list[str]:
        """The tasks with fewer completions than ENOUGH_COMPLETIONS, the rarest first."""
        rare = [task for task in self._tasks if self._completions[task] < ENOUGH_COMPLETIONS]
        return sorted(rare, key=lambda task: self._completions[task])

    def _report(self) -> None:
        rare = self.rarely_visited
        if not rare:
            logger.info("Each task had at least %d completions in %d groups.", ENOUGH_COMPLETIONS, FIRST_GROUPS)
            return
        named = ", ".join(f"{task} ({self._completions[task]})" for task in rare)
        logger.warning(
            "In the first %d groups, %d of %d tasks had fewer than %d scored completions, too few to tell a success "
            "rate of 10 %% from none: %s.",
            FIRST_GROUPS,
            len(rare),
            len(self._tasks),
            ENOUGH_COMPLETIONS,
            named,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"groups": self._groups, "completions": dict(self._completions)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. {} starts afresh. Raises EnvironmentSetupError if the state is malformed."""
        with loading("early visits"):
            groups = _GROUPS.validate_python(state.get("groups", 0))
            completions = _COMPLETIONS.validate_python(state.get("completions", {}))
        self._groups = groups
        self._completions = Counter(completions)
