"""The audit: answers of known worth, what a verifier paid for them, and the verdict that follows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.audit import main as audit_main
from reasoning_gym_environment.audit import measure
from reasoning_gym_environment.audit.main import main
from reasoning_gym_environment.audit.measure import AnswerKind, Auditor, Findings, Paid, Trust, build_probes, same
from reasoning_gym_environment.errors import GenerationError
from reasoning_gym_environment.verification import grade as grading

from ..in_process import InProcessGenerator, InProcessGrader

ORACLES = ["12", "7", "12.0"]
ENTRIES = [{"question": f"q{number}", "answer": text, "metadata": {}} for number, text in enumerate(ORACLES)]


def paid(kind: AnswerKind, value: float, label: str = "x") -> Paid:
    return Paid(kind, label, value)


SOUND = [
    paid(AnswerKind.ORACLE, 1.0),
    paid(AnswerKind.OTHER, 0.0),
    paid(AnswerKind.CONSTANT, 0.0),
    paid(AnswerKind.GARBAGE, 0.05),
]


def test_every_kind_of_answer_is_tried_the_same_ones_every_time_and_none_as_wrong_that_says_the_same() -> None:
    probes = build_probes("t", ENTRIES, ORACLES)
    assert {probe.kind for probe in probes} == set(AnswerKind)
    assert build_probes("t", ENTRIES, ORACLES) == probes
    for probe in probes:
        if probe.kind not in (AnswerKind.ORACLE, AnswerKind.TAGGED, AnswerKind.PERIOD, AnswerKind.BOXED):
            assert not same(probe.answer, ORACLES[probe.item]), probe
    # Without an oracle answer only worthless answers are left.
    assert {probe.kind for probe in build_probes("t", ENTRIES[:1], [None])} == set(measure.WORTHLESS)


def test_equal_in_case_blanks_or_number_is_the_same() -> None:
    for text, oracle in (("12", "12.0"), ("Yes", "yes"), ("a  b", "A b"), ("1e2", "100")):
        assert same(text, oracle)
        assert not same(text + "1", oracle)
        assert not same(text, None)


def test_the_verdict_is_the_worst_that_applies() -> None:
    for also, verdict in (
        ([], Trust.SOUND),
        ([paid(AnswerKind.ORACLE, 0.9)], Trust.BROKEN),
        ([paid(AnswerKind.ENUMERATION, 0.5)], Trust.PAYS_GARBAGE),
        ([paid(AnswerKind.OTHER, 1.0)], Trust.ACCEPTS_OTHERS),
        ([paid(AnswerKind.OTHER, 0.99)] * 5, Trust.SOUND),
        ([paid(AnswerKind.NEAR_MISS, 1.0), paid(AnswerKind.BOXED, 0.0)], Trust.SOUND),
    ):
        assert measure.judge([*SOUND, *also]) is verdict, also
    # Without a right answer a verifier cannot be called sound.
    assert measure.judge(SOUND[1:]) is Trust.NO_ORACLE


def test_one_bad_constant_is_not_hidden_among_many_good_ones() -> None:
    constants = [paid(AnswerKind.CONSTANT, 0.0, label=str(number)) for number in range(20)]
    bad = [paid(AnswerKind.CONSTANT, value, label="yes") for value in (1.0, 0.0, 1.0)]
    assert measure.judge([*SOUND, *constants, *bad]) is Trust.PAYS_GARBAGE
    assert measure.best_paid_worthless([*constants, *bad]) == ("yes", pytest.approx(2 / 3))


class Generator:
    """Makes another item each time it is asked if `is_steady` is false; item 0 cannot be made."""

    def __init__(self, *, is_steady: bool) -> None:
        self.is_steady, self.asked = is_steady, 0

    async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
        self.asked += 1
        if self.asked % 4 == 1:
            raise GenerationError("no item")
        return {"question": "always the same", "answer": "5" if self.is_steady else str(self.asked), "metadata": {}}


class Grader:
    async def grade(
        self, task: str, config: Mapping[str, Any], entry: dict[str, Any], answers: Sequence[str]
    ) -> list[grading.Verdict]:
        timeout = grading.Verdict(0.0, grading.Status.TIMEOUT)
        return [timeout if answer == "((((" else grading.Verdict(float(answer == "5"), bare=0.0) for answer in answers]


async def audited(task: str, *, is_steady: bool = True) -> Findings:
    generator, runs_text = Generator(is_steady=is_steady), {task: "evaluates answers"}
    return await Auditor(generator, Grader(), items=2, draws=4, seed=0, runs_text=runs_text).audit(task, "games")


@pytest.mark.parametrize("is_steady", [True, False])
async def test_what_went_wrong_on_the_way_is_part_of_the_findings(is_steady: bool) -> None:
    found = await audited("t", is_steady=is_steady)
    assert (found.items, found.draws, found.unmade, found.distinct_questions) == (2, 3, 1, 1)
    assert found.regenerates is is_steady
    assert found.unscored == 2
    assert (found.runs_text, found.is_low_entropy) == ("evaluates answers", True)


@pytest.mark.parametrize("in_process", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_command_measures_prints_writes_and_fails_on_what_was_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_process: bool
) -> None:
    if in_process:
        monkeypatch.setattr(audit_main, "ProcessGenerator", InProcessGenerator)
        monkeypatch.setattr(audit_main, "SandboxGrader", InProcessGrader)
    target, page = tmp_path / "audit.json", tmp_path / "audit.md"
    # Of cubes of another size than three no solution is at hand, and none of a propositional item may have one.
    tasks = ["chain_sum", "game_of_life_halting", "propositional_logic"]
    limits = ["--items", "2", "--draws", "4", "--fail-on", "pays-garbage,no-oracle"]
    assert main([*tasks, *limits, "--json", str(target), "--markdown", str(page)]) == 1
    chain, halting, _ = json.loads(target.read_text())["tasks"]
    assert (chain["task"], chain["verdict"]) == ("chain_sum", "sound")
    assert (chain["pays"]["oracle"], chain["regenerates"]) == (1.0, True)
    assert (halting["verdict"], halting["native_verdict"]) == ("sound", "pays garbage")
    assert "| propositional_logic | no oracle |" in page.read_text()
    printed = capsys.readouterr()
    assert "What the verifiers pay" in printed.out
    assert printed.err.strip().endswith("propositional_logic: no oracle") and "halting:" not in printed.err


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["chain_summ"], "Did you mean chain_sum"),
        (["chain_sum", "--fail-on", "ugly"], "got 'ugly'"),
        (["chain_sum", "--json", "/nowhere/x.json"], "--json: cannot write /nowhere/x.json"),
        (["chain_sum", "--markdown", ""], "--markdown: expected the name of a file"),
        (["chain_sum", "--json", "/tmp/n.json", "--markdown", "/tmp/n.json"], "would be replaced"),
        (["--task-modules", "my.py", "--json", "my.py"], "would be replaced"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err


def test_a_result_that_cannot_be_written_after_all_is_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def audit(*_: Any) -> audit_main.Result:
        return audit_main.audited([await audited("chain_sum")])

    monkeypatch.setattr(audit_main, "check_file", lambda *_, **__: None)
    monkeypatch.setattr(audit_main, "_audit", audit)
    assert main(["chain_sum", "--json", str(tmp_path / "gone" / "x.json")]) == 2
    printed = capsys.readouterr()
    assert "chain_sum" in printed.out
    assert "Cannot write" in printed.err
