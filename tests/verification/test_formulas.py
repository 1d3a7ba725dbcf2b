"""Propositional formulas read from text, against reasoning-gym's own reading of them."""

from __future__ import annotations

import random

import pytest
from reasoning_gym.logic.propositional_logic import Expression

from reasoning_gym_environment.verification.formulas import MAX_VARIABLES, truth_table

VARIABLES = "PQRS"


def random_formula(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(VARIABLES)
    if rng.random() < 0.25:
        return f"¬{rng.choice(['', ' '])}{random_formula(rng, 0)}"
    text = f"{random_formula(rng, depth - 1)} {rng.choice('↔→∨∧')} {random_formula(rng, depth - 1)}"
    return f"({text})" if rng.random() < 0.5 else text


def test_tables_are_those_of_reasoning_gym() -> None:
    rng = random.Random(3)
    for _ in range(300):
        text = random_formula(rng, 4)
        names = sorted(set(text) & set(VARIABLES))
        expression = Expression.from_string(text.replace("¬ ", "¬"))
        table, rows = truth_table(text, VARIABLES)
        assert rows == 2 ** len(names)
        for row in range(rows):
            values = {name: bool(row >> index & 1) for index, name in enumerate(names)}
            assert bool(table >> row & 1) == expression.evaluate(values), (text, values)


def test_what_is_no_formula_is_refused() -> None:
    for text in ("", "P Q", "P ∧", "∧ P", "(P", "P)", "()", "¬", "P ¬ Q", "p", "P ∨ X", "P.", "P(Q)", "(P ∨ Q"):
        with pytest.raises(ValueError):
            raise AssertionError(f"{text} is {truth_table(text, VARIABLES)}")


def test_size_is_bounded_by_the_variables_and_not_by_the_depth() -> None:
    assert truth_table("¬" * 50_000 + "P", VARIABLES) == (0b10, 2)
    assert truth_table("(" * 50_000 + "P" + ")" * 50_000, VARIABLES) == (0b10, 2)
    names = [chr(ord("A") + index) for index in range(MAX_VARIABLES + 1)]
    with pytest.raises(ValueError, match="variables"):
        truth_table(" ∧ ".join(names), names)
