"""Errors name what was meant."""

from __future__ import annotations

from reasoning_gym_environment import errors

KNOWN = ["countdown", "chain_sum", "basic_arithmetic", "time_intervals", "gcd"]


def test_nearest_finds_typos_parts_and_other_cases_and_nothing_for_nonsense() -> None:
    for name, first in [
        ("cuontdown", ["countdown"]),
        ("chain-sum", ["chain_sum"]),
        ("arithmetic", ["basic_arithmetic"]),
        ("GCD", ["gcd"]),
        ("", []),
        ("zzzzzz", []),
    ]:
        assert errors.nearest(name, KNOWN)[:1] == first
    found = errors.nearest("task", [f"task_{i}" for i in range(9)] * 2)
    assert len(found) == len(set(found)) == 3


def test_unknown_name_says_kind_name_guess_and_hint() -> None:
    error = errors.unknown_name("task", "cuontdown", KNOWN, "See the list.")
    assert isinstance(error, errors.UnknownNameError)
    assert str(error) == "Unknown task 'cuontdown'. Did you mean countdown? See the list."
    assert str(errors.unknown_name("key", "zzzzzz", KNOWN)) == "Unknown key 'zzzzzz'."
