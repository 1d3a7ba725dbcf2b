from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from reasoning_gym_environment.sampling.choosers import Curriculum

RIGHT, WRONG = [1.0] * 8, [0.0] * 8


def curriculum(size: int = 5, **options: Any) -> Curriculum:
    return Curriculum(ladder_sizes={"maze": size, "gcd": 3, "acre": 1}, **options)


def observe(subject: Curriculum, *groups: Sequence[float], task: str = "maze") -> None:
    """Each group at the task's current level."""
    for scores in groups:
        subject.observe(task, subject.level(task), scores)


# --- moving ---


def test_three_clear_groups_move_one_level_and_the_window_starts_anew() -> None:
    subject = curriculum()
    visited = []
    for scores in [RIGHT] * 6 + [WRONG] * 3:
        observe(subject, scores)
        visited.append(subject.level("maze"))
    assert visited == [0, 0, 1, 1, 1, 2, 2, 2, 1]
    assert subject.level("gcd") == 0


def test_little_evidence_waits_or_needs_a_wider_gap_than_much() -> None:
    subject = curriculum()
    observe(subject, *[[1.0] * 4] * 3)  # fewer than sixteen completions
    assert subject.level("maze") == 0
    observe(subject, [1.0] * 4)
    assert subject.level("maze") == 1
    subject = curriculum()
    observe(subject, *[[0.82] * 8] * 4)  # 32 completions: two standard errors are 0.16
    assert subject.level("maze") == 0
    observe(subject, *[[0.82] * 8] * 8)  # 96 completions: 0.094, less than the margin
    assert subject.level("maze") == 1


# --- a simulated student ---


@pytest.mark.parametrize(
    ("chances", "share", "levels"),
    [([0.99, 0.97, 0.9, 0.7, 0.4, 0.1], {3: 0.9}, {2, 3, 4}), ([0.97, 0.93, 0.4, 0.02], {}, {1, 2})],
)
def test_a_student_settles_around_the_level_nearest_the_target(
    chances: Sequence[float], share: dict[int, float], levels: set[int]
) -> None:
    """It solves an item of level n with `chances[n]`."""
    for seed in range(5):
        rng, subject, visited = Random(seed), curriculum(len(chances)), []
        for _ in range(400):
            visited.append(subject.level("maze"))
            observe(subject, [float(rng.random() < chances[visited[-1]]) for _ in range(8)])
        settled = visited[100:]
        assert set(settled) <= levels
        assert all(settled.count(level) / len(settled) >= least for level, least in share.items())


# --- what it reports ---


def test_totals_cover_the_tasks_observed() -> None:
    subject = curriculum()
    before = subject.stats()
    assert before.pop("tasks") == {} and set(before.values()) == {0}
    observe(subject, *[RIGHT] * 6)  # level 2 of 0..4
    observe(subject, [1.0] * 2, [0.375] * 8, task="gcd")  # completions count, not groups
    totals = {name: total for name, total in subject.stats().items() if name != "tasks"}
    assert subject.metrics() == {f"curriculum/{name}": total for name, total in totals.items()}
    assert totals == {
        **{"total_tasks_tracked": 2, "tasks_with_adjustments": 1, "target_accuracy": 0.7, "avg_recent_accuracy": 0.75},
        **{"avg_complexity": 0.25, "min_complexity": 0.0, "max_complexity": 0.5},
    }
    assert subject.stats()["tasks"] == {
        "gcd": {"level": 0, "complexity": 0.0, "recent_accuracy": 0.5, "adjustments": 0, "groups": 2},
        "maze": {"level": 2, "complexity": 0.5, "recent_accuracy": 1.0, "adjustments": 2, "groups": 6},
    }


# --- saving and loading ---


def test_a_restored_curriculum_goes_on_as_the_uninterrupted_one() -> None:
    rng, whole = Random(1), curriculum()
    groups = [[float(rng.random() < 0.8) for _ in range(8)] for _ in range(40)]
    observe(whole, *groups[:17])
    whole.observe("gcd", 1, RIGHT)  # a group of the next level counts once it is the current one
    resumed = curriculum()
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert resumed.stats() == whole.stats()
    for scores in groups[17:]:
        observe(whole, scores)
        observe(resumed, scores)
        assert resumed.level("maze") == whole.level("maze")
    assert resumed.state_dict() == whole.state_dict()
    resumed.load_state_dict({})
    assert (resumed.level("maze"), resumed.stats()["total_tasks_tracked"]) == (0, 0), "nothing is left of before"


def test_a_level_above_the_ladder_becomes_its_last(caplog: pytest.LogCaptureFixture) -> None:
    long, short = curriculum(5), curriculum(2)
    observe(long, *[RIGHT] * 10)
    short.load_state_dict(long.state_dict())
    assert short.level("maze") == 1
    assert short.state_dict()["tasks"]["maze"]["window"] == []  # these scores were for another level
    assert "maze was at level 3 and its ladder ends at 1" in caplog.text
