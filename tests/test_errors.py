"""Errors name what was meant."""

from __future__ import annotations

import pytest

from reasoning_gym_environment import errors

KNOWN = ["countdown", "chain_sum", "basic_arithmetic", "time_intervals", "gcd"]


@pytest.mark.parametrize(
    ("name", "first"),
    [("cuontdown", "countdown"), ("chain-sum", "chain_sum"), ("arithmetic", "basic_arithmetic"), ("GCD", "gcd")],
)
def test_nearest_finds_typos_parts_and_other_cases(name: str, first: str) -> None:
    assert errors.nearest(name, KNOWN)[0] == first


@pytest.mark.parametrize("name", ["", "zzzzzz"])
def test_nothing_is_near_to_nonsense(name: str) -> None:
    assert errors.nearest(name, KNOWN) == []


def test_nearest_gives_at_most_the_limit_without_repetitions() -> None:
    found = errors.nearest("task", [f"task_{i}" for i in range(9)] * 2, limit=4)
    assert len(found) == len(set(found)) == 4


def test_unknown_name_says_kind_name_guess_and_hint() -> None:
    error = errors.unknown_name("task", "cuontdown", KNOWN, "See the list.")
    assert isinstance(error, errors.UnknownNameError)
    assert str(error) == "Unknown task 'cuontdown'. Did you mean countdown? See the list."


def test_unknown_name_without_a_near_one_makes_no_guess() -> None:
    assert str(errors.unknown_name("key", "zzzzzz", KNOWN)) == "Unknown key 'zzzzzz'."


def test_what_a_person_can_fix_is_a_setup_error_and_the_rest_is_not() -> None:
    for kind in (errors.LibraryNotFoundError, errors.UnknownNameError, errors.NoTasksError):
        assert issubclass(kind, errors.EnvironmentSetupError)
    for kind in (errors.GenerationError, errors.InferenceError):
        assert not issubclass(kind, errors.EnvironmentSetupError)
