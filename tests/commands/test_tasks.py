"""The commands that show tasks and items."""

from __future__ import annotations

import json

import pytest

from reasoning_gym_environment.commands import tasks
from reasoning_gym_environment.commands.tasks import main
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.tasks import reasoning_gym_source as library


def test_the_table_as_json_names_what_is_known_of_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tasks", "gcd,*_sorting,category:games", "--json"]) == 0
    records = {record["task"]: record for record in json.loads(capsys.readouterr().out)}
    assert "chain_sum" not in records and {"gcd", "word_sorting"} < records.keys()
    countdown = records["countdown"]
    assert countdown["levels"] == len(countdown["measured"]["levels"])


def test_items_are_of_one_task() -> None:
    for pattern, matches in (("*_sum", "chain_sum, decimal_chain_sum"), ("*", "ab, .*, arc_1d and 100 more")):
        with pytest.raises(EnvironmentSetupError, match=rf"name of one task.* is {matches}\."):
            main([pattern])


def test_an_option_that_has_no_effect_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--complexity", "0"], ["chain_sum", "--tasks", "gcd"]):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        assert f"unrecognized arguments: {' '.join(arguments[-2:])}" in capsys.readouterr().err


@pytest.mark.usefixtures("in_process_workers")
def test_a_printed_item_is_the_item_that_its_seed_and_config_make(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chain_s*", "--complexity", "1", "--count", "2", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["level"] > 0, first["complexity"]) == (True, 1.0)
    assert first["question"] != second["question"]
    made = library.create_dataset("chain_sum", seed=first["seed"], size=1, **first["config"])[0]
    assert (made["question"], made["answer"]) == (first["question"], first["expected_answer"])


@pytest.mark.usefixtures("in_process_workers")
def test_an_empty_answer_is_an_answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, text in (("", "an empty answer"), (None, "none: this item comes without an expected answer")):
        monkeypatch.setattr(tasks, "right_answer", lambda task, entry, answer=answer: answer)
        assert main(["chain_sum"]) == 0
        assert f"expected answer: {text}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("in_process_workers")
def test_the_levels_that_are_not_served_are_named_with_their_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["caesar_cipher"]) == 0
    assert "excluded: level 2 of caesar_cipher (" in capsys.readouterr().out
