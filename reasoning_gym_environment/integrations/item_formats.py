"""The formats of rows. Each format turns an item into a row that a trainer reads.

    Row ── ITEM_FORMATS[name].row ──> columns ── write_rows ──> a parquet file, or JSON lines

Every row has the recipe of its item, with which this package makes the item again. The trainer's own code reads the
other fields. The rows have no completions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..api import Row, to_json

Columns = dict[str, Any]
Split = Literal["train", "eval"]

RECIPE = "recipe"
"""The key of the recipe in the metadata of a row for NeMo Gym."""

NEMO_AGENT = {"type": "responses_api_agents", "name": "reasoning_gym_simple_agent"}
"""The agent in NeMo Gym's own config of reasoning_gym, which sends each row to the model and to the grader."""


@dataclass(frozen=True)
class Format:
    """A format of rows."""

    row: Callable[[Row], Columns]
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


def verl_row(row: Row) -> Columns:
    """The columns that verl's datasets and reward managers read."""
    problem = row.problem
    return {
        "data_source": f"reasoning_gym/{problem.task}",
        "prompt": row.prompt,
        "ability": problem.category,
        "reward_model": {"style": "rule", "ground_truth": row.answer or ""},
        "extra_info": {"split": row.split, "index": row.number, **row.recipe.as_row()},
    }


def nemo_row(row: Row) -> Columns:
    """A row for NeMo Gym: the request to the model, and the item for its reasoning_gym server.

    JSON does not preserve the types in the metadata. Therefore the metadata also has the recipe, with which
    `grade-server` makes the original item again.
    """
    problem = row.problem
    answer = problem.entry.get("answer")
    metadata = {"source_dataset": problem.task, **problem.entry.get("metadata", {})}
    return {
        "responses_create_params": {"input": row.prompt},
        "question": problem.question,
        "answer": None if answer is None else str(answer),
        "metadata": {**to_json(metadata), RECIPE: row.recipe.as_row()},
        "agent_ref": NEMO_AGENT,
    }


def hf_row(row: Row) -> Columns:
    """A prompt in TRL's conversational format, the recipe, and columns for people who read the dataset.

    TRL passes all columns to the reward function, which uses the recipe.
    """
    problem = row.problem
    return {
        "prompt": row.prompt,
        **row.recipe.as_row(),
        "category": problem.category,
        "index": row.number,
        "question": problem.question,
        "answer": row.answer,
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


def write_rows(path: Path, form: Format, rows: Sequence[Columns]) -> None:
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
