"""Rows of a store of levels for TRL's trainers that read them in one process and grade in another (docs/trl.md).

    a row is requested ── CurriculumRows ──> its prompt and its recipe ──> completions
      ──> RowRewards (the reward function) ──> rewards, which the store learns

AsyncGRPOTrainer sends its dataset and its reward functions to a separate process, so both can be pickled. Its
checkpoints have the number of the next row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .curriculum_rows import LEVEL_STORE, ROW, CurriculumRows, PromptLimit, report
from .item_formats import hf_row
from .recipe import Recipe, grader_for, text_of

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["RowRewards", "curriculum_dataset"]

ROW_FIELDS = (*Recipe.__dataclass_fields__, LEVEL_STORE, ROW)
"""The columns of a row that its grading needs."""


def curriculum_dataset(path: str, limit: PromptLimit | None = None) -> Dataset:
    """A training dataset over a store of levels. Reading a row makes its item.

    Raises EnvironmentSetupError if there is no such store.
    """
    # Importing it takes a second, and the reward function does not need it.
    from datasets import Dataset

    rows = CurriculumRows(path, limit)
    return Dataset.from_dict({"row": range(len(rows))}).with_transform(partial(_columns, rows))


def _columns(rows: CurriculumRows, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The columns of the rows with these numbers."""
    made = [hf_row(row.exported) for row in rows.read(batch["row"])]
    return {name: [row[name] for row in made] for name in made[0]}


class RowRewards:
    """The reward function for rows with recipes: of a store of levels, or of `export items`.

    `settings` are arguments of `Tasks` that concern grading. The workers start with the first call, in the process that
    calls. The reward of a completion without a score is None, and TRL does not train on it. Set `thinking_opened` if
    the chat template opens `<think>` in the prompt.
    """

    __name__ = "reasoning_gym"
    """The name of the reward in TRL's log."""

    def __init__(self, *, thinking_opened: bool = False, **settings: Any) -> None:
        self._settings = settings
        self._thinking_opened = thinking_opened

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """The rewards of completions, whose rows are in the columns."""
        # TRL also passes objects that are no columns.
        names = [name for name in ROW_FIELDS if name in columns]
        rows = [{name: columns[name][number] for name in names} for number in range(len(completions))]
        texts = [text_of(completion) for completion in completions]
        grader = grader_for(self._settings)
        grades = grader.grade_rows(rows, texts, thinking_opened=self._thinking_opened)
        rewards = [grade.reward for grade in grades]
        # The store writes all rewards of a group in one transaction.
        groups: dict[Any, list[int]] = {}
        for number, row in enumerate(rows):
            groups.setdefault((row.get(LEVEL_STORE), row.get(ROW)), []).append(number)
        for numbers in groups.values():
            report(rows[numbers[0]], *[rewards[number] for number in numbers])
        return rewards
