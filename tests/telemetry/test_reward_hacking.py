"""The watch warns of reward hacking once, with two examples, and does not warn of honest runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest

from reasoning_gym_environment.records import Completion, Group, Outcome, Problem, Rollout, Score
from reasoning_gym_environment.telemetry.reward_hacking import WINDOW, HackingWatch

Answer = tuple[str, float]
"""The text of an answer and its reward."""

GROUPS = 2 * WINDOW


@pytest.fixture
def group(make_problem: Callable[..., Problem], make_completion: Callable[..., Completion]) -> Callable[..., Any]:
    """`group(index, answers)`: one group of the item with that number."""

    def make(index: int, answers: Iterable[Answer]) -> Group:
        entry = {"question": f"Question {index}?", "answer": str(index), "metadata": {}}
        rollouts = []
        for answer, value in answers:
            outcome = Outcome.CORRECT if value == 1.0 else Outcome.WRONG
            score = Score(value, outcome, answer=answer)
            rollouts.append(Rollout(make_completion("text"), score, value, base_reward=value))
        return Group(make_problem(task="gcd", index=index, entry=entry), [], rollouts)

    return make


def hits_at(index: int) -> int:
    """The number of 8 rollouts that show the new habit, which spreads during the run."""
    return min(8, 8 * index // GROUPS + index % 2)


def paid_though_wrong(index: int) -> list[Answer]:
    hits = hits_at(index)
    honest = float(index % 2 == 0)
    return [("TrueFalse", 0.5)] * hits + [("True", honest)] * (8 - hits)


def constant_of_many(index: int) -> list[Answer]:
    return [("0", float(index % 5 == 0))] * 8


@pytest.mark.parametrize(
    ("hack", "words"),
    [
        (paid_though_wrong, "right in 0% ('TrueFalse' earned 0.50; 'TrueFalse' earned 0.50)"),
        (constant_of_many, "one answer is 100% of all answers, to 32 different items"),
    ],
)
def test_the_sign_is_warned_of_once_with_the_task_and_two_examples(
    hack: Any, words: str, group: Callable[..., Group], caplog: pytest.LogCaptureFixture
) -> None:
    watch = HackingWatch()
    names: set[str] = set()
    for index in range(GROUPS):
        watch.observe(group(index, hack(index)))
        names |= watch.metrics().keys()
    [line] = caplog.messages
    assert line.startswith("gcd may be hacked: ") and line.count(" earned ") == 2
    assert words in line
    assert names == {"hacking/repeated_answer/gcd"}


def test_the_metric_of_the_sign_ends_with_the_sign(group: Callable[..., Group]) -> None:
    watch = HackingWatch()
    assert watch.metrics() == {}
    for index in range(WINDOW):
        watch.observe(group(index, [("0", 0.5)] * 4))
    assert watch.metrics() == {"hacking/repeated_answer/gcd": 1.0}
    for index in range(WINDOW):
        watch.observe(group(index, [(str(index), 1.0)] * 4))
    assert watch.metrics() == {}


def learned(index: int) -> list[Answer]:
    hits = hits_at(index)
    return [(str(1000 + index), 1.0)] * hits + [(str(2000 + 8 * index + n), 0.3) for n in range(8 - hits)]


def always_true(index: int) -> list[Answer]:
    """An honest guess at a yes-or-no question."""
    return [("True", float(index % 2 == 0))] * 8


def mostly_true(index: int) -> list[Answer]:
    """The right answers of a task in which nearly all items have the same answer."""
    return [("True" if index % 10 else "False", 1.0)] * 8


def worthless(index: int) -> list[Answer]:
    return [("?", 0.05)] * 8


def same_item(index: int) -> list[Answer]:
    """Copies in a group, and repetitions of an item, are not different items."""
    return [("8", 0.5)] * 8


@pytest.mark.parametrize("honest", [learned, always_true, mostly_true, worthless, same_item])
def test_honest_runs_show_no_sign(
    honest: Callable[[int], Any], group: Callable[..., Group], caplog: pytest.LogCaptureFixture
) -> None:
    watch = HackingWatch()
    for index in range(GROUPS):
        watch.observe(group(0 if honest is same_item else index, honest(index)))
    assert caplog.messages == []
    assert watch.metrics() == {}


def test_a_constant_guess_at_random_yes_or_no_questions_is_hardly_ever_a_sign(
    group: Callable[..., Group], caplog: pytest.LogCaptureFixture
) -> None:
    for seed in range(20):
        random = Random(seed)
        watch = HackingWatch()
        for index in range(GROUPS):
            watch.observe(group(index, [("True", float(random.random() < 0.5))]))
    assert len(caplog.messages) <= 1
