"""Tasks of numbers: arithmetic, algebra, geometry, probability, sequences."""

from __future__ import annotations

import ast
import calendar
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from math import gcd as greatest_common_divisor
from pathlib import Path

from ..common import evaluate
from ..solution import Solution, undecided, value

Polynomial = dict[int, Fraction]
"""The coefficient of each power of the variable."""


def exact_decimal(number: Fraction) -> str | None:
    """The number as a decimal without trailing zeros, or None if it has infinitely many digits."""
    scale = 0
    while scale < 400:
        scaled = number * 10**scale
        if scaled.denominator == 1:
            digits = f"{abs(scaled.numerator):0{scale + 1}d}"
            sign = "-" if number < 0 else ""
            if scale == 0:
                return sign + digits
            return f"{sign}{digits[:-scale]}.{digits[-scale:]}"
        scale += 1
    return None


def rounded_to_digits(number: Fraction, digits: int) -> Decimal:
    """The number, rounded to `digits` significant digits. A half is rounded away from zero."""
    context = Context(prec=digits, rounding=ROUND_HALF_UP)
    return context.divide(Decimal(number.numerator), Decimal(number.denominator))


def as_fraction(text: str) -> Fraction | None:
    """The number that a text is, or None."""
    try:
        return Fraction(text.strip().replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return None


def close_to(number: Fraction, tolerance: Fraction = Fraction(0)) -> Callable[[str], bool]:
    """Judges whether an answer is this number, in any notation."""

    def is_right(key: str) -> bool:
        found = as_fraction(key)
        return found is not None and abs(found - number) <= tolerance

    return is_right


def exact_number(number: Fraction) -> Solution:
    """An exact number, in any notation."""
    answers = [str(number)]
    decimal = exact_decimal(number)
    if decimal is not None and decimal not in answers:
        answers.append(decimal)
    return Solution(answers, judge=close_to(number))


# --- arithmetic


def basic_arithmetic(question: str) -> Solution:
    """`Calculate -7 - -8.`"""
    found = re.search(r"([-(\d][-+*/().\d\s]*)", question)
    assert found is not None
    return exact_number(evaluate(found.group(1).rstrip().rstrip(".")))


def bitwise_arithmetic(question: str) -> Solution:
    """`... Reply only with the final hexidecimal value.` and a line with `(0x60ee - 0xc2ed)`"""
    expression = re.sub(r"0x[0-9a-f]+", lambda found: str(int(found.group(), 16)), question.strip().splitlines()[-1])
    result = evaluate(expression)
    sign = "-" if result < 0 else ""
    return value(f"{sign}0x{abs(result.numerator):x}")


def chain_sum(question: str) -> Solution:
    """`State the final answer to the following arithmetic problem: 1 + 1 =`"""
    expression = question.split(":")[1].split("=")[0]
    return value(evaluate(expression))


def decimal_chain_sum(question: str) -> Solution:
    """`State the final answer to the following arithmetic problem: 24.8 - 84.44 =`"""
    expression = question.split(":")[1].split("=")[0]
    result = evaluate(expression)
    places = max(len(decimals) for decimals in re.findall(r"\.(\d+)", expression))
    solution = exact_number(result)
    padded = f"{Decimal(exact_decimal(result) or 0):.{places}f}"
    return Solution([*solution.answers[-1:], padded], judge=solution.judge)


def products(question: str) -> Solution:
    """`Solve the following multiplication: 1 * 9. Give only the result as your final answer.`"""
    expression = question.split(":")[1].split(".")[0]
    return value(evaluate(expression))


def decimal_arithmetic(question: str) -> Solution:
    """`... to a maximum of 6 significant digits, rounding up from the half ...` and a line with `3.8613+2.0462 = ?`"""
    digits = re.findall(r"maximum of (\d+) significant digits", question)[0]
    expression = question.strip().splitlines()[-1].split("=")[0]
    result = rounded_to_digits(evaluate(expression), int(digits))
    return Solution([f"{result:f}"], judge=close_to(Fraction(result)))


def count_bits(question: str) -> Solution:
    """`How many 1 bits are there in the binary representation of the number 969?`"""
    number = int(re.findall(r"(\d+)\?", question)[0])
    ones = 0
    while number:
        ones += number % 2
        number //= 2
    return value(ones)


def gcd(question: str) -> Solution:
    """`Find the Greatest Common Divisor (GCD) of these numbers: 26, 760. Give only the GCD as your final answer.`"""
    numbers = map(int, re.findall(r"\d+", question))
    return value(greatest_common_divisor(*numbers))


def lcm(question: str) -> Solution:
    """`Find the Least Common Multiple (LCM) of these numbers: 483, 875`"""
    multiple = 1
    for number in map(int, re.findall(r"\d+", question)):
        multiple = multiple * number // greatest_common_divisor(multiple, number)
    return value(multiple)


def fraction_simplification(question: str) -> Solution:
    r"""`Simplify the fraction $\dfrac{245}{581}$ to its lowest terms. Give only the simplified fraction ...`"""
    numerator, denominator = map(int, re.findall(r"\d+", question)[:2])
    divisor = greatest_common_divisor(numerator, denominator)
    above = numerator // divisor
    below = denominator // divisor
    answers = [
        f"{above}/{below}",
        f"${above}/{below}$",
        f"$\\frac{{{above}}}{{{below}}}$",
        f"$\\dfrac{{{above}}}{{{below}}}$",
    ]
    if below == 1:
        answers.append(str(above))
    return Solution(answers)


def prime_factorization(question: str) -> Solution:
    """`Find the prime factorization of 969. Write the factors separated by × (Example: for 12 ...)`"""
    number = int(re.findall(r"factorization of (\d+)", question)[0])
    factors = []
    divisor = 2
    while number > 1:
        while number % divisor == 0:
            factors.append(str(divisor))
            number //= divisor
        divisor += 1
    return value(" × ".join(factors))


def count_primes(question: str) -> Solution:
    """`Count how many prime numbers there are between 969 and 983 (inclusive) ?`"""
    first, last = map(int, re.findall(r"\d+", question))
    is_prime = bytearray([1]) * (last + 1)
    is_prime[0:2] = b"\0\0"
    for number in range(2, math.isqrt(last) + 1):
        if is_prime[number]:
            multiples = range(number * number, last + 1, number)
            is_prime[number * number :: number] = bytes(len(multiples))
    return value(sum(is_prime[first:]))


BASE_NAMES = {"binary": 2, "octal": 8, "decimal": 10, "hexadecimal": 16}
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def base_conversion(question: str) -> Solution:
    """`Now, convert the base-8 number 13020 to binary`"""
    found = re.search(r"convert the (\S+) number (\w+) to (\S+)", question)
    assert found is not None
    number = 0
    for digit in found.group(2):
        number = number * _base(found.group(1)) + DIGITS.index(digit)
    base = _base(found.group(3))
    digits = ""
    while number:
        number, digit_value = divmod(number, base)
        digits = DIGITS[digit_value] + digits
    return value(digits or "0")


def _base(name: str) -> int:
    """The base that `hexadecimal` or `base-16` names."""
    return BASE_NAMES[name] if name in BASE_NAMES else int(name.removeprefix("base-"))


def power_function(question: str) -> Solution:
    """`Compute 873.3527^-2. Return your final answer correct to 3 significant figures.` In scientific notation."""
    found = re.search(r"Compute (-?[\d.]+)\^(-?\d+)\.", question)
    assert found is not None
    exponent = int(found.group(2))
    power = Fraction(found.group(1)) ** exponent
    if f"means ({found.group(1)})" not in question and found.group(1).startswith("-") and exponent % 2 == 0:
        return undecided("the sign can belong to the base or to the power")
    result = rounded_to_digits(power, 3)
    mantissa, _, shown_exponent = f"{result:.2e}".partition("e")
    answers = [f"{mantissa}e{int(shown_exponent):+d}", f"{mantissa}e{int(shown_exponent):+03d}"]

    def is_right(key: str) -> bool:
        number = as_fraction(key)
        return number is not None and rounded_to_digits(number, 3) == result

    return Solution(answers, judge=is_right)


A_FLOAT = r"-?[\d.]+(?:e[-+]?\d+)?"


def complex_arithmetic(question: str) -> Solution:
    """`Divide the complex numbers: (29.0 + 17.0i) ÷ (-7.0 - 8.0i)`"""
    found = re.search(r"\(([^()]*)\) (.) \(([^()]*)\)", question)
    assert found is not None
    operation = found.group(2)
    first = _complex_of(found.group(1))
    second = _complex_of(found.group(3))
    if first is None or second is None:
        return undecided("not read")
    a, b = first
    c, d = second
    if operation == "+":
        result = (a + c, b + d)
    elif operation == "-":
        result = (a - c, b - d)
    elif operation == "×":
        result = (a * c - b * d, a * d + b * c)
    else:
        norm = c * c + d * d
        result = ((a * c + b * d) / norm, (b * c - a * d) / norm)
    # The largest numbers of the task are floats. A quotient can differ from a whole number by a part of 10**16.
    result = (_without_noise(result[0]), _without_noise(result[1]))
    return Solution(_complex_notations(*result), judge=lambda key: _complex_of(key) == result)


def _without_noise(number: Fraction) -> Fraction:
    """The nearest whole number, if a float cannot tell the difference. Otherwise the number itself."""
    return Fraction(round(number)) if abs(number - round(number)) <= abs(number) / 10**14 else number


def _complex_notations(real: Fraction, imaginary: Fraction) -> list[str]:
    """`3 - 4i`, and also `3.0 - 4.0i` for whole numbers."""
    sign = "-" if imaginary < 0 else "+"
    if real.denominator != 1 or imaginary.denominator != 1:
        return [f"{float(real)} {sign} {float(abs(imaginary))}i"]
    notations = [f"{real} {sign} {abs(imaginary)}i", f"{real}.0 {sign} {abs(imaginary)}.0i"]
    if abs(imaginary) == 1:
        notations.append(f"{real} {sign} i")
    if imaginary == 0:
        notations.append(f"{real}")
    if real == 0:
        notations.append(f"{imaginary}i")
    return notations


def _complex_of(text: str) -> tuple[Fraction, Fraction] | None:
    """The complex number that a text is, or None."""
    text = text.replace(" ", "")
    found = re.fullmatch(rf"({A_FLOAT})([-+]{A_FLOAT})i", text)
    if found is not None:
        return Fraction(found.group(1)), Fraction(found.group(2))
    if text.endswith("i"):
        imaginary = as_fraction(text.removesuffix("i"))
        return None if imaginary is None else (Fraction(0), imaginary)
    real = as_fraction(text)
    return None if real is None else (real, Fraction(0))


# --- lists of numbers


def number_format(question: str) -> Solution:
    """`Now, pick the largest number of the following candidates: 2.3603655e+04 23,607.587 23602.522000`"""
    found = re.search(r"pick the (largest|smallest) number of the following candidates: (.*)", question, re.DOTALL)
    assert found is not None
    candidates = found.group(2).split()
    numbers = [Fraction(candidate.replace(",", "")) for candidate in candidates]
    best = max(numbers) if found.group(1) == "largest" else min(numbers)
    answers = [candidate for candidate, number in zip(candidates, numbers, strict=True) if number == best]
    # Keys are floats, which differ from the candidates after their sixteenth digit.
    tolerance = abs(best) * Fraction(1, 10**14)
    return Solution(sorted(set(answers)), judge=close_to(best, tolerance))


def number_filtering(question: str) -> Solution:
    """`Remove all numbers larger than -52.59 in this list: ['-54', '32.14']`"""
    found = re.search(r"(Keep|Remove) all numbers (larger|smaller) than (\S+) in this list: (\[.*\])", question)
    assert found is not None
    limit = Fraction(found.group(3))
    kept = []
    for text in ast.literal_eval(found.group(4)):
        is_beyond = Fraction(text) > limit if found.group(2) == "larger" else Fraction(text) < limit
        if is_beyond == (found.group(1) == "Keep"):
            kept.append(text)
    return value(kept)


def number_sorting(question: str) -> Solution:
    """`Sort these numbers in descending order: -54.0, 32.0`. The answer is a list of strings."""
    found = re.search(r"in (ascending|descending) order: (.*)", question)
    assert found is not None
    numbers = found.group(2).split(", ")
    return value(sorted(numbers, key=Fraction, reverse=found.group(1) == "descending"))


# --- probability


def coin_flip(question: str) -> Solution:
    """`What is the probability of getting at least 2 heads in 3 fair coin flips?`"""
    found = re.search(r"(at least|exactly) (\d+) (?:heads|tails) in (\d+) fair", question)
    assert found is not None
    wanted = int(found.group(2))
    flips = int(found.group(3))
    most = flips if found.group(1) == "at least" else wanted
    ways = sum(math.comb(flips, heads) for heads in range(wanted, most + 1))
    probability = Fraction(ways, 2**flips)
    answers = [*exact_number(probability).answers, f"{ways}/{2**flips}"]
    return Solution(answers, judge=close_to(probability, probability / 10**9))


def dice(question: str) -> Solution:
    """`I have these dice: 1d20, 1d13, 1d9, 1d5. What are the odds of rolling 28 or higher? ...`"""
    listed, asked = question.split("What are the odds of rolling")
    ways = {0: 1}
    for number, sides in re.findall(r"(\d+)d(\d+)", listed):
        for _ in range(int(number)):
            ways = _with_die(ways, int(sides))
    wanted = int(re.findall(r"(\d+) or higher", asked)[0])
    good = sum(count for total, count in ways.items() if total >= wanted)
    return value(Fraction(good, sum(ways.values())))


def _with_die(ways: Mapping[int, int], sides: int) -> dict[int, int]:
    """The number of ways to roll each total with one more die."""
    after: dict[int, int] = {}
    for total, count in ways.items():
        for shown in range(1, sides + 1):
            after[total + shown] = after.get(total + shown, 0) + count
    return after


# --- legs and relatives


LEGS = {
    0: "snake, leech, flatworm, sea slug, jellyfish",
    2: "bird, chicken, duck, human",
    4: "cat, cow, deer, dog, elephant, giraffe, horse, lion, sheep, tiger",
    5: "starfish",
    6: "ant, bee, beetle, butterfly, cockroach, cricket, firefly, grasshopper, insect, praying mantis, wasp",
    8: "scorpion, spider",
    10: "crab, lobster, shrimp",
    14: "woodlouse",
}


def leg_counting(question: str) -> Solution:
    """`Now, how many legs are there in total if you have 2 beetles, 844 praying mantiss?`"""
    legs_of = {}
    for legs, animals in LEGS.items():
        legs_of.update(dict.fromkeys(animals.split(", "), legs))
    total = 0
    for number, plural in re.findall(r"(\d+) ([a-z ]+)[,?]", question):
        animal = plural.removesuffix("s")
        if animal not in legs_of:
            return undecided(f"the legs of {plural} are not known")
        total += int(number) * legs_of[animal]
    return value(total)


def aiw(question: str) -> Solution:
    """`Alice has 4 brothers and she also has 4 sisters. How many sisters does Alice's brother have?` And variants."""
    found = re.search(r"^(\w+) has (\d+) \w* ?(\w+) and she also has (\d+)", question)
    assert found is not None
    woman = found.group(1)
    if "colleagues" in question:
        return _colleagues(question)
    women = _numbers_of("female friends" if "friends" in question else "sisters", question)[0]
    if "friends" in question:
        # All are friends of each other, including the woman.
        return value(women + 1)
    asked = re.search(r"How many sisters does (\w+)'s brother have", question)
    assert asked is not None
    is_brother = f"is one of {woman}'s brothers" in question
    if asked.group(1) != woman and not is_brother:
        return undecided("nothing says whose brother the man is")
    return value(women + 1)


def _numbers_of(kind: str, question: str) -> list[int]:
    return [int(number) for number in re.findall(rf"(\d+) {kind}", question)]


def _colleagues(question: str) -> Solution:
    """The person of the exception belongs to both circles.

    Both the woman and the man of the question count her. Her female colleagues are the remaining women of both circles,
    and the woman whose circle is the first.
    """
    of_woman, of_man = _numbers_of("female colleagues", question)
    return value((of_woman - 1 + 1) + (of_man - 1))


# --- geometry


def simple_geometry(question: str) -> Solution:
    """`A convex polygon has 5 sides. The measures of the first 4 interior angles are: 14.0°, 132.0° ...`"""
    angles = [Fraction(angle) for angle in re.findall(r"([\d.]+)°", question)]
    sides = int(re.findall(r"(\d+)(?: sides|-gon)", question)[0])
    if len(angles) != sides - 1:
        return undecided("expected all angles but one")
    last = 180 * (sides - 2) - sum(angles)
    if not 0 < last < 180:
        return undecided("there is no such convex polygon")
    return exact_number(Fraction(last))


Point = tuple[Fraction, Fraction]


def advanced_geometry(question: str) -> Solution:
    """`In triangle ABC with coordinates A=(-3, 1), B=(-7, -8), and C=(-3, 0), find the measure of angle ABC.`"""
    corners = {}
    for name, x, y in re.findall(r"([ABC])=\((-?\d+), (-?\d+)\)", question):
        corners[name] = (Fraction(x), Fraction(y))
    a, b, c = corners["A"], corners["B"], corners["C"]
    twice_area = abs(_cross(_minus(b, a), _minus(c, a)))
    if twice_area == 0:
        return undecided("the corners lie on a line")
    asked = question.split("For all geometry problems")[0]
    if "orthocenter" in asked:
        return _orthocenter(a, b, c)
    if re.search(r"\bangle ABC|angle at B", asked):
        return _near_number(math.degrees(_angle(a, b, c)), "°")
    if "incircle" in asked:
        perimeter = math.dist(a, b) + math.dist(b, c) + math.dist(c, a)
        return _near_number(float(twice_area) / perimeter, "")
    return undecided("not read")


def _minus(p: Point, q: Point) -> Point:
    return p[0] - q[0], p[1] - q[1]


def _cross(p: Point, q: Point) -> Fraction:
    return p[0] * q[1] - p[1] * q[0]


def _dot(p: Point, q: Point) -> Fraction:
    return p[0] * q[0] + p[1] * q[1]


def _angle(a: Point, b: Point, c: Point) -> float:
    """The angle at b."""
    to_a = _minus(a, b)
    to_c = _minus(c, b)
    return math.atan2(abs(_cross(to_a, to_c)), _dot(to_a, to_c))


def _orthocenter(a: Point, b: Point, c: Point) -> Solution:
    """The point h with (h - a)·(c - b) = 0 and (h - b)·(c - a) = 0."""
    first = _minus(c, b)
    second = _minus(c, a)
    determinant = _cross(first, second)
    right_first = _dot(a, first)
    right_second = _dot(b, second)
    x = (right_first * second[1] - right_second * first[1]) / determinant
    y = (first[0] * right_second - second[0] * right_first) / determinant
    answers = [f"({float(x):.3f}, {float(y):.3f})"]
    if x.denominator == y.denominator == 1:
        answers.append(f"({x}, {y})")

    def is_right(key: str) -> bool:
        numbers = re.findall(r"-?[\d.]+", key)
        return len(numbers) == 2 and all(
            abs(Fraction(text) - number) <= Fraction(6, 10000) for text, number in zip(numbers, (x, y), strict=True)
        )

    return Solution(answers, judge=is_right)


def _near_number(number: float, unit: str) -> Solution:
    """A number that the question wants with three decimals. A key with two decimals also counts as right."""
    answers = [f"{number:.3f}{unit}"]
    if unit:
        answers.append(f"{number:.3f}")

    def is_right(key: str) -> bool:
        found = re.fullmatch(rf"(-?\d+(?:\.(\d+))?){unit}?", key)
        if found is None:
            return False
        decimals = len(found.group(2) or "")
        return decimals >= 2 and abs(float(found.group(1)) - number) <= 0.51 * 10**-decimals

    return Solution(answers, judge=is_right)


# --- dates and times


WEEKDAYS = tuple(calendar.day_name)
MONTHS = tuple(calendar.month_name)[1:]
ORDINALS = ("first", "second", "third", "fourth", "fifth")
A_WEEKDAY = "|".join(WEEKDAYS)
A_MONTH = "|".join(MONTHS)
A_DATE = rf"(?:{A_WEEKDAY}), ({A_MONTH}) (\d+)(?:, (\d{{4}}))?"


def calendar_arithmetic(question: str) -> Solution:
    """`Count backward 97 days from Tuesday, April 12, 2022 - what's the weekday?` And other questions of dates."""
    for solver in (_leap_year, _weekday_in_unknown_year, _recurring_event, _days_between, _weekday_after, _weekday):
        solution = solver(question)
        if solution is not None:
            return solution
    return undecided("not read")


def _leap_year(question: str) -> Solution | None:
    found = re.search(r"(\d{4}) is a leap year|Is (?:the year )?(\d{4}) a leap year", question)
    if found is None:
        return None
    year = int(found.group(1) or found.group(2))
    is_leap_year = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return value("Yes" if is_leap_year else "No")


def _weekday_in_unknown_year(question: str) -> Solution | None:
    """The question has the weekday of the first of January, but no year."""
    if "January 1" not in question and "first day of the year" not in question:
        return None
    found = re.search(rf"({A_WEEKDAY})", question)
    target = re.search(rf"(?:will|of|on) ({A_MONTH}) (\d+)\b", question)
    if found is None or target is None:
        return None
    answers = set()
    for year in (2023, 2024):
        if year == 2024 and "The year is not a leap year." in question:
            continue
        shift = WEEKDAYS.index(found.group(1)) - date(year, 1, 1).weekday()
        day = date(year, MONTHS.index(target.group(1)) + 1, int(target.group(2)))
        answers.add(WEEKDAYS[(day.weekday() + shift) % 7])
    if len(answers) > 1:
        return undecided("the year may be a leap year")
    return value(answers.pop())


def _recurring_event(question: str) -> Solution | None:
    found = re.search(rf"({'|'.join(ORDINALS)}|last) ({A_WEEKDAY})", question)
    month = re.search(rf"({A_MONTH}) (\d{{4}})", question)
    if found is None or month is None:
        return None
    day = date(int(month.group(2)), MONTHS.index(month.group(1)) + 1, 1)
    number = day.month
    days = []
    while day.month == number:
        if WEEKDAYS[day.weekday()] == found.group(2):
            days.append(day.day)
        day += timedelta(days=1)
    if found.group(1) == "last":
        return value(days[-1])
    place = ORDINALS.index(found.group(1))
    return value(days[place] if place < len(days) else -1)


def _days_between(question: str) -> Solution | None:
    found = re.search(rf"(?:from|[Bb]etween) {A_DATE} (?:to|and) {A_DATE}", question)
    if found is None:
        return None
    year = int(found.group(6))
    first = date(int(found.group(3) or year), MONTHS.index(found.group(1)) + 1, int(found.group(2)))
    last = date(year, MONTHS.index(found.group(4)) + 1, int(found.group(5)))
    counted = re.search(
        rf"how many times does ({A_WEEKDAY})|many ({A_WEEKDAY})s|occurrences of ({A_WEEKDAY})", question
    )
    wanted = set(WEEKDAYS[:5])
    if counted is not None:
        wanted = {next(name for name in counted.groups() if name)}
    if first > last:
        return undecided("the first date is after the second")
    total = 0
    day = first
    while day <= last:
        total += WEEKDAYS[day.weekday()] in wanted
        day += timedelta(days=1)
    return value(total)


def _weekday_after(question: str) -> Solution | None:
    found = re.search(A_DATE, question)
    days = re.search(r"(\d+)[- ]days?\b", question)
    if found is None or days is None:
        return None
    day = date(int(found.group(3)), MONTHS.index(found.group(1)) + 1, int(found.group(2)))
    is_back = re.search(r"backward|ago|before", question) is not None
    offset = timedelta(days=int(days.group(1)))
    return value(WEEKDAYS[(day - offset if is_back else day + offset).weekday()])


def _weekday(question: str) -> Solution | None:
    written = re.search(r"(\d\d)/(\d\d)/(\d{4})", question)
    if written is not None:
        month, day, year = map(int, written.groups())
        if day <= 12 and day != month and "month/day/year" not in question:
            return undecided("the date can begin with the day")
        return value(WEEKDAYS[date(year, month, day).weekday()])
    found = re.search(rf"({A_MONTH}) (\d+), (\d{{4}})", question)
    if found is None:
        return None
    return value(WEEKDAYS[date(int(found.group(3)), MONTHS.index(found.group(1)) + 1, int(found.group(2))).weekday()])


def time_intervals(question: str) -> Solution:
    """`How much time elapsed from 2987-05-27 03:42:05 -0200 to 2987-05-27 03:42:52 -1100? Give ... HH:MM:SS.`"""
    found = re.search(
        r"(?:from|between|started at|began at|departed at) (.*?) "
        r"(?:to|and ended at|and completed at|and arrived at|and) (.*?)[.?] .* in (D days, )?(HH:MM\S*)?",
        question,
    )
    if found is None:
        return undecided("not read")
    durations = set()
    for is_day_first in (False, True):
        try:
            start = _moment(found.group(1), is_day_first)
            end = _moment(found.group(2), is_day_first)
        # The month is above 12, so the date has another format.
        except ValueError:
            continue
        if start is None or end is None:
            return undecided("not read")
        durations.add(end - start)
    if len(durations) > 1:
        return undecided("the dates can begin with the day or with the month")
    elapsed = durations.pop()
    if elapsed < timedelta(0):
        return undecided("the end is before the start")
    is_settled = "Leave out seconds" in question
    has_half = elapsed % timedelta(minutes=1) >= timedelta(seconds=30)
    if re.search(r"HH:MM(?!:)", question) and has_half and not is_settled:
        return undecided("seconds can be cut off or rounded to a minute")
    return value(_shown(elapsed, has_days="D days" in question, clock=(found.group(4) or "").rstrip(".")))


def _moment(text: str, is_day_first: bool) -> datetime | None:
    """The moment that a text names, in universal time. Without a date, it is a time of an arbitrary day.

    Raises ValueError if there is no such date.
    """
    day = date(2000, 1, 1)
    figures = re.search(r"(\d\d)/(\d\d)/(\d{4})", text)
    iso = re.search(r"(\d{4})-(\d\d)-(\d\d)", text)
    month = re.search(r"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\b", text)
    if iso is not None:
        day = date(*map(int, iso.groups()))
    elif figures is not None:
        first, second, year_number = map(int, figures.groups())
        day = date(year_number, second, first) if is_day_first else date(year_number, first, second)
    elif month is not None:
        year = re.search(r"(?<![-+:.\d])\d{4}\b", text)
        number = re.search(r"(?<![-+:.\d])\d\d?(?![:\d])", text)
        if year is None or number is None:
            return None
        names = [name[:3] for name in MONTHS]
        day = date(int(year.group()), names.index(month.group(1)) + 1, int(number.group()))
    moment = datetime(day.year, day.month, day.day)
    clock = re.search(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{3}))?)?", text)
    if clock is not None:
        hours, minutes, seconds, thousandths = (int(part or 0) for part in clock.groups())
        moment += timedelta(hours=hours, minutes=minutes, seconds=seconds, milliseconds=thousandths)
    zone = re.search(r" ([-+])(\d\d)(\d\d)$", text)
    if zone is not None:
        ahead = timedelta(hours=int(zone.group(2)), minutes=int(zone.group(3)))
        moment += -ahead if zone.group(1) == "+" else ahead
    return moment


def _shown(elapsed: timedelta, has_days: bool, clock: str) -> str:
    """A duration in the form that the question wants. Units smaller than the form shows are cut off."""
    days = elapsed // timedelta(days=1)
    rest = elapsed - timedelta(days=days) if has_days else elapsed
    hours, rest = divmod(rest, timedelta(hours=1))
    minutes, rest = divmod(rest, timedelta(minutes=1))
    seconds, rest = divmod(rest, timedelta(seconds=1))
    thousandths = rest // timedelta(milliseconds=1)
    shown = {
        "": "",
        "HH:MM": f"{hours:02d}:{minutes:02d}",
        "HH:MM:SS": f"{hours:02d}:{minutes:02d}:{seconds:02d}",
        "HH:MM:SS.mmm": f"{hours:02d}:{minutes:02d}:{seconds:02d}.{thousandths:03d}",
    }[clock]
    if not has_days:
        return shown
    return f"{days} days, {shown}" if shown else f"{days} days"


# --- sequences


Rule = Callable[[Sequence[int]], int | None]
"""The term after these terms, or None if the rule does not apply to them."""


def number_sequence(question: str) -> Solution:
    """`3, 3, 6, 9, 15, 24, 39, ?`

    Rules of one kind are as simple as each other. The simplest rules that all shown terms follow decide. A rule counts
    only if it has predicted at least two of the shown terms.
    """
    terms = [int(term) for term in re.findall(r"-?\d+", question)]
    for kind in (_simple_rules, _affine_rules, _two_term_rules, _last_terms):
        found = set()
        for next_term in kind(terms):
            found.add(next_term)
        if len(found) > 1:
            return undecided(f"equally simple rules give {sorted(found)}")
        if found:
            return value(found.pop())
    return undecided("no simple rule found")


def _fits(terms: Sequence[int], order: int, predict: Callable[..., Fraction | int]) -> bool:
    """Whether each term is predicted by the `order` terms before it."""
    return all(predict(*terms[place - order : place]) == terms[place] for place in range(order, len(terms)))


def _simple_rules(terms: Sequence[int]) -> Iterator[int]:
    """A constant difference, a constant ratio, the sum of two terms, or a constant second difference."""
    difference = terms[1] - terms[0]
    if len(terms) >= 4 and _fits(terms, 1, lambda a: a + difference):
        yield terms[-1] + difference
    if len(terms) >= 4 and terms[0]:
        ratio = Fraction(terms[1], terms[0])
        following = terms[-1] * ratio
        if _fits(terms, 1, lambda a: a * ratio) and following.denominator == 1:
            yield following.numerator
    if len(terms) >= 4 and _fits(terms, 2, lambda a, b: a + b):
        yield terms[-1] + terms[-2]
    if len(terms) >= 5:
        second = terms[2] - 2 * terms[1] + terms[0]
        if _fits(terms, 2, lambda a, b: 2 * b - a + second):
            yield 2 * terms[-1] - terms[-2] + second


def _affine_rules(terms: Sequence[int]) -> Iterator[int]:
    """Each term is a small multiple of the term before it, or its half, and a constant."""
    return _linear_rules(terms, [*range(-5, 6), Fraction(1, 2), Fraction(1, 3), Fraction(-1, 2)], 1, None)


def _two_term_rules(terms: Sequence[int]) -> Iterator[int]:
    """Each term is the sum of small multiples, or halves, of the two terms before it, and a small constant."""
    return _linear_rules(terms, [*range(-3, 4), Fraction(1, 2), Fraction(-1, 2)], 2, 3)


def _linear_rules(
    terms: Sequence[int], factors: Sequence[Fraction], order: int, largest_constant: int | None
) -> Iterator[int]:
    """Each term is a constant and the sum of multiples, rounded down, of the `order` terms before it."""
    if len(terms) < 5:
        return
    for chosen in itertools.product(factors, repeat=order):

        def total(*before: int, chosen: Sequence[Fraction] = chosen) -> int:
            return sum(math.floor(factor * term) for factor, term in zip(chosen, before, strict=True))

        constant = terms[order] - total(*terms[:order])
        if (order > 1 and chosen[0] == 0) or (largest_constant is not None and abs(constant) > largest_constant):
            continue
        if _fits(terms, order, lambda *before, total=total, constant=constant: total(*before) + constant):
            yield total(*terms[-order:]) + constant


def _last_terms(terms: Sequence[int]) -> Iterator[int]:
    """The last terms are equal."""
    if len(terms) >= 6 and len(set(terms[-4:])) == 1:
        yield terms[-1]


# --- algebra


def simple_equations(question: str) -> Solution:
    """`Find the value of t in the equation: -11*t - 49 = -126`"""
    found = re.search(r"(?:: |:\n)?([^:]*)=([^:]*)$", question.strip())
    assert found is not None
    sides = [side.strip() for side in found.groups()]
    variable = re.findall(r"[a-z]", found.group(0).replace(":", ""))[0]

    def difference(number: int) -> Fraction:
        variables = {variable: Fraction(number)}
        return evaluate(sides[0], variables) - evaluate(sides[1], variables)

    slope = difference(1) - difference(0)
    if slope == 0 or difference(5) != difference(0) + 5 * slope:
        return undecided("the equation is not linear")
    return exact_number(-difference(0) / slope)


def polynomial_equations(question: str) -> Solution:
    """`Solve for real v: -93*v**3 + 37*v - 92 = 0`. The answer is a list of decimals with four places."""
    found = re.search(r"([-+*()\d. a-z]+) = 0", question)
    assert found is not None
    polynomial = _polynomial(found.group(1).split("real")[-1])
    roots = _real_roots(polynomial)
    if roots is None:
        return undecided("every number is a root")
    if not roots:
        return Solution(['""', ""])
    down = ", ".join(_four_places(root, half_up=False) for root in roots)
    nearest = ", ".join(_four_places(root, half_up=True) for root in roots)

    def is_right(key: str) -> bool:
        numbers = [as_fraction(text) for text in key.split(",")]
        if len(numbers) != len(roots) or None in numbers:
            return False
        return all(
            abs(number - root) < Fraction(11, 100000) for number, root in zip(sorted(numbers), roots, strict=True)
        )

    return Solution(sorted({down, nearest}), judge=is_right)


def _polynomial(expression: str) -> Polynomial:
    """The coefficients of an expression in one variable, which has products, powers, sums and differences."""
    return _polynomial_of(ast.parse(expression.strip(), mode="eval").body)


def _polynomial_of(node: ast.expr) -> Polynomial:
    if isinstance(node, ast.Constant):
        return {0: Fraction(str(node.value))}
    if isinstance(node, ast.Name):
        return {1: Fraction(1)}
    if isinstance(node, ast.UnaryOp):
        sign = -1 if isinstance(node.op, ast.USub) else 1
        return _times({0: Fraction(sign)}, _polynomial_of(node.operand))
    assert isinstance(node, ast.BinOp), "expected operations of numbers and the variable"
    left = _polynomial_of(node.left)
    right = _polynomial_of(node.right)
    if isinstance(node.op, ast.Add):
        return _plus(left, right)
    if isinstance(node.op, ast.Sub):
        return _plus(left, _times({0: Fraction(-1)}, right))
    if isinstance(node.op, ast.Mult):
        return _times(left, right)
    if isinstance(node.op, ast.Div):
        return _times(left, {0: 1 / right[0]})
    assert isinstance(node.op, ast.Pow), "expected + - * / **"
    power: Polynomial = {0: Fraction(1)}
    for _ in range(int(right[0])):
        power = _times(power, left)
    return power


def _plus(left: Polynomial, right: Polynomial) -> Polynomial:
    total = dict(left)
    for degree, coefficient in right.items():
        total[degree] = total.get(degree, Fraction(0)) + coefficient
    return _without_zeros(total)


def _times(left: Polynomial, right: Polynomial) -> Polynomial:
    product: Polynomial = {}
    for (degree, coefficient), (other_degree, other) in itertools.product(left.items(), right.items()):
        total = degree + other_degree
        product[total] = product.get(total, Fraction(0)) + coefficient * other
    return _without_zeros(product)


def _without_zeros(polynomial: Polynomial) -> Polynomial:
    return {degree: coefficient for degree, coefficient in polynomial.items() if coefficient}


def _real_roots(polynomial: Polynomial) -> list[Fraction] | None:
    """The different real roots, in order, each with an error below 1e-12. None if the polynomial is zero.

    Between two neighbouring roots of the derivative a polynomial is monotonic, so that bisection finds its roots.
    """
    if not polynomial:
        return None
    if max(polynomial) == 0:
        return []
    derivative = {degree - 1: degree * coefficient for degree, coefficient in polynomial.items() if degree}
    bound = 2 + sum(abs(coefficient) for coefficient in polynomial.values()) / abs(polynomial[max(polynomial)])
    places = [-bound, *(_real_roots(derivative) or []), bound]
    roots: list[Fraction] = []
    for low, high in itertools.pairwise(places):
        if abs(_at(polynomial, high)) < Fraction(1, 10**9):
            # The polynomial touches zero at a root of its derivative, which is known with a small error.
            if not roots or high - roots[-1] > Fraction(1, 10**6):
                roots.append(high)
        elif _at(polynomial, low) * _at(polynomial, high) < 0:
            root = _bisected(polynomial, low, high)
            if not roots or root - roots[-1] > Fraction(1, 10**6):
                roots.append(root)
    return roots


def _at(polynomial: Polynomial, x: Fraction) -> Fraction:
    return sum((coefficient * x**degree for degree, coefficient in polynomial.items()), Fraction(0))


def _bisected(polynomial: Polynomial, low: Fraction, high: Fraction) -> Fraction:
    """The root between two places of different signs."""
    rises = _at(polynomial, high) > 0
    low = Fraction(math.floor(low * 2**60), 2**60)
    high = Fraction(math.ceil(high * 2**60), 2**60)
    while high - low > Fraction(1, 2**50):
        middle = (low + high) / 2
        if (_at(polynomial, middle) > 0) == rises:
            high = middle
        else:
            low = middle
    middle = (low + high) / 2
    nearby = middle.limit_denominator(10**6)
    return nearby if _at(polynomial, nearby) == 0 else middle


def _four_places(number: Fraction, half_up: bool) -> str:
    """The number with four decimals, rounded to the nearest, or cut off."""
    scaled = abs(number) * 10**4
    whole = math.floor(scaled + Fraction(1, 2)) if half_up else math.floor(scaled)
    sign = "-" if number < 0 and whole else ""
    return f"{sign}{whole // 10**4}.{whole % 10**4:04d}"


def polynomial_multiplication(question: str) -> Solution:
    """`Simplify this expression: 180*z*(-60*z**2 - 104)`. The variable may be any of x, y and z."""
    expression = re.findall(r": ([-+*()\d a-z]+)\n", question)[0]
    variables = set(re.findall(r"[a-z]", expression))
    if len(variables) > 1:
        return _many_variables(expression)
    name = variables.pop() if variables else "x"
    product = _polynomial(expression)

    def is_right(key: str) -> bool:
        return "(" not in key and _polynomial(key) == product

    return Solution([_written(product, name)], judge=is_right)


def _written(polynomial: Polynomial, name: str) -> str:
    """The polynomial, the highest power first, in the notation of Python."""
    text = ""
    for degree, coefficient in sorted(polynomial.items(), reverse=True):
        power = "" if degree == 0 else name if degree == 1 else f"{name}**{degree}"
        size = str(abs(coefficient))
        if power:
            size = power if abs(coefficient) == 1 else f"{size}*{power}"
        if not text:
            text = f"-{size}" if coefficient < 0 else size
        else:
            text += f" - {size}" if coefficient < 0 else f" + {size}"
    return text or "0"


def _many_variables(expression: str) -> Solution:
    """Two polynomials are equal if they agree at random points: wrong keys agree by an unlikely accident."""
    points = [{"x": 10007 + 13 * k, "y": -20011 + 17 * k, "z": 30011 - 19 * k} for k in range(5)]
    places = [{name: Fraction(number) for name, number in point.items()} for point in points]
    values = [evaluate(expression, place) for place in places]

    def is_right(key: str) -> bool:
        return "(" not in key and [evaluate(key, place) for place in places] == values

    return Solution([], judge=is_right)


def simple_integration(question: str) -> Solution:
    """`Evaluate the indefinite integral: ∫ 24*X**7 - 8*X**3 dx`"""
    integrand = re.findall(r"∫ (.*) dx", question)[0]
    name = re.findall(r"[a-zA-Z]", integrand)[0] if re.search("[a-zA-Z]", integrand) else "x"
    polynomial = _polynomial(integrand)
    integral = {degree + 1: coefficient / (degree + 1) for degree, coefficient in polynomial.items()}

    def is_right(key: str) -> bool:
        function, plus, constant = key.rpartition("+")
        if constant.strip() != "C" or not plus:
            return False
        found = _polynomial(function)
        return _plus(found, _times({0: Fraction(-1)}, integral)).keys() <= {0}

    terms = []
    for degree, coefficient in sorted(integral.items(), reverse=True):
        terms.append(f"({coefficient})*{name}**{degree}")
    return Solution([" + ".join([*terms, "C"])], judge=is_right)


def intermediate_integration(question: str) -> Solution:
    """`Find the indefinite integral: ∫ 6*sqrt(4 - 2*x) dx`. A key is right if its derivative is the integrand."""
    import sympy

    integrand = sympy.sympify(re.findall(r"∫ (.*) dx", question)[0])
    variable = sympy.Symbol("x")

    def is_right(key: str) -> bool:
        if "Integral" in key:
            return False
        function, plus, constant = key.rpartition("+")
        if constant.strip() != "C" or not plus:
            return False
        derivative = sympy.diff(sympy.sympify(function), variable)
        tried = 0
        for place in (*range(-20, 21), *range(-600, 601, 75)):
            point = sympy.Rational(place, 29)
            wanted = integrand.subs(variable, point).evalf(30)
            found = derivative.subs(variable, point).evalf(30)
            # Outside its domain a function is complex, or no number at all.
            if not wanted.is_real or not found.is_finite:
                continue
            tried += 1
            if abs(found - wanted) > 1e-15 * (1 + abs(wanted)):
                return False
        return tried >= 5

    found = f"{sympy.integrate(integrand, variable)} + C"
    expanded = f"{sympy.expand(sympy.integrate(integrand, variable))} + C"
    answers = [answer for answer in sorted({found, expanded}) if is_right(answer)]
    return Solution(answers, judge=is_right)


# --- word problems


WORDS = {
    "half": Fraction(1, 2),
    "a third": Fraction(1, 3),
    "one-third": Fraction(1, 3),
    "a quarter": Fraction(1, 4),
    "one-fourth": Fraction(1, 4),
    "two-thirds": Fraction(2, 3),
    "three-fourths": Fraction(3, 4),
    "twice": Fraction(2),
    "double": Fraction(2),
    "triple": Fraction(3),
    "thrice": Fraction(3),
    "two": Fraction(2),
    "three times": Fraction(3),
    "three": Fraction(3),
    "four times": Fraction(4),
    "five times": Fraction(5),
    "day": Fraction(1),
    "week": Fraction(7),
    "month": Fraction(30),
}
"""Words that the patterns of word problems read as numbers. A month counts as 30 days."""
A_NUMBER = rf"([$£€]?(?:\d+/\d+|\d+(?:,\d{{3}})*(?:\.\d+)?)|{'|'.join(WORDS)})"

WORD_PROBLEMS = Path(__file__).with_name("word_problems.txt")
"""A pattern and a formula for each template. `<name>` stands for a number, and `...` for any words."""

SPOOLS = (
    "has <a> light ... spools of thread, <b> dark ... spools of thread, <c> light ... spools of thread, and <d> dark"
)
"""The only template whose formula depends on a word of the question."""


def gsm_symbolic(question: str) -> Solution:
    """`There are 29 girls in the park. If there are 3 times the number of boys in the park, how many kids ...?`"""
    question = " ".join(question.split())
    if re.search(_pattern(SPOOLS), question):
        return _share_of_spools(question)
    results = []
    for template in WORD_PROBLEMS.read_text(encoding="utf-8").split("\n\n"):
        sentences, _, formula = template.partition("\n= ")
        found = re.search(_pattern(sentences), question)
        if found is not None:
            names = re.findall(r"<(\w+)>", sentences)
            numbers = dict(zip(names, map(_number, found.groups()), strict=True))
            results.append(evaluate(formula, numbers))
    if len(results) != 1:
        return undecided("template not read" if not results else "several templates fit")
    # Decimals are the usual notation of amounts of money, hours and litres.
    result = results[0]
    decimal = exact_decimal(result)
    return Solution([decimal or str(result)], judge=close_to(result))


def _pattern(sentences: str) -> str:
    pattern = re.escape(sentences)
    pattern = pattern.replace(re.escape(" ... "), ".*? ")
    return re.sub(r"<\w+>", lambda _: A_NUMBER + "%?", pattern)


def _number(text: str) -> Fraction:
    if text in WORDS:
        return WORDS[text]
    number = Fraction(text.lstrip("$£€").replace(",", ""))
    _, _, decimals = text.partition(".")
    # Some texts show floats, such as 0.3333333333333333.
    return number.limit_denominator(1000) if len(decimals) > 10 else number


def _share_of_spools(question: str) -> Solution:
    """The percentage of spools of a colour. The question lists two shades of one colour, and two of another colour."""
    spools = re.findall(r"(\d+) (?:light|dark) (\w+)", question)
    asked = re.findall(r"What percent of her spools are (\w+)\?", question)[0]
    matching = sum(int(number) for number, colour in spools if colour == asked)
    return exact_number(Fraction(100 * matching, sum(int(number) for number, _ in spools)))
