"""The comparison with the original: each predicate explains its own difference and nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.original.compare import ScoredGroup, check_rules, compare_failed_dump, compare_rollouts, report
from benchmarks.original.differences import (
    DIFFERENCES,
    Observation,
    explain,
    names_without_row,
    outside_thinking,
)
from benchmarks.original.groups import PLANS, Answers, Attempt, Group
from benchmarks.original.rules import differs_only_where_masked, is_sent, length_penalty

PAGE = Path(__file__).resolve().parents[2] / "docs" / "differences_from_the_original.md"
RIGHT = "<think>Hm.</think><answer>5</answer>"
ZERO_ADVANTAGE = {"set_advantage_to_zero": True}


def score_seen(text: str, original: float, ours: float, **facts: Any) -> Observation:
    values = {
        "task": "chain_sum",
        "text": text,
        "grading": "native",
        "native": ours,
        "outcome": "wrong",
        "failure": None,
        **facts,
    }
    return Observation("score", "group 0", original, ours, values)


# --- scores


@pytest.mark.parametrize(
    ("text", "original", "ours", "failure", "name"),
    [
        ("<think><answer>5</answer></think>Done.", 1.0, 0.0, "no_answer", "answer_in_thinking_only"),
        ("<think><answer>5</answer>", 1.0, 0.0, "unfinished_thinking", "answer_in_thinking_only"),
        ("<answer>4</answer></think><answer>5</answer>", 0.0, 1.0, None, "thinking_without_opening_tag"),
        ("<ANSWER>5</ANSWER>", 0.0, 1.0, None, "upper_case_tags"),
        ("<answer >5</answer>", 0.0, 1.0, None, "spaces_in_tags"),
        ("<answer> </answer>", 0.01, 0.0, "empty_answer", "empty_answer_scores_zero"),
        ("<answer></answer><answer>5</answer>", 0.0, 1.0, None, "empty_pair_is_ignored"),
        ("In <answer> tags: <answer>5</answer>", 0.1, 1.0, None, "mention_of_the_tag_before_the_answer"),
        ("<answer>5</answer> and <answer>6", 1.0, 0.0, "multiple_answers", "second_answer_never_closed"),
    ],
)
def test_each_kind_of_text_has_its_difference(
    text: str, original: float, ours: float, failure: str | None, name: str
) -> None:
    assert explain(score_seen(text, original, ours, failure=failure)) == name
    # The same text explains neither the opposite nor another failure.
    assert explain(score_seen(text, ours, original, failure=failure)) is None
    if failure is not None:
        assert explain(score_seen(text, original, ours, failure="verifier_error")) is None


@pytest.mark.parametrize(
    ("text", "original", "ours", "failure"),
    [
        (RIGHT, 1.0, 0.0, None),
        (RIGHT, 1.0, 0.0, "no_answer"),
        (RIGHT, 0.0, 1.0, None),
        (RIGHT, 1.0, 0.5, None),
        ("<think><answer>4</answer></think><answer>5</answer>", 1.0, 0.0, "no_answer"),
        ("<answer>5</answer></answer>", 1.0, 0.0, "multiple_answers"),
        ("<answer>5</answer> I used <think>.", 1.0, 0.0, "unfinished_thinking"),
        ("<answer>5</answer><answer>5</answer>", 0.0, 1.0, None),
    ],
)
def test_other_score_differences_are_unlisted(text: str, original: float, ours: float, failure: str | None) -> None:
    assert explain(score_seen(text, original, ours, failure=failure)) is None


def test_strict_verification_explains_only_answers_that_reasoning_gym_pays_like_the_original() -> None:
    strict = {"grading": "strict"}
    assert explain(score_seen(RIGHT, 0.2, 1.0, native=0.2, **strict)) == "strict_verification_accepts"
    assert explain(score_seen(RIGHT, 1.0, 0.0, native=1.0, **strict)) == "strict_verification_refuses"
    assert explain(score_seen(RIGHT, 0.2, 1.0, native=0.3, **strict)) is None
    assert explain(score_seen(RIGHT, 1.0, 0.0, native=0.0, **strict)) is None
    assert explain(score_seen(RIGHT, 0.6, 0.0, native=0.6, **strict)) is None
    assert explain(score_seen(RIGHT, 0.2, 1.0, native=0.2)) is None


def test_a_guard_explains_only_text_literals_of_verifiers_that_evaluate_the_answer() -> None:
    quoted = '<answer>"x**2 + C"</answer>'
    name = "guards_refuse_text_literals"
    assert explain(score_seen(quoted, 1.0, 0.0, task="simple_integration")) == name
    assert explain(score_seen(quoted, 1.0, 0.0, task="chain_sum")) is None
    assert explain(score_seen(quoted, 0.0, 1.0, task="simple_integration")) is None
    assert explain(score_seen("<answer>x**2 + C</answer>", 1.0, 0.0, task="simple_integration")) is None


def test_an_answer_that_was_not_graded_is_unscored() -> None:
    assert explain(score_seen(RIGHT, 1.0, 0.0, outcome="timeout")) == "unscored_answers"
    assert explain(score_seen(RIGHT, 1.0, 0.0, outcome="verifier_error")) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a<think>b</think>c", "ac"),
        ("a<think>b", "a"),
        ("b</think>c", "c"),
        ("<THINK>a</THINK>b<think>c</think>d", "bd"),
        ("plain", "plain"),
    ],
)
def test_thinking_is_cut_out(text: str, expected: str) -> None:
    assert outside_thinking(text) == expected


# --- groups and dumps


def make_group(attempts: list[Attempt]) -> Group:
    entry = {"question": "?", "answer": "5", "metadata": {}}
    return Group(0, "mixed", "chain_sum", None, 1, {}, entry, attempts)


def seen_group(bases: list[float], scores: list[float] | None, **more: Any) -> dict[str, Any]:
    """A group as observe.py writes it."""
    result = None
    if scores is not None:
        same = {"same tokens": True, "same mask": True, "same logprobs": True}
        rollouts = {str(number): {"score": score, "override": {}, **same} for number, score in enumerate(scores)}
        result = {"keys": ["scores"], "rollouts": rollouts}
    described = [{"base": base, "is_scored": True, "native": base} for base in bases]
    return {
        "rollouts": described,
        "order": list(range(len(bases))),
        "result": result,
        "percent_correct": sorted(1.0 if base >= 0.5 else 0.0 for base in bases),
        **more,
    }


def test_a_group_that_follows_the_rules_is_not_reported() -> None:
    group = make_group([Attempt("right", RIGHT, 100), Attempt("wrong", "", 1900)])
    seen = seen_group([1.0, 0.0], [1.0, 0.0])
    assert list(check_rules(ScoredGroup(group, seen), "ours", group)) == []
    assert list(compare_rollouts(ScoredGroup(group, seen), ScoredGroup(group, seen), "native")) == []


def test_a_group_that_breaks_a_rule_is_reported() -> None:
    group = make_group([Attempt("right", RIGHT, 100), Attempt("right", RIGHT, 1772)])
    # The second completion has 1,792 tokens with its prompt, half of the way from 1,536 to 2,048.
    penalised = seen_group([1.0, 1.0], [1.0, 0.5])
    assert list(check_rules(ScoredGroup(group, penalised), "ours", group)) == []
    for wrong in (seen_group([1.0, 1.0], [1.0, 0.6]), seen_group([1.0, 1.0], None)):
        observations = list(check_rules(ScoredGroup(group, wrong), "ours", group))
        assert [explain(seen) for seen in observations] == [None]
    miscounted = seen_group([1.0, 1.0], [1.0, 0.5], percent_correct=[0.0, 1.0])
    subjects = [seen.subject for seen in check_rules(ScoredGroup(group, miscounted), "original", group)]
    assert subjects == ["percent_correct"]


def test_a_base_score_that_differs_is_reported() -> None:
    group = make_group([Attempt("right", RIGHT, 100), Attempt("wrong", "", 100)])
    there = ScoredGroup(group, seen_group([1.0, 0.0], [1.0, 0.0]))
    here = ScoredGroup(group, seen_group([0.5, 0.0], [0.5, 0.0]))
    observations = list(compare_rollouts(there, here, "native"))
    assert [(seen.subject, seen.original, seen.ours) for seen in observations] == [("score", 1.0, 0.5)]


def test_short_and_further_completions_stay_only_where_they_are_short_or_further() -> None:
    facts = {"completion_tokens": 9, "rollouts": 8, "group_size": 8, "override": ZERO_ADVANTAGE}
    assert explain(Observation("membership", "", "left out", "kept", facts)) == "short_completions_stay"
    assert explain(Observation("membership", "", "left out", "kept", {**facts, "override": {}})) is None
    long = {**facts, "completion_tokens": 10, "override": {}}
    assert explain(Observation("membership", "", "left out", "kept", long)) is None
    assert explain(Observation("membership", "", "left out", "kept", {**long, "rollouts": 9})) == "extra_rollouts_stay"


def test_a_group_is_withheld_only_if_all_its_differences_are_masked() -> None:
    def withheld(scores: list[float], masked: list[bool]) -> str | None:
        return explain(Observation("group", "", "sent", "not sent", {"scores": scores, "masked": masked}))

    assert withheld([1.0, 0.0], [True, True]) == "masked_differences_are_not_sent"
    assert withheld([0.5, 1.0, 0.0], [False, True, True]) == "masked_differences_are_not_sent"
    assert withheld([1.0, 0.0], [False, True]) is None
    assert withheld([1.0, 0.0], [False, False]) is None


def test_dumps_of_groups_that_are_right_and_too_long() -> None:
    group = make_group([Attempt("right", RIGHT, 2028), Attempt("right", RIGHT, 2100)])
    side = ScoredGroup(group, seen_group([1.0, 1.0], None))
    line = {"item_id": "chain_sum", "rollouts": []}
    (seen,) = compare_failed_dump(side, side, {0: line}, {})
    assert explain(seen) == "right_but_too_long_is_no_failure"
    (seen,) = compare_failed_dump(side, side, {}, {0: line})
    assert explain(seen) is None


# --- the list, the rules, the plans


def test_every_row_that_the_list_refers_to_is_on_the_page() -> None:
    without_row = names_without_row(PAGE.read_text(encoding="utf-8"))
    assert [found.name for found in DIFFERENCES if found.page and found.name in without_row] == []


def test_a_difference_of_another_subject_is_not_explained() -> None:
    for difference in DIFFERENCES:
        assert explain(Observation("another subject", difference.name, 1, 0)) is None


def test_the_report_counts_listed_differences_and_keeps_the_others() -> None:
    other = score_seen(RIGHT, 1.0, 0.0)
    listed = score_seen("<ANSWER>5</ANSWER>", 0.0, 1.0)
    result = report([make_group([])], {"scores": [listed, other, listed]})
    assert result["listed"]["upper_case_tags"] == {"scores": 2}
    assert [seen["original"] for seen in result["unlisted"]] == [1.0]


def test_the_penalty_starts_at_three_quarters_and_needs_a_group_that_is_right() -> None:
    assert length_penalty([1.0, 0.5, 1.0], [75, 100, 80], 100) == pytest.approx([1.0, 0.0, 0.8])
    assert length_penalty([1.0, 0.4], [100, 100], 100) == [1.0, 0.4]
    assert is_sent([1.0, 0.5]) and not is_sent([0.5, 0.5])
    assert differs_only_where_masked([1.0, 0.0, 0.5], [True, True, False])


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_is_reproducible(plan: str) -> None:
    answers = Answers("5", "no idea", "6")
    attempts = PLANS[plan](answers, random.Random(1))
    assert attempts and attempts == PLANS[plan](answers, random.Random(1))
