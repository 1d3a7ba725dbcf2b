"""Signs of reward hacking are warned of once, with two examples; what honest runs do is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from reasoning_gym_environment.records import Completion, Episode, Outcome, Problem, Rollout, Score
from reasoning_gym_environment.telemetry.reward_hacking import WINDOW, HackingWatch

Answer = tuple[str, float] | tuple[str, float, float]
"""What was answered, what it is paid, and what the task's own verifier pays if that is another number."""

GROUPS = 2 * WINDOW


@pytest.fixture
def group(make_problem: Callable[..., Problem], make_completion: Callable[..., Completion]) -> Callable[..., Any]:
    """`group(index, expected, answers, length)`: one group of the item with that number."""

    def make(index: int, expected: Any, answers: Iterable[Answer], length: int = 300) -> Episode:
        entry = {"question": f"Question {index}?", "answer": expected, "metadata": {}}
        rollouts = []
        for answer, value, *native in answers:
            outcome = Outcome.CORRECT if value == 1.0 else Outcome.WRONG
            score = Score(value, outcome, answer=answer, native=native[0] if native else value)
            rollouts.append(Rollout(make_completion("x" * length), score, value, credit=value))
        return Episode(make_problem(task="gcd", index=index, entry=entry), [], rollouts)

    return make


def share_at(index: int) -> int:
    """Of 8 rollouts, how many do the new thing: rises over the run."""
    return min(8, 8 * index // GROUPS + index % 2)


def paid_though_wrong(index: int) -> tuple[Any, list[Answer]]:
    hits = share_at(index)
    return ("True", "False")[index % 2], [("TrueFalse", 0.5)] * hits + [("True", float(not index % 2))] * (8 - hits)


def constant_of_many(index: int) -> tuple[Any, list[Answer]]:
    return str(index % 5), [("0", float(index % 5 == 0))] * 8


def shorter(index: int) -> tuple[Any, list[Answer], int]:
    hits = share_at(index)
    guess: Answer = ("True", float(index % 5 > 0))
    return ("True" if index % 5 else "False"), [guess] * hits + [("maybe", 0.0)] * (8 - hits), 400 - 45 * hits


def refused(index: int) -> tuple[Any, list[Answer]]:
    hits = share_at(index) // 2
    return str(index), [(f"nan {index}", 0.0, 1.0)] * hits + [(f"{n}", 0.0) for n in range(8 - hits)]


@pytest.mark.parametrize(
    ("hack", "sign", "words"),
    [
        (paid_though_wrong, "repeated_answer", "one answer is"),
        (constant_of_many, "repeated_answer", "right in 25% ('0' earned 1.00; '0' earned 1.00)"),
        (shorter, "shorter", "of their length) while what is paid rises"),
        (refused, "refused", "paid in full by the task's own verifier ('nan "),
    ],
)
def test_a_sign_is_warned_of_once_with_the_task_and_two_examples(
    hack: Any, sign: str, words: str, group: Callable[..., Episode], caplog: pytest.LogCaptureFixture
) -> None:
    watch, names = HackingWatch(), set[str]()
    for index in range(GROUPS):
        watch.observe(group(index, *hack(index)))
        names |= watch.metrics().keys()
    [line] = [message for message in caplog.messages if words in message]
    assert line.startswith("gcd may be hacked: ") and line.count(" earned ") == 2
    assert f"hacking/{sign}/gcd" in names


def learned(index: int) -> tuple[Any, list[Answer], int]:
    hits = share_at(index)
    right: Answer = (str(1000 + index), 1.0)
    return right[0], [right] * hits + [(str(2000 + 8 * index + n), 0.3) for n in range(8 - hits)], 400 - 40 * hits


def refused_as_ever(index: int) -> tuple[Any, list[Answer]]:
    """What solves other items, which some verifiers pay in full; no more of it than before."""
    return str(index), [(f"6 * {index}", 0.0, 1.0)] * 2 + [(f"{n}", 0.0) for n in range(6)]


def always_true(index: int) -> tuple[Any, list[Answer]]:
    return ("True", "False")[index % 2], [("True", float(index % 2 == 0))] * 8


def one_item(index: int) -> tuple[Any, list[Answer]]:
    """Eight copies in a group, and the same item again and again, are no different items."""
    return "7", [("8", 0.5)] * 8


@pytest.mark.parametrize("honest", [learned, refused_as_ever, always_true, one_item])
def test_what_honest_runs_do_is_no_sign(
    honest: Callable[[int], Any], group: Callable[..., Episode], caplog: pytest.LogCaptureFixture
) -> None:
    watch = HackingWatch()
    for index in range(GROUPS):
        watch.observe(group(0 if honest is one_item else index, *honest(index)))
    assert caplog.messages == [] and watch.metrics()["hacking/tasks_warned"] == 0.0
