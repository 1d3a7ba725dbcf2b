"""What wandb gets, in a run of its own that writes to a folder and asks nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..mock_dialects import ThreadedMockServer
from ..support import flags, run

pytestmark = pytest.mark.slow


@pytest.fixture
def logged(tmp_path: Path, tokenizer_dir: Path, adding_server: ThreadedMockServer) -> Any:
    """`logged(command, table, **settings)`: what it printed, the raw records, and the table of the offline run."""

    def read(command: str, table: str, **settings: Any) -> tuple[str, bytes, dict[str, Any]]:
        fields = {"openai__server_type": "openai", "env__use_wandb": True, **settings}
        arguments = ["-m", "reasoning_gym_environment", command]
        arguments += flags(tokenizer_dir, adding_server.base_url, **fields)
        result = run(arguments, tmp_path, WANDB_MODE="offline")
        assert result.returncode == 0, result.stderr
        [folder] = tmp_path.glob("wandb/offline-run-*")
        [path] = folder.glob(f"files/media/table/{table}_*.table.json")
        records = b"".join(path.read_bytes() for path in folder.glob("*.wandb"))
        return result.stdout, records, json.loads(path.read_text(encoding="utf-8"))

    return read


def test_evaluate_logs_categories_and_a_table_of_tasks(logged: Any) -> None:
    told, records, table = logged("evaluate", "eval/tasks")
    assert "accuracy (95%)" in told
    for key in (b"eval/percent_correct", b"eval/accuracy_low", b"eval/arithmetic/accuracy"):
        assert key in records
    assert [row[0] for row in table["data"]] == ["chain_sum"]


def test_process_logs_rewards_by_part_and_the_conversations(tmp_path: Path, logged: Any) -> None:
    settings = {"env__total_steps": 4, "env__data_path_to_save_groups": tmp_path / "g.jsonl"}
    _, records, table = logged("process", "train/conversations", **settings)
    for key in (b"train_reward/length_penalty", b"train_reward/category/arithmetic", b"train_reward/outcome/wrong"):
        assert key in records
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert table["columns"][:2] == ["task", "category"]
    assert len(rows) == 16
    for row in rows:
        assert f"<answer>{row['answer_read']}</answer>" in row["reply"]
        assert (row["answer_read"] == row["expected_answer"]) == (row["score"] == 1.0)
