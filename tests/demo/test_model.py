"""The tiny transformer: its gradient is that of its loss, and it samples what its log probabilities say."""

from __future__ import annotations

import numpy as np
import pytest

from examples.demo.model import Shape, Transformer

SHAPE = Shape(vocabulary=11, width=8, layers=2, heads=2, context=16)
PROMPTS = [[1, 2, 3], [4, 5], [1, 2, 3], [6]]
END = 0


@pytest.fixture
def model() -> Transformer:
    # Far from uniform, so that sampling differs from guessing.
    return Transformer(SHAPE, np.random.default_rng(3).normal(0.0, 0.8, SHAPE.size).astype(np.float32))


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


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.8), (0.0, 1.0)])
def test_sampling_tells_the_log_probabilities_of_the_model_itself(
    model: Transformer, temperature: float, top_p: float
) -> None:
    limits = [9, 9, 2, 99]
    rng = np.random.default_rng(1)
    made = model.sample(PROMPTS, max_tokens=limits, end=END, rng=rng, temperature=temperature, top_p=top_p)
    sequences = [prompt + one.tokens for prompt, one in zip(PROMPTS, made, strict=True)]
    again = model.logprobs(sequences, [len(prompt) for prompt in PROMPTS])
    for one, limit, sequence, told in zip(made, limits, sequences, again, strict=True):
        assert one.logprobs == pytest.approx(told.tolist(), abs=1e-5)
        assert END not in one.tokens[:-1] and len(one.tokens) <= limit and len(sequence) <= SHAPE.context
        assert one.finish_reason == ("stop" if one.tokens[-1] == END else "length")
    assert temperature or made[0].tokens[:2] == made[2].tokens
