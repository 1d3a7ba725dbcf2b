"""From completions to scores: what reaches the verifier, and what its verdicts are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reasoning_gym_environment.records import Outcome, Verdict
from reasoning_gym_environment.scoring.scorer import Scorer


class FakeGrader:
    """Gives each answer the verdict named in `verdicts`, and remembers what it was asked."""

    def __init__(self, verdicts: Mapping[str, Verdict]) -> None:
        self.verdicts = verdicts
        self.calls: list[tuple[str, Mapping[str, Any], dict[str, Any], list[str]]] = []

    async def grade(
        self, task: str, config: Mapping[str, Any], entry: dict[str, Any], answers: Sequence[str]
    ) -> list[Verdict]:
        self.calls.append((task, config, entry, list(answers)))
        return [self.verdicts[answer] for answer in answers]


async def test_answers_are_graded_in_one_batch_and_scores_keep_their_order(
    make_problem: Any, make_completion: Any
) -> None:
    grader = FakeGrader({"a": Verdict(1.0), "b": Verdict(0.0)})
    problem = make_problem(config={"x": 1})
    texts = ["<answer>b</answer>", "none", "<answer>a</answer>", "<answer></answer>", "<answer>b</answer>"]
    scores = await Scorer(grader).score(problem, [make_completion(text) for text in texts])
    assert grader.calls == [("chain_sum", {"x": 1}, problem.entry, ["b", "a", "b"])]
    assert [(s.answer, s.value) for s in scores] == [("b", 0.0), (None, 0.0), ("a", 1.0), (None, 0.0), ("b", 0.0)]
    assert [s.outcome for s in scores if s.outcome.is_unreadable] == [Outcome.NO_ANSWER, Outcome.EMPTY_ANSWER]


async def test_an_empty_answer_is_graded_if_the_item_has_an_empty_answer(
    make_problem: Any, make_completion: Any
) -> None:
    problem = make_problem(entry={"question": "?", "answer": "", "metadata": {}})
    texts = ["<answer> </answer>", "none", "<answer>b</answer>"]
    grader = FakeGrader({"": Verdict(1.0), "b": Verdict(0.0)})
    scores = await Scorer(grader).score(problem, [make_completion(text) for text in texts])
    assert [(score.answer, score.outcome) for score in scores] == [
        ("", Outcome.CORRECT),
        (None, Outcome.NO_ANSWER),
        ("b", Outcome.WRONG),
    ]


async def test_each_verdict_has_its_outcome(make_problem: Any, make_completion: Any) -> None:
    for verdict, outcome in (
        (Verdict(1.0), Outcome.CORRECT),
        (Verdict(0.999), Outcome.PARTIAL),
        (Verdict(0.01), Outcome.PARTIAL),
        (Verdict(0.0), Outcome.WRONG),
        (Verdict(0.0, Outcome.VERIFIER_ERROR), Outcome.VERIFIER_ERROR),
        (Verdict(0.0, Outcome.TIMEOUT), Outcome.TIMEOUT),
        (Verdict(0.0, Outcome.MEMORY), Outcome.MEMORY),
        (Verdict(0.0, Outcome.CRASHED), Outcome.CRASHED),
    ):
        [score] = await Scorer(FakeGrader({"5": verdict})).score(make_problem(), [make_completion()])
        assert (score.outcome, score.value, score.answer) == (outcome, verdict.value, "5")
