"""The result of a solver, which has read only the text of a question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


def same_text(answer: str, key: str) -> bool:
    """Whether two answers are the same text, blanks and line ends aside."""
    return answer.split() == key.split()


@dataclass(frozen=True)
class Solution:
    """The right answers that a solver has found: several, if the question has several and they are easy to find.

    `accepts(key)` says whether an answer is right. Without `judge`, it is right if it is one of the answers.
    """

    answers: Sequence[str] = ()
    judge: Callable[[str], bool] | None = None
    why: str = ""
    """Why the solver cannot tell, or what it saw."""
    is_undecided: bool = field(default=False)

    def accepts(self, key: str) -> bool:
        """Whether this answer to the question is right."""
        if self.judge is not None:
            return self.judge(key)
        return any(same_text(answer, key) for answer in self.answers)


Solver: TypeAlias = Callable[[str], Solution]


def undecided(why: str) -> Solution:
    """The solver cannot tell."""
    return Solution(why=why, is_undecided=True)


def value(answer: object) -> Solution:
    """The question has one answer."""
    return Solution([str(answer)])
