from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
import runpy
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.tasks import difficulty_ladder
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import config_of
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level, build_ladder
from reasoning_gym_environment.tasks.measured_data import TaskLevels

library.load()
from reasoning_gym import factory  # noqa: E402

TASKS = sorted(library.registry().keys() - {"composite"})

SCRIPT = Path(__file__).parents[2] / "benchmarks/facts/levels.py"
"""Writes the levels as data."""


SOME = ["acre", "caesar_cipher", "chain_sum", "knight_swap", "power_function", "spell_backward", "survo", "tsumego"]


@pytest.mark.parametrize("tasks", [SOME, pytest.param(TASKS, marks=pytest.mark.slow)], ids=["some", "all"])
def test_ladders_are_whole(tasks: list[str]) -> None:
    ladders = {task: build_ladder(task) for task in tasks}
    for task, ladder in ladders.items():
        configs = [level.config for level in ladder.levels]
        assert len(configs) >= 2 or ladder.excluded or not library.has_curriculum(task), task
        assert all(lower != upper for lower, upper in itertools.pairwise(configs)), task
        places = [(n, n / max(len(configs) - 1, 1)) for n in range(len(configs))]
        assert [(level.index, level.complexity) for level in ladder.levels] == places, task
        assert pickle.loads(pickle.dumps(ladder)) == ladder, "it can be sent to a worker"
        config_class = library.registry()[task][1]
        fields = {field.name for field in dataclasses.fields(config_class)} - {"seed", "size"}
        for values in configs:
            assert values.keys() == fields, task
            config = config_class(**copy.deepcopy(dict(values)))
            assert all(getattr(config, name) == value for name, value in values.items()), task
    for task in set(tasks) & {"aiw", "calendar_arithmetic", "chain_sum", "knight_swap", "rearc"}:
        assert build_ladder(task) == ladders[task], "the same again after all others"


SLOW_TO_BUILD = {"arc_agi", "codeio", "figlet_font", "group_anagrams", "n_queens", "word_ladder"}


@pytest.mark.parametrize(
    "tasks", [sorted(set(TASKS) - SLOW_TO_BUILD), pytest.param(sorted(SLOW_TO_BUILD), marks=pytest.mark.slow)]
)
def test_the_data_has_every_level_that_the_curricula_give(tasks: list[str]) -> None:
    """Every type of a config survives the file."""
    served_levels = runpy.run_path(str(SCRIPT))["served_levels"]
    for task in tasks:
        ladder = build_ladder(task)
        served = served_levels(task)
        assert [repr(dict(level.config)) for level in ladder.levels] == [repr(c) for c in served.configs.values()], task
        assert (ladder.excluded, ladder.constant_answer) == (tuple(served.excluded), served.constant_answer), task


def test_a_level_that_another_release_does_not_know_is_excluded_by_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = TaskLevels(({"min_terms": 2}, {"min_terms": 9, "max_terms": 8}, {"terms": 3}, {"min_terms": 3}))
    monkeypatch.setattr(difficulty_ladder, "load_levels", lambda: {"chain_sum": known})
    caplog.set_level("INFO")
    ladder = build_ladder("chain_sum")
    assert [level.config["min_terms"] for level in ladder.levels] == [2, 3]
    assert [number for number, _ in ladder.excluded] == [1, 2]
    for message in ("Level 1 of chain_sum is excluded: AssertionError", "Level 2 of chain_sum is excluded: Unknown"):
        assert message.split(": ")[0] in caplog.text


# --- levels of one task ---


MEASURES: dict[str, Callable[[dict[str, Any]], int]] = {
    "chain_sum": lambda entry: sum(character in "+-" for character in entry["question"]),
    "count_bits": lambda entry: int(entry["metadata"]["number"]),
    "maze": lambda entry: entry["question"].count("\n"),
    "number_sorting": lambda entry: len(entry["metadata"]["original_numbers"]),
    "spell_backward": lambda entry: len(entry["answer"]),
    "sudoku": lambda entry: entry["question"].count("_"),
}
"""What makes an item of these tasks hard, read from the item and not from its config."""


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=[pytest.mark.slow] * (task == "sudoku")) for task in MEASURES]
)
def test_difficulty_that_can_be_measured_grows_along_the_ladder(task: str) -> None:
    medians = []
    for level in build_ladder(task).levels:
        dataset = library.create_dataset(task, seed=3, size=7, **level.config)
        medians.append(median(MEASURES[task](dataset[index]) for index in range(7)))
    assert medians == sorted(medians), medians
    assert medians[-1] > medians[0], medians


def test_unusable_levels_are_left_out_by_name() -> None:
    for task, missing, reason in (
        ("caesar_cipher", [2, 3], "rotation must be in range"),
        ("modulo_grid", [1], "max_target must be greater than 0"),
        ("rubiks_cube", [4], "cube_size must be less than 7"),
        ("spell_backward", [4], "the word list has 0 words"),
        ("letter_jumble", [2, 3, 4], "the word list has"),
        ("game_of_life_halting", [2, 3], "abbreviates a board of over 1000 cells"),
        ("number_sequence", [2, 3], "until time or memory runs out"),
        ("jugs", [2, 3], "over 5 s to generate"),
        ("syllogism", [], ""),
        ("n_queens", [0, 1, 2, 3], "an answer without work earns too much"),
    ):
        excluded = build_ladder(task).excluded
        assert [number for number, why in excluded if reason in why] == missing, task


def test_a_task_whose_levels_all_have_a_constant_answer_keeps_them_and_says_so() -> None:
    ladder = build_ladder("syllogism")
    assert ladder.constant_answer.startswith("an answer without work earns too much: 'Yes' is right on")
    assert len(ladder) > 1


# --- overrides ---


def test_a_pinned_field_holds_at_every_level() -> None:
    ladder = build_ladder("chain_sum", overrides={"allow_negation": True, "min_terms": 2})
    assert len(ladder) == len(build_ladder("chain_sum"))
    assert {(lv.config["allow_negation"], lv.config["min_terms"]) for lv in ladder.levels} == {(True, 2)}
    assert ladder.levels[-1].config["max_terms"] == build_ladder("chain_sum").levels[-1].config["max_terms"]
    pinned = build_ladder("bitwise_arithmetic", overrides={"difficulty": 3})
    assert [level.config["difficulty"] for level in pinned.levels] == [3], "the only field that changes is pinned"
    assert (pinned.levels[0].complexity, pinned.excluded) == (0.0, ())


def test_a_level_that_an_override_makes_invalid_is_excluded() -> None:
    ladder = build_ladder("chain_sum", overrides={"min_terms": 4})
    assert [level.config["max_terms"] for level in ladder.levels[:2]] == [4, 5]
    assert [number for number, _ in ladder.excluded] == [0, 1]
    with pytest.raises(EnvironmentSetupError, match=r"^No level of chain_sum can be served with the overrides .*50"):
        build_ladder("chain_sum", overrides={"min_terms": 50})


def test_a_constant_answer_is_known_of_the_measured_config_only() -> None:
    assert not build_ladder("syllogism", overrides={"allow_some": False}).constant_answer


# --- a user's own dataset ---


def test_a_users_dataset_has_its_defaults_or_what_its_curriculum_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = build_ladder("caesar_cipher")
    monkeypatch.setitem(factory.DATASETS, "own", factory.DATASETS["caesar_cipher"])
    assert [dict(level.config) for level in build_ladder("own").levels] == [config_of("caesar_cipher")]
    monkeypatch.setitem(factory.CURRICULA, "own", factory.CURRICULA["caesar_cipher"])
    assert [level.config for level in build_ladder("own").levels] == [level.config for level in theirs.levels]


def test_a_curriculum_that_raises_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise KeyError("levels")

    monkeypatch.setitem(factory.DATASETS, "own", factory.DATASETS["caesar_cipher"])
    monkeypatch.setitem(factory.CURRICULA, "own", broken)
    with pytest.raises(EnvironmentSetupError, match=r"^The curriculum of own cannot be made: KeyError: 'levels'"):
        build_ladder("own")


# --- asking a ladder ---


def test_at_gives_the_nearest_level_and_the_easier_of_two() -> None:
    ladder = Ladder("t", tuple(Level(n, n / 4, {}) for n in range(5)))
    assert [ladder.at(c).index for c in (0.0, 0.1, 0.125, 0.13, 0.6, 1.0)] == [0, 0, 0, 1, 2, 4]
