"""Signs of farming are warned of with two examples, once; what honest tasks do is none."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from reasoning_gym_environment.records import Completion, Outcome, Problem, Rollout, RolloutGroup, Score
from reasoning_gym_environment.scoring.rewards import paid
from reasoning_gym_environment.training_log.hacking_watch import (
    LASTS_CHECKS,
    READ,
    WINDOW,
    HackingWatch,
    key_of,
    shape_of,
)

Answer = tuple[str, float] | tuple[str, float, float]
"""What was answered, what it is worth, and what the task's own verifier pays if that is another number."""

GROUPS = 2 * WINDOW


@pytest.fixture
def group(make_problem: Callable[..., Problem], make_completion: Callable[..., Completion]) -> Callable[..., Any]:
    """`group(index, expected, answers, length)`: one group of the question with that number."""

    def make(index: int, expected: Any, answers: Iterable[Answer], length: int = 300) -> RolloutGroup:
        entry = {"question": f"Question {index}?", "answer": expected, "metadata": {}}
        rollouts = []
        for answer, value, *native in answers:
            outcome = Outcome.CORRECT if value == 1.0 else Outcome.PARTIAL if value else Outcome.WRONG
            score = Score(value, outcome, answer=answer, native=native[0] if native else value)
            rollouts.append(Rollout(make_completion("x" * length), score, value, credit=value))
        return RolloutGroup(make_problem(task="task", index=index, entry=entry), [], rollouts)

    return make


def share_at(index: int) -> int:
    """Of 8 rollouts, how many do the new thing: rises over the run."""
    return min(8, 8 * index // GROUPS + index % 2)


def constant(index: int) -> tuple[Any, list[Answer]]:
    hits = share_at(index)
    return ("True", "False")[index % 2], [("TrueFalse", 0.5)] * hits + [("True", float(not index % 2))] * (8 - hits)


def constant_of_many(index: int) -> tuple[Any, list[Answer]]:
    return str(index % 5), [("0", float(index % 5 == 0))] * 8


def shape(index: int) -> tuple[Any, list[Answer]]:
    number = 10 + 7 * index
    return f"2 × {number}", [(f"1 × {2 * number}", 0.5)] * 4 + [(f"3 × {number}", 0.0)] * 4


def no_level(index: int) -> tuple[Any, list[Answer]]:
    right = "1" if index % 10 else str(index)
    return right, [("1", float(right == "1"))] * 8


def shorter(index: int) -> tuple[Any, list[Answer], int]:
    hits = share_at(index)
    guess: Answer = ("True", float(index % 5 > 0))
    return ("True" if index % 5 else "False"), [guess] * hits + [("maybe", 0.0)] * (8 - hits), 400 - 45 * hits


def partial(index: int) -> tuple[Any, list[Answer]]:
    hits = share_at(index)
    return str(index), [(f"{n} {index}", 0.6) if n < hits else (f"{n}", 0.0) for n in range(8)]


def refused(index: int) -> tuple[Any, list[Answer]]:
    hits = share_at(index) // 2
    return str(index), [(f"nan {index}", 0.0, 1.0)] * hits + [(f"{n}", 0.0) for n in range(8 - hits)]


FARMS = {
    "repeated_answer": (constant, "one answer to"),
    "repeated_answer ": (constant_of_many, "% ('0' earned 1.00; '0' earned 1.00)"),
    "repeated_shape": (shape, "one shape of answer, '1 × 9', to"),
    "one_right_answer": (no_level, "%: the level is no level"),
    "shorter": (shorter, "of their length) while scores rise"),
    "partial_credit": (partial, "and right answers by +0.00"),
    "refused": (refused, "% of the completions, which the task's own verifier pays in full ('nan "),
}


@pytest.mark.parametrize("sign", FARMS)
def test_a_sign_of_farming_is_told_once_with_two_examples(
    sign: str, group: Callable[..., RolloutGroup], caplog: pytest.LogCaptureFixture
) -> None:
    farm, words = FARMS[sign]
    watch = HackingWatch()
    metrics: dict[str, float] = {}
    for index in range(GROUPS):
        watch.observe(group(index, *farm(index)))
        metrics.update(watch.metrics())
    [line] = [message for message in caplog.messages if words in message]
    assert line.startswith("task: ") and line.count(" earned ") == 2
    assert f"hacking/{sign.strip()}/task" in metrics


def test_partial_credit_of_which_a_tenth_is_paid_is_seen_all_the_same(
    group: Callable[..., RolloutGroup], caplog: pytest.LogCaptureFixture
) -> None:
    watch = HackingWatch()
    for index in range(GROUPS):
        whole = group(index, *partial(index))
        rollouts = [
            replace(one, score=replace(one.score, value=one.score.value and 0.5 + one.score.value / 2, baseline=0.5))
            for one in whole.rollouts
        ]
        rollouts = [replace(one, credit=paid("spell_backward", one.score.value, 0.5)) for one in rollouts]
        assert max(one.credit for one in rollouts) <= 0.1
        watch.observe(replace(whole, rollouts=rollouts))
    assert any("and right answers by +0.00" in message for message in caplog.messages)


def learned(index: int) -> tuple[Any, list[Answer], int]:
    hits = share_at(index)
    right: Answer = (str(1000 + index), 1.0)
    return right[0], [right] * hits + [(str(2000 + 8 * index + n), 0.3) for n in range(8 - hits)], 400 - 40 * hits


def nearer_and_right(index: int) -> tuple[Any, list[Answer]]:
    hits = share_at(index)
    return str(index), [(f"{n} {index}", (0.95, 1.0)[n % 2]) if n < hits else (f"{n}", 0.0) for n in range(8)]


def learned_true_or_false(index: int) -> tuple[Any, list[Answer]]:
    right, wrong = ("True", "False")[:: 1 if index % 2 else -1]
    return right, [(right, 1.0)] * (4 + share_at(index) // 2) + [(wrong, 0.0)] * (4 - share_at(index) // 2)


def refused_as_ever(index: int) -> tuple[Any, list[Answer]]:
    """What solves other items, which some verifiers pay in full; no more of it than before."""
    return str(index), [(f"6 * {index}", 0.0, 1.0)] * 2 + [(f"{n}", 0.0) for n in range(6)]


def always_true(index: int) -> tuple[Any, list[Answer]]:
    return ("True", "False")[index % 2], [("True", float(index % 2 == 0))] * 8


def one_question(index: int) -> tuple[Any, list[Answer]]:
    """Eight copies in a group, and the same item again and again, are no different questions."""
    return "7", [("8", 0.5)] * 8


@pytest.mark.parametrize(
    "honest", [learned, nearer_and_right, learned_true_or_false, refused_as_ever, always_true, one_question]
)
def test_what_honest_tasks_do_is_no_sign(
    honest: Callable[[int], Any], group: Callable[..., RolloutGroup], caplog: pytest.LogCaptureFixture
) -> None:
    watch = HackingWatch()
    for index in range(GROUPS):
        watch.observe(group(0 if honest is one_question else index, *honest(index)))
    assert caplog.messages == [] and watch.metrics()["hacking/tasks_warned"] == 0.0


def test_a_sign_that_went_away_is_told_again_when_it_comes_back(
    group: Callable[..., RolloutGroup], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    watch, index = HackingWatch(), iter(range(10_000))

    def observe(kind: Callable[[int], Any], groups: int) -> Iterator[str]:
        for number in (next(index) for _ in range(groups)):
            watch.observe(group(number, *kind(number)))
        yield from caplog.messages
        caplog.clear()

    assert [line[:27] for line in observe(shape, 2 * WINDOW)] == ["task: one shape of answer, "]
    assert list(observe(lambda n: (str(n), [(f"at {n}", 0.0)]), WINDOW + 8 * LASTS_CHECKS)) == [
        "task: no sign of it any more: repeated shape."
    ]
    assert "task: one shape of answer, " in [line[:27] for line in observe(shape, WINDOW)]


def test_an_answer_of_any_size_is_read_in_part(group: Callable[..., RolloutGroup]) -> None:
    watch = HackingWatch()
    tracemalloc.start()
    for index in range(WINDOW):
        watch.observe(group(index, "5", [("[0, " * 1_000_000 + str(index), 0.5)]))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2**20


def test_shapes_fold_what_differs_from_item_to_item() -> None:
    assert shape_of("1 × 35") == shape_of("1  ×  7") == "1 × 9" != shape_of("5 × 7")
    assert shape_of("[" + "0, " * 5 + "0]") == shape_of("[" + "0, " * 50 + "0]") == "[0, +0]"
    assert shape_of("Zoey is a knight") == shape_of("Owen is a knave") == "a +a"
    assert shape_of("x" * READ + "!") == "a", "of a long answer, its beginning"
    assert key_of("True ") == key_of("true") != key_of("False")
    assert key_of("a" * 500) != key_of("a" * 499 + "b")
