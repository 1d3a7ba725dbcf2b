from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reasoning_gym_environment.sampling.curriculum import UNMADE_ITEMS, Curriculum, GroupResult

RIGHT = [1.0] * 8
WRONG = [0.0] * 8


def curriculum(size: int = 5, target: float = 0.7) -> Curriculum:
    sizes = {"maze": size, "gcd": 3, "acre": 1}
    return Curriculum(sizes, target)


def observe(subject: Curriculum, groups: Iterable[Sequence[float]], task: str = "maze") -> list[int]:
    """Each group at the task's current level. The level after each of them."""
    levels = []
    for rewards in groups:
        subject.observe(GroupResult(task, subject.level(task), tuple(rewards)))
        levels.append(subject.level(task))
    return levels


# --- moving ---


def test_a_new_task_climbs_a_level_in_three_groups_until_it_fails() -> None:
    subject = curriculum()
    assert observe(subject, [RIGHT] * 7) == [0, 0, 1, 1, 1, 2, 2]
    assert subject.level("gcd") == 0
    assert observe(subject, [WRONG] * 5) == [2, 2, 2, 2, 1]
    assert observe(subject, [RIGHT] * 15) == [1] * 14 + [2], "after a move down only the sequential test moves it"
    assert observe(subject, [RIGHT] * 3) == [2, 2, 3], "after its move up the task climbs again"


def test_the_evidence_is_the_group_however_many_completions_it_has() -> None:
    for size in (1, 2, 8, 64):
        subject = curriculum()
        assert observe(subject, [[1.0] * size] * 3) == [0, 0, 1]
        assert observe(subject, [[0.0] * size] * 5) == [1, 1, 1, 1, 0]


def test_an_end_of_the_ladder_holds_the_task_for_ever() -> None:
    subject = curriculum(size=1)
    assert set(observe(subject, [RIGHT] * 5000)) == {0}
    assert set(observe(subject, [WRONG] * 5000)) == {0}
    state = subject.state_dict()["tasks"]["maze"]
    assert state["adjustments"] == 0
    assert max(state["evidence_up"], state["evidence_down"]) < 500


# --- a simulated student ---


def groups(accuracy: float, correlation: float, size: int, count: int, rng: Random) -> Iterator[list[float]]:
    """Groups whose completions agree: each item has a chance from a beta distribution."""
    for _ in range(count):
        chance = accuracy
        if correlation > 0.0:
            total = 1.0 / correlation - 1.0
            chance = rng.betavariate(accuracy * total, (1.0 - accuracy) * total)
        yield [float(rng.random() < chance) for _ in range(size)]


def in_the_middle(target: float, is_climbing: bool) -> Curriculum:
    """A ladder that a simulated student leaves at neither end."""
    subject = curriculum(size=2000, target=target)
    subject.load_state_dict({"tasks": {"maze": {"level": 1000, "is_climbing": is_climbing}}})
    return subject


def moves_of(subject: Curriculum) -> int:
    return int(subject.stats()["tasks"]["maze"]["adjustments"])


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("correlation", [0.0, 0.8])
@pytest.mark.parametrize("target", [0.5, 0.8])
def test_chance_moves_a_task_at_its_target_less_than_once_in_a_hundred_groups(
    target: float, correlation: float, size: int
) -> None:
    runs = 80
    length = 300
    rng = Random(1)
    moves = 0
    for _ in range(runs):
        subject = in_the_middle(target, is_climbing=True)
        observe(subject, groups(target, correlation, size, length, rng))
        moves += moves_of(subject)
    assert moves <= runs * length / 100


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_the_sequential_test_keeps_its_guarantee_at_any_target(correlation: float) -> None:
    """Twice in 500 groups at most in expectation. The mean of 60 runs may be half as much above that."""
    rng = Random(2)
    for target in (0.3, 0.9):
        waits = []
        for _ in range(60):
            subject = in_the_middle(target, is_climbing=False)
            waited = 0
            for rewards in groups(target, correlation, 4, 2000, rng):
                observe(subject, [rewards])
                waited += 1
                if moves_of(subject):
                    break
            waits.append(waited)
        assert statistics.fmean(waits) >= 250 / 1.5


@pytest.mark.parametrize(("accuracy", "mean"), [(1.0, 3.0), (0.95, 4.5)])
def test_a_ladder_that_is_too_easy_is_climbed_in_three_groups_a_level(accuracy: float, mean: float) -> None:
    for correlation in (0.0, 0.4, 0.8) if accuracy < 1.0 else (0.0,):
        rng = Random(3)
        reached = []
        for _ in range(20):
            subject = in_the_middle(0.7, is_climbing=True)
            observe(subject, groups(accuracy, correlation, 8, 150, rng))
            reached.append(150 / (subject.level("maze") - 1000))
        assert statistics.median(reached) <= mean


@pytest.mark.parametrize(
    ("chances", "share", "levels"),
    [([0.99, 0.97, 0.9, 0.7, 0.4, 0.1], {3: 0.8}, {2, 3, 4}), ([0.97, 0.93, 0.4, 0.02], {}, {1, 2})],
)
def test_a_student_settles_around_the_level_nearest_the_target(
    chances: Sequence[float], share: dict[int, float], levels: set[int]
) -> None:
    """It solves an item of level n with `chances[n]`."""
    for seed in range(5):
        rng = Random(seed)
        subject = curriculum(len(chances))
        visited = []
        for _ in range(400):
            visited.append(subject.level("maze"))
            observe(subject, [[float(rng.random() < chances[visited[-1]]) for _ in range(8)]])
        settled = visited[100:]
        assert set(settled) <= levels
        assert all(settled.count(level) / len(settled) >= least for level, least in share.items())


# --- what it reports ---


def test_totals_cover_the_tasks_observed() -> None:
    subject = curriculum()
    before = subject.stats()
    assert before.pop("tasks") == {}
    assert before.pop("target_accuracy") == 0.7
    assert set(before.values()) == {0}
    observe(subject, [RIGHT] * 6)  # level 2 of 0..4
    observe(subject, [[1.0] * 2, [0.25] * 8], task="gcd")
    totals = {name: total for name, total in subject.stats().items() if name != "tasks"}
    assert subject.metrics() == {f"curriculum/{name}": total for name, total in totals.items()}
    assert totals == {
        "total_tasks_tracked": 2,
        "tasks_with_adjustments": 1,
        "target_accuracy": 0.7,
        "avg_recent_accuracy": 0.8125,
        "avg_complexity": 0.25,
        "min_complexity": 0.0,
        "max_complexity": 0.5,
    }
    assert subject.stats()["tasks"] == {
        "gcd": {"level": 0, "complexity": 0.0, "recent_accuracy": 0.625, "adjustments": 0, "groups": 2}
        | {"groups_processed": 2, "history_length": 2, "adjustable": False},
        "maze": {"level": 2, "complexity": 0.5, "recent_accuracy": 1.0, "adjustments": 2, "groups": 6}
        | {"groups_processed": 6, "history_length": 0, "adjustable": False},
    }


# --- saving and loading ---


def test_a_level_above_the_ladder_becomes_its_last(caplog: pytest.LogCaptureFixture) -> None:
    long = curriculum(5)
    observe(long, [RIGHT] * 11)
    short = curriculum(2)
    short.load_state_dict(long.state_dict())
    assert short.level("maze") == 1
    observe(short, [RIGHT])
    state = short.state_dict()["tasks"]["maze"]
    assert (state["level"], state["groups_at_level"]) == (1, 1), "the groups before were of another level"
    assert "maze was at level 3, and its last level is 1" in caplog.text


def test_a_task_moves_down_from_a_level_that_gives_no_items_and_climbs_no_more() -> None:
    subject = curriculum(5)
    observe(subject, [RIGHT] * 6)
    assert subject.level("maze") == 2
    for level in (2, 2, 3, 1):
        subject.note_unmade("maze", level)
    subject.note_made("maze", 2)
    for _ in range(UNMADE_ITEMS - 1):
        subject.note_unmade("maze", 2)
    assert subject.level("maze") == 2, "an item was made in between"
    subject.note_unmade("maze", 2)
    assert subject.level("maze") == 1
    observe(subject, [RIGHT] * 10)
    assert subject.level("maze") == 1, "going up again takes the evidence of the test"
    observe(subject, [RIGHT] * 10)
    assert subject.level("maze") >= 2
    assert subject.stats()["tasks"]["maze"]["adjustments"] >= 4


def test_a_task_that_is_not_served_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    subject = curriculum()
    subject.load_state_dict({"tasks": {"gone": {"level": 2}, "maze": {"level": 2}}})
    assert subject.stats()["total_tasks_tracked"] == 1
    assert "The saved curriculum of gone is ignored" in caplog.text


SIZES = ({"maze": 5, "gcd": 3}, {"maze": 2, "gcd": 6})


class SavedLevels(RuleBasedStateMachine):
    """`subject` has a past when it loads a state, `fresh` has none. Both behave the same from then on."""

    @initialize()
    def start(self) -> None:
        self.sizes = SIZES[0]
        self.subject = Curriculum(self.sizes)
        self.fresh = Curriculum(self.sizes)
        self.states: list[Any] = []

    @rule(
        task=st.sampled_from(["maze", "gcd"]),
        rewards=st.sampled_from([RIGHT, RIGHT, WRONG, [1.0, 0.0], [0.1] * 3, [0.999999] * 7]),
        below=st.integers(0, 1),
        times=st.integers(1, 8),
    )
    def observe(self, task: str, rewards: list[float], below: int, times: int) -> None:
        for _ in range(times):
            level = max(0, self.subject.level(task) - below)
            result = GroupResult(task, level, tuple(rewards))
            self.subject.observe(result)
            self.fresh.observe(result)

    @rule(task=st.sampled_from(["maze", "gcd"]), is_made=st.booleans(), times=st.integers(1, UNMADE_ITEMS))
    def note_items(self, task: str, is_made: bool, times: int) -> None:
        for _ in range(times):
            level = self.subject.level(task)
            for curriculum in (self.subject, self.fresh):
                if is_made:
                    curriculum.note_made(task, level)
                else:
                    curriculum.note_unmade(task, level)

    @rule()
    def save(self) -> None:
        self.states.append(json.loads(json.dumps(self.subject.state_dict())))

    @precondition(lambda self: self.states)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        state = data.draw(st.sampled_from(self.states))
        self.subject.load_state_dict(state)
        self.fresh = Curriculum(self.sizes)
        self.fresh.load_state_dict(state)

    @precondition(lambda self: self.states)
    @rule(data=st.data(), sizes=st.sampled_from(SIZES))
    def load_under_other_ladders(self, data: st.DataObject, sizes: dict[str, int]) -> None:
        state = data.draw(st.sampled_from(self.states))
        self.sizes = sizes
        self.subject = Curriculum(sizes)
        for task in sizes:
            self.subject.observe(GroupResult(task, 0, (1.0,)))
        self.subject.load_state_dict(state)
        self.fresh = Curriculum(sizes)
        self.fresh.load_state_dict(state)

    @invariant()
    def both_are_the_same(self) -> None:
        assert self.subject.state_dict() == self.fresh.state_dict()
        assert self.subject.stats() == self.fresh.stats()

    @invariant()
    def a_level_is_on_the_ladder(self) -> None:
        for task, size in self.sizes.items():
            assert 0 <= self.subject.level(task) < size


TestSavedLevels = SavedLevels.TestCase
TestSavedLevels.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
