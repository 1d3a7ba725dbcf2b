"""The reward function for verl, without verl. verl_in_its_venv.py tests it with the real library."""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from reasoning_gym_environment import PromptedProblem
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.integrations import recipe, verl
from reasoning_gym_environment.integrations.recipe import RecentItems, Recipe, items_for
from reasoning_gym_environment.integrations.verl import UnscoredError, compute_score, compute_scores
from testing.hostile_answers import ATTACK_MODULE, ATTACK_TASK
from testing.process_table import linux_only

SETTINGS = {"modules": ATTACK_MODULE, "allow_unguarded": ATTACK_TASK}
SLOW = "<answer>while True: pass</answer>"
RIGHT = {"score": 1.0, "correct": 1.0, "format_failure": 0.0, "unscored": 0.0}


@pytest.fixture(scope="module")
def started() -> Iterator[dict[str, RecentItems]]:
    """The items and workers of this process, which has graded nothing yet."""
    started: dict[str, RecentItems] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "_started", started)
        patch.setattr(verl, "_unscored_log", verl._UnscoredLog())
        yield started
    for items in started.values():
        items.tasks.close()


@pytest.fixture(scope="module")
def problems(started: dict[str, RecentItems]) -> dict[str, PromptedProblem]:
    """A problem of each task, by its task."""
    tasks = items_for(SETTINGS).tasks
    return {task: tasks.draw(task, seed=3) for task in ("chain_sum", ATTACK_TASK)}


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
        **SETTINGS,
        **options,
    )


def test_the_fields_of_a_completion(problems: dict[str, PromptedProblem], started: dict[str, RecentItems]) -> None:
    problem = problems["chain_sum"]
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
    # All used the same workers.
    assert len(started) == 1


def test_a_group_shares_its_item(problems: dict[str, PromptedProblem]) -> None:
    problem = problems["chain_sum"]
    texts = [f"<answer>{problem.entry['answer']}</answer>", "<answer>x</answer>"] * 16
    rows = [Recipe.of(problem).as_row()] * len(texts)
    items = items_for(SETTINGS)
    items._making.clear()
    before = items.tasks.metrics()["generation/items"]
    results = compute_scores([""] * len(texts), texts, [""] * len(texts), rows, **SETTINGS)
    assert [result["score"] for result in results] == [1.0, 0.0] * 16
    assert items.tasks.metrics()["generation/items"] - before == 1


@pytest.mark.usefixtures("started")
def test_items_that_were_not_used_for_long_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "KEPT_ITEMS", 2)
    items = items_for(SETTINGS)
    items._making.clear()
    recipes = [Recipe.of(items.tasks.draw("chain_sum", seed)) for seed in range(3)]
    before = items.tasks.metrics()["generation/items"]
    for number in (0, 1, 0, 2, 0, 1):
        items.get(recipes[number])
    assert items.tasks.metrics()["generation/items"] - before == 4


def test_an_unscored_completion_is_not_wrong(
    problems: dict[str, PromptedProblem],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    time_s = 100.0
    monkeypatch.setattr(verl, "now", lambda: time_s)
    monkeypatch.setattr(verl, "_unscored_log", verl._UnscoredLog())
    attacked = problems[ATTACK_TASK]
    with caplog.at_level(logging.WARNING, logger=verl.logger.name):
        with pytest.raises(UnscoredError, match=rf"{ATTACK_TASK}, seed \d+: timeout.*Set unscored_reward"):
            score(attacked, SLOW)
        replaced = score(attacked, SLOW, unscored_reward=0.5)
        assert replaced == {"score": 0.5, "correct": 0.0, "format_failure": 0.0, "unscored": 1.0}
        # The recipe of another release gives another question.
        row = {**Recipe.of(attacked).as_row(), "question_digest": "other"}
        with pytest.raises(UnscoredError, match="same release of reasoning-gym"):
            score(attacked, "<answer>right</answer>", row=row)
        assert len(caplog.messages) == 1
        time_s += verl.LOG_EVERY_S
        score(attacked, SLOW, unscored_reward=0.5)
    first, second = caplog.messages
    assert re.match(rf"1 completions of this process .*{ATTACK_TASK}, seed \d+: timeout", first)
    assert second.startswith("4 completions of this process could not be scored")
    # The next completion is graded.
    assert score(attacked, "<answer>right</answer>") == RIGHT


@pytest.mark.parametrize(
    ("extra_info", "settings", "message"),
    [
        (None, {}, "export --items"),
        ({"index": 3}, {}, "export --items"),
        ({}, {"scoring_timeout": 3}, "scoring_timeout"),
        ({}, {"modules": object()}, "Expected settings that are texts and numbers"),
    ],
)
def test_a_row_or_a_setting_that_cannot_work_is_refused(
    problems: dict[str, PromptedProblem],
    extra_info: dict[str, Any] | None,
    settings: dict[str, Any],
    message: str,
) -> None:
    # Invalid settings come with a valid row.
    row = Recipe.of(problems["chain_sum"]).as_row() if settings else extra_info
    with pytest.raises(EnvironmentSetupError, match=message):
        compute_score("reasoning_gym/chain_sum", "<answer>1</answer>", "1", row, **settings)


async def test_a_caller_may_have_an_event_loop(problems: dict[str, PromptedProblem]) -> None:
    problem = problems["chain_sum"]
    items_for(SETTINGS)._making.clear()
    assert score(problem, f"<answer>{problem.entry['answer']}</answer>") == RIGHT


@linux_only
def test_a_forked_process_starts_workers_of_its_own(
    problems: dict[str, PromptedProblem],
) -> None:
    problem = problems["chain_sum"]
    right = f"<answer>{problem.entry['answer']}</answer>"
    items = items_for(SETTINGS)
    # Another thread of the parent is in the middle of something when the process forks.
    recipe._starting.acquire()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            is_right = score(problem, right) == RIGHT
            own = items_for(SETTINGS)
            code = 0 if is_right and own is not items else 1
            own.tasks.close()
        finally:
            os._exit(code)
    recipe._starting.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert score(problem, right) == RIGHT
