"""The verdict: the alarms come first, with numbers, and each result comes once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from reasoning_gym_environment.html_report.curves import curves_of, series_of, task_rows
from reasoning_gym_environment.html_report.load import Sources, load
from reasoning_gym_environment.html_report.page import render
from reasoning_gym_environment.html_report.verdict import Sentence, verdict
from testing.report_samples import Page, group_line, write_dump, write_lines, write_results, write_run

Change = Callable[[dict[str, Any]], None]


def sentences(path: Path) -> list[Sentence]:
    return sentences_of(load([path]))


def sentences_of(sources: Sources) -> list[Sentence]:
    series, alone = series_of(sources.evaluations)
    return verdict(None, alone, series, sources.runs)


@pytest.fixture(scope="module")
def of_run(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """A whole run, with its evaluations."""
    return load([write_run(tmp_path_factory.mktemp("of") / "run")])


def change_all(path: Path, change: Change) -> None:
    """Change all samples and rollouts of a file."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        for rollout in line.get("rollouts", [line]):
            change(rollout)
    write_lines(path, lines)


def unreadable(rollout: dict[str, Any]) -> None:
    rollout.update(score=0.0, verifier_score=0.0, outcome="format_failure", format_failure="no_answer")
    rollout.update(answer=None, model_parsed=None, finish_reason="stop")


def cut_off(rollout: dict[str, Any]) -> None:
    rollout["finish_reason"] = "length"


def always_zero(rollout: dict[str, Any]) -> None:
    is_right = Random(str(rollout)).random() < 0.1
    rollout.update(score=float(is_right), verifier_score=float(is_right), outcome="correct" if is_right else "wrong")
    rollout.update(answer="0", model_parsed="0", format_failure=None, finish_reason="stop")


def without_score(rollout: dict[str, Any]) -> None:
    if Random(str(rollout)).random() < 0.8:
        rollout.update(score=None, outcome="crashed", unscored_reason="crashed")


ALARMS = [
    (unreadable, "“model”: 100% of 300 completions have no readable answer.", {"outcome": "format_failure"}),
    (cut_off, "“model”: 100% of 300 completions were cut off at their limit of tokens.", {"failure": "cut off"}),
    (always_zero, "“model”: 100% of the answers, to 100 different questions of 20 tasks, are '0', and ", {}),
]


@pytest.mark.parametrize(("change", "expected", "filters"), ALARMS)
def test_an_alarm_of_an_evaluation_comes_first(
    change: Change, expected: str, filters: dict[str, str], tmp_path: Path
) -> None:
    path = write_results(tmp_path / "model", tasks=20, attacks=False) / "samples.jsonl"
    assert not any(sentence.is_alarm for sentence in sentences(path))
    change_all(path, change)
    first, *others = sentences(path)
    assert first.text.startswith(expected) and first.is_alarm
    assert first.filters == ({"source": "model", **filters} if filters else {})
    assert "of 100 questions right" in others[0].text and not others[0].is_alarm


def test_an_evaluation_that_was_hardly_scored_says_so(tmp_path: Path) -> None:
    path = write_results(tmp_path / "model", tasks=20, attacks=False) / "samples.jsonl"
    change_all(path, without_score)
    [sentence] = sentences(path)
    assert re.search(r"; 2\d\d completions could not be scored\.$", sentence.text)


def test_a_run_of_which_nothing_could_be_scored_has_a_page_that_says_so(tmp_path: Path) -> None:
    path = write_dump(tmp_path, groups=3)
    change_all(path, lambda rollout: rollout.update(verifier_score=None, outcome="timeout"))
    assert sentences(path)[-1].text.endswith("24 completions; 24 completions could not be scored.")
    assert "could not be scored" in render(load([path]), title="t", max_rollouts=9)


def test_a_run_without_any_readable_answer_has_the_alarms_and_one_result(tmp_path: Path) -> None:
    path = write_dump(tmp_path, groups=60)
    change_all(path, unreadable)
    told = [sentence.text for sentence in sentences(path)]
    assert "100% of 480 completions have no readable answer" in told[0]
    assert "60 of 60 groups are without credit: none of their completions earns anything" in told[1]
    assert "60 groups of 6 tasks, 480 completions, 0.0% of them right, mean reward 0.00" in told[2]
    assert len(told) == 3
    page = render(load([path]), title="t", max_rollouts=9)
    assert 'class="alarm"' in page and "#samples?source=" in page


def test_stuck_and_failing_tasks_of_a_run_are_named(tmp_path: Path) -> None:
    path = write_dump(tmp_path, groups=240)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if line["item_id"] == "gcd":
            line["level"] = 0
            line["rollouts"] = [{**rollout, "verifier_score": 0.0, "outcome": "wrong"} for rollout in line["rollouts"]]
        if line["item_id"] == "maze":
            line["rollouts"] = [{**rollout, "outcome": "timeout"} for rollout in line["rollouts"]]
    *faults, result = sentences(write_lines(path, lines))
    texts = " ".join(fault.text for fault in faults)
    assert "No answer was right in the last 16 groups or more of gcd, at the lowest level." in texts
    assert "of maze failed or could not be scored." in texts
    assert len(faults) == 2 and not result.is_alarm


def test_the_largest_fault_comes_first(tmp_path: Path) -> None:
    path = write_dump(tmp_path, groups=100)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for number, line in enumerate(lines):
        for rollout in line["rollouts"]:
            if number < 92:
                rollout.update(score=0.0, verifier_score=0.0, outcome="wrong", answer=str(number), format_failure=None)
            rollout["finish_reason"] = "length" if number % 5 < 3 else "stop"
        line["rollouts"][0]["score"] = float(number >= 92)
    first, second, *_ = sentences(write_lines(path, lines))
    name = f"“{tmp_path.name} run”"
    assert first.text.startswith(f"{name}: 92 of 100 groups are without credit: none of their completions earns")
    assert second.text.startswith(f"{name}: 60% of 800 completions were cut off")


def test_few_samples_are_no_alarm(tmp_path: Path) -> None:
    path = write_results(tmp_path / "model", tasks=1, attacks=False) / "samples.jsonl"
    change_all(path, unreadable)
    assert not any(sentence.is_alarm for sentence in sentences(path))


def test_the_evaluations_of_a_run_are_one_curve_and_one_sentence(of_run: Sources) -> None:
    stuck, rose, result = [sentence.text for sentence in sentences_of(of_run)]
    assert "No answer was right in the last 16 groups or more of ab, at the lowest level." in stuck
    assert rose.startswith("Held-out accuracy rose from ")
    assert "at step 0 to " in rose and "at step 150" in rose
    assert "600 groups of 12 tasks, 4,800 completions, " in result
    page = Page(render(of_run, title="t", max_rollouts=9999))
    held_out = next(curve for curve in page.curves["curves"] if curve["isHeldOut"])
    trained = next(curve for curve in page.curves["curves"] if not curve["isHeldOut"])
    assert [point["place"] for point in held_out["all"]] == [0, 37, 75, 112, 150]
    for point in held_out["all"]:
        value, low, high = point["accuracy"]
        assert low < value < high
    assert len(trained["tasks"]) == len(held_out["tasks"]) == 12
    assert set(trained["all"][0]) >= {"reward", "accuracy", "exact", "has_signal", "format_failures", "level"}
    places = [point["place"] for point in trained["all"]]
    assert trained["axis"] == "step of the trainer" and places == sorted(places)


def test_the_table_of_tasks_has_each_task_once_and_begins_with_what_changed_most(
    of_run: Sources, tmp_path: Path
) -> None:
    series, _ = series_of(of_run.evaluations)
    rows = task_rows(curves_of(of_run.runs, series))
    moved = [row.moved for row in rows]
    assert moved == sorted(moved, reverse=True) and moved[0] > 0.2
    assert len({row.name for row in rows}) == len(rows) == 12
    assert {(row.source, row.groups) for row in rows} == {("held-out", 50)}
    trained = task_rows(curves_of(of_run.runs, []))
    assert {row.source for row in trained} == {"training"}
    [stuck] = [row for row in trained if row.without_credit == row.groups]
    assert (stuck.name, stuck.change) == ("ab", 0.0)
    several = task_rows(curves_of([*of_run.runs, *load([write_dump(tmp_path / "other", groups=20)]).runs], []))
    assert {row.source for row in several} == {"run run", "other run"}
    assert several[-1].change is None, "too few groups for a curve"


def test_the_change_of_a_task_compares_its_groups_at_the_same_level(tmp_path: Path) -> None:
    """The levels of a run rise, at which the rate of right answers falls. At each level the model gets better."""
    random = Random(1)
    lines = []
    for index in range(40):
        level = 0 if index < 10 else 1 if index < 30 else 2
        right = {0: 8, 1: 4 if index < 20 else 6, 2: 2}[level]
        lines.append(group_line("gcd", index, level, [1.0] * right + [0.0] * (8 - right), random))
    [row] = task_rows(curves_of(load([write_lines(tmp_path / "dump.jsonl", lines)]).runs, []))
    assert row.rates[0] > row.rates[-1]
    assert row.change == pytest.approx(0.25)
    assert (row.levels[0], row.levels[-1], row.level_change) == (0.0, 2.0, 2.0)
    # Without a common level there is no change to show.
    for line in lines[20:]:
        line["level"] += 5
    [row] = task_rows(curves_of(load([write_lines(tmp_path / "dump.jsonl", lines)]).runs, []))
    assert row.change is None and (row.levels[0], row.levels[-1]) == (0.0, 7.0)
