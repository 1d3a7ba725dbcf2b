"""The tests beside this one use the package of the wheel; testing/wheel.py runs it with each of them."""

from __future__ import annotations

import sys
from pathlib import Path

import reasoning_gym_environment


def test_the_package_is_the_package_of_the_wheel() -> None:
    assert Path(reasoning_gym_environment.__file__).is_relative_to(sys.prefix)
