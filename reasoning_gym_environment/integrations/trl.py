"""The rows in TRL's trainers, GRPOTrainer and AsyncGRPOTrainer (docs/trainers.md).

    Rows ── dataset ──> train_dataset and eval_dataset ──> completions
      ──> RowRewards (the reward function) ──> rewards, from which the curriculum learns

AsyncGRPOTrainer sends its dataset and its reward functions to a separate process, so both can be pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from ..api import Recipe, Rows, grade, report
from .item_formats import hf_row

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["RowRewards", "dataset"]

GROUPS_AT_ONCE = 32


def dataset(rows: Rows) -> Dataset:
    """A dataset over the rows. Reading a row makes its item, so the levels follow as closely as the trainer reads."""
    # Importing it takes a second, and the reward function does not need it.
    from datasets import Dataset

    return Dataset.from_dict({"number": range(len(rows))}).with_transform(partial(_columns, rows))


def _columns(rows: Rows, batch: dict[str, list[int]]) -> dict[str, list[Any]]:
    """The columns of the rows with these numbers."""
    read = [hf_row(row) for row in rows.read(batch["number"])]
    return {name: [row[name] for row in read] for name in read[0]}


class RowRewards:
    """The reward function for rows with recipes: of `dataset`, or of `export items`.

    `settings` are settings of `Tasks` that concern grading. The workers start with the first call, in the process that
    calls. The reward of a completion without a score is None, and TRL does not train on it. Set `thinking_opened` if
    the chat template opens `<think>` in the prompt.
    """

    __name__ = "reasoning_gym"
    """The name of the reward in TRL's log."""

    def __init__(self, *, thinking_opened: bool = False, **settings: Any) -> None:
        self._options = {"thinking_opened": thinking_opened, **settings}

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """The rewards of completions, whose rows are in the columns."""
        # TRL also passes objects that are no columns.
        names = [name for name in Recipe.__dataclass_fields__ if name in columns]
        texts = [text_of(completion) for completion in completions]
        groups: dict[Recipe, list[int]] = {}
        for number in range(len(texts)):
            recipe = Recipe.of({name: columns[name][number] for name in names})
            groups.setdefault(recipe, []).append(number)
        rewards: list[float | None] = [None] * len(texts)

        def reward(recipe: Recipe) -> None:
            grades = grade(recipe, [texts[number] for number in groups[recipe]], **self._options)
            for number, made in zip(groups[recipe], grades, strict=True):
                rewards[number] = made.reward
            report(recipe, [made.reward for made in grades])

        with ThreadPoolExecutor(GROUPS_AT_ONCE) as threads:
            list(threads.map(reward, groups))
        return rewards


def text_of(completion: Any) -> str:
    """The text of a completion: plain text, or the assistant's last message, as text or as a list of texts.

    Raises TypeError for another completion, such as one with pictures.
    """
    content = completion
    if not isinstance(completion, str):
        replies = [message["content"] for message in completion if message["role"] == "assistant"]
        # A conversation that ends with a call of a tool has no reply.
        content = (replies[-1] if replies else None) or ""
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise TypeError(f"completion: expected a text, or a list of parts of the type text, got {content!r:.200}.")
    return content
