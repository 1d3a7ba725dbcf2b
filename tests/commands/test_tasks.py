"""The commands that show tasks and items."""

from __future__ import annotations

import json

import pytest

from reasoning_gym_environment.commands import tasks as task_table
from reasoning_gym_environment.commands.tasks import preview
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.tasks import reasoning_gym_source as library


def test_the_table_as_json_names_what_is_known_of_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        task_table.main(["gcd", "--include", "*_sorting", "--category", "games", "--exclude", "sudoku", "--json"]) == 0
    )
    records = {record["task"]: record for record in json.loads(capsys.readouterr().out)}
    assert "sudoku" not in records and {"gcd", "word_sorting"} < records.keys()
    countdown = records["countdown"]
    assert (countdown["verifier"], countdown["has_oracle"]) == ("checked", True)
    assert countdown["evaluates_answers"]
    assert countdown["levels"] == len(countdown["measured"]["levels"])
    assert not records["rush_hour"]["has_oracle"]


def test_a_preview_is_of_one_task() -> None:
    with pytest.raises(EnvironmentSetupError, match="stands for chain_sum, decimal_chain_sum: name one of them"):
        preview(["*_sum"])


@pytest.mark.usefixtures("in_process_workers")
def test_a_preview_is_the_item_that_its_seed_and_config_make(capsys: pytest.CaptureFixture[str]) -> None:
    assert preview(["chain_s*", "--complexity", "1", "--count", "2", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["level"] > 0, first["complexity"]) == (True, 1.0)
    assert first["question"] != second["question"]
    made = library.create_dataset("chain_sum", seed=first["seed"], size=1, **first["config"])[0]
    assert (made["question"], made["answer"]) == (first["question"], first["oracle_answer"])
