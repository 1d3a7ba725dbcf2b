"""What wandb gets, in a run of its own that writes to a folder and asks nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.demo.byte_tokenizer import build_byte_tokenizer
from reasoning_gym_environment.training_log.wandb_tables import CONVERSATION_COLUMNS

from ..mock_dialects import ThreadedMockServer
from ..support import AddingStudent, flags, run

COMMAND = ["-m", "reasoning_gym_environment"]


@pytest.fixture
def logged(tmp_path: Path) -> Any:
    """`logged(table)`: the rows of a table of the one offline run below tmp_path; `logged("")`: its raw records."""

    def read(table: str) -> Any:
        [folder] = tmp_path.glob("wandb/offline-run-*")
        if not table:
            return b"".join(path.read_bytes() for path in folder.glob("*.wandb"))
        [path] = folder.glob(f"files/media/table/{table}_*.table.json")
        return json.loads(path.read_text(encoding="utf-8"))

    return read


def test_evaluate_logs_categories_and_a_table_of_tasks(tmp_path: Path, tokenizer_dir: Path, logged: Any) -> None:
    with ThreadedMockServer(AddingStudent(), build_byte_tokenizer()) as server:
        settings = flags(tokenizer_dir, server.base_url, openai__server_type="openai", env__use_wandb=True)
        result = run([*COMMAND, "evaluate", *settings], tmp_path, WANDB_MODE="offline")
    assert result.returncode == 0, result.stderr
    assert "accuracy (95%)" in result.stdout
    for key in (b"eval/percent_correct", b"eval/accuracy_low", b"eval/arithmetic/accuracy"):
        assert key in logged("")
    assert [row[0] for row in logged("eval/tasks")["data"]] == ["chain_sum"]


def test_process_logs_rewards_by_part_and_the_conversations(tmp_path: Path, tokenizer_dir: Path, logged: Any) -> None:
    settings = {"env__use_wandb": True, "env__total_steps": 4, "env__data_path_to_save_groups": tmp_path / "g.jsonl"}
    with ThreadedMockServer(AddingStudent(), build_byte_tokenizer()) as server:
        arguments = flags(tokenizer_dir, server.base_url, openai__server_type="openai", **settings)
        result = run([*COMMAND, "process", *arguments], tmp_path, WANDB_MODE="offline")
    assert result.returncode == 0, result.stderr
    for key in (b"train_reward/length_penalty", b"train_reward/category/arithmetic", b"train_reward/outcome/wrong"):
        assert key in logged("")
    table = logged("train/conversations")
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert table["columns"] == CONVERSATION_COLUMNS
    assert len(rows) == 16
    for row in rows:
        assert f"<answer>{row['answer_read']}</answer>" in row["reply"]
        assert (row["answer_read"] == row["expected_answer"]) == (row["score"] == 1.0)
