"""The commands that show tasks and items."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reasoning_gym_environment.commands import tasks as task_table
from reasoning_gym_environment.commands.tasks import preview
from reasoning_gym_environment.errors import GenerationError
from reasoning_gym_environment.tasks import reasoning_gym_source as library

from ..in_process import InProcessGenerator


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_the_table_names_what_is_known_of_a_task_and_a_narrow_terminal_cuts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert task_table.main(["--include", "countdown,rush_hour,acre"]) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed
    head = next(line for line in printed.splitlines() if "task" in line)
    assert all(column in head for column in task_table.COLUMNS)
    for known in ("checked", "1 (no curriculum)", "100/100", "3 tasks, categories:"):
        assert known in printed


def test_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert task_table.main(["--category", "games", "--exclude", "sudoku", "--json"]) == 0
    records = {record["task"]: record for record in json.loads(capsys.readouterr().out)}
    assert "sudoku" not in records
    assert {record["category"] for record in records.values()} == {"games"}
    countdown = records["countdown"]
    assert (countdown["verifier"], countdown["has_oracle"]) == ("checked", True)
    assert countdown["evaluates_answers"]
    assert countdown["levels"] == len(countdown["generation_ms_by_level"])
    assert not records["rush_hour"]["has_oracle"]


def test_tasks_may_be_named_without_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert task_table.main(["gcd", "*_sorting", "--include", "lcm", "--json"]) == 0
    assert [record["task"] for record in json.loads(capsys.readouterr().out)] == [
        *("gcd", "lcm", "number_sorting", "word_sorting")
    ]


def test_a_release_that_was_not_measured_is_said_to_be_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(task_table, "load_facts", lambda: ("0.0.1", {}))
    assert task_table.main(["--include", "chain_sum"]) == 0
    assert "not measured" in capsys.readouterr().out


def test_names_that_do_not_exist_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for option, name, meant in (("--include", "chain_summ", "chain_sum"), ("--category", "game", "games")):
        assert task_table.main([option, name]) == 2
        assert f"Did you mean {meant}" in capsys.readouterr().err
    assert preview(["chain_summ"]) == 2
    assert "Did you mean chain_sum" in capsys.readouterr().err
    assert preview(["*_sum"]) == 2
    assert "'*_sum' stands for chain_sum, decimal_chain_sum: name one of them" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        preview(["chain_sum", "--complexity", "2"])
    assert "expected a number from 0 to 1, got '2'" in capsys.readouterr().err


def test_a_preview_is_the_item_that_its_seed_and_config_make(capsys: pytest.CaptureFixture[str]) -> None:
    assert preview(["chain_sum", "--complexity", "1", "--count", "2", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["level"] == first["levels"] - 1
    assert first["question"] != second["question"]
    made = library.create_dataset("chain_sum", seed=first["seed"], size=1, **first["config"])[0]
    assert (made["question"], made["answer"]) == (first["question"], first["oracle_answer"])


def test_a_preview_shows_level_config_and_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(task_table, "ProcessGenerator", lambda **options: InProcessGenerator())
    assert preview(["propositional_logic", "--seed", "1"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "propositional_logic (logic), default config" in printed
    assert "none: no right answer is at hand" in printed


def test_a_seed_that_makes_no_item_costs_another_seed_and_not_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    class Unlucky(InProcessGenerator):
        """Finds an item for every third seed, as countdown does at its last level, or for none."""

        async def generate(self, task: str, seed: int, config: Any) -> dict[str, Any]:
            asked.append(seed)
            if len(asked) % 3 or task == "gcd":
                raise GenerationError(f"{task} with seed {seed}: no luck")
            return await super().generate(task, seed, config)

    monkeypatch.setattr(task_table, "ProcessGenerator", lambda **options: Unlucky())
    assert preview(["chain_s*", "--complexity", "0.8", "--count", "2", "--json"]) == 0
    assert [item["seed"] for item in json.loads(capsys.readouterr().out)] == asked[2::3]
    assert preview(["gcd"]) == 2
    assert "no luck" in capsys.readouterr().err
