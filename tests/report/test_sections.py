"""What the sections of a report say: numbers with intervals, levels, questions told apart."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.report import page as report_page
from reasoning_gym_environment.report.comparison import compare
from reasoning_gym_environment.report.load import load, select
from reasoning_gym_environment.report.page import (
    Bar,
    details,
    dumped_scopes,
    evaluation_section,
    failing_tasks,
    format_failures,
    heatmap,
    render,
    repeated_answers,
    time_chart,
)

from ..report_samples import Page, evaluation, write_dump, write_lines, write_results


def test_heatmap_has_the_accuracy_and_the_exact_rate_of_each_task_and_level() -> None:
    rows = [("a", 0, 1.0), ("a", 0, 0.4), ("a", 2, 0.5), ("b", 2, None), ("b", 0, 0.0), ("c", None, 1.0)]
    found = heatmap({"task": task, "level": level, "score": score} for task, level, score in rows)
    assert found.levels == [0, 2]
    assert found.rows == [("a", [(0.5, 0.5, 2), (1.0, 0.0, 1)]), ("b", [(0.0, 0.0, 1), None])]


def test_every_number_above_an_evaluation_has_its_interval(tmp_path: Path) -> None:
    section = evaluation_section(evaluation(tmp_path))
    notes = {card.label: card.note for card in section.cards}
    shares = ("accuracy", "mean score", "exact", "pass@3", "format failures", "cut off")
    assert all(re.fullmatch(r"[\d.]+% to [\d.]+%", notes[label]) for label in shares)
    assert re.fullmatch(r"\d+ to \d+", notes["tokens"])
    one = load([write_results(tmp_path / "one", tasks=1, per_task=1, attacks=False)]).evaluations[0]
    [card] = [card for card in evaluation_section(one).cards if card.label == "tokens"]
    assert int(card.value) > 0 and card.note == "", "the lengths of one question show none"


def test_answers_that_no_verifier_could_finish_are_named(tmp_path: Path) -> None:
    sources = load([write_results(tmp_path, tasks=2)])
    for sample in sources.evaluations[0].samples[:3]:
        sample.update(score=0.0, outcome="timeout")
    text = Page(render(sources, title="t", max_rollouts=9)).words
    assert "Wrong because no verifier could finish the answer: timeout (3)." in text


def test_questions_without_an_index_are_told_apart_in_files_of_process_and_dumps(tmp_path: Path) -> None:
    path = write_dump(tmp_path, groups=12)
    groups = [json.loads(line) for line in path.read_text().splitlines()]
    write_lines(path, [{"item_id": "gcd", "rollouts": group["rollouts"]} for group in groups])
    assert dumped_scopes(load([path]))[0].questions == 12

    def line(question: str, right: int) -> dict[str, Any]:
        conversation = [{"role": "user", "content": question}, {"role": "assistant", "content": "a"}]
        scores = [float(number < right) for number in range(4)]
        return {"messages": [conversation] * 4, "scores": scores, "masks": [[-100, 5]] * 4}

    sources = load([write_lines(path, [line(f"question {number}", number % 5) for number in range(10)])])
    [found] = dumped_scopes(sources)
    assert (found.questions, found.completions, list(found.pass_at)) == (10, 40, [1, 2, 4])
    assert len({rollout["question_digest"] for _, group in sources.groups for rollout in group.rollouts}) == 10
    assert [one["item"] for one in json.loads(select(sources, 99).payload)][::4] == list(range(10))


def test_completions_of_unknown_format_do_not_dilute_the_failures() -> None:
    rollouts = [{"task": "t", "outcome": outcome} for outcome in ("format_failure", "correct", "unknown", None)]
    assert format_failures(rollouts) == [("unnamed", 1, 0.5)]
    assert failing_tasks(rollouts) == [("t", 0.5, 2)]


def dumped_group(*outcomes: str, index: int = 1, **fields: Any) -> dict[str, Any]:
    """A line of a dump; what has no score has 0 and is masked there."""
    conversation = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    rollouts = [
        {
            **{"conversation": conversation, "outcome": outcome, "num_completion_tokens": 20},
            **{"score": 1.0, "raw_score": float(outcome == "correct")},
            "mask_reason": None if outcome in ("correct", "wrong") else f"unscored_{outcome}",
            **fields,
        }
        for outcome in outcomes
    ]
    return {"item_id": "gcd", "category": "arithmetic", "index": index, "level": 0, "rollouts": rollouts}


def test_what_training_could_not_score_is_not_wrong_in_the_report(tmp_path: Path) -> None:
    lines = [dumped_group("correct", "wrong", "timeout", "memory", "crashed"), dumped_group("timeout", index=2)]
    write_lines(tmp_path / "dump.jsonl", lines)
    sources = load([tmp_path])
    rollouts = [rollout for _, group in sources.groups for rollout in group.rollouts]
    [found] = dumped_scopes(sources)
    assert found.accuracy is not None
    assert (found.accuracy.value, found.completions, found.unscored) == (0.5, 2, 4)
    assert heatmap(rollouts).rows == [("gcd", [(0.5, 0.5, 2)])]
    shown = Page(render(sources, title="t", max_rollouts=9)).rollouts
    assert [one["score"] for one in shown] == [1.0, 0.0, None, None, None, None]
    assert [one["detail"] for one in shown] == ["", "", "timeout", "memory", "crashed", "timeout"]


def test_a_dumped_rollout_that_was_masked_brings_no_signal(tmp_path: Path) -> None:
    group = dumped_group("correct", "timeout")
    group["rollouts"][1]["score"] = 0.0
    masked = {**group, "rollouts": [{**one, "mask_reason": "too_long"} for one in group["rollouts"]]}
    write_lines(tmp_path / "dump.jsonl", [group, masked])
    assert [found.has_signal for _, found in load([tmp_path]).groups] == [True, False]


def test_levels_of_evaluations_and_of_dumps_are_shown_apart(tmp_path: Path) -> None:
    results = write_results(tmp_path / "results", tasks=1, attacks=False)
    write_lines(tmp_path / "dump.jsonl", [dumped_group("wrong", "wrong")])
    sources = load([results, tmp_path / "dump.jsonl"])
    for sample in sources.evaluations[0].samples:
        sample.update(task="gcd", level=0, score=1.0)
    evaluated, dumped = details(sources)
    assert evaluated.heatmap.rows == [("gcd", [(1.0, 1.0, 15)])]
    assert dumped.heatmap.rows == [("gcd", [(0.0, 0.0, 2)])]
    text = Page(render(sources, title="t", max_rollouts=9)).words
    levels = text[text.index("Accuracy by task and level") : text.index("Lengths and formats")]
    assert (
        levels.index("Evaluation") < levels.index("Training") < levels.index("their accuracy is not that of the model")
    )
    [alone] = details(load([tmp_path / "dump.jsonl"]))
    assert alone.is_training


def test_a_run_over_time_has_the_item_index_below_and_a_gap_where_nothing_was_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [group for _, group in load([write_dump(tmp_path, groups=60)]).groups]
    assert "mean difficulty" in time_chart(groups) and time_chart(groups[:4]) == "", "one bin is no curve"
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(
        report_page, "lines", lambda x, series, *, x_label: drawn.update(x=x, series=dict(series)) or ""
    )
    outcomes = {0: "correct", 1: "timeout", 2: "wrong"}
    lines = [dumped_group(outcomes[number // 4], index=100 + 10 * number) for number in range(12)]
    write_lines(tmp_path / "dump.jsonl", lines)
    time_chart([group for _, group in load([tmp_path / "dump.jsonl"]).groups])
    assert drawn["x"] == [120.0, 160.0, 200.0]
    for name in ("accuracy", "exact"):
        assert drawn["series"][name] == pytest.approx([1.0, math.nan, 0.0], nan_ok=True)


def test_every_bar_of_an_accuracy_has_a_mark_of_the_exact_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[Bar]] = []
    monkeypatch.setattr(report_page, "bars", lambda rows, **_: drawn.append(rows) or "")
    sources = load([write_results(tmp_path / name, tasks=2, per_task=3, attacks=False) for name in ("before", "after")])
    for number, sample in enumerate(sources.evaluations[1].samples):
        sample["score"] = (1.0, 0.5)[number % 2]
    before, after = sources.evaluations
    text = Page(render(sources, title="t", max_rollouts=9, comparison=compare(before, after))).words
    by_category, by_task, compared = drawn[-3:]
    rows = evaluation_section(after).tasks
    assert all(bar.value == 1.0 and bar.mark is not None and 0.0 < bar.mark < 1.0 for bar in [*by_category, *by_task])
    assert sorted(bar.mark or 0.0 for bar in by_task) == sorted(row.exact.value for row in rows if row.exact)
    assert all(bar.mark is not None and bar.mark < bar.value for bar in compared), "the comparison's, too"
    assert "Accuracy: a score of 0.5 or more. Exact: full credit." in text


def test_the_most_repeated_answers_are_listed_with_what_they_earned_in_old_dumps_too(tmp_path: Path) -> None:
    lines = []
    for index in range(12):
        # Right, paid and wrong, a shape that is paid, and what nothing was paid for.
        replies = [
            ("True" if index % 3 else "False", 1.0),
            ("TrueFalse", 0.5),
            (f"1 x {30 + index}", 0.3),
            (f"{index}", 0),
        ]
        rollouts = [
            {"conversation": [{"role": "user", "content": f"Question {index}?"}, reply_of(answer)], "score": score}
            for answer, score in replies
        ]
        lines.append({"item_id": "course_schedule", "rollouts": rollouts})
        lines.append({"item_id": "gcd", "rollouts": copy.deepcopy(rollouts[3:])})
    old = repeated_answers(load([write_lines(tmp_path / "old.jsonl", lines)]))
    assert [(row.task, row.shape, row.answer) for row in old] == [
        ("course_schedule", "1 a 9", "1 x 30"),
        ("course_schedule", "", "TrueFalse"),
        ("course_schedule", "", "True"),
    ]
    assert [(row.uses.questions, row.questions, row.uses.paid, row.uses.right_share) for row in old[1:]] == [
        (12, 12, 0.5, 0.0),
        (8, 12, 1.0, 1.0),
    ]
    assert [row.stands_out for row in old] == [True, True, False]
    for line in lines:
        for rollout in line["rollouts"]:
            rollout["answer"] = read_answer(rollout)
            rollout["outcome"] = "correct" if rollout["score"] == 1.0 else "partial" if rollout["score"] else "wrong"
            rollout["conversation"][1] = reply_of("what stands in the text is not read again")
    sources = load([write_lines(tmp_path / "new.jsonl", lines)])
    assert [row.answer for row in repeated_answers(sources)] == [row.answer for row in old]
    text = Page(render(sources, title="t", max_rollouts=9)).words
    assert "TrueFalse 12 of 12 25% 0.50 0.50 0%" in text and "No answer came back often in 1 of the tasks gcd" in text


def reply_of(answer: str) -> dict[str, str]:
    return {"role": "assistant", "content": f"<think>Hm.</think><answer>{answer}</answer>"}


def read_answer(rollout: dict[str, Any]) -> str:
    return str(rollout["conversation"][1]["content"]).partition("<answer>")[2].partition("</answer>")[0]
