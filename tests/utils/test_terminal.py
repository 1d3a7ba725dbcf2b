"""A number that cannot be used is named with what was expected."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from reasoning_gym_environment.utils.terminal import positive, share


def test_numbers_are_read_as_they_are_asked_for() -> None:
    for read, texts, expected in (
        (share, ("x", "", "-0.1", "1.1", "nan"), "expected a number from 0 to 1, got"),
        (positive, ("x", "", "0", "-3", "1.5"), "expected a whole number of at least 1, got"),
    ):
        for text in texts:
            with pytest.raises(ArgumentTypeError, match=f"{expected} '{text}'"):
                read(text)
    assert (share("0"), share("0.5"), share("1"), positive("7")) == (0.0, 0.5, 1.0, 7)
