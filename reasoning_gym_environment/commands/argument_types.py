"""Numbers on the command line of our own commands: what argparse calls for a `type`."""

from __future__ import annotations

from argparse import ArgumentTypeError


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return value


def positive(text: str) -> int:
    """A whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return number
