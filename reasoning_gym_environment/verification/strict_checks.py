"""Stricter scores: does this answer really solve this item, for tasks whose own verifier cannot tell?

`refusal` names what is wrong with an answer that its task's verifier pays. What is wrong with the verifiers, and
answers that prove it, is in audit/known_answers.py. Answers that are moves or plans are carried out in move_checks.py,
and items whose own answer is wrong are told by item_checks.py.

A check runs after the task's verifier has given its credit, so it need not read every form an answer may take,
only refuse what is no solution. Most look at full credit alone; some also at partial credit that no thought earns.
Each takes (entry, answer), with the answer bare or inside `<answer>` tags, and says True or False for any text: text
is parsed with bounds and never run. An entry that is not of the check's task raises KeyError, for that is a fault and
not a wrong answer.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from ..tasks import reasoning_gym_source as library
from .bounded_arithmetic import BoundedFraction, evaluate
from .check import (
    AROUND,
    BELOW_FULL_CREDIT,
    HARMLESS,
    SOME_CREDIT,
    WRAPPING,
    Check,
    Entry,
    is_wrapped,
    is_wrapping,
    loads,
    refuses,
    signs_of,
    words_of,
)
from .formulas import connectives, over_all
from .item_checks import ITEM_CHECKS
from .move_checks import boxnet, quantum_lock, rubiks_cube, rush_hour, shortest_path, sokoban


def refusal(task: str, entry: Entry, answer: str, native: float) -> str:
    """Why an answer that the task's own verifier pays `native` is worth nothing; "" if there is nothing against it.

    Raises KeyError if `entry` is not an item of the task. For `composite` the item says whose it is.
    """
    if task == "composite":
        return refusal(entry["metadata"]["source_dataset"], entry, answer, native)
    for check in (ITEM_CHECKS.get(task), CHECKS.get(task)):
        if check is not None and check.credit_from <= native <= check.credit_to and not check(entry, answer):
            return check.reason
    return ""


def has_right_answer(task: str, entry: Entry) -> bool:
    """False for an item to which no answer is ever right, as there are in fifteen tasks: mostly its own is wrong."""
    if task == "composite":
        return has_right_answer(str(entry["metadata"].get("source_dataset")), entry)
    if task not in SOME_WRONG_ITEMS:
        return True
    try:
        answer = entry["answer"]
        # propositional_logic has no answers of its own.
        return ITEM_CHECKS[task](entry, "") if answer is None else not refusal(task, entry, str(answer), 1.0)
    except LookupError:
        # No item as this task has them: grading names that fault.
        return True


SOME_WRONG_ITEMS = (*ITEM_CHECKS, "complex_arithmetic", "family_relationships", "syllogism", "time_intervals")
"""Of the last four the check of the answer looks at the item, too."""


# --- numbers ---


def _is_rounded(text: str, right: Fraction, slack: Fraction = Fraction(0)) -> bool:
    """Whether every digit of the number in `text` is right: `right` rounded, or cut off, or within `slack` of it."""
    given = Fraction(BoundedFraction(text.strip()))
    last = Fraction(10) ** int(Decimal(text.strip()).as_tuple().exponent)
    is_cut_off = given * right >= 0 and 0 <= abs(right) - abs(given) < last
    return is_cut_off or abs(given - right) <= max(last / 2, slack)


@refuses("it is another number, or the item's own answer is")
def complex_arithmetic(entry: Entry, answer: str) -> bool:
    """To the last digit: 5.0000000001 is paid where 5 is right, and nan everywhere, for its distance is none.

    Beyond 2**53 floats pass over ones, so that some products of the last level are wrong themselves.
    """
    metadata, dataset = entry["metadata"], library.registry()["complex_arithmetic"][0]
    parse: Callable[[str], complex | None] = vars(dataset)["parse_string_to_complex"]
    parts = tuple(map(int, metadata["result"]))
    if parse(answer) != complex(*parts):
        return False
    if metadata["operation"] == "*":
        (a, b), (c, d) = (map(int, metadata[name]) for name in ("num1", "num2"))
        parts = (a * c - b * d, a * d + b * c)
    said = {Fraction(BoundedFraction(number)) for number in _DECIMAL.findall("".join(answer.lower().split()))}
    # A part that is 0, and a 1 before i, need not be written.
    return {*map(abs, parts)} ^ said <= {0, 1}


_DECIMAL = re.compile(r"\d+(?:\.\d*)?(?:e[-+]?\d+)?")


@refuses("it is not hexadecimal")
def bitwise_arithmetic(entry: Entry, answer: str) -> bool:
    """Decimal, binary and octal numbers are paid too, and so is `12` where 0xc is right."""
    return re.fullmatch(r"[-+]?(?:0x[0-9a-f]+|[0-9])", answer, re.IGNORECASE) is not None


COIN_FLIP_TOLERANCE = Fraction(1, 10**4)
"""The verifier's own. A probability may be smaller than that, so an error must be small against it too."""


@refuses("it is not within the tolerance, or its digits are not right")
def coin_flip(entry: Entry, answer: str) -> bool:
    # The verifier passes over commas: `0,5` is 5 and `0.3,125` is 0.3125.
    text = answer.rstrip(", ")
    ratio = entry["metadata"]["rational"]
    given, right = Fraction(BoundedFraction(text)), Fraction(ratio["numerator"], ratio["denominator"])
    # An honest one is rounded to two digits, and what is certain is 0 or 1; a constant is within a tenth of some.
    if abs(given - right) > max(min(COIN_FLIP_TOLERANCE, right / 50, (1 - right) / 50), right / 10**9):
        return False
    return given == right or _is_rounded(text, right, slack=right / 10**14)


@refuses("it is another number")
def number_format(entry: Entry, answer: str) -> bool:
    # Candidates are sums of numbers with three decimals, and written with as many or as floats. Commas are passed over.
    right = entry["metadata"]["solution"]
    is_near = abs(float(answer.replace(",", "")) - right) <= 8 * math.ulp(right)
    return is_near and not _STRAY_COMMA.search(answer.strip(AROUND))


_STRAY_COMMA = re.compile(r"(?<!\d),|,(?!\d{3}(?!\d)|\d\d,)")
"""One that sets off no thousands; `12,34,567` is written so in India."""


_NUMBERS = re.compile(r"[-−]?\.?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?:\s*/\s*\d+)?")
_HEDGES = frozenset(
    [
        *("not", "no", "non", "nor", "never", "neither", "either", "or", "if", "unless", "except", "but", "other"),
        *("than", "less", "more", "fewer", "least", "most", "under", "over", "below", "above", "wrong", "false"),
        *("times", "half", "twice", "double", "triple", "dozen", "hundred", "thousand", "million", "percent"),
        *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    ]
)
"""Words of a question that say more than what is counted."""


@refuses("it says something else than the right number")
def gsm_symbolic(entry: Entry, answer: str) -> bool:
    """One number, and around it nothing but words for what the question counts: not `at most 8`, `8 or 9` or `8!`.

    Words of the sentence that asks: `8 hours` is wrong where hours are given and minutes are asked for.
    """
    numbers, around = _NUMBERS.findall(answer), _NUMBERS.sub(" ", answer)
    if len(numbers) != 1 or _number(numbers[0]) != Fraction(entry["answer"].replace(",", "")):
        return False
    question = str(entry.get("question", ""))
    asked = _SENTENCE_END.split(question.partition("Give the result")[0].rstrip())[-1]
    words = {*words_of(asked)} - _HEDGES | WRAPPING | {"in", "total"}
    signs = HARMLESS | set("$€£¥₹") & set(question) | ({"%"} if "%" in asked or "percent" in asked else set())
    return {*words_of(around)} <= words and signs_of(around) <= signs


_SENTENCE_END = re.compile(r"(?<!Mr)(?<!Mrs)(?<!Ms)(?<!Dr)[.?!]\s+")


def _number(text: str) -> Fraction:
    above, _, below = text.replace(",", "").replace("−", "-").partition("/")
    return Fraction(BoundedFraction(above)) / Fraction(BoundedFraction(below or "1"))


@refuses("its numbers are not those of the question")
def number_sorting(entry: Entry, answer: str) -> bool:
    given = json.loads(answer.replace("'", '"'), parse_float=str, parse_int=str)
    right = entry["metadata"]["sorted_numbers"]
    return [BoundedFraction(str(one)) for one in given] == [BoundedFraction(str(one)) for one in right]


@refuses("its digits are not right")
def decimal_arithmetic(entry: Entry, answer: str) -> bool:
    """A dozen digits are asked for, and whatever is off by less than the last decimal place *of the question* is paid.

    Fewer digits than asked for are right if each is. Where the value goes on beyond the dozen, as quotients do, it must
    be right to the question's decimal places: by hand it is worked out to some digits, and nobody comes near it
    without the work. (The item's own answer is rounded after each step, so that it need not be the exact one.)
    """
    right, exact = Fraction(entry["answer"]), _exactly(entry["question"])
    places = max(map(len, re.findall(r"\.(\d+)", entry["question"])), default=0)
    slack = Fraction(1, 2 * 10**places) if exact != right else Fraction(0)
    given = Fraction(BoundedFraction(answer.strip()))
    return any(_is_rounded(answer, value, slack) and abs(given - value) <= abs(value) / 100 for value in (right, exact))


def _exactly(question: str) -> Fraction:
    """The value of the expression before the last `=` of the question, its decimals read as quotients."""
    expression = question.rpartition("=")[0].rpartition("\n")[2]
    quotient = lambda number: f"({int(number[1] + number[2])}/{10 ** len(number[2])})"  # noqa: E731
    return evaluate(re.sub(r"(\d+)\.(\d+)", quotient, expression))[0]


@refuses("it is another matrix")
def pool_matrix(entry: Entry, answer: str) -> bool:
    """Two decimals are asked for, and what is 1 % off is paid, also as a column where it is a row, with comments."""
    metadata = entry["metadata"]
    matrix, size, is_average = metadata["matrix"], metadata["pool_size"], metadata["pool_type"] == "average"
    given = [line.split() for line in answer.splitlines() if line.strip()]
    right = [
        [[cell for row in matrix[down : down + size] for cell in row[at : at + size]] for at in across]
        for across in [range(0, len(matrix[0]), size)]
        for down in range(0, len(matrix), size)
    ]
    return [len(row) for row in given] == [len(row) for row in right] and all(
        _is_rounded(cell, value) and -Fraction(1, 100) < Fraction(cell) - value <= Fraction(1, 200)
        for row, pools in zip(given, right, strict=True)
        for cell, pool in zip(row, pools, strict=True)
        for value in [Fraction(sum(pool), len(pool)) if is_average else Fraction(max(pool))]
    )


_COORDINATES = re.compile(r"[\s(]*[-+.\deE_]+\s*,\s*[-+.\deE_]+[\s).,;]*")
_ONE_NUMBER = re.compile(r"[-+.\deE_]+\s*°?")


@refuses("it says something else than the right numbers, or their digits are not right")
def advanced_geometry(entry: Entry, answer: str) -> bool:
    """What comes after the second of two coordinates is not looked at, and brackets may stand anywhere.

    Three decimals are asked for, of angles two looked at: `116.574` is paid where 116.565 is right.
    """
    metadata = entry["metadata"]
    if metadata["task_type"] == "orthocenter":
        form, right = _COORDINATES, list(map(Fraction, metadata["ortho"]))
    elif metadata["task_type"] == "angle_measure":
        form, right = _ONE_NUMBER, [Fraction(metadata["angle_ABC_degrees"])]
    else:
        return _ONE_NUMBER.fullmatch(answer) is not None
    given = [one.strip(" \t\r\n().;°") for one in answer.rstrip(" ,;.)").split(",")]
    return form.fullmatch(answer) is not None and all(
        _is_rounded(text, value, slack=Fraction(1, 10**9)) for text, value in zip(given, right, strict=True)
    )


_LATEX_FRACTION = re.compile(r"\\d?frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\}", re.IGNORECASE)


@refuses("it goes on behind the right fraction")
def fraction_simplification(entry: Entry, answer: str) -> bool:
    """What follows a LaTeX fraction is not looked at; `3/4` must stand alone anyway."""
    rest = _LATEX_FRACTION.sub("", answer, count=1)
    return rest == answer or (rest.strip(AROUND + "\\()[]") == "" and signs_of(rest) <= HARMLESS)


_TIME_UNITS = {
    "D days": timedelta(days=1),
    "HH:MM": timedelta(minutes=1),
    "D days, HH:MM": timedelta(minutes=1),
    "HH:MM:SS": timedelta(seconds=1),
    "D days, HH:MM:SS": timedelta(seconds=1),
    "HH:MM:SS.mmm": timedelta(milliseconds=1),
}
_DAYS = re.compile(r"(-?\d+)\s*(?:d|days?)?(?:\s+days?)?", re.IGNORECASE)
_CLOCK = re.compile(r"(?:(-?\d+) days,)?\s*(\d+)\s*:\s*(\d+)(?:\s*:\s*(\d+(?:\.\d+)?))?")


@refuses("it is not the time between both, or the item's own answer is not")
def time_intervals(entry: Entry, answer: str) -> bool:
    """Units and what follows are not looked at: `5 weeks`, `01:40:00:99`; and `.5` is taken for five milliseconds.

    Some items' own answers are wrong: a weekday in brackets hides the time behind it from them, and one in two of the
    milliseconds is one short.
    """
    metadata = entry["metadata"]
    unit = _TIME_UNITS[metadata["expected_format"]]
    if metadata["format"].endswith("%z") and "(%A)" in metadata["format"]:
        return False
    start, end = (datetime.fromisoformat(metadata[name]) for name in ("start_time", "end_time"))
    right = end - start
    days, clock = _DAYS.fullmatch(answer.strip(AROUND)), _CLOCK.fullmatch(answer.strip(AROUND))
    if unit == timedelta(days=1):
        return days is not None and int(days[1]) == right // unit
    if clock is None:
        return False
    whole_days, hours, minutes, seconds = (Fraction(part or 0) for part in clock.groups())
    if max(minutes, seconds) >= 60 or whole_days < 0 or (clock[1] and hours >= 24):
        return False
    given = ((whole_days * 24 + hours) * 60 + minutes) * 60 + seconds
    return given == right // unit * Fraction(unit // timedelta(milliseconds=1), 1000)


@refuses("its numbers are not as many as the solutions, or not near them", credit_from=0.9)
def polynomial_equations(entry: Entry, answer: str) -> bool:
    """What is no number is passed over: of `-1, 0, 1` inside `<answer>` tags only the 0 is left.

    And nearly full credit goes to whatever is within 0.005: `2e-4` would do for the commonest solution, 0.
    """
    given = sorted(float(one.lstrip(" \t[(").rstrip(AROUND + ")]")) for one in answer.rstrip(AROUND).split(","))
    right = sorted(map(float, entry["answer"].split(",")))
    return len(given) == len(right) and all(
        math.isclose(a, b, rel_tol=0.01, abs_tol=1e-9) for a, b in zip(given, right, strict=True)
    )


# --- expressions ---


@refuses("it holds 1, or is the number itself", credit_from=SOME_CREDIT, credit_to=BELOW_FULL_CREDIT)
def prime_factorization(entry: Entry, answer: str) -> bool:
    factors = [int(factor) for factor in answer.split("×") if factor.strip()]
    return factors == list(entry["metadata"]["factors"]) or (len(factors) > 1 and min(factors) > 1)


@refuses("it does not make 24 of the numbers given")
def puzzle24(entry: Entry, answer: str) -> bool:
    return _makes(answer, Fraction(24), entry["metadata"]["numbers"], powers=False)


@refuses("it does not make the target of the numbers given")
def countdown(entry: Entry, answer: str) -> bool:
    metadata = entry["metadata"]
    return _makes(answer, Fraction(int(metadata["target"])), metadata["numbers"], powers=True)


def _makes(expression: str, target: Fraction, numbers: list[int], *, powers: bool) -> bool:
    value, used = evaluate(expression.rstrip(". \n"), powers=powers)
    return value == target and Counter(used) == Counter(map(int, numbers))


@refuses("the integral is only written down, or there are words in it, or it is infinite")
def integration(entry: Entry, answer: str) -> bool:
    """Also where reasoning-gym's own answer has one: closed forms are right there too, and it is half the question."""
    # `x` is no constant where `X` is integrated over, nor is what looks like it and is of another script.
    variable = str(entry["metadata"]["variable"])
    is_closed = "integra" not in answer.lower() and variable.swapcase() not in re.findall(r"\w+", answer)
    is_plain = answer.isascii() and "#" not in answer and not _A_WORD.search(answer)
    return is_closed and is_plain and _is_finite(answer.strip(AROUND), variable)


def _is_finite(expression: str, variable: str) -> bool:
    """Not `x**2 + 1/0`, whose derivative is that of x²."""
    # sympy takes half a second to import, and only workers need it.
    import sympy

    from .bounded_sympy import ExpressionParser

    names = {name: sympy.Symbol(name) for name in (variable, "C")}
    return not ExpressionParser()(expression, names).has(sympy.oo, sympy.zoo, sympy.nan)


_A_WORD = re.compile(r"(?<!\w)(?!(?:pi|const|constant|[^\W\d_]_?\d+)(?!\w))[^\W\d]\w+(?!\w)(?!\s*\()")
"""No constant as they are written, nor a function that is applied: the verifier takes `perhaps - x**2` for -x² + C."""


@refuses("its numbers are not those of the product, or there is a comment")
def polynomial_multiplication(entry: Entry, answer: str) -> bool:
    """Each number from 2 on as often as it must: the verifier multiplies and adds, so the question would do, written
    out term by term: `(34*z**2)*(-62*z**3) + (34*z**2)*(-61*z) + ...`. And any word is a variable, `no*0 + ...`."""
    names, known = (set(re.findall(r"[^\W\d]\w*", text)) for text in (answer, str(entry["answer"])))
    given, right = (
        Counter(int(number) for number in re.findall(r"\d+", text) if int(number) > 1)
        for text in (answer, str(entry["answer"]))
    )
    return "#" not in answer and given == right and names <= known


@refuses("it concludes nothing that the premises do not say")
def propositional_logic(entry: Entry, answer: str) -> bool:
    """A formula in the item's variables that follows from the premises and says what none of them says.

    It is neither true of nearly everything (`A ∨ B` says something, `A ∨ B ∨ C` is a guess that mostly holds), nor
    longer than each premise, nor one premise as it stands or with more added to it, nor several joined: whoever joins
    premises, or hangs an `∨ anything` on them, has concluded nothing. What they say in fewer connectives is a
    conclusion.
    """
    variables = entry["metadata"]["variables"]
    everything, said, size = over_all("", variables), over_all(answer.strip(AROUND), variables), connectives(answer)
    premises = sorted((connectives(one), over_all(one, variables)) for one in entry["metadata"]["premises"])
    if said.bit_count() > MOST_TRUE * everything.bit_count() or size > premises[-1][0]:
        return False
    known = functools.reduce(int.__and__, (table for _, table in premises))
    if known & ~said:
        return False
    if any(not table & ~said and size >= length for length, table in premises):
        return False
    joined, length = everything, -1
    for premise_length, table in premises:
        if not said & ~table and joined & ~table:
            joined, length = joined & table, length + 1 + premise_length
    return joined != said or size < length


MOST_TRUE = 0.75
"""Share of all cases in which a conclusion may hold: that of `A ∨ B` and `A → B`."""


# --- words ---

_MAX_SENTENCE = 1000


@refuses("it does not say the right one of both words")
def game_of_life_halting(entry: Entry, answer: str) -> bool:
    words = [word for word in words_of(answer[:_MAX_SENTENCE]) if word not in WRAPPING]
    is_the_word = words == [str(entry["answer"]).lower()] and len(answer) <= _MAX_SENTENCE
    return is_the_word and signs_of(answer) <= HARMLESS


def _plain(text: str) -> str:
    return text.strip(AROUND).lower()


@refuses("it is another word")
def figlet_font(entry: Entry, answer: str) -> bool:
    return _plain(answer.replace(" ", "")) == _plain(entry["answer"])


@refuses("it goes on behind the right word", credit_from=SOME_CREDIT)
def spell_backward(entry: Entry, answer: str) -> bool:
    given, right = _plain(answer), _plain(entry["answer"])
    return given == right or not given.startswith(right)


@refuses("it holds other words")
def letter_jumble(entry: Entry, answer: str) -> bool:
    return _plain(answer).split() == _plain(entry["answer"]).split()


@refuses("its letters are not those of the words")
def word_ladder(entry: Entry, answer: str) -> bool:
    """The capitals of other letters are the same ones: `ſıck` is SICK then, and the ﬆ of `LIﬆ` stands for two."""
    return answer.isascii()


@refuses("it holds more words than were given", credit_from=SOME_CREDIT)
def word_sorting(entry: Entry, answer: str) -> bool:
    return sum(bool(word.strip()) for word in answer.split(",")) <= len(entry["metadata"]["sorted_words"])


@refuses("it does not give each one role, or says more", credit_from=SOME_CREDIT)
def knights_knaves(entry: Entry, answer: str) -> bool:
    """`A is a knight, and B is a knave` and nothing around it: not `It is a lie that A ...`, `if`, `or`, `either`."""
    roles = {str(entry["metadata"]["knight_knave_terms"][role]).lower() for role in ("knight", "knave")}
    words = words_of(answer)
    names = {str(name).lower() for name in entry["metadata"]["names"]}
    said = [word for word in words if word in names]
    without_list_dashes = re.sub(r"(?m)^\s*-\s", " ", answer)
    if {*words} - names - roles - WRAPPING - {"a", "an", "and"} or not signs_of(without_list_dashes) <= HARMLESS:
        return False
    return len(said) == len(set(said)) and sum(word in roles for word in words) <= len(names)


@refuses("it holds more than one candidate", credit_from=SOME_CREDIT, credit_to=BELOW_FULL_CREDIT)
def one_of_a_few(entry: Entry, answer: str) -> bool:
    """Exactly one of the words that the task's answers are, and that as a word of its own."""
    words = set(re.findall(r"[^\W\d_]+", answer[:_MAX_SENTENCE].lower()))
    return words & _OPTIONS == {str(entry["answer"]).lower()}


@refuses("it holds more than one candidate, or the item's own answer does not follow", credit_from=SOME_CREDIT)
def syllogism(entry: Entry, answer: str) -> bool:
    """Some items say that what does not follow does: `All A are B, some B are not C`, so `some A are not C`."""
    metadata = entry["metadata"]
    said = [metadata[name] for name in ("premise1", "premise2", "conclusion") if metadata.get(name)]
    return one_of_a_few.holds(entry, answer) and (str(entry["answer"]) == "No" or follows(said[:-1], said[-1]))


def follows(premises: Sequence[str], conclusion: str) -> bool:
    """Whether it does wherever the premises hold and there are some of each kind, as the items take for granted.

    Each may be `All A are B`, `No A are B`, `Some A are B` or `Some A are not B`. A world is which of the eight sorts
    of things there are, one bit for each.
    """
    words = [one.split() for one in (*premises, conclusion)]
    kinds = list(dict.fromkeys(kind for one in words for kind in (one[1], one[-1])))
    sorts = range(1 << len(kinds))
    of = {kind: sum(1 << sort for sort in sorts if sort >> index & 1) for index, kind in enumerate(kinds)}

    def holds(said: list[str], world: int) -> bool:
        outside, inside = world & of[said[1]] & ~of[said[-1]], world & of[said[1]] & of[said[-1]]
        if said[0] == "All":
            return not outside
        if said[0] == "No":
            return not inside
        return bool(outside if "not" in said else inside)

    return all(
        holds(words[-1], world)
        for world in range(1 << len(sorts))
        if all(world & of[kind] for kind in kinds) and all(holds(one, world) for one in words[:-1])
    )


@refuses("the item's own answer is the other one's relation")
def family_relationships(entry: Entry, answer: str) -> bool:
    """`What is Lily to William?` is answered with what William is to Lily, where they are related by marriage.

    A child is niece or nephew by whether its aunt or uncle is a woman; only its name says what itself is.
    """
    own = str(entry["answer"])
    if own not in ("niece", "nephew"):
        return not own.endswith("-in-law")
    config = library.registry()["family_relationships"][1]()
    return entry["metadata"]["person1"] not in (config.male_names if own == "niece" else config.female_names)


_OPTIONS = frozenset({"true", "false", "yes", "no", "peng", "chi", "pass", "on", "off", "undetermined"})
_PLAIN_NUMBER = re.compile(r"[-−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")


@refuses("it holds more than one candidate", credit_from=SOME_CREDIT)
def one_number(entry: Entry, answer: str) -> bool:
    """After the last `=`, the right number and no other; what is no plain number must stand there as a whole.

    Sums and products are paid in full with a comma anywhere: `1,2` is 12.
    """
    right = str(entry["answer"]).strip()
    if answer == right:
        return True
    if _PLAIN_NUMBER.fullmatch(right):
        return {_number(one) for one in _PLAIN_NUMBER.findall(answer.rpartition("=")[2])} <= {_number(right)}
    return re.search(rf"(?<![^\W_]){re.escape(right)}(?![^\W_])", answer) is not None


# --- structures ---


@refuses("it gives a letter twice, or what is no digit")
def cryptarithm(entry: Entry, answer: str) -> bool:
    """Any whole number is read as a digit that is worth one: `0_7`, `-0`."""
    pairs = [_LETTER.fullmatch(pair) for pair in answer.split(",")]
    letters = {pair[1] for pair in pairs if pair is not None}
    return len(pairs) == len(letters)


_LETTER = re.compile(r"\s*([A-Z])\s*=\s*\d\s*")


@refuses("it is no list of lists of words")
def group_anagrams(entry: Entry, answer: str) -> bool:
    groups = json.loads(answer)
    return isinstance(groups, list) and all(isinstance(group, list) for group in groups)


_JUG_ORDER = re.compile(r"\s*(?:(?:fill|empty)\s+[A-Z]|pour\s+([A-Z])->(?!\1)[A-Z])\s*")


@refuses("there is more in it than orders")
def jugs(entry: Entry, answer: str) -> bool:
    """What follows the first two words of an order is not looked at: `fill A or B`. No jug is poured into itself."""
    orders = json.loads(answer)
    return isinstance(orders, list) and all(_JUG_ORDER.fullmatch(order) for order in orders)


@refuses("there is more in it than a grid of 0 and 1")
def kakurasu(entry: Entry, answer: str) -> bool:
    """All other signs are passed over: `-1`, `not 1`, `0.0` for two cells, and digits from 2 on."""
    grid = re.search("[01].*[01]", answer, re.DOTALL)
    return grid is not None and signs_of(grid[0]).isdisjoint(".:;*_$`\\") and is_wrapped(answer, "[01]", "|")


@refuses("there is more in it than the grid")
def survo(entry: Entry, answer: str) -> bool:
    """What is no number is passed over, inside tags also the first and the last number."""
    lines = ([cell for cell in line.split() if not is_wrapping(cell, "|")] for line in answer.splitlines())
    rows = [list(map(int, line)) for line in lines if line]
    return rows == [list(map(int, row)) for row in entry["metadata"]["solution"]]


_DISK_MOVE = re.compile(r"\s*Move disk \d+ from Peg \d+ to Peg \d+\s*")


@refuses("there is more in it than moves")
def tower_of_hanoi(entry: Entry, answer: str) -> bool:
    """Nine words with a move somewhere in them are one: `Don'tMove disk 1 ...`."""
    return all(_DISK_MOVE.fullmatch(line) for line in answer.splitlines() if line.strip())


@refuses("a line on its shape says something else")
def grid(entry: Entry, answer: str) -> bool:
    """Lines that begin with `Shape: ` are passed over, whatever they go on with."""
    output = entry["metadata"]["output"]
    shape = f"Shape: {len(output)}x{len(output[0])}"
    # As the verifier does: other signs than this one break no line.
    lines = [line.strip() for line in answer.split("\n")]
    return all(line == shape for line in lines if line.startswith("Shape"))


@refuses("it is another board")
def game_of_life(entry: Entry, answer: str) -> bool:
    """Its leaves too, for `true` is equal to 1."""
    return list(_leaves(json.loads(answer))) == list(_leaves(json.loads(entry["answer"])))


@refuses("it is no list of partitions, or one stands in it twice")
def palindrome_partitioning(entry: Entry, answer: str) -> bool:
    """A list of lists of texts: of a text, or of an object's keys, the verifier takes the letters."""
    partitions = json.loads(answer)
    return (
        isinstance(partitions, list)
        and all(isinstance(one, list) and all(isinstance(part, str) for part in one) for one in partitions)
        and len(set(map(tuple, partitions))) == len(partitions)
    )


@refuses("it does not colour the vertices of the graph and no others")
def graph_color(entry: Entry, answer: str) -> bool:
    """Others are passed over: one colouring fits small graphs of every size, three in four at the first level."""
    colours = loads(answer)
    are_numbers = all(type(colour) is int for colour in colours.values())
    return are_numbers and set(colours) == {str(vertex) for vertex in entry["metadata"]["puzzle"]["vertices"]}


CODEIO_SLACK_CHARS = 8
CODEIO_SLACK_FACTOR = 1.5


@refuses("it is of other types, or much larger than the right answer", credit_from=0.02)
def codeio(entry: Entry, answer: str) -> bool:
    """The credit shrinks with the edit distance over the answer's size, so padding must not make it large.

    For that distance `"35"` is 35, `"None"` null, `[]` `{}`, `"a": "b:1"` `"a:b": 1`, and numbers are equal that differ
    in the tenth digit, also in texts: `"1011010101010101"`. And true is equal to 1 anyway.
    """
    text = answer[answer.find("{") : answer.rfind("}") + 1]
    try:
        right, given = json.loads(entry["answer"]), json.loads(text)
    except ValueError:
        return True  # then the verifier has only compared the texts
    if answer == entry["answer"].strip():
        return True
    loads(text)
    said, expected = list(_leaves(given)), list(_leaves(right))
    if given == right:
        return said == expected
    if list(map(_as_seen, said)) == list(map(_as_seen, expected)):
        return False
    differences = [(a, b) for a, b in zip(said, expected, strict=False) if a != b]
    if len(said) == len(expected) and all(_is_near(a, b) for a, b in differences):
        return all(a[1] == b[1] == "number" and _has_right_digits(a[2], b[2]) for a, b in differences)
    limit = CODEIO_SLACK_FACTOR * len(json.dumps(right)) + CODEIO_SLACK_CHARS
    written = json.dumps(given)
    return len(written) <= limit and '"": ' not in written


def _as_seen(leaf: _Leaf) -> list[str]:
    """What the verifier compares, a key and its value as one text; numbers as floats."""
    return [_as_float(part) for part in ":".join((*leaf[0], leaf[2])).split(":")]


def _is_near(said: _Leaf, expected: _Leaf) -> bool:
    """Whether both are numbers, or texts of digits, in the same place, and so near that the verifier may not see it."""
    try:
        is_near = math.isclose(float(said[2]), float(expected[2]), rel_tol=1e-6)
    except ValueError:
        return False
    return is_near and said[0] == expected[0]


def _has_right_digits(given: str, right: str) -> bool:
    """As far as they go, and whole numbers to the last; the last digits of a float are its rounding."""
    exact = Fraction(right)
    return exact.denominator > 1 and _is_rounded(given, exact, slack=abs(exact) / 10**13)


_Leaf = tuple[tuple[str, ...], str, str]


def _leaves(data: Any, path: tuple[str, ...] = ()) -> Iterator[_Leaf]:
    """(where, what kind, which) of everything in a JSON value; the verifier sees no kinds, and numbers as floats."""
    if isinstance(data, (dict, list)):
        yield path, type(data).__name__, ""
        named = ((f"item_{index}", value) for index, value in enumerate(data))
        for key, value in sorted(data.items()) if isinstance(data, dict) else named:
            yield from _leaves(value, (*path, key))
        return
    kind = "number" if isinstance(data, (int, float)) and not isinstance(data, bool) else type(data).__name__
    yield path, kind, _as_float(str(data))


def _as_float(text: str) -> str:
    try:
        return repr(float(text))
    except ValueError:
        return text


# --- which task has which ---

_NAMED_AS_THEIR_TASK = (
    bitwise_arithmetic,
    *(advanced_geometry, boxnet, codeio, coin_flip, complex_arithmetic, countdown, cryptarithm, decimal_arithmetic),
    *(family_relationships, figlet_font, fraction_simplification, game_of_life, game_of_life_halting, graph_color),
    *(group_anagrams, gsm_symbolic, jugs, kakurasu, knights_knaves, letter_jumble, number_format, number_sorting),
    *(palindrome_partitioning, polynomial_equations, polynomial_multiplication, pool_matrix, prime_factorization),
    *(propositional_logic, puzzle24, quantum_lock, rubiks_cube, rush_hour, shortest_path, sokoban),
    *(spell_backward, survo, syllogism, time_intervals, tower_of_hanoi, word_ladder, word_sorting),
)
_CHOOSE_A_WORD = ("acre", "course_schedule", "isomorphic_strings", "mahjong_puzzle", "ransom_note")
_NAME_A_NUMBER = (
    *("aiw", "base_conversion", "basic_arithmetic", "binary_alternation", "chain_sum", "count_bits", "count_primes"),
    *("gcd", "largest_island", "lcm", "leg_counting", "letter_counting", "maze", "number_sequence", "products"),
    *("rotten_oranges", "simple_equations", "simple_geometry"),
)
CHECKS: Mapping[str, Check] = {
    **{check.__name__: check for check in _NAMED_AS_THEIR_TASK},
    **dict.fromkeys(("intermediate_integration", "simple_integration"), integration),
    **dict.fromkeys(("arc_agi", "rearc"), grid),
    **dict.fromkeys(_CHOOSE_A_WORD, one_of_a_few),
    **dict.fromkeys(_NAME_A_NUMBER, one_number),
}
