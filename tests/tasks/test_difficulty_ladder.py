from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.tasks import difficulty_ladder
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import config_of
from reasoning_gym_environment.tasks.difficulty_ladder import NEEDS_WORDS, Ladder, Level, build_ladder

library.load()
from reasoning_gym import factory  # noqa: E402

TASKS = sorted(library.registry().keys() - {"composite"})


class OwnDataset(factory.DATASETS["chain_sum"][0]):  # type: ignore[misc]
    """A user's own dataset."""


SOME = ["acre", "caesar_cipher", "chain_sum", "knight_swap", "power_function", "spell_backward", "survo", "tsumego"]


def item(task: str, level: Level, seed: int = 5) -> dict[str, Any]:
    return library.create_dataset(task, seed=seed, size=1, **level.config)[0]


@pytest.mark.parametrize("tasks", [SOME, pytest.param(TASKS, marks=pytest.mark.slow)], ids=["some", "all"])
def test_ladders_are_whole(tasks: list[str]) -> None:
    ladders = {task: build_ladder(task) for task in tasks}
    for task, ladder in ladders.items():
        configs = [level.config for level in ladder.levels]
        assert len(configs) >= 2 or ladder.constant_answer_levels or not library.has_curriculum(task), task
        assert all(lower != upper for lower, upper in itertools.pairwise(configs)), task
        places = [(n, n / max(len(configs) - 1, 1)) for n in range(len(configs))]
        assert [(level.index, level.complexity) for level in ladder.levels] == places, task
        assert pickle.loads(pickle.dumps(ladder)) == ladder, "it can be sent to a worker"
        assert all(number >= 0 and ": " in reason for number, reason in ladder.excluded)
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
def test_ladders_of_measured_tasks_are_the_same_if_every_dataset_is_built(
    tasks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {task: build_ladder(task) for task in tasks}
    monkeypatch.setattr(difficulty_ladder, "builds_if_valid", lambda task, overrides: False)
    for task in tasks:
        assert build_ladder(task) == quick[task]


def test_ladders_of_measured_tasks_need_no_dataset_and_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(task: str, **config: Any) -> None:
        raise AssertionError(f"a dataset of {task} is built")

    monkeypatch.setitem(factory.DATASETS, "own", (OwnDataset, factory.DATASETS["chain_sum"][1]))
    monkeypatch.setattr(library, "create_dataset", refuse)
    for task in sorted(set(TASKS) - set(NEEDS_WORDS)):
        assert len(build_ladder(task)) > 0
    for task, overrides in (("own", {}), ("chain_sum", {"min_terms": 2})):
        with pytest.raises(EnvironmentSetupError, match="is built"):
            build_ladder(task, overrides=overrides)


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


def test_the_ranges_of_a_level_hold_this_level_only() -> None:
    ladder = build_ladder("chain_sum")
    terms = [(level.config["min_terms"], level.config["max_terms"]) for level in ladder.levels]
    assert terms[:3] == [(2, 2), (3, 3), (4, 4)]
    assert "level ranges" in ladder.source


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
    ):
        ladder = build_ladder(task, keep_constant_answer_levels=True)
        assert [number for number, _ in ladder.excluded] == missing, task
        assert all(reason in why for _, why in ladder.excluded), task


# --- where a curriculum does not suffice ---


def test_a_task_without_enough_levels_of_their_own_ranges_gets_cumulative_ranges() -> None:
    ladder = build_ladder("puzzle24", keep_constant_answer_levels=True)
    assert "cumulative" in ladder.source
    values = [(level.config["min_value"], level.config["max_value"]) for level in ladder.levels]
    assert values == [(1, 5), (1, 6), (1, 7), (1, 8), (1, 9), (1, 10)]
    assert [number for number, _ in ladder.excluded] == [1, 2, 3, 4, 5, 6]


def test_where_neither_range_mode_works_the_default_ranges_are_cut_into_parts() -> None:
    ladder = build_ladder("knight_swap", keep_constant_answer_levels=True)
    assert "in parts" in ladder.source
    steps = [(level.config["min_steps"], level.config["max_steps"]) for level in ladder.levels]
    assert steps == [(4, 9), (9, 14), (14, 20)]
    assert "level ranges" in ladder.excluded[0][1] and "cumulative ranges" in ladder.excluded[-1][1]
    assert item("knight_swap", ladder.levels[-1])["metadata"]["source_dataset"] == "knight_swap"


def test_a_task_without_a_curriculum_has_one_level_and_says_so() -> None:
    for task in ("acre", "gsm_symbolic", "list_functions"):
        ladder = build_ladder(task)
        assert (len(ladder), ladder.source) == (1, "the default config: the task has no curriculum")
        assert item(task, ladder.levels[0])["question"]


# --- overrides ---


def test_a_pinned_field_holds_at_every_level() -> None:
    ladder = build_ladder("chain_sum", overrides={"allow_negation": True, "min_terms": 2})
    assert len(ladder) == len(build_ladder("chain_sum"))
    assert {(lv.config["allow_negation"], lv.config["min_terms"]) for lv in ladder.levels} == {(True, 2)}
    assert ladder.levels[-1].config["max_terms"] == build_ladder("chain_sum").levels[-1].config["max_terms"]
    pinned = build_ladder("bitwise_arithmetic", overrides={"difficulty": 3})
    assert [level.config["difficulty"] for level in pinned.levels] == [3], "the only field that changes is pinned"
    assert (pinned.levels[0].complexity, pinned.excluded) == (0.0, ())


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
    ladder = Ladder("t", tuple(Level(n, n / 4, {}) for n in range(5)), "made up")
    assert [ladder.at(c).index for c in (0.0, 0.1, 0.125, 0.13, 0.6, 1.0)] == [0, 0, 0, 1, 2, 4]


def test_a_ladder_excludes_levels_that_a_constant_answer_solves_unless_it_solves_all() -> None:
    solved = build_ladder("syllogism")
    fewer = build_ladder("n_queens")
    assert solved.constant_answer.startswith("an answer without work earns too much: 'Yes' is right on")
    assert len(solved) > 1
    assert fewer.constant_answer_levels == (0, 1, 2, 3) and not fewer.constant_answer
