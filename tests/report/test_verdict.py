"""The verdict: it names a disaster first, with numbers, and says each result once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from reasoning_gym_environment.evaluation.results import summarise
from reasoning_gym_environment.report.curves import series_of
from reasoning_gym_environment.report.load import load
from reasoning_gym_environment.report.page import render
from reasoning_gym_environment.report.verdict import Sentence, verdict
from reasoning_gym_environment.storage.lines import DumpedGroup
from testing.report_samples import Page, write_dump, write_lines, write_results, write_run

Change = Callable[[dict[str, Any]], None]


def sentences(path: Path) -> list[Sentence]:
    sources = load([path])
    evaluations = [(evaluation, summarise(evaluation.samples)) for evaluation in sources.evaluations]
    return verdict(None, evaluations, series_of(evaluations), sources.runs)


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
        rollout.update(score=None, outcome="unscored", unscored_reason="crashed")


DISASTERS = [
    (unreadable, "No answer could be read in all 300 completions", {"outcome": "format_failure"}),
    (cut_off, "The token limit cut off all 300 completions", {"failure": "cut off"}),
    (always_zero, "gives one answer, “0”, to 100 of 100 questions: in all 300 completions, of which", {"answer": "0"}),
]


@pytest.mark.parametrize(("change", "expected", "filters"), DISASTERS)
def test_a_disaster_of_an_evaluation_comes_first(
    change: Change, expected: str, filters: dict[str, str], tmp_path: Path
) -> None:
    path = write_results(tmp_path / "model", tasks=20, attacks=False) / "samples.jsonl"
    assert not any(sentence.is_disaster for sentence in sentences(path))
    change_all(path, change)
    first, *others = sentences(path)
    assert expected in first.text and first.is_disaster
    assert first.filters == {"source": "model", **filters}
    assert "of 100 questions right" in others[0].text and not others[0].is_disaster


def test_an_evaluation_that_was_hardly_scored_says_so(tmp_path: Path) -> None:
    path = write_results(tmp_path / "model", tasks=20, attacks=False) / "samples.jsonl"
    change_all(path, without_score)
    first, *_ = sentences(path)
    assert "of 300 completions (" in first.text and "could not be scored: crashed" in first.text


def test_a_run_without_any_readable_answer_says_so_and_not_that_its_reward_has_not_changed(tmp_path: Path) -> None:
    path = write_dump(tmp_path, groups=60)
    change_all(path, unreadable)
    told = [sentence.text for sentence in sentences(path)]
    assert "No answer could be read in all 480 completions" in told[0] and "no answer 480" in told[0]
    assert "has a signal: the rewards of each of its 60 groups are equal" in told[1]
    assert told[2].endswith("the reward of all completions is 0.00, in 60 dumped groups.")
    assert len(told) == 3
    page = render(load([path]), title="t", max_rollouts=9)
    assert 'class="disaster"' in page and "#samples?source=" in page


def test_failed_groups_alone_may_mean_that_nothing_was_sent(tmp_path: Path) -> None:
    path = write_dump(tmp_path, groups=60)
    change_all(path, lambda rollout: rollout.update(score=0.0, verifier_score=0.0, outcome="wrong"))
    failed = path.rename(tmp_path / "reasoning_gym_environment_FAILED_rollouts_run_0000.jsonl")
    assert "nothing was sent to the trainer, or dump_rollouts is off" in sentences(failed)[0].text


def test_few_samples_are_no_disaster(tmp_path: Path) -> None:
    path = write_results(tmp_path / "model", tasks=1, attacks=False) / "samples.jsonl"
    change_all(path, unreadable)
    assert not any(sentence.is_disaster for sentence in sentences(path))


def test_the_verdict_of_a_run_compares_its_ends_where_they_are_long_enough(tmp_path: Path) -> None:
    [run] = load([write_dump(tmp_path, groups=400)]).runs

    def told(groups: list[DumpedGroup]) -> str:
        [sentence] = verdict(None, [], [], [replace(run, groups=groups)])
        return sentence.text

    fell = told(run.groups)
    assert "the reward fell from 0." in fell and "last quarter of 400 dumped groups" in fell
    assert "the mean level from 0." in fell
    assert "the reward rose from" in told(run.groups[::-1])
    assert "no change is shown of the reward" in told([*run.groups[:40], *run.groups[:40]] * 2)
    assert told(run.groups[:39]).endswith("For a change over the run they are too few.")


def test_the_evaluations_of_a_run_are_one_curve_and_one_sentence(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    told = [sentence.text for sentence in sentences(run)]
    assert (
        told[0].startswith("Held-out accuracy rose from ") and "at step 0 to " in told[0] and "at step 150" in told[0]
    )
    assert len(told) == 2 and "the reward rose" in told[1]
    page = Page(render(load([run]), title="t", max_rollouts=9999))
    [series] = page.curves["series"]
    assert series["all"]["step"] == [0, 37, 75, 112, 150]
    accuracy = series["all"]["accuracy"]
    for low, value, high in zip(accuracy["low"], accuracy["value"], accuracy["high"], strict=True):
        assert low < value < high
    [curves] = page.curves["runs"]
    assert len(curves["tasks"]) == len(series["tasks"]) == 12
    assert set(curves["all"]) >= {"item", "step", "time", "reward", "exact", "signal", "no_answer", "tokens", "level"}
    assert page.block("index")["steps"] == [0, 37, 75, 112, 150]
