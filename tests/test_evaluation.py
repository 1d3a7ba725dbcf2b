"""A fixed held-out set, one completion each; what could not be scored is counted, not wrong."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from reasoning_gym_environment.catalog import Catalog, Task
from reasoning_gym_environment.errors import EnvironmentSetupError, GenerationError, InferenceError
from reasoning_gym_environment.evaluation import EvalResult, Evaluator, build_eval_set, sample_record, summarise
from reasoning_gym_environment.inference import Prompt, Sampling
from reasoning_gym_environment.prompts import as_dicts
from reasoning_gym_environment.records import Completion, FormatFailure, Outcome, Problem, Score
from reasoning_gym_environment.sampler import TaskSampler

CATALOG = Catalog((Task("chain_sum", "arithmetic"), Task("gcd", "arithmetic")))


class FakeGenerator:
    async def generate(self, task: str, seed: int, config: Any) -> dict[str, Any]:
        if task == "gcd" and seed % 2:
            raise GenerationError("odd seed")
        return {"question": f"{task} {seed}", "answer": "5", "metadata": {}}


class FakeInference:
    """Replies `<answer>5</answer>`; fails for questions in `failing`; remembers what it was asked."""

    def __init__(self, failing: tuple[str, ...] = ()) -> None:
        self.failing = failing
        self.samplings: list[Sampling] = []
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


async def test_set_has_items_of_every_task_and_is_held_out_from_training() -> None:
    sampler = TaskSampler(Catalog((Task("chain_sum", "arithmetic"),)), FakeGenerator(), seed=42)
    held: list[Problem] = []
    sampler.hold_out = held.append  # type: ignore[method-assign]
    items = await build_eval_set(Catalog(CATALOG.tasks[:1]), sampler, per_task=3, seed=7, show_progress=False)
    assert [(item.task, item.split, item.index) for item in items] == [("chain_sum", "eval", i) for i in range(3)]
    assert held == items


async def test_set_depends_on_the_evaluation_seed_alone() -> None:
    async def build(train_seed: int, instance: str, eval_seed: int) -> list[Problem]:
        sampler = TaskSampler(CATALOG, FakeGenerator(), seed=train_seed, instance=instance)
        return await build_eval_set(CATALOG, sampler, per_task=4, seed=eval_seed, show_progress=False)

    assert await build(1, "0", 7) == await build(2, "5", 7)
    assert await build(1, "0", 7) != await build(1, "0", 8)


async def test_items_that_cannot_be_made_are_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    sampler = TaskSampler(CATALOG, FakeGenerator(), seed=42)
    items = await build_eval_set(CATALOG, sampler, per_task=10, seed=7, show_progress=False)
    left_out = 20 - len(items)
    assert 0 < left_out < 10
    assert len([m for m in caplog.messages if "of gcd is left out of the evaluation set: odd seed" in m]) == left_out


async def test_each_problem_is_asked_once_as_evaluation_asks(make_problem: Any) -> None:
    inference, scorer = FakeInference(), FakeScorer()
    items = problems(make_problem, "a", "bb", "ccc")
    judge = evaluator(inference, scorer, budget=lambda tokens: 1000 + tokens, thinking_opened=True)
    results = await judge.run(items)
    assert [result.problem for result in results] == items
    assert {(s.n, s.temperature, s.top_p, s.split) for s in inference.samplings} == {(1, 0.1, None, "eval")}
    assert sorted(s.max_tokens for s in inference.samplings) == [1001, 1002, 1003]
    assert scorer.opened == [True] * 3


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (3, 3), (0, 1)])
async def test_no_more_requests_run_at_once_than_allowed(make_problem: Any, concurrency: int, most: int) -> None:
    inference = FakeInference()
    await evaluator(inference, concurrency=concurrency).run(problems(make_problem, *"abcdefgh"))
    assert inference.most_running == most


async def test_an_item_without_an_answer_from_the_server_is_unscored(make_problem: Any) -> None:
    results = await evaluator(FakeInference(failing=("b",))).run(problems(make_problem, "a", "b"))
    assert [result.score is None for result in results] == [False, True]
    assert results[1].unscored_reason == "inference failed: no route"
    assert summarise(results)["eval/percent_correct"] == 1.0


async def test_a_prompt_without_room_is_unscored_and_not_sent(make_problem: Any) -> None:
    inference = FakeInference()
    judge = evaluator(inference, budget=lambda tokens: None if tokens > 1 else 50)
    results = await judge.run(problems(make_problem, "a", "bb"))
    assert [result.unscored_reason for result in results] == ["", "prompt_too_long"]
    assert len(inference.samplings) == 1


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.MEMORY, Outcome.CRASHED])
async def test_a_verifier_that_did_not_finish_leaves_the_item_unscored(make_problem: Any, outcome: Outcome) -> None:
    [result] = await evaluator(scorer=FakeScorer(Score(0.0, outcome))).run(problems(make_problem, "a"))
    assert (result.score, result.unscored_reason) == (None, outcome.value)
    assert result.completion is not None


async def test_summary_is_the_mean_score_of_what_was_scored(
    make_problem: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    scorer = FakeScorer(
        Score(1.0, Outcome.CORRECT),
        Score(0.5, Outcome.PARTIAL),
        Score(0.0, Outcome.FORMAT_FAILURE, failure=FormatFailure.NO_ANSWER),
        Score(0.0, Outcome.TIMEOUT),
    )
    results = await evaluator(scorer=scorer).run(problems(make_problem, *"abcd"))
    assert summarise(results) == {
        "eval/percent_correct": 0.5,
        "eval/format_failures": pytest.approx(1 / 3),
        "eval/unscored": 1.0,
    }
    assert caplog.messages == ["1 of 4 evaluation items are unscored: timeout (1)."]


def test_a_set_of_which_nothing_was_scored_is_an_error_with_the_reason(make_problem: Any) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"none of 2 items \(prompt_too_long\)"):
        summarise([EvalResult(make_problem(), unscored_reason="prompt_too_long")] * 2)
    with pytest.raises(EnvironmentSetupError, match="the evaluation set is empty"):
        summarise([])


def test_sample_has_question_reply_and_verdict(make_problem: Any, make_completion: Any) -> None:
    result = EvalResult(make_problem(), make_completion("reply"), Score(0.5, Outcome.PARTIAL, "4"))
    record = json.loads(json.dumps(sample_record(result)))
    assert [message["role"] for message in record["messages"]] == ["system", "user", "assistant"]
    assert record["messages"][2]["content"] == "reply"
    expected = {
        "question": "What is 2 + 3?",
        "gold_answer": "5",
        "model_parsed": "4",
        "score": 0.5,
        "correct": False,
        "outcome": "partial",
        "unscored_reason": None,
        "finish_reason": "stop",
        "task": "chain_sum",
        "category": "arithmetic",
        "seed": 11,
        "index": 7,
    }
    assert {name: record[name] for name in expected} == expected


def test_sample_without_a_score_says_so(make_problem: Any) -> None:
    record = sample_record(EvalResult(make_problem(), unscored_reason="prompt_too_long"))
    assert (record["score"], record["outcome"], record["unscored_reason"]) == (None, "unscored", "prompt_too_long")
    assert [message["role"] for message in record["messages"]] == ["system", "user"]


async def test_one_item_can_be_evaluated_by_itself(make_problem: Any) -> None:
    result = await evaluator(scorer=FakeScorer(Score(1.0, Outcome.CORRECT))).evaluate_one(make_problem())
    assert isinstance(result.score, Score)
    assert result.score.value == 1.0


def test_generation_parameters_are_those_of_evaluation() -> None:
    from reasoning_gym_environment.evaluation import generation_parameters

    assert generation_parameters(1000) == {"temperature": 0.1, "n": 1, "max_new_tokens": 2000}
