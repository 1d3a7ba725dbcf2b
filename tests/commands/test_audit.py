"""The audit: answers of known worth, what a verifier paid for them, and the verdict that follows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import Grade, PromptedProblem
from reasoning_gym_environment.commands import audit
from reasoning_gym_environment.commands.audit import judge, main, same
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.records import Outcome, Score
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder

TASK = '''
import os, random
from reasoning_gym.arithmetic import GCDConfig, GCDDataset
from reasoning_gym.factory import register_dataset

class Bad(GCDDataset):
    """Most answers are 7, one draw in four cannot be made, an item made again differs."""
    def __getitem__(self, index):
        rng = random.Random(self.seed)
        if rng.random() < 0.25:
            raise ValueError("no item")
        answer = "7" if rng.random() < 0.9 else "8"
        return {"question": "always the same", "answer": answer, "metadata": {"at": os.urandom(8)}}
    def score_answer(self, answer, entry):
        if "((((" in answer:
            raise ValueError("not that")
        return float(answer == entry["answer"])

register_dataset("mostly_seven", Bad, GCDConfig)
'''


def test_the_verdict_is_the_worst_that_applies() -> None:
    for right, worthless, is_solved, verdict in (
        (1.0, 0.05, False, "sound"),
        (0.9, 0.9, True, "broken"),
        (1.0, 0.5, True, "pays-garbage"),
        (1.0, 0.1, True, "solved-by-constant"),
        (None, 0.9, False, "pays-garbage"),
        (None, 0.0, False, "no-items"),
    ):
        assert judge(right, worthless, is_solved, "no-items") == verdict


def test_equal_in_case_blanks_or_number_is_the_same() -> None:
    for text, right in (("12", "12.0"), ("Yes", "yes"), ("a  b", "A b"), ("1e2", "100")):
        assert same(text, right)
        assert not same(text + "1", right) and not same(text, None)


class FakeTasks:
    """Pays the answers of the items."""

    async def grade_async(self, problem: PromptedProblem, completions: list[str]) -> list[Grade]:
        right = f"<answer>{problem.entry['answer']}</answer>"
        values = [float(completion == right) for completion in completions]
        return [Grade(value, Score(value, Outcome.CORRECT if value else Outcome.WRONG)) for value in values]


def items(answers: str) -> list[PromptedProblem]:
    """An item for each character, which is its answer."""
    entries = [{"question": f"{number}", "answer": answer, "metadata": {}} for number, answer in enumerate(answers)]
    return [
        PromptedProblem("gcd", "", split="own", index=-1, seed=seed, config={}, entry=entry)
        for seed, entry in enumerate(entries)
    ]


async def test_a_constant_that_is_wrong_on_the_first_items_may_be_right_on_most() -> None:
    tasks: Any = FakeTasks()
    for answers in ("8" + 29 * "7", "98" + 28 * "7", 29 * "7" + "8"):
        found = await audit._constant(tasks, items(answers))
        assert found == ("7", round(answers.count("7") / 30, 4)), answers
    assert await audit._constant(tasks, items(15 * "78")) is None


def test_an_item_that_time_did_not_allow_to_be_made_again_does_not_differ() -> None:
    made = items("123")
    assert audit._notes_on_items(made, items("12")) == []
    assert audit._notes_on_items(made[1:], items("123")) == []
    assert audit._notes_on_items(made, items("13")) == ["an item made again differs"]


@pytest.mark.usefixtures("in_process_workers")
def test_missing_items_of_all_levels_are_counted_and_a_closed_pipe_costs_no_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(audit, "LEVEL_S", 0.0)
    monkeypatch.setattr(audit, "print_table", closed)
    target = tmp_path / "audit.json"
    with pytest.raises(BrokenPipeError):
        main(["chain_sum", "--draws", "3", "--json", str(target)])
    [result] = json.loads(target.read_text())["tasks"]
    wanted = 3 * (1 + len(build_ladder("chain_sum").levels))
    assert result["notes"] == [f"{wanted} of {wanted} items could not be made (0 s were over)"]


@pytest.mark.usefixtures("own_datasets")
def test_the_command_measures_a_dataset_of_one_s_own_and_fails_on_what_was_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take longer.
    monkeypatch.setattr(audit, "LEVEL_S", 3600.0)
    module, target = tmp_path / "bad_tasks.py", tmp_path / "audit.json"
    module.write_text(TASK)
    tasks = ["chain_sum", "mostly_seven", "--task-modules", str(module)]
    limits = ["--items", "2", "--draws", "40", "--fail-on", "solved-by-constant,no-expected-answer"]
    assert main([*tasks, *limits, "--json", str(target)]) == 1
    found = {one["task"]: one for one in json.loads(target.read_text())["tasks"]}
    chain, seven = found["chain_sum"], found["mostly_seven"]
    assert (chain["verdict"], chain["right"], chain["solved"], chain["notes"]) == ("sound", 1.0, [], [])
    assert (seven["verdict"], seven["solved"][0][:2]) == ("solved-by-constant", ["default", "7"])
    notes = "; ".join(seven["notes"])
    for said in (
        "raises on 2 of",
        r"1 questions in \d+ draws",
        "an item made again differs",
        r"of 80 items could not be",
    ):
        assert re.search(said, notes), notes
    printed = capsys.readouterr()
    assert "is right on" in printed.out and "an item made again differs" in " ".join(printed.out.split())
    assert "mostly_seven: solved-by-constant, " in printed.err and "chain_sum:" not in printed.err


def test_mistakes_are_refused_before_anything_is_measured() -> None:
    for arguments, message in (
        (["chain_summ"], "Did you mean chain_sum"),
        (["--exclude", "chain_summ"], "Did you mean chain_sum"),
        (["chain_sum", "--fail-on", "ugly"], "got 'ugly'"),
    ):
        with pytest.raises(EnvironmentSetupError, match=message):
            main(arguments)


NO_ITEMS = """
from reasoning_gym.arithmetic import GCDConfig, GCDDataset
from reasoning_gym.factory import register_dataset

class Empty(GCDDataset):
    def __getitem__(self, index):
        raise ValueError("the word list is missing")

register_dataset("empty", Empty, GCDConfig)
"""


@pytest.mark.usefixtures("own_datasets", "in_process_workers")
def test_a_task_that_makes_no_items_is_not_said_to_lack_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, target = tmp_path / "empty_task.py", tmp_path / "audit.json"
    module.write_text(NO_ITEMS)
    limits = ["--items", "1", "--draws", "2", "--fail-on", "no-items", "--json", str(target)]
    assert main(["empty", "--task-modules", str(module), *limits]) == 1
    [result] = json.loads(target.read_text())["tasks"]
    assert result["verdict"] == "no-items"
    assert "4 of 4 items could not be made" in result["notes"][-1] and "the word list is missing" in result["notes"][-1]
    assert "empty: no-items, it makes no items" in capsys.readouterr().err


SOLVED = '''
import random
from reasoning_gym.arithmetic import GCDConfig, GCDDataset
from reasoning_gym.factory import register_dataset

class Sums(GCDDataset):
    """Every tenth answer is wrong, and each item with an even sum has two right answers."""
    def __getitem__(self, index):
        rng = random.Random(self.seed)
        a, b = rng.randrange(1000), rng.randrange(1000)
        wrong = a % 10 == 0
        return {"question": f"{a} + {b}, or its negative if it is even", "answer": str(a + b + wrong), "metadata": {}}
    def score_answer(self, answer, entry):
        right = int(entry["answer"])
        return float(answer in (str(right), str(-right) if right % 2 == 0 else ""))

register_dataset("sums", Sums, GCDConfig)

def solve(question):
    a, _, b, *_ = question.replace(",", "").split()
    total = int(a) + int(b)
    if total % 7 == 0:
        return None
    return str(total) if total % 2 else [str(total), str(-total)]

def fail(question):
    raise ValueError("cannot read it")

def give_a_number(question):
    return 5

NUMBER = 5
'''


@pytest.mark.usefixtures("own_datasets", "in_process_workers")
def test_a_solver_of_one_s_own_disputes_wrong_answers_and_finds_several_right_answers(tmp_path: Path) -> None:
    module, target = tmp_path / "sums.py", tmp_path / "audit.json"
    module.write_text(SOLVED)
    arguments = ["sums", "--task-modules", str(module), "--items", "1", "--draws", "60", "--json", str(target)]
    assert main([*arguments, "--solver", f"{module}:solve", "--fail-on", "disputed"]) == 1
    [result] = json.loads(target.read_text())["tasks"]
    found = result["solver"]
    sums = [tuple(map(int, re.findall(r"\d+", example["question"]))) for example in found["examples"]]
    assert sums and all(a % 10 == 0 for a, _ in sums), "every disagreement is about a wrong answer"
    assert found["items"] >= 60 and found["unscored"] == 0
    assert found["refused_answers"] == found["refused_keys"] > 0
    assert found["undecided"] > 0 and found["several_answers"] > 0
    assert result["verdict"] == "disputed"
    example = found["examples"][0]
    assert {"seed", "level", "key", "solver", "kind"} <= example.keys()
    assert any("items do not pay its answer" in note for note in result["notes"])


@pytest.mark.usefixtures("own_datasets", "in_process_workers")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("{module}:missing", "found nothing of this name"),
        ("{module}:NUMBER", "found 5"),
        ("{module}", "expects MODULE:FUNCTION"),
        ("no_such_module:solve", "The solver module 'no_such_module' cannot be imported"),
        ("{module}:fail", "raised an exception for the item of sums with seed .*ValueError: cannot read it"),
        ("{module}:give_a_number", "expected a text, a list of texts or None, got 5 for the item of sums with seed"),
    ],
)
def test_a_bad_solver_is_an_error_of_one_line(tmp_path: Path, function: str, message: str) -> None:
    module = tmp_path / "sums.py"
    module.write_text(SOLVED)
    name = function.format(module=module)
    with pytest.raises(EnvironmentSetupError, match=message) as raised:
        main(["sums", "--task-modules", str(module), "--items", "1", "--draws", "3", "--solver", name])
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("in_process_workers")
def test_a_task_with_a_fault_that_is_not_mended_is_not_called_sound_and_an_excluded_task_is_not_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "OPEN_FAULTS", {"chain_sum": "some sums are wrong"})
    target = tmp_path / "audit.json"
    chosen = ["chain_sum", "gcd", "--exclude", "gc*"]
    assert main([*chosen, "--items", "1", "--draws", "2", "--json", str(target)]) == 0
    [result] = json.loads(target.read_text())["tasks"]
    assert result["verdict"] == "open-fault" and result["notes"] == ["some sums are wrong"]


@pytest.mark.usefixtures("in_process_workers")
def test_a_task_that_is_known_to_have_a_constant_answer_is_named_although_a_few_items_show_none(tmp_path: Path) -> None:
    target = tmp_path / "audit.json"
    assert main(["syllogism", "--items", "1", "--draws", "2", "--json", str(target)]) == 0
    [result] = json.loads(target.read_text())["tasks"]
    assert result["verdict"] == "solved-by-constant" and any(
        note.startswith("an answer without work") for note in result["notes"]
    )
