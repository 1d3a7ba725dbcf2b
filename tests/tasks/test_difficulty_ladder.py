from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError, UnknownNameError
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level, Ranges, build_ladder

library.load()
from reasoning_gym import factory  # noqa: E402
from reasoning_gym.coaching import BaseCurriculum, ScalarAttributeDefinition  # noqa: E402
from reasoning_gym.composite import DatasetSpec  # noqa: E402
from reasoning_gym.dataset import ProceduralDataset  # noqa: E402

TASKS = sorted(library.registry().keys() - {"composite"})
FAST = ("chain_sum", "count_bits", "gcd", "spell_backward", "survo", "tsumego", "power_function", "caesar_cipher")


@pytest.fixture(scope="module", params=["level", "cumulative"])
def ladders(request: pytest.FixtureRequest) -> dict[str, Ladder]:
    return {task: build_ladder(task, difficulty_range=request.param) for task in TASKS}


def item(task: str, level: Level, seed: int = 5) -> dict[str, Any]:
    return library.create_dataset(task, seed=seed, size=1, **level.config)[0]


# --- every task ---


def test_every_dataset_with_a_curriculum_has_at_least_two_levels(ladders: dict[str, Ladder]) -> None:
    short = [task for task, ladder in ladders.items() if len(ladder) < 2]
    assert [task for task in short if library.has_curriculum(task)] == []


def test_neighbouring_levels_always_differ(ladders: dict[str, Ladder]) -> None:
    for task, ladder in ladders.items():
        for lower, upper in zip(ladder.levels, ladder.levels[1:], strict=False):
            assert lower.config != upper.config, (task, lower.index)


def test_levels_are_numbered_from_zero_and_complexity_runs_from_0_to_1(ladders: dict[str, Ladder]) -> None:
    for task, ladder in ladders.items():
        assert [level.index for level in ladder.levels] == list(range(len(ladder))), task
        top = max(len(ladder) - 1, 1)
        assert [level.complexity for level in ladder.levels] == [n / top for n in range(len(ladder))], task


def test_a_config_has_every_field_but_seed_and_size_and_can_be_sent_to_a_worker(ladders: dict[str, Ladder]) -> None:
    for task, (_, config_class) in library.registry().items():
        if task == "composite":
            continue
        fields = {field.name for field in dataclasses.fields(config_class)} - {"seed", "size"}
        assert all(level.config.keys() == fields for level in ladders[task].levels), task
        assert pickle.loads(pickle.dumps(ladders[task])) == ladders[task]


def test_a_config_builds_the_same_config_again(ladders: dict[str, Ladder]) -> None:
    for task, (_, config_class) in library.registry().items():
        for level in ladders[task].levels if task in ladders else ():
            config = config_class(**copy.deepcopy(dict(level.config)))
            assert all(getattr(config, name) == value for name, value in level.config.items()), (task, level.index)


def test_what_is_left_out_has_a_level_and_a_reason(ladders: dict[str, Ladder]) -> None:
    left_out = {task: ladder.left_out for task, ladder in ladders.items() if ladder.left_out}
    assert left_out
    assert all(number >= 0 and ": " in reason for missing in left_out.values() for number, reason in missing)


def test_a_ladder_is_the_same_when_built_again_after_all_others(ladders: dict[str, Ladder]) -> None:
    cumulative = "cumulative" in ladders["chain_sum"].source
    ranges: Ranges = "cumulative" if cumulative else "level"
    for task in ("aiw", "calendar_arithmetic", "chain_sum", "intermediate_integration", "knight_swap", "rearc"):
        assert build_ladder(task, difficulty_range=ranges) == ladders[task]


# --- levels of one task ---


@pytest.mark.parametrize("task", FAST)
def test_the_lowest_and_the_highest_level_ask_different_questions(task: str) -> None:
    ladder = build_ladder(task)
    assert item(task, ladder.levels[0])["question"] != item(task, ladder.levels[-1])["question"]


MEASURES: dict[str, Callable[[dict[str, Any]], int]] = {
    "chain_sum": lambda entry: sum(character in "+-" for character in entry["question"]),
    "count_bits": lambda entry: int(entry["metadata"]["number"]),
    "gcd": lambda entry: len(entry["metadata"]["numbers"]),
    "letter_counting": lambda entry: len(entry["question"].split()),
    "maze": lambda entry: entry["question"].count("\n"),
    "n_queens": lambda entry: entry["question"].count("_"),
    "number_sorting": lambda entry: len(entry["metadata"]["original_numbers"]),
    "shortest_path": lambda entry: entry["question"].count("\n"),
    "spell_backward": lambda entry: len(entry["answer"]),
    "spiral_matrix": lambda entry: len(entry["answer"]),
    "sudoku": lambda entry: entry["question"].count("_"),
    "word_sorting": lambda entry: len(entry["metadata"]["original_words"]),
}
"""What makes an item of these tasks hard, read from the item and not from its config."""


@pytest.mark.parametrize("task", sorted(MEASURES))
def test_difficulty_that_can_be_measured_grows_along_the_ladder(task: str) -> None:
    medians = []
    for level in build_ladder(task).levels:
        dataset = library.create_dataset(task, seed=3, size=7, **level.config)
        medians.append(median(MEASURES[task](dataset[index]) for index in range(7)))
    assert medians == sorted(medians), medians
    assert medians[-1] > medians[0], medians


def test_the_number_of_levels_is_that_of_the_longest_attribute() -> None:
    attributes = library.create_curriculum("leg_counting").attributes.values()
    assert (
        len(build_ladder("leg_counting"))
        == max(len(a.levels) for a in attributes)
        > min(len(a.levels) for a in attributes)
    )


def test_level_ranges_hold_one_level_and_cumulative_ranges_all_up_to_it() -> None:
    narrow, wide = build_ladder("chain_sum"), build_ladder("chain_sum", difficulty_range="cumulative")
    assert [(c.config["min_terms"], c.config["max_terms"]) for c in narrow.levels[:3]] == [(2, 2), (3, 3), (4, 4)]
    assert [(c.config["min_terms"], c.config["max_terms"]) for c in wide.levels[:3]] == [(2, 2), (2, 3), (2, 4)]
    assert "level ranges" in narrow.source
    assert "cumulative ranges" in wide.source


def test_levels_with_equal_configs_are_one() -> None:
    (attribute,) = library.create_curriculum("count_bits").attributes.values()
    ladder = build_ladder("count_bits")
    assert (len(ladder), ladder.left_out) == (len(attribute.levels) - 1, ())


@pytest.mark.parametrize(
    ("task", "missing", "reason"),
    [
        ("caesar_cipher", [2, 3], "rotation must be in range"),
        ("modulo_grid", [1], "max_target must be greater than 0"),
        ("rubiks_cube", [4], "cube_size must be less than 7"),
        ("spell_backward", [4], "the word list has 0 words"),
        ("letter_jumble", [2, 3, 4], "the word list has"),
        ("game_of_life_halting", [2, 3], "abbreviates a board of over 1000 cells"),
        ("number_sequence", [2, 3], "until time or memory runs out"),
        ("jugs", [3], "no seed gives an item"),
    ],
)
def test_unusable_levels_are_left_out_by_name(task: str, missing: list[int], reason: str) -> None:
    ladder = build_ladder(task)
    assert [number for number, _ in ladder.left_out] == missing
    assert all(reason in why for _, why in ladder.left_out)


@pytest.mark.parametrize(
    ("task", "number", "fault"), [("spell_backward", 4, IndexError), ("letter_jumble", 4, ValueError)]
)
def test_reasoning_gym_still_accepts_levels_that_cannot_yield_an_item(
    task: str, number: int, fault: type[Exception]
) -> None:
    config = raw_level(task, number)
    dataset = library.create_dataset(task, seed=5, size=1, **config)
    with pytest.raises(fault):
        dataset[0]


def test_reasoning_gym_still_abbreviates_large_boards_in_the_question() -> None:
    raw = raw_level("game_of_life_halting", 2)
    question = library.create_dataset("game_of_life_halting", seed=5, size=1, **raw)[0]["question"]
    assert "[0 0 0 ... 0 0 0]" in question
    for level in build_ladder("game_of_life_halting").levels:
        assert " ... " not in item("game_of_life_halting", level)["question"]


def raw_level(task: str, number: int) -> dict[str, Any]:
    """reasoning-gym's own config, at level-only ranges."""
    from reasoning_gym.coaching.base_curriculum import DefaultCurriculumContext, RangeAttributeMode

    curriculum = library.create_curriculum(task)
    curriculum.set_global_level(number)
    context = DefaultCurriculumContext(RangeAttributeMode.UPPER_BOUND)
    config = dataclasses.asdict(curriculum.generate_configuration(context=context))
    return {name: value for name, value in config.items() if name not in ("seed", "size")}


# --- where a curriculum does not suffice ---


def test_too_few_levels_in_one_range_mode_give_way_to_the_other(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        ladder = build_ladder("puzzle24")
    assert "cumulative" in ladder.source
    assert len(ladder) == 6
    assert [number for number, _ in ladder.left_out] == [1, 2, 3, 4, 5, 6]
    assert "puzzle24: its levels come from the curriculum with cumulative ranges" in caplog.text


def test_where_neither_range_mode_works_the_default_ranges_are_cut_into_parts() -> None:
    ladder = build_ladder("knight_swap")
    assert "in parts" in ladder.source
    steps = [(level.config["min_steps"], level.config["max_steps"]) for level in ladder.levels]
    assert steps == [(4, 9), (9, 14), (14, 20)]
    assert "level ranges" in ladder.left_out[0][1]
    assert "cumulative ranges" in ladder.left_out[-1][1]
    assert item("knight_swap", ladder.levels[-1])["metadata"]["source_dataset"] == "knight_swap"


@pytest.mark.parametrize("task", ["acre", "gsm_symbolic", "list_functions"])
def test_a_task_without_a_curriculum_has_one_level_and_says_so(task: str) -> None:
    ladder = build_ladder(task)
    assert (len(ladder), ladder.source) == (1, "the default config: the task has no curriculum")
    assert item(task, ladder.level(0))["question"]


def test_composite_needs_overrides_that_list_its_datasets() -> None:
    with pytest.raises(EnvironmentSetupError, match="Must specify at least one dataset"):
        build_ladder("composite")
    ladder = build_ladder("composite", overrides={"datasets": [DatasetSpec("gcd", 1.0, {})]})
    assert item("composite", ladder.level(0))["metadata"]["source_dataset"] == "gcd"


# --- overrides ---


def test_a_pinned_field_holds_at_every_level() -> None:
    ladder = build_ladder("chain_sum", overrides={"allow_negation": True, "min_terms": 2})
    assert len(ladder) == len(build_ladder("chain_sum"))
    assert {(lv.config["allow_negation"], lv.config["min_terms"]) for lv in ladder.levels} == {(True, 2)}
    assert ladder.levels[-1].config["max_terms"] == build_ladder("chain_sum").levels[-1].config["max_terms"]


def test_pinning_the_only_field_that_changes_leaves_one_level() -> None:
    ladder = build_ladder("bitwise_arithmetic", overrides={"difficulty": 3})
    assert [level.config["difficulty"] for level in ladder.levels] == [3]
    assert (ladder.level(0).complexity, ladder.left_out) == (0.0, ())


def test_a_level_that_contradicts_the_overrides_is_left_out() -> None:
    ladder = build_ladder("chain_sum", overrides={"min_terms": 5, "max_terms": 6, "max_digits": 4})
    assert [level.config["max_digits"] for level in ladder.levels] == [4] * len(ladder)
    assert [number for number, _ in ladder.left_out] == [4, 5, 6, 7, 8, 9, 10]


def test_overrides_that_fit_no_level_are_an_error_that_names_them() -> None:
    with pytest.raises(EnvironmentSetupError, match=r"No level of chain_sum .*'min_terms': 50.*max_terms"):
        build_ladder("chain_sum", overrides={"min_terms": 50})


def test_slow_settings_are_served_if_the_overrides_ask_for_them(caplog: pytest.LogCaptureFixture) -> None:
    ladder = build_ladder("zebra_puzzles", overrides={"num_people": 7, "num_characteristics": 7})
    assert (len(ladder), ladder.source) == (1, "the default config")
    assert "zebra_puzzles is served as its overrides ask, although every item takes" in caplog.text


def test_overrides_and_configs_share_no_values() -> None:
    weights = [0.4, 0.3, 0.3]
    first = build_ladder("aiw", overrides={"task_type_weights": weights})
    first.levels[0].config["task_type_weights"].append(9.0)
    assert weights == [0.4, 0.3, 0.3]
    assert first.levels[1].config["task_type_weights"] == weights
    build_ladder("aiw").levels[0].config["task_type_weights"].append(9.0)
    assert build_ladder("aiw").levels[0].config["task_type_weights"] == [1.0, 0.0, 0.0]


def test_mistakes_are_errors_that_name_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match=r"'max_term'.*max_terms"):
        build_ladder("chain_sum", overrides={"max_term": 3})
    with pytest.raises(UnknownNameError, match=r"'chain_sums'.*chain_sum"):
        build_ladder("chain_sums")
    with pytest.raises(EnvironmentSetupError, match="'seed' of chain_sum cannot be overridden"):
        build_ladder("chain_sum", overrides={"seed": 3})
    with pytest.raises(EnvironmentSetupError, match="level, cumulative, got 'wide'"):
        build_ladder("chain_sum", difficulty_range="wide")  # type: ignore[arg-type]


def test_without_a_readable_registry_a_ladder_can_still_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> None:
        raise library.RegistryError("hidden")

    monkeypatch.setattr(library, "registry", hidden)
    assert len(build_ladder("gcd")) == 4
    with pytest.raises(EnvironmentSetupError, match="config field of gcd 'nope'"):
        build_ladder("gcd", overrides={"nope": 1})


# --- a user's own dataset ---


@dataclass
class OwnConfig:
    steps: int = 1
    seed: int | None = None
    size: int = 10


class OwnDataset(ProceduralDataset):
    def __init__(self, config: OwnConfig) -> None:
        super().__init__(config, config.seed, config.size)
        if config.steps == 3:
            raise RuntimeError("three is not built")

    def __getitem__(self, idx: int) -> dict[str, Any]:
        return {"question": f"{self.config.steps} steps", "answer": "", "metadata": {}}


class OwnCurriculum(BaseCurriculum):
    def __init__(self) -> None:
        super().__init__("OwnCurriculum", OwnConfig)
        self._define_attributes(ScalarAttributeDefinition(name="steps", field_name="steps", levels=[2, 3, 4, "x"]))

    def generate_configuration(self, *args: Any, **kwargs: Any) -> Any:
        config = super().generate_configuration(*args, **kwargs)
        config.steps += 0  # fails at the level that is no number
        return config


def test_a_users_dataset_has_its_defaults_or_what_its_curriculum_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(factory.DATASETS, "own", (OwnDataset, OwnConfig))
    assert [level.config for level in build_ladder("own").levels] == [{"steps": 1}]
    monkeypatch.setitem(factory.CURRICULA, "own", OwnCurriculum)
    ladder = build_ladder("own")
    assert [level.config for level in ladder.levels] == [{"steps": 2}, {"steps": 4}]
    assert [number for number, _ in ladder.left_out] == [1, 3]
    assert "RuntimeError: three is not built" in ladder.left_out[0][1]
    assert "TypeError" in ladder.left_out[1][1]


# --- asking a ladder ---


def test_at_gives_the_nearest_level_and_the_easier_of_two() -> None:
    ladder = Ladder("t", tuple(Level(n, n / 4, {}) for n in range(5)), "made up")
    assert [ladder.at(c).index for c in (0.0, 0.1, 0.125, 0.13, 0.6, 1.0)] == [0, 0, 0, 1, 2, 4]


@pytest.mark.parametrize("index", [-1, 2])
def test_a_level_that_does_not_exist_is_an_error(index: int) -> None:
    ladder = Ladder("t", (Level(0, 0.0, {}), Level(1, 1.0, {})), "made up")
    assert ladder.level(1).index == 1
    with pytest.raises(IndexError, match="t has levels 0 to 1"):
        ladder.level(index)
