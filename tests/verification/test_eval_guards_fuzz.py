"""What the guards let through is computed in bounded time and size; what right answers need is let through."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasoning_gym_environment.verification.bounded_eval import (
    CONSTANTS,
    FUNCTIONS,
    MAX_BITS,
    evaluate_python,
    evaluate_symbolic,
)
from testing.hostile_answers import HOSTILE_ANSWERS

# It is about the size of these strategies when printed, which nobody does.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")]

CPU_SECONDS = 5.0
"""Processor time that no accepted text comes near: most take a millisecond."""
fuzz = settings(max_examples=400, deadline=None, derandomize=True)
"""To search further, raise max_examples and drop derandomize."""


class TookTooLongError(BaseException):
    """Not an Exception, so that nothing under test can swallow it."""


@contextmanager
def bounded_cpu() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TookTooLongError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def value_of(evaluate: Callable[[str], Any], text: str) -> Any:
    """The value of an accepted text, None for one that is rejected or cannot be computed."""
    with bounded_cpu():
        try:
            return evaluate(text)
        # sympy's own arithmetic raises all sorts on odd but harmless text, and a verifier has to live with that.
        except Exception as error:  # noqa: BLE001
            assert not isinstance(error, (NameError, AttributeError, ImportError)), text
            return None


integers = st.one_of(st.integers(-12, 12), st.integers(-(10**30), 10**30), st.integers(-(10**420), 10**420)).map(str)
numbers = st.one_of(
    integers, st.floats(allow_nan=True).map(str), st.sampled_from(["1e9", "1e400", "0x1f", "1_000", "٣"])
)
names = st.sampled_from([*sorted(CONSTANTS), "x", "y", "C", "__class__", "os", "lambda"])
functions = st.sampled_from([*sorted(FUNCTIONS), "Lambda", "factorial", "floor", "Symbol", "eval", "Sum", "Pow"])


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["+", "-", "*", "/", "**", "//", "%", "^", "&", "|", "<<", " ", "==", ","])
    return st.one_of(
        st.tuples(inner, operators, inner).map(lambda parts: f"({parts[0]}){parts[1]}({parts[2]})"),
        st.tuples(inner, operators, inner).map("".join),
        st.tuples(functions, inner).map(lambda parts: f"{parts[0]}({parts[1]})"),
        st.tuples(functions, inner, inner).map(lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"),
        inner.map(lambda text: f"-({text})"),
        inner.map(lambda text: f"{text}!"),
    )


expressions = st.recursive(st.one_of(numbers, names), _compound, max_leaves=12)
containers = st.recursive(
    st.one_of(numbers, st.text(max_size=4).map(repr), names),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(inner, max_size=4).map(lambda items: f"({', '.join(items)},)"),
        st.tuples(inner, inner).map(lambda pair: f"{{{pair[0]}: {pair[1]}}}"),
    ),
    max_leaves=12,
)
spoilt = st.tuples(st.sampled_from(sorted(HOSTILE_ANSWERS.values())), expressions, st.sampled_from("+*,( ")).map(
    lambda parts: parts[0][:2000] + parts[2] + parts[1]
)
texts = st.one_of(expressions, containers, spoilt, st.text(max_size=40))


@fuzz
@given(texts)
def test_an_accepted_expression_is_computed_in_bounded_time_and_is_an_expression(text: str) -> None:
    import sympy

    value = value_of(evaluate_symbolic, text)
    assert value is None or isinstance(value, (sympy.Basic, int, float, complex, tuple))


@fuzz
@given(st.one_of(texts, st.text(alphabet="0123456789+-*<>() ", max_size=30)))
def test_what_is_accepted_in_the_place_of_eval_is_what_python_reads_in_it(text: str) -> None:
    value = value_of(evaluate_python, text)
    if value is not None:
        assert repr(value) == repr(eval(text, {"__builtins__": {}})) or value == eval(text, {"__builtins__": {}})
        assert not isinstance(value, int) or value.bit_length() <= MAX_BITS
