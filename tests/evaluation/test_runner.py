"""The evaluator requests every completion once, and reports unscored completions instead of calling them wrong."""

from __future__ import annotations

import asyncio
import errno
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError, InferenceError
from reasoning_gym_environment.evaluation import runner as evaluation
from reasoning_gym_environment.evaluation.questions import EvalSet
from reasoning_gym_environment.evaluation.results import summarise
from reasoning_gym_environment.evaluation.runner import IDENTITY_SETTINGS, AnswerLog, Evaluator
from reasoning_gym_environment.inference.chat_tokenizer import Prompt
from reasoning_gym_environment.inference.prompts import RequestParameters, as_dicts, build_messages
from reasoning_gym_environment.inference.spending import Spending
from reasoning_gym_environment.records import Completion, Outcome, Problem, Score
from reasoning_gym_environment.storage import disk_queue
from reasoning_gym_environment.storage.append_log import AppendLog
from reasoning_gym_environment.storage.files import EVALUATION_SETTINGS
from testing.process_table import until

RIGHT = Score(1.0, Outcome.CORRECT, "5")


class FakeInference:
    """Replies `<answer>5</answer>`; fails for the questions in `failing`."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.samplings: list[RequestParameters] = []
        self.spending = Spending()

    async def complete(self, prompt: Prompt, sampling: RequestParameters) -> list[Completion]:
        self.samplings.append(sampling)
        with self.spending.in_flight(len(prompt.tokens), 1):
            await asyncio.sleep(0)
        if prompt.messages[1]["content"] in self.failing:
            raise InferenceError("no route")
        return [Completion("<answer>5</answer>", [1, 2], [-100, 2], None, "stop")]


@dataclass(frozen=True)
class FakePrompts:
    """Each character of a question is a token."""

    room: Callable[[int], int | None] = lambda tokens: 100

    def messages(self, question: str) -> Any:
        return build_messages(question)

    def of_question(self, question: str) -> Prompt:
        return self.render(build_messages(question))

    def render(self, messages: Any) -> Prompt:
        return Prompt(as_dicts(messages), "", list(range(len(messages[1][1][1]))))

    def room_for_evaluation(self, prompt_tokens: int) -> int | None:
        return self.room(prompt_tokens)


class FakeScorer:
    """Gives its scores one after the other, the last again and again; breaks after `breaks_after` of them."""

    def __init__(self, *scores: Score, breaks_after: int = 10**6) -> None:
        self.scores = scores or (RIGHT,)
        self.graded = 0
        self.breaks_after = breaks_after

    async def score(self, problem: Problem, completions: Any) -> list[Score]:
        if self.graded == self.breaks_after:
            raise KeyError("bug")
        self.graded += 1
        return [self.scores[: self.graded][-1]]


def evaluator(inference: Any = None, scorer: Any = None, **options: Any) -> Evaluator:
    settings = {"prompts": FakePrompts(), "concurrency": 2, **options}
    return Evaluator(inference or FakeInference(), scorer or FakeScorer(), **settings)


@pytest.fixture
def run(make_problem: Any) -> Any:
    """`await run(evaluator, questions, answers)`: the samples of the questions, one for each letter."""

    async def run(judge: Evaluator, questions: str, answers: AnswerLog | None = None) -> list[dict[str, Any]]:
        entries = [{"question": question, "answer": "5", "metadata": {}} for question in questions]
        problems = [make_problem(index=index, entry=entry) for index, entry in enumerate(entries)]
        return await judge.samples(EvalSet(problems), answers or AnswerLog(None, {}))

    return run


async def test_each_question_is_asked_as_evaluation_asks_and_as_often_as_set(run: Any) -> None:
    inference, scorer = FakeInference(), FakeScorer()
    prompts = FakePrompts(lambda tokens: 1000 + tokens)
    samples = await run(evaluator(inference, scorer, prompts=prompts, completions=3), "ab")
    requested = [(sample["question"], sample["attempt"]) for sample in samples]
    assert requested == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)]
    assert inference.samplings == [RequestParameters(1, 1001, 0.1, split="eval")] * 6
    assert scorer.graded == 6


async def test_what_is_not_asked_is_unscored_with_the_reason(run: Any) -> None:
    inference = FakeInference()
    inference.spending = Spending(limit_tokens=1)
    asked, left_out = await run(evaluator(inference), "ab")
    assert (asked["score"], left_out["unscored_reason"]) == (1.0, evaluation.NO_TOKENS_LEFT)
    inference = FakeInference()
    [sample] = await run(evaluator(inference, prompts=FakePrompts(lambda tokens: None)), "a")
    assert (sample["unscored_reason"], inference.samplings) == ("prompt_too_long", [])
    failed, asked = await run(evaluator(FakeInference(failing="a")), "ab")
    assert (failed["unscored_reason"], asked["score"]) == ("inference failed: no route", 1.0)


async def test_the_plan_has_no_prompts_that_are_too_long(make_problem: Any) -> None:
    problems = [make_problem(entry={"question": question, "answer": "5"}) for question in ("a", "bcd")]
    judge = evaluator(prompts=FakePrompts(lambda tokens: 100 if tokens == 1 else None))
    expected = (
        "Planned: 1 requests, 1 prompt tokens, at most 100 completion tokens. Up to 2 requests run at the same time. "
        "1 completions are not requested, because their prompts are too long: raise env.max_token_length, or the "
        "server's context length."
    )
    assert judge.plan(EvalSet(problems), AnswerLog(None, {})) == expected


@pytest.mark.parametrize(("partial_credit", "mean"), [("exact", 0.0), ("native", 0.75)])
async def test_the_mean_score_follows_partial_credit_and_the_accuracy_does_not(
    make_problem: Any, partial_credit: Any, mean: float
) -> None:
    nearly_right = FakeScorer(Score(0.0, Outcome.WRONG, answer="4", native=0.75))
    sample = await evaluator(scorer=nearly_right, partial_credit=partial_credit).evaluate_one(make_problem())
    estimates = summarise([sample]).overall.estimates
    assert [estimates[name].value for name in ("mean_score", "accuracy", "exact")] == [mean, 0.0, 0.0]
    assert (sample["score"], sample["credit"], sample["correct"]) == (0.0, mean, False)


async def test_a_resumed_evaluation_asks_the_rest_and_gives_the_same_samples(run: Any, tmp_path: Path) -> None:
    whole = await run(evaluator(completions=2), "abcd")
    with AnswerLog(str(tmp_path), IDENTITY) as answers, pytest.raises(KeyError):
        await run(evaluator(scorer=FakeScorer(breaks_after=3), completions=2, concurrency=1), "abcd", answers)
    with AnswerLog(str(tmp_path), IDENTITY) as answers:
        assert len(answers.finished) == 3
        await run(evaluator(FakeInference(failing="d"), completions=2), "abcd", answers)
    inference = FakeInference()
    with AnswerLog(str(tmp_path), IDENTITY) as answers:
        assert await run(evaluator(inference, completions=2), "abcd", answers) == whole
    assert len(inference.samplings) == 2, "what was unscored is asked again"


async def test_answers_wait_for_a_full_disk_and_no_further_question_is_asked(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk_queue, "RETRY_S", 0.01)
    is_full = True
    append = AppendLog.append

    def take(log: AppendLog, record: dict[str, Any]) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(log, record)

    monkeypatch.setattr(AppendLog, "append", take)
    inference = FakeInference()
    with AnswerLog(str(tmp_path), IDENTITY) as answers:
        running = asyncio.ensure_future(run(evaluator(inference, completions=2, concurrency=3), "abcd", answers))
        await until(lambda: "The disk of the answers is unavailable" in caplog.text)
        await until(lambda: len(inference.samplings) == 3)
        is_full = False
        assert len(await running) == 8
    assert caplog.text.count("The disk of the answers is unavailable") == 1
    with AnswerLog(str(tmp_path), IDENTITY) as answers:
        assert len(answers.finished) == 8


# --- what is on disk: only answers of the same evaluation are resumed


IDENTITY = {**dict.fromkeys(IDENTITY_SETTINGS, "same"), "n": 2, "eval_seed": 123}


def answered(index: int, score: float | None = 1.0) -> dict[str, Any]:
    return {"task": "gcd", "index": index, "seed": 7, "question_digest": "d", "attempt": 0, "score": score}


def indices(folder: Path) -> list[int]:
    with AnswerLog(str(folder), IDENTITY) as answers:
        return sorted(sample["index"] for sample in answers.finished.values())


def finished(folder: Path, *samples: dict[str, Any]) -> None:
    """As Atropos writes it."""
    folder.mkdir()
    parameters = {name: value for name, value in IDENTITY.items() if name != "model_name"}
    general = {"model_name": IDENTITY["model_name"], "generation_parameters": {**parameters, "more": 1}}
    Path(folder, evaluation.METRICS).write_text(json.dumps({"config_general": general}))
    Path(folder, evaluation.SAMPLES).write_text("".join(json.dumps(sample) + "\n" for sample in samples) + '{"torn')


def test_answers_are_there_as_soon_as_they_are_added_until_all_are_in_the_samples(tmp_path: Path) -> None:
    with AnswerLog(str(tmp_path), IDENTITY, settings="env: {}\n") as first:
        first.add(answered(0))
        with pytest.raises(EnvironmentSetupError, match=r"another run writes there\."):
            indices(tmp_path)
    assert indices(tmp_path) == [0]
    assert Path(tmp_path, EVALUATION_SETTINGS).read_text() == "env: {}\n"
    with AnswerLog(str(tmp_path), IDENTITY) as second:
        second.finish()
    assert not Path(tmp_path, evaluation.ANSWERS).exists()


def test_a_finished_evaluation_is_resumed_but_for_what_was_not_scored(tmp_path: Path) -> None:
    finished(tmp_path / "results", answered(0), answered(1, None), answered(2, 0.0))
    assert indices(tmp_path / "results") == [0, 2]
    with AnswerLog(str(tmp_path / "results"), IDENTITY) as answers:
        answers.add(answered(1))
    assert indices(tmp_path / "results") == [0, 1, 2]


@pytest.mark.parametrize("content", ["", "{}", "[]", "[" * 100_000, '{"config_general": 3}'])
def test_results_that_cannot_be_read_are_refused_in_a_sentence(tmp_path: Path, content: str) -> None:
    finished(tmp_path / "model", answered(0))
    Path(tmp_path, "model", evaluation.METRICS).write_text(content)
    with pytest.raises(EnvironmentSetupError, match="Expected results of an evaluation in"):
        indices(tmp_path / "model")


def test_another_evaluation_is_refused_with_what_differs_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "done"
    finished(folder, answered(0))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    expected = re.escape("model_name same (now other), n 2 (now 3). Set env.data_dir_to_save_evals to another")
    with pytest.raises(EnvironmentSetupError, match=f"{folder}.*: {expected}"):
        AnswerLog(str(folder), {**IDENTITY, "model_name": "other", "n": 3})
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
