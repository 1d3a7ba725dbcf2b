"""The formats of rows. Each format turns an item into a row that a trainer reads.

    ExportedItem ── ITEM_FORMATS[name].row ──> a row ── write_rows ──> a parquet file, or JSON lines

Every row has the recipe of its item, with which this package makes the item again. The trainer's own code reads the
other fields. The rows have no completions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..api import PromptedProblem
from ..inference.prompts import as_dicts
from ..records import to_json
from .recipe import RECIPE

Row = dict[str, Any]
Split = Literal["train", "eval"]

NEMO_AGENT = {"type": "responses_api_agents", "name": "reasoning_gym_simple_agent"}
"""The agent in NeMo Gym's own config of reasoning_gym, which sends each row to the model and to the grader."""


@dataclass(frozen=True)
class ExportedItem:
    """An item of the export. `index` counts the items of the export. `answer` is a right answer, or None if unknown.

    `recipe` has the fields of its Recipe, and in a row of a store of levels also the place of the row.
    """

    problem: PromptedProblem
    split: Split
    index: int
    answer: str | None
    recipe: Row

    @property
    def prompt(self) -> list[dict[str, str]]:
        return as_dicts(self.problem.messages)


@dataclass(frozen=True)
class Format:
    """A format of rows."""

    row: Callable[[ExportedItem], Row]
    """Makes the row of an item."""
    columns: Mapping[str, Any]
    """Column -> type, as in `_arrow_type`. Empty for JSON lines."""
    files: Mapping[Split, str]
    """The name of the file of each split, in the folder of the export."""
    recipe_in_python: str
    """A Python expression for the recipe in a `row`. The card of the export shows it."""

    @property
    def is_parquet(self) -> bool:
        return bool(self.columns)


def verl_row(item: ExportedItem) -> Row:
    """The columns that verl's datasets and reward managers read."""
    problem = item.problem
    return {
        "data_source": f"reasoning_gym/{problem.task}",
        "prompt": item.prompt,
        "ability": problem.category,
        "reward_model": {"style": "rule", "ground_truth": item.answer or ""},
        "extra_info": {"split": item.split, "index": item.index, **item.recipe},
    }


def nemo_row(item: ExportedItem) -> Row:
    """A row for NeMo Gym: the request to the model, and the item for its reasoning_gym server.

    JSON does not preserve the types in the metadata. Therefore the metadata also has the recipe, with which
    `grade-server` makes the original item again.
    """
    problem = item.problem
    answer = problem.entry.get("answer")
    metadata = {"source_dataset": problem.task, **problem.entry.get("metadata", {})}
    return {
        "responses_create_params": {"input": item.prompt},
        "question": problem.question,
        "answer": None if answer is None else str(answer),
        "metadata": {**to_json(metadata), RECIPE: item.recipe},
        "agent_ref": NEMO_AGENT,
    }


def hf_row(item: ExportedItem) -> Row:
    """A prompt in TRL's conversational format, the recipe, and columns for people who read the dataset.

    TRL passes all columns to the reward function, which uses the recipe.
    """
    problem = item.problem
    return {
        "prompt": item.prompt,
        **item.recipe,
        "category": problem.category,
        "index": item.index,
        "question": problem.question,
        "answer": item.answer,
    }


MESSAGES = [{"role": "text", "content": "text"}]
RECIPE_COLUMNS = {
    "task": "text",
    "seed": "whole",
    "config": "text",
    "level": "whole",
    "question_digest": "text",
    "answer_format": "text",
}
VERL_COLUMNS = {
    "data_source": "text",
    "prompt": MESSAGES,
    "ability": "text",
    "reward_model": {"style": "text", "ground_truth": "text"},
    "extra_info": {"split": "text", "index": "whole", **RECIPE_COLUMNS},
}
HF_COLUMNS = {
    "prompt": MESSAGES,
    **RECIPE_COLUMNS,
    "category": "text",
    "index": "whole",
    "question": "text",
    "answer": "text",
}
DATA_FILES: Mapping[Split, str] = {
    "train": "data/train.parquet",
    "eval": "data/test.parquet",
}

ITEM_FORMATS = {
    "hf": Format(
        hf_row,
        HF_COLUMNS,
        DATA_FILES,
        "row",
    ),
    "verl": Format(
        verl_row,
        VERL_COLUMNS,
        {"train": "train.parquet", "eval": "test.parquet"},
        'row["extra_info"]',
    ),
    "nemo-gym": Format(
        nemo_row,
        {},
        {"train": "train.jsonl", "eval": "validation.jsonl"},
        f'row["metadata"]["{RECIPE}"]',
    ),
}


def write_rows(path: Path, form: Format, rows: Sequence[Row]) -> None:
    """Write at least one row to a file of this format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not form.is_parquet:
        lines = [json.dumps(row) + "\n" for row in rows]
        path.write_text("".join(lines), encoding="utf-8")
        return
    # pyarrow is an optional extra.
    import pyarrow
    import pyarrow.parquet

    fields = [(name, _arrow_type(kind)) for name, kind in form.columns.items()]
    table = pyarrow.Table.from_pylist(list(rows), schema=pyarrow.schema(fields))
    pyarrow.parquet.write_table(table, path)


def _arrow_type(kind: Any) -> Any:
    """The type in Arrow. `kind` is "text" or "whole", a list with one kind, or a dict of names and kinds."""
    import pyarrow

    if isinstance(kind, list):
        return pyarrow.list_(_arrow_type(kind[0]))
    if isinstance(kind, dict):
        fields = [(name, _arrow_type(field_kind)) for name, field_kind in kind.items()]
        return pyarrow.struct(fields)
    types = {
        "text": pyarrow.string(),
        "whole": pyarrow.int64(),
    }
    return types[kind]
