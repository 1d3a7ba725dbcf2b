"""Every held-out question is asked as often as set; what we could not score is counted, not wrong."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from typing import Any

import pytest

from reasoning_gym_environment.errors import InferenceError
from reasoning_gym_environment.evaluation import runner as evaluation
from reasoning_gym_environment.evaluation.results import summarise
from reasoning_gym_environment.evaluation.runner import EvalResult, Evaluator, Reply, sample_record
from reasoning_gym_environment.inference.client import Spending
from reasoning_gym_environment.inference.prompts import Prompt, Sampling, as_dicts
from reasoning_gym_environment.records import Completion, Outcome, Problem, Score


class FakeInference:
    """Replies `<answer>5</answer>`; fails for questions in `failing`; remembers what it was asked."""

    def __init__(self, failing: tuple[str, ...] = ()) -> None:
        self.failing = failing
        self.samplings: list[Sampling] = []
        self.spending = Spending()
        self.running = self.most_running = 0

    def render(self, messages: Any) -> Prompt:
        return Prompt(as_dicts(messages), "", list(range(len(messages[1][1][1]))))

    async def complete(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        self.samplings.append(sampling)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if prompt.messages[1]["content"] in self.failing:
            raise InferenceError("no route")
        return [Completion("<answer>5</answer>", [1, 2], [-100, 2], None, "stop")]


class FakeScorer:
    def __init__(self, *scores: Score) -> None:
        self.scores = list(scores) or [Score(1.0, Outcome.CORRECT, "5")]
        self.opened: list[bool] = []

    async def score(self, problem: Problem, completions: Any, *, thinking_opened: bool) -> list[Score]:
        self.opened.append(thinking_opened)
        return [self.scores[problem.index % len(self.scores)] for _ in completions]


def evaluator(inference: Any = None, scorer: Any = None, **options: Any) -> Evaluator:
    settings = {"budget": lambda tokens: 100, "concurrency": 2, "thinking_opened": False, **options}
    return Evaluator(inference or FakeInference(), scorer or FakeScorer(), **settings)


def problems(make_problem: Any, *questions: str) -> list[Problem]:
    return [
        make_problem(index=i, entry={"question": question, "answer": "5", "metadata": {}})
        for i, question in enumerate(questions)
    ]


async def test_each_problem_is_asked_once_as_evaluation_asks(make_problem: Any) -> None:
    inference, scorer = FakeInference(), FakeScorer()
    items = problems(make_problem, "a", "bb", "ccc")
    judge = evaluator(inference, scorer, budget=lambda tokens: 1000 + tokens, thinking_opened=True)
    results = await judge.run(items)
    assert [result.problem for result in results] == items
    assert {(s.n, s.temperature, s.top_p, s.split) for s in inference.samplings} == {(1, 0.1, None, "eval")}
    assert sorted(s.max_tokens for s in inference.samplings) == [1001, 1002, 1003]
    assert scorer.opened == [True] * 3


async def test_each_question_is_asked_as_often_as_set_no_more_at_once_than_allowed(make_problem: Any) -> None:
    for concurrency, most in ((1, 1), (3, 3), (0, 1)):
        inference = FakeInference()
        judge = evaluator(inference, completions=3, temperature=0.6, concurrency=concurrency)
        results = await judge.run(problems(make_problem, "a", "b"))
        asked = [(result.problem.question, result.attempt) for result in results]
        assert asked == [(question, attempt) for question in "ab" for attempt in range(3)]
        assert {(s.n, s.temperature) for s in inference.samplings} == {(1, 0.6)}
        assert inference.most_running == most


async def test_what_is_under_way_is_reserved_for(make_problem: Any) -> None:
    inference = FakeInference()
    inference.spending = Spending(limit_tokens=1)
    asked, left_out = await evaluator(inference).run(problems(make_problem, "a", "b"))
    assert asked.score is not None and left_out.unscored_reason == evaluation.NO_TOKENS_LEFT


async def test_a_prompt_without_room_is_unscored_and_not_sent(make_problem: Any) -> None:
    inference = FakeInference()
    judge = evaluator(inference, budget=lambda tokens: None if tokens > 1 else 50)
    results = await judge.run(problems(make_problem, "a", "bb"))
    assert [result.unscored_reason for result in results] == ["", "prompt_too_long"]
    assert len(inference.samplings) == 1


class Busy(FakeScorer):
    """Gives its scores one after the other, whatever it is asked, and the last one from then on."""

    async def score(self, problem: Problem, completions: Any, *, thinking_opened: bool) -> list[Score]:
        self.opened.append(thinking_opened)
        return [self.scores[min(len(self.opened), len(self.scores)) - 1]]


async def test_a_grading_without_a_verdict_is_tried_once_more(make_problem: Any) -> None:
    right = Score(1.0, Outcome.CORRECT, "5")
    for outcome in (Outcome.TIMEOUT, Outcome.MEMORY, Outcome.CRASHED):
        scorer = Busy(Score(0.0, outcome), right)
        result = await evaluator(scorer=scorer, thinking_opened=True).evaluate_one(make_problem())
        assert (result.score, result.unscored_reason, scorer.opened) == (right, "", [True, True])
        record = sample_record(await evaluator(scorer=Busy(Score(0.0, outcome))).evaluate_one(make_problem()))
        told = (record["score"], record["outcome"], record["unscored_reason"])
        # An answer that no verifier can finish is wrong; a grading that broke down says nothing.
        assert told == ((None, "unscored", "crashed") if outcome is Outcome.CRASHED else (0.0, outcome.value, None))
        assert record["messages"][-1]["content"] == "<answer>5</answer>"


async def test_hard_questions_cannot_be_left_out_by_answers_that_hang(make_problem: Any) -> None:
    scorer = FakeScorer(Score(1.0, Outcome.CORRECT), Score(0.0, Outcome.TIMEOUT), Score(0.0, Outcome.MEMORY))
    results = await evaluator(scorer=scorer).run(problems(make_problem, *"abcdef"))
    found = summarise([sample_record(result) for result in results])
    metrics = found.metrics()
    assert (metrics["eval/accuracy"], metrics["eval/unscored"]) == (pytest.approx(1 / 3), 0.0)
    assert found.outcomes == {"correct": 2, "timeout": 2, "memory": 2}
    assert (metrics["eval/outcome/timeout"], metrics["eval/outcome/wrong"]) == (2.0, 0.0)


class Flaky(FakeInference):
    """Fails each question's first `failures` requests."""

    def __init__(self, failures: dict[str, int]) -> None:
        super().__init__()
        self.failures = failures

    async def complete(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        question = prompt.messages[1]["content"]
        self.failing = (question,) if self.failures.get(question, 0) > 0 else ()
        self.failures[question] = self.failures.get(question, 0) - 1
        return await super().complete(prompt, sampling)


async def test_failed_requests_are_repeated_after_all_others(
    make_problem: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(evaluation, "RETRY_PAUSE_S", 0.0)
    inference = Flaky({"a": 1, "b": 2, "c": 9})
    results = await evaluator(inference, concurrency=1).run(problems(make_problem, *"abcd"))
    assert [result.score is not None for result in results] == [True, True, False, True]
    assert results[2].unscored_reason == "inference failed: no route"
    assert len(inference.samplings) == 4 + 3 + 2
    assert "Asking for 3 of 4 completions again: inference failed: no route." in caplog.messages


async def test_a_server_that_is_not_there_is_not_asked_again(make_problem: Any) -> None:
    inference = FakeInference(failing=("a", "b"))
    results = await evaluator(inference).run(problems(make_problem, "a", "b"))
    assert all(result.score is None for result in results)
    assert len(inference.samplings) == 2


def test_a_sample_has_question_reply_and_verdict_or_why_it_has_none(make_problem: Any) -> None:
    result = EvalResult(make_problem(), Reply("reply", "stop", 20), Score(0.5, Outcome.PARTIAL, "4"))
    record = json.loads(json.dumps(sample_record(result)))
    assert [message["role"] for message in record["messages"]] == ["system", "user", "assistant"]
    assert record["messages"][2]["content"] == "reply"
    expected = {"question": "What is 2 + 3?", "gold_answer": "5", "model_parsed": "4", "score": 0.5, "correct": False}
    expected |= {"outcome": "partial", "unscored_reason": None, "finish_reason": "stop"}
    expected |= {"task": "chain_sum", "category": "arithmetic", "seed": 11, "index": 7}
    assert {name: record[name] for name in expected} == expected
    record = sample_record(EvalResult(make_problem(), unscored_reason="prompt_too_long"))
    assert (record["score"], record["outcome"], record["unscored_reason"]) == (None, "unscored", "prompt_too_long")
    assert [message["role"] for message in record["messages"]] == ["system", "user"]


async def test_the_results_do_not_hold_the_tokens_of_all_completions(make_problem: Any) -> None:
    held: weakref.WeakSet[Any] = weakref.WeakSet()

    class Long(FakeInference):
        async def complete(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
            ids = _Held([1, 2, 3])
            held.add(ids)
            return [Completion("<answer>5</answer>", ids, [-100, 2, 3], None, "stop")]

    results = await evaluator(Long()).run(problems(make_problem, *"abcdef"))
    assert [sample_record(result)["num_completion_tokens"] for result in results] == [2] * 6
    gc.collect()
    assert len(held) == 0


class _Held(list[int]):
    """A list of which it can be known whether it is still there."""

    __hash__ = object.__hash__  # type: ignore[assignment]


async def test_after_an_error_nothing_goes_on_asking_the_server(make_problem: Any) -> None:
    class Slow(FakeInference):
        async def complete(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
            await asyncio.sleep(0 if prompt.messages[1]["content"] == "bad" else 60)
            return [Completion("t", [1], [1], None, "stop")]

    class Broken:
        async def score(self, *args: Any, **options: Any) -> list[Score]:
            raise KeyError("bug")

    before = asyncio.all_tasks()
    with pytest.raises(KeyError):
        await evaluator(Slow(), Broken(), concurrency=9).run(problems(make_problem, "good", "bad"))
    assert asyncio.all_tasks() == before
