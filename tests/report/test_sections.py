"""What the sections of a report say: numbers with intervals, levels, questions told apart."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.report.comparison import compare
from reasoning_gym_environment.report.load import load, select
from reasoning_gym_environment.report.page import (
    FEW,
    columns,
    details,
    dumped_scopes,
    evaluation_section,
    failing_tasks,
    format_failures,
    heatmap,
    render,
    repeated_answers,
    run_section,
    ticks,
)

from ..report_samples import Page, evaluation, write_dump, write_lines, write_results


def test_heatmap_has_the_accuracy_and_the_exact_rate_of_each_task_and_level() -> None:
    rows = [("a", 0, 1.0), ("a", 0, 0.4), ("a", 2, 0.5), ("b", 2, None), ("b", 0, 0.0), ("c", None, 1.0)]
    found = heatmap({"task": task, "level": level, "score": score} for task, level, score in rows)
    assert found.levels == [0, 2, None], "what has no level has a column, so that no task is missing"
    assert found.rows == [
        ("a", [(0.5, 0.5, 2), (1.0, 0.0, 1), None]),
        ("b", [(0.0, 0.0, 1), None, None]),
        ("c", [None, None, (1.0, 1.0, 1)]),
    ]
    assert heatmap([{"task": "c", "level": None, "score": 1.0}]).rows == []


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
        levels.index("Evaluation")
        < levels.index("Training")
        < levels.index("accuracy is higher than that of the model")
    )
    [alone] = details(load([tmp_path / "dump.jsonl"]))
    assert alone.is_training


def test_a_run_over_its_items_has_all_its_dumps_and_a_gap_where_nothing_was_scored(tmp_path: Path) -> None:
    outcomes = {0: "correct", 1: "timeout", 2: "wrong"}
    lines = [
        {
            **dumped_group(outcomes[number // 4], index=100 + 10 * number, native_score=1.0),
            **{"sampled_at_step": number, "scored_at_step": number + number % 3},
        }
        for number in range(12)
    ]
    lines[0]["item_id"] = "maze"
    for name, part in (("rollouts_r_0000", lines[1::2]), ("FAILED_rollouts_r_0000", lines[::2])):
        write_lines(tmp_path / f"reasoning_gym_environment_{name}.jsonl", part)
    [(run, groups)] = load([tmp_path]).by_run()
    section = run_section(run, groups)
    assert [(one["first"], one["last"], one["groups"]) for one in section.bins] == [
        (100, 130, 4),
        (140, 170, 4),
        (180, 210, 4),
    ]
    for name, values in (
        ("reward", [1.0, 1.0, 1.0]),
        ("accuracy", [1.0, math.nan, 0.0]),
        ("exact", [1.0, math.nan, 0.0]),
        ("refused", [0.0, math.nan, 1.0]),
        ("staleness", [0.75, 1.0, 1.25]),
        ("stalest", [2, 2, 2]),
        ("level", [0.0, 0.0, 0.0]),
    ):
        assert [one[name] for one in section.bins] == pytest.approx(values, nan_ok=True), name
    reward, signal, level, shares, staleness, refused = section.charts
    assert shares.summary == "Share of each task, by item: gcd from 75% to 100%; maze from 25% to 0%."
    assert [path.count("M") for _, path in reward.series] == [1, 2, 2], "a new stroke after the gap"
    assert [one.title.split()[0] for one in (signal, level, staleness, refused)] == [
        *("Groups", "Mean", "Staleness:", "Completions")
    ]
    old = run_section(*load([write_dump(tmp_path / "old", groups=60)]).by_run()[0])
    assert old.untold == ["refusals", "staleness"] and len(old.charts) == 4
    assert run_section(run, groups[:4]).charts == [], "one bin is no curve"


def test_round_numbers_stand_at_an_axis() -> None:
    assert (ticks(0.0, 1.0), ticks(11.0, 2187.0)) == ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [500.0, 1000.0, 1500.0, 2000.0])
    assert ticks(5.0, 5.0) == [5.0]


def test_no_tile_stands_alone_in_its_row() -> None:
    assert [tiles % columns(tiles, most) for tiles in range(6, 20) for most in (4, 6)].count(1) == 0


def test_every_bar_of_an_accuracy_has_a_mark_of_the_exact_rate(tmp_path: Path) -> None:
    sources = load([write_results(tmp_path / one, tasks=2, per_task=FEW, attacks=False) for one in ("before", "after")])
    for number, sample in enumerate(sources.evaluations[1].samples):
        sample["score"] = (1.0, 0.5)[number % 2]
    before, after = sources.evaluations
    comparison = compare(before, after)
    text = Page(render(sources, title="t", max_rollouts=9, comparison=comparison)).words
    section = evaluation_section(after)
    by_category, by_task = section.category_chart.rows, section.task_charts.enough.rows
    assert all(bar.value == 1.0 and bar.mark is not None and 0.0 < bar.mark < 1.0 for bar in [*by_category, *by_task])
    assert sorted(bar.mark or 0.0 for bar in by_task) == sorted(row.exact.value for row in section.tasks if row.exact)
    assert all(comparison.exact[row.name] < row.difference.value for row in comparison.tasks), "the comparison's, too"
    assert "Accuracy: a score of 0.5 or more. Exact: full credit." in text


def test_tasks_of_few_questions_are_folded_with_what_more_would_need(tmp_path: Path) -> None:
    sources = load([write_results(tmp_path, tasks=2, per_task=FEW, attacks=False)])
    [found] = sources.evaluations
    charts = evaluation_section(found).task_charts
    assert (len(charts.enough.rows), len(charts.few.rows)) == (2, 0)
    found.samples[:] = [
        one for one in found.samples if one["task"] == found.samples[0]["task"] or one["index"] < FEW - 1
    ]
    page = Page(render(sources, title="t", max_rollouts=0))
    assert re.search(
        r"1 task of 20 questions or more .* 1 task of fewer than 20 questions Intervals of up to ±\d+ points: "
        r"too wide to rank by. One of ±10 takes about 97 questions of a task \(env.num_eval_samples_per_task 97\)",
        page.words,
    )


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
    assert "TrueFalse 12 of 12 25% 0.50 0.50 0%" in text and "No answer came back often in 1 task gcd" in text


def reply_of(answer: str) -> dict[str, str]:
    return {"role": "assistant", "content": f"<think>Hm.</think><answer>{answer}</answer>"}


def read_answer(rollout: dict[str, Any]) -> str:
    return str(rollout["conversation"][1]["content"]).partition("<answer>")[2].partition("</answer>")[0]
