"""Tasks of numbers: arithmetic, algebra, geometry, probability, sequences."""

from __future__ import annotations

import re
from math import gcd as greatest_common_divisor

from ..solution import Solution, value


def gcd(question: str) -> Solution:
    """`Find the Greatest Common Divisor (GCD) of these numbers: 26, 760. Give only the GCD as your final answer.`"""
    numbers = map(int, re.findall(r"\d+", question))
    return value(greatest_common_divisor(*numbers))
