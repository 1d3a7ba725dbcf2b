"""The reward function for verl, without verl. verl_in_its_venv.py tests it with the real library."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from reasoning_gym_environment import Grade, PromptedProblem, Tasks
from reasoning_gym_environment.integrations import recipe, verl
from reasoning_gym_environment.integrations.recipe import Recipe, RecipeGrader
from reasoning_gym_environment.integrations.verl import UnscoredError, compute_score
from reasoning_gym_environment.records import Outcome, Score
from reasoning_gym_environment.utils.loop_thread import PerProcess

RIGHT = {"score": 1.0, "correct": 1.0, "format_failure": 0.0, "unscored": 0.0}


@pytest.fixture(autouse=True)
def graders(tasks_in_process: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which the workers have started without settings."""
    started = PerProcess[RecipeGrader]()
    started.get("{}", lambda: RecipeGrader(tasks_in_process))
    monkeypatch.setattr(recipe, "_graders", started)


@pytest.fixture
def problem(tasks_in_process: Tasks) -> PromptedProblem:
    return tasks_in_process.draw("chain_sum", seed=3)


def score(
    problem: PromptedProblem, text: str, *, row: dict[str, Any] | None = None, **options: Any
) -> dict[str, float]:
    """The result for a completion, called as verl's managers call the function."""
    extra_info = {"split": "train", "index": 0, "num_turns": 2, **(row or Recipe.of(problem).as_row())}
    return compute_score(
        data_source=f"reasoning_gym/{problem.task}",
        solution_str=text,
        ground_truth=str(problem.entry["answer"]),
        extra_info=extra_info,
        **options,
    )


def test_the_fields_of_a_completion(problem: PromptedProblem) -> None:
    right = f"<answer>{problem.entry['answer']}</answer>"
    assert score(problem, right) == RIGHT
    assert score(problem, "no answer") == {**RIGHT, "score": 0.0, "correct": 0.0, "format_failure": 1.0}
    # Some managers leave the special tokens in the text.
    assert score(problem, f"{right}<|im_end|>\n<|endoftext|>") == RIGHT
    # The chat template has opened <think>, and the model has closed it or has not.
    assert score(problem, f"<answer>7</answer> </think> {right}", thinking_opened=True) == RIGHT
    assert score(problem, right, thinking_opened=True)["format_failure"] == 1.0
    # With a reward model, verl gives two more arguments.
    assert score(problem, right, reward_router_address="127.0.0.1:1", reward_model_tokenizer=object()) == RIGHT


def test_an_unscored_completion_is_not_wrong(
    problem: PromptedProblem, tasks_in_process: Tasks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def late(*_: Any, **__: Any) -> list[Grade]:
        return [Grade(None, Score(0.0, Outcome.TIMEOUT, explanation="it was silent for 5 s"))]

    monkeypatch.setattr(tasks_in_process, "_grade", late)
    with pytest.raises(UnscoredError, match=r"chain_sum, seed \d+: timeout it was silent.*Set unscored_reward"):
        score(problem, "")
    with caplog.at_level(logging.WARNING, logger=verl.logger.name):
        replaced = score(problem, "", unscored_reward=0.5)
    assert replaced == {"score": 0.5, "correct": 0.0, "format_failure": 0.0, "unscored": 1.0}
    assert "A completion has no score, so its reward is 0.5 (chain_sum, seed" in caplog.text
    # The recipe of another release gives another question.
    row = {**Recipe.of(problem).as_row(), "question_digest": "other"}
    with pytest.raises(UnscoredError, match="same release of reasoning-gym"):
        score(problem, "<answer>right</answer>", row=row)


async def test_a_caller_may_have_an_event_loop(problem: PromptedProblem) -> None:
    assert score(problem, f"<answer>{problem.entry['answer']}</answer>") == RIGHT
