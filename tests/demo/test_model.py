"""The gradient of the tiny transformer is that of its loss."""

from __future__ import annotations

import numpy as np
import pytest

from examples.demo.model import Shape, Transformer

SHAPE = Shape(vocabulary=11, width=8, layers=2, heads=2, context=16)


def test_the_gradient_is_that_of_finite_differences() -> None:
    rng = np.random.default_rng(0)
    flat = rng.normal(0.0, 0.4, SHAPE.size)  # in double precision, which differences need
    model = Transformer(SHAPE, flat)  # type: ignore[arg-type]
    sequences, starts = [[1, 2, 3, 4, 1], [5, 6, 7], [8, 2, 9, 3]], [1, 2, 3]
    weights = [rng.normal(size=len(one) - start) for one, start in zip(sequences, starts, strict=True)]

    def loss() -> float:
        told = model.logprobs(sequences, starts)
        return float(sum((weight * one).sum() for weight, one in zip(weights, told, strict=True)))

    gradient = model.gradient(sequences, starts, lambda told: weights)  # type: ignore[arg-type, return-value]
    for place in rng.choice(SHAPE.size, 60, replace=False):
        kept, values = flat[place], []
        for step in (1e-5, -1e-5):
            flat[place] = kept + step
            values.append(loss())
        flat[place] = kept
        assert gradient[place] == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4, abs=1e-7)
