"""The audit: whether a verifier pays the items' own answers, pays answers without work, and raises an exception."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import Grade, PromptedProblem
from reasoning_gym_environment.commands import audit
from reasoning_gym_environment.commands.audit import Measures, main, measure
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.records import Outcome, Score

MODULE = '''
import random
from reasoning_gym.arithmetic import GCDConfig, GCDDataset
from reasoning_gym.factory import register_dataset

class MostlySeven(GCDDataset):
    """One draw in four cannot be made."""
    def __getitem__(self, index):
        rng = random.Random(self.seed)
        if rng.random() < 0.25:
            raise ValueError("no item")
        answer = "7" if rng.random() < 0.8 else "8"
        return {"question": "7 or 8?", "answer": answer, "metadata": {}}
    def score_answer(self, answer, entry):
        return float(answer == entry["answer"])

class Raises(GCDDataset):
    def score_answer(self, answer, entry):
        if "((((" in answer:
            raise ValueError("not that")
        return float(answer == entry["answer"])

class Broken(GCDDataset):
    """The verifier has a name that does not exist."""
    def score_answer(self, answer, entry):
        return float(answer == expected)

class Empty(GCDDataset):
    def __getitem__(self, index):
        raise ValueError("the word list is missing")

for dataset in (MostlySeven, Raises, Broken, Empty):
    register_dataset(f"own_{dataset.__name__.lower()}", dataset, GCDConfig)
'''


@pytest.fixture
def module(tmp_path: Path, own_datasets: None) -> str:
    path = tmp_path / "audited_tasks.py"
    path.write_text(MODULE)
    return str(path)


def audited(*arguments: str, target: Path) -> dict[str, Any]:
    """The results by task, of which one has a fault."""
    assert main([*arguments, "--json", str(target)]) == 1
    return {result["task"]: result for result in json.loads(target.read_text())["tasks"]}


@pytest.mark.usefixtures("in_process_workers")
def test_each_fault_of_a_dataset_of_one_s_own_has_its_verdict(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["own_mostlyseven", "own_raises", "own_broken", "own_empty"]
    target = tmp_path / "audit.json"
    found = audited(
        "--tasks", ",".join(["chain_sum", *names]), "--task-modules", module, "--per-level", "12", target=target
    )
    verdicts = {task: result["verdict"] for task, result in found.items()}
    assert verdicts == {
        "chain_sum": "sound",
        "own_mostlyseven": "pays-without-work",
        "own_raises": "raises",
        "own_broken": "broken",
        "own_empty": "missing-items",
    }
    assert found["chain_sum"]["faults"] == {} and {level["key"] for level in found["chain_sum"]["levels"]} == {1.0}
    seven = found["own_mostlyseven"]["faults"]
    assert seven["pays-without-work"][0].startswith("default: '7' earns 0.")
    assert seven["missing-items"][0].endswith("no item") and "of 12 were not made" in seven["missing-items"][0]
    place = "(audited_tasks.py, line 20), for the answer '(((('"
    assert found["own_raises"]["faults"]["raises"][0] == f"default: ValueError: not that {place} (12 answers in all)"
    broken = found["own_broken"]["faults"]
    assert broken["broken"][0] == "default: the items' own answers earn 0.00 on average"
    assert "NameError: name 'expected' is not defined (audited_tasks.py, line 26)" in broken["raises"][0]
    assert "NameError: name 'expected' is not defined" in " ".join(capsys.readouterr().out.split())
    assert main(["--tasks", "chain_sum", "--per-level", "2"]) == 0


@pytest.mark.slow
def test_a_verifier_that_raises_in_the_sandbox_is_reported_with_its_exception(module: str, tmp_path: Path) -> None:
    arguments = ("--tasks", "own_broken", "--task-modules", module, "--per-level", "2")
    found = audited(*arguments, target=tmp_path / "audit.json")
    assert "NameError: name 'expected' is not defined" in found["own_broken"]["faults"]["raises"][0]


@pytest.mark.usefixtures("in_process_workers")
def test_a_copy_of_the_question_that_is_right_on_most_items_is_named(tmp_path: Path) -> None:
    found = audited("--tasks", "string_insertion", "--per-level", "10", target=tmp_path / "audit.json")
    assert "a copy of the question's last lines" in found["string_insertion"]["faults"]["pays-without-work"][0]


class FakeTasks:
    """Makes items with the given answers, and pays them."""

    def __init__(self, answers: str) -> None:
        self.answers = iter(answers)

    def make(self, task: str, seed: int, config: Any) -> PromptedProblem:
        entry = {"question": "which digit?", "answer": next(self.answers), "metadata": {}}
        return PromptedProblem(task, "", split="own", index=-1, seed=seed, config=config, entry=entry)

    def grade(self, problem: PromptedProblem, completions: list[str]) -> list[Grade]:
        right = f"<answer>{problem.entry['answer']}</answer>"
        values = [float(completion == right) for completion in completions]
        return [Grade(value, Score(value, Outcome.CORRECT if value else Outcome.WRONG)) for value in values]


def test_a_constant_that_is_wrong_on_the_first_items_may_be_right_on_most() -> None:
    for answers in ("8" + 29 * "7", "98" + 28 * "7", 29 * "7" + "8"):
        tasks: Any = FakeTasks(answers)
        found = measure(tasks, "gcd", {}, 0, Measures("default", 30))
        assert (found.answer, found.without_work) == ("7", round(answers.count("7") / 30, 4)), answers
        assert [verdict for verdict, _ in found.faults()] == ["pays-without-work"]
    half: Any = FakeTasks(15 * "78")
    assert list((measure(half, "gcd", {}, 0, Measures("default", 30))).faults()) == []


def test_the_faults_of_a_level_follow_from_its_measures() -> None:
    def verdicts(**measures: Any) -> list[str]:
        return [verdict for verdict, _ in Measures("level 1", 10, **{"made": 10, "key": 1.0, **measures}).faults()]

    assert verdicts() == []
    assert verdicts(key=0.9, without_work=0.9, failures=2) == ["broken", "pays-without-work", "raises"]
    assert verdicts(without_work=0.7) == []
    assert verdicts(made=9, key=None) == ["missing-items"]
    assert verdicts(made=0, key=None) == ["missing-items"]


@pytest.mark.usefixtures("in_process_workers")
def test_a_closed_pipe_costs_no_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(audit, "print_table", closed)
    target = tmp_path / "audit.json"
    with pytest.raises(BrokenPipeError):
        main(["--tasks", "chain_sum,gcd", "--exclude", "gc*", "--per-level", "1", "--json", str(target)])
    [result] = json.loads(target.read_text())["tasks"]
    assert result["verdict"] == "sound"


def test_mistakes_are_refused_before_anything_is_measured() -> None:
    for arguments, message in (
        (["--tasks", "chain_summ"], "Did you mean chain_sum"),
        (["--exclude", "chain_summ"], "Did you mean chain_sum"),
    ):
        with pytest.raises(EnvironmentSetupError, match=message):
            main(arguments)
