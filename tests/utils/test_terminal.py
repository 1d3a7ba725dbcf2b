"""A number that cannot be used is named with what was expected."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from reasoning_gym_environment.utils.terminal import positive, share


@pytest.mark.parametrize("text", ["x", "", "-0.1", "1.1", "nan"])
def test_a_share_is_from_0_to_1(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"expected a number from 0 to 1, got '{text}'"):
        share(text)
    assert (share("0"), share("0.5"), share("1")) == (0.0, 0.5, 1.0)


@pytest.mark.parametrize("text", ["x", "", "0", "-3", "1.5"])
def test_a_count_is_at_least_1(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"expected a whole number of at least 1, got '{text}'"):
        positive(text)
    assert positive("7") == 7
