"""Mends the questions of reasoning-gym: replaces items, corrects their keys, and adds clarifying sentences.

    an item of reasoning-gym ── is_sound ──no──> another item takes its place
                                   └────yes───> mended: its key is right, and its question has one meaning

The *key* of an item is the answer that reasoning-gym gives. Some keys are wrong. Some questions can honestly be read
in two ways, but the key is right for a single reading. Three tables mend them:

    IS_SOUND     says no if the item has no right answer, or if no sentence can settle which of two readings is meant
    CORRECTED    the right answer, if it follows from the question
    SENTENCES    sentences that are added to a question of which both readings are honest

Only strict verification mends questions. With `native`, the items are the library's, word for word. docs/questions.md
has the shares of the faults.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from string import ascii_uppercase
from typing import Any

from ..records import LIBRARY_QUESTION
from . import validators
from .bounded_eval import ARITHMETIC, parse, value_of_tree, whole_number_of
from .entries import Entry, module_of, task_of
from .forms import decimal_value, elapsed_ms
from .logic import is_conclusion, joined_premises, short_formulas

Variables = Mapping[str, Any]
"""The numbers of an item of gsm_symbolic, by name."""


@dataclass(frozen=True)
class Sentence:
    """A sentence that is added to all questions of a task, or where a pattern matches and a condition holds.

    As in `re.sub`, \\1 stands for the first group of the pattern.
    """

    task: str
    text: str
    where: str = ""
    condition: Callable[[Entry], bool] | None = None


def is_sound(task: str, entry: Entry) -> bool:
    """Whether the item can be used. Training replaces an unsound item by another item, and evaluations skip it."""
    source = task_of(task, entry)
    return source not in IS_SOUND or IS_SOUND[source](entry)


def mended(task: str, entry: dict[str, Any]) -> dict[str, Any]:
    """A sound item with its right answer, and with a question that has one meaning.

    A clarified item keeps the question of reasoning-gym under LIBRARY_QUESTION.
    """
    source = task_of(task, entry)
    found = dict(entry)
    if source in CORRECTED:
        found["answer"] = CORRECTED[source](entry)
    question = entry["question"]
    added = []
    for sentence in SENTENCES:
        place = re.search(sentence.where, question) if sentence.task == source else None
        if place and (sentence.condition is None or sentence.condition(entry)):
            added.append(place.expand(sentence.text))
    if added:
        found[LIBRARY_QUESTION] = question
        found["question"] = f"{question.rstrip()}\n\n{' '.join(added)}"
    return found


# --- aiw


def aiw_is_sound(entry: Entry) -> bool:
    """Some keys are wrong, because they count Matilda among her own colleagues.

    Matilda is one of the women in both circles, and all other women there are her colleagues. Other questions ask about
    the brother of a man who has none: his sister's only brother is the man himself.
    """
    question = entry["question"]
    if "Matilda" in question:
        _, women, _, women_of_other_circle = map(int, re.findall(r"\d+", question))
        return int(entry["answer"]) == women + women_of_other_circle - 1
    brothers = re.search(r"she also has (\d+) brothers\. How many sisters does \w+'s brother have", question)
    return brothers is None or int(brothers[1]) > 1


# --- basic_arithmetic


def basic_arithmetic_is_sound(entry: Entry) -> bool:
    """Some divisions leave a remainder, and the key rounds them down: it says that `3 + 1 / -(5 - 9)` is 3."""
    expression = parse(entry["metadata"]["expression"])
    return bool(value_of_tree(expression, ARITHMETIC, whole_number_of) == int(entry["answer"]))


# --- caesar_cipher


def caesar_cipher_is_sound(entry: Entry) -> bool:
    """A letter outside the alphabet cannot be deciphered: the Ë of `AËRIAL` turns into an I."""
    return str(entry["answer"]).isascii()


# --- calendar_arithmetic


def calendar_arithmetic_is_sound(entry: Entry) -> bool:
    """If the business days extend into the next year, the question names the wrong year for the last day."""
    end = entry["metadata"].get("end_date")
    return end is None or end[:4] in entry["question"]


# --- codeio


RUNS_PROGRAMS = "codeio"
"""The task whose answers are the outputs of programs."""

NOT_REPRODUCED = "not_reproduced"
"""Metadata key of an item whose program, run again on the input that the question shows, does not give the key."""

_CLOCK = re.compile(r"\b(now|utcnow|today|time\.time)\(")
"""Calls in a program that read the time or the date."""

_CHANCE = re.compile(r"\brandom\.(?!seed|Random\b)\w+\(|\b(randint|randrange|uniform|shuffle|randn)\(")
"""Calls in a program that draw a random number. NOT_REPRODUCED misses a program if two runs give equal outputs."""


def codeio_is_sound(entry: Entry) -> bool:
    """Some programs do not give the key if somebody runs them on the input that the question shows.

    They draw random numbers, read the clock or a file, depend on the order of a set, or change their input before the
    question shows it. Half of the questions ask for an input that gives the shown output. Most programs have many such
    inputs, but the verifier accepts one.
    """
    question = entry["question"]
    has_seed = "seed(" in question
    differs = entry["metadata"].get(NOT_REPRODUCED, False) or _CLOCK.search(question)
    draws = _CHANCE.search(question) and not has_seed
    return not (asks_for_input(question) or differs or draws)


def asks_for_input(question: str) -> bool:
    """Whether a question of codeio shows an output and asks for an input that gives it."""
    return "predict a feasible input" in question


def program_of(question: str) -> str:
    """The program that a question of codeio shows, after everything else."""
    _, _, program = question.partition("but not copy spans of code directly.\n\n")
    return program


# --- coin_flip


def coin_flip_corrected(entry: Entry) -> str:
    """The library rounds its answer to ten digits. The denominator is a power of two, so the decimals end."""
    ratio = entry["metadata"]["rational"]
    exact = rounded(Fraction(ratio["numerator"], ratio["denominator"]), ratio["denominator"].bit_length())
    return f"{exact:f}"


# --- complex_arithmetic


def complex_arithmetic_is_sound(entry: Entry) -> bool:
    """Floats beyond 2**53 skip whole numbers, so some products of the last level are wrong."""
    metadata = entry["metadata"]
    if metadata["operation"] != "*":
        return True
    a, b = map(int, metadata["num1"])
    c, d = map(int, metadata["num2"])
    product = [a * c - b * d, a * d + b * c]
    return list(map(int, metadata["result"])) == product


# --- decimal_arithmetic


def decimal_arithmetic_corrected(entry: Entry) -> str:
    """The library rounds after each step. Here the exact value is rounded once, to the digits of the question."""
    question = entry["question"]
    [digits] = re.findall(r"maximum of (\d+) significant digits", question)
    return str(rounded(decimal_value(question), int(digits)))


def rounded(value: Fraction, digits: int) -> Decimal:
    """The value, rounded to at most `digits` significant digits. A half is rounded away from zero."""
    # Division rounds once, to the nearest number, whatever the length of the exact value.
    context = Context(prec=digits, rounding=ROUND_HALF_UP)
    return context.divide(Decimal(value.numerator), Decimal(value.denominator))


# --- family_relationships


def family_relationships_is_sound(entry: Entry) -> bool:
    """The answers for relatives by marriage and for some nieces and nephews are wrong.

    For relatives by marriage, the key of `What is Lily to William?` is what William is to Lily. The key chooses between
    niece and nephew by the sex of the aunt or uncle, but the sex of the child decides this.
    """
    answer = str(entry["answer"])
    if answer.endswith("-in-law"):
        return False
    config = module_of("family_relationships").FamilyRelationshipsConfig()
    wrong_names = {"niece": config.male_names, "nephew": config.female_names}
    return entry["metadata"]["person1"] not in wrong_names.get(answer, ())


# --- figlet_font


def figlet_font_is_sound(entry: Entry) -> bool:
    """Some fonts draw several letters alike, or draw nothing for them."""
    return set(entry["answer"]) <= _distinct_letters(entry["metadata"]["font"])


@functools.lru_cache(maxsize=64)
def _distinct_letters(font: str) -> frozenset[str]:
    """The capital letters that look like no other capital letter in a font."""
    render = module_of("figlet_font").pyfiglet.figlet_format
    pictures = {letter: _without_margins(render(letter, font=font)) for letter in ascii_uppercase}
    counts = Counter(pictures.values())
    return frozenset(letter for letter, picture in pictures.items() if picture and counts[picture] == 1)


def _without_margins(picture: str) -> str:
    """A picture without blanks at either side, and without blank lines around it."""
    lines = [line.rstrip() for line in picture.split("\n")]
    return textwrap.dedent("\n".join(lines)).strip("\n")


# --- gsm_symbolic


def gsm_symbolic_is_sound(entry: Entry) -> bool:
    """The answers of some questions are a fraction of a student, a card or a pan, or have no finite decimal form."""
    variables = entry["metadata"]["variables"]
    if "percent_group23" in variables:
        first = Fraction(variables["total_students"] * variables["percent_group1"], 100)
        others = (variables["total_students"] - first) * Fraction(variables["percent_group23"], 100)
        return first.denominator == others.denominator == 1
    if "per_pan" in variables:
        return bool(variables["total_items"] % variables["per_pan"] == 0)
    value = _exact_value(variables)
    if value is None:
        return True
    if "num_item2" in variables or "more_cards" in variables:
        return value.denominator == 1
    return 100 % value.denominator == 0


def gsm_symbolic_corrected(entry: Entry) -> str:
    """Some templates truncate the result to a whole number, or compute it with floats."""
    value = _exact_value(entry["metadata"]["variables"])
    if value is None:
        return str(entry["answer"])
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.2f}".rstrip("0")


def _exact_value(variables: Variables) -> Fraction | None:
    """The result of a template that computes it inexactly; None for another template."""
    if "minutes_per_page" in variables:
        return Fraction(variables["total_minutes"], 60)
    if "more_cards" in variables:
        second = Fraction(variables["n1"] * (100 + variables["p"]), 100)
        return 2 * (variables["n1"] + second)
    if "num_item2" in variables:
        spent = Fraction(str(variables["total_spent"])) * (100 - variables["percent_change"])
        return (spent - variables["num_item1"] * variables["price1"]) / variables["price2"]
    if "sidewalk_distance" in variables:
        speed = Fraction(variables["beach_distance"], variables["beach_time"]) * variables["speed_multiplier"]
        return variables["beach_time"] + variables["sidewalk_distance"] / speed
    if "frac1" in variables and "mult1" in variables and "n2_result" in variables:
        return variables["n1"] * Fraction(str(variables["frac1"])) + variables["n2"] * Fraction(str(variables["mult1"]))
    if "rounded_prices" in variables:
        prices = [_half_up(Fraction(str(price))) for price in variables["original_prices"]]
        return Fraction(sum(price * number for price, number in zip(prices, variables["quantities"], strict=True)))
    if "unit_price" in variables and "remaining" in variables:
        paid = Fraction(str(variables["unit_price"])) * variables["quantity"]
        return Fraction(f"{variables['initial_amount']:.2f}") - paid
    return None


def _half_up(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


# --- intermediate_integration


def intermediate_integration_corrected(entry: Entry) -> str:
    """Some keys contain an integral that the library has not solved."""
    answer = str(entry["answer"])
    if "Integral" not in answer:
        return answer
    # reasoning-gym, which made the item, has imported it.
    import sympy

    metadata = entry["metadata"]
    integrand = sympy.sympify(metadata["integrand"])
    return f"{sympy.integrate(integrand, sympy.Symbol(metadata['variable']))} + C"


# --- jugs


def jugs_is_sound(entry: Entry) -> bool:
    """The library's search gives up early. If the key says that there is no solution, there usually is a solution."""
    return "No solution" not in str(entry["answer"])


# --- knight_swap


def knight_swap_is_sound(entry: Entry) -> bool:
    """The generator makes unsolvable items by removing a move that the question does not mention.

    A third of these items can still be solved.
    """
    metadata = entry["metadata"]
    if metadata["is_possible"]:
        return True
    logic = module_of("knight_swap").KnightSwapLogic
    pieces = metadata["pieces"]
    board = {}
    for square in pieces:
        board[square] = [target for target in pieces if logic.is_knight_move(square, target)]
    return logic.solve_swap(board, pieces, metadata["start_turn"]) is None


# --- list_functions


def list_functions_is_sound(entry: Entry) -> bool:
    """If all examples give 0 or 1, or the same number, they do not show that the rule is to count."""
    shown = set(re.findall(r"Output \d+: (.*)", entry["question"]))
    shows_no_count = len(shown) == 1 or shown == {"[0]", "[1]"}
    return str(entry["answer"]) in shown or not shows_no_count


# --- mahjong_puzzle


_CHI = ({-2, -1}, {-1, 1}, {1, 2})
"""The distances from a new card to the two cards with which it makes three in a row."""


def mahjong_puzzle_is_sound(entry: Entry) -> bool:
    """Some items overlook what the last card completes.

    A card drawn to complete a Chi can also complete a Peng, which takes precedence. A random card, which should be
    a Pass, can complete either.
    """
    last_round = entry["metadata"]["rounds"][-1]
    hand = last_round["cards"][:-1] + last_round["remove"]
    return str(entry["answer"]) == _mahjong_result(last_round["add"], hand)


def _mahjong_result(new_card: str, hand: str) -> str:
    if hand.count(new_card) >= 2:
        return "Peng"
    distances = {ord(card) - ord(new_card) for card in hand}
    return "Chi" if any(map(distances.issuperset, _CHI)) else "Pass"


# --- needle_haystack


def needle_haystack_is_sound(entry: Entry) -> bool:
    """In some items, two names do exactly what the question asks for."""
    statements, _, question = entry["question"].rpartition("\n")
    asked = question.removeprefix("Who ").partition("?")[0]
    names = {statement.split(maxsplit=1)[0] for statement in statements.split(". ") if statement.endswith(f" {asked}")}
    return names == {entry["answer"]}


# --- number_filtering


def number_filtering_is_sound(entry: Entry) -> bool:
    """If the list holds a number twice, as `-23.00` and as `-23.0`, the key has the first form twice."""
    metadata = entry["metadata"]
    surplus = Counter(metadata["result"]) - Counter(metadata["original_numbers"])
    return not surplus


# --- number_sequence


def number_sequence_is_sound(entry: Entry) -> bool:
    """Some sequences also follow a simpler rule than the generator's, and the simpler rule gives another next term."""
    *shown, hidden = entry["metadata"]["sequence"]
    return all(value == hidden for value in continuations(shown))


def continuations(terms: Sequence[int]) -> Iterator[int]:
    """The next term by each simple rule that the terms follow, if there are enough terms to show the rule."""
    steps = _differences(terms)
    changes = _differences(steps)
    triples = list(zip(terms, terms[1:], terms[2:], strict=False))
    # A line fits any two points, and a parabola fits any three.
    if len(terms) >= 4 and len(set(steps)) == 1:
        yield terms[-1] + steps[-1]
    if len(terms) >= 5 and len(set(changes)) == 1:
        yield terms[-1] + steps[-1] + changes[-1]
    is_geometric = all(terms) and all(before * after == term**2 for before, term, after in triples)
    if len(terms) >= 4 and is_geometric and terms[-1] ** 2 % terms[-2] == 0:
        yield terms[-1] ** 2 // terms[-2]
    if len(terms) >= 5 and all(first + second == third for first, second, third in triples):
        yield terms[-1] + terms[-2]


def _differences(terms: Sequence[int]) -> list[int]:
    return [after - before for before, after in itertools.pairwise(terms)]


# --- polynomial_equations


def polynomial_equations_is_sound(entry: Entry) -> bool:
    """The formula for three real roots of a cubic uses complex numbers, and the key omits such roots."""
    # reasoning-gym, which made the item, has imported it.
    import sympy

    metadata = entry["metadata"]
    num_roots = sympy.Poly(metadata["polynomial_expr"]).count_roots()
    return int(num_roots) == len(metadata["real_solutions"])


# --- pool_matrix


def cuts_windows(entry: Entry) -> bool:
    """Whether an edge of the matrix cuts off windows of an item of pool_matrix."""
    metadata = entry["metadata"]
    size = metadata["pool_size"]
    return bool(metadata["rows"] % size or metadata["cols"] % size)


# --- propositional_logic


def propositional_logic_is_sound(entry: Entry) -> bool:
    """Whether a formula of one or two letters is a right answer, and the premises do not contradict each other.

    Everything follows from premises that contradict each other. Items name their variables from P onwards. With more
    than 11 variables, the names after Z are signs such as `[`, which no formula can contain.
    """
    letters = entry["metadata"]["variables"]
    if not set(ascii_uppercase).issuperset(letters):
        return False
    joined = joined_premises(entry)
    if 0 in joined:
        return False
    return any(is_conclusion(formula, letters, joined) for formula in short_formulas(letters))


# --- rearc


def rearc_is_sound(entry: Entry) -> bool:
    """Some outputs have a colour that neither an output of an example nor the test input shows.

    Some examples do not show the rule, because all their outputs are the same, or none differs from its input.
    """
    *examples, test = re.findall(r"put:\n(.+?)(?=\n\n|\nOutput|\Z)", entry["question"].strip(), re.DOTALL)
    inputs, outputs = examples[::2], examples[1::2]
    answer = str(entry["answer"])
    if not set(answer).issubset("".join([*outputs, test])):
        return False
    if len(set(outputs)) == 1 and answer != outputs[0]:
        return False
    return inputs != outputs or answer == test


# --- sentence_reordering


def sentence_reordering_is_sound(entry: Entry) -> bool:
    """The library ends a sentence at every full stop, also after `Mr.`, and before a closing quote."""
    return tuple(sorted(entry["answer"].split())) in _whole_sentences()


def sentence_reordering_corrected(entry: Entry) -> str:
    """If a word is repeated, the library puts equal words side by side."""
    return _whole_sentences()[tuple(sorted(entry["answer"].split()))]


_SENTENCE = re.compile(r"[^.!?]+[.!?]")
"""What the library takes for a sentence."""
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|No|vol|[A-Z])|\d)\.\Z")
"""A full stop that may end no sentence."""


@functools.cache
def _whole_sentences() -> dict[tuple[str, ...], str]:
    """The sentences that begin with a capital letter and end where the story ends a sentence, by their sorted words."""
    story = module_of("sentence_reordering").read_data_file("in_the_year_2889.txt")
    whole = {}
    for found in _SENTENCE.finditer(story):
        words = found[0].split()
        before = story[: found.start()]
        after = story[found.end() : found.end() + 1]
        begins = re.match(r"[\"“'_(]?[A-ZÀ-Ý]", words[0]) is not None and not _ABBREVIATION.search(before)
        ends = (not after or after.isspace() or after in "\"”'_)") and not _ABBREVIATION.search(found[0])
        if begins and ends:
            whole[tuple(sorted(words))] = " ".join(words)
    return whole


# --- simple_geometry


def simple_geometry_is_sound(entry: Entry) -> bool:
    """The question says that the polygon is convex. Often it is not: its last angle would have 180 degrees or more."""
    return float(entry["answer"]) < 180


# --- syllogism


def syllogism_is_sound(entry: Entry) -> bool:
    """Some items accept a wrong conclusion, such as `some A are not C` from `all A are B` and `some B are not C`."""
    if str(entry["answer"]) == "No":
        return True
    metadata = entry["metadata"]
    premises = [metadata["premise1"], metadata["premise2"]]
    return follows(premises, metadata["conclusion"])


def follows(premises: Sequence[str], conclusion: str) -> bool:
    """Whether the conclusion holds in every world in which the premises hold and every kind of thing exists.

    A statement is `All A are B`, `No A are B`, `Some A are B` or `Some A are not B`. The items assume that every kind
    exists.
    """
    words = " ".join([*premises, conclusion]).split()
    kinds = set(words) - {"All", "No", "Some", "are", "not"}
    # A sort of thing is the set of the kinds that it belongs to. A world is the set of the sorts that exist.
    sorts = list(_subsets(sorted(kinds)))
    for world in _subsets(sorts):
        has_every_kind = kinds == set(itertools.chain(*world))
        if has_every_kind and all(_holds(premise, world) for premise in premises) and not _holds(conclusion, world):
            return False
    return True


def _subsets(elements: Collection[Any]) -> Iterator[tuple[Any, ...]]:
    for size in range(len(elements) + 1):
        yield from itertools.combinations(elements, size)


def _holds(statement: str, world: Collection[Collection[str]]) -> bool:
    words = statement.split()
    subjects = [sort for sort in world if words[1] in sort]
    matches = [sort for sort in subjects if words[-1] in sort]
    if words[0] == "All":
        return matches == subjects
    if words[0] == "No":
        return not matches
    if "not" in words:
        return matches != subjects
    return bool(matches)


# --- time_intervals


def time_intervals_is_sound(entry: Entry) -> bool:
    """A weekday in brackets makes reasoning-gym overlook the time zone after it. Some ends are before their starts."""
    metadata = entry["metadata"]
    time_format = metadata["format"]
    if "(%A)" in time_format and time_format.endswith("%z"):
        return False
    return elapsed_ms(entry) >= 0


def time_intervals_corrected(entry: Entry) -> str:
    """If the answer has milliseconds, half of the keys are one millisecond too small."""
    metadata = entry["metadata"]
    if metadata["expected_format"] != "HH:MM:SS.mmm":
        return str(entry["answer"])
    seconds, milliseconds = divmod(elapsed_ms(entry), 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}.{milliseconds:03}"


# --- tsumego


def tsumego_is_sound(entry: Entry) -> bool:
    """Some keys do not capture the stones that the question asks for."""
    return validators.tsumego(entry, entry["answer"])


_MONTHS_FROM_MARCH = "(?:March|April|May|June|July|August|September|October|November|December)"

SENTENCES = (
    # The question does not say that the man is a brother of the woman.
    Sentence(
        "aiw",
        r"\2 is one of \1's brothers.",
        where=r"(\w+) has \d+ sisters and she also has \d+ brothers\. How many sisters does (\w+)'s brother have",
    ),
    # The output of a program that counts below zero depends on the size of a cell.
    Sentence("bf", "Each cell of the memory is a byte: one less than 0 is 255, and one more than 255 is 0."),
    # The question does not say what becomes of a target, and the actions of a step could happen one after another.
    Sentence(
        "boxnet",
        "A box that is matched disappears together with its target. All actions of one step happen at "
        "the same time: each agent moves a box that is in its square when the step begins.",
    ),
    Sentence("calendar_arithmetic", "The date is written as month/day/year.", where=r"\d\d/\d\d/\d{4}"),
    # A year without a number can be a leap year.
    Sentence(
        "calendar_arithmetic",
        "The year is not a leap year.",
        where=rf"(?:first day of the year was|January 1 fell on|is January 1st).* {_MONTHS_FROM_MARCH} \d",
    ),
    # XOR of three and more inputs can also mean that exactly one of them is 1. The question draws the inputs of a gate
    # in successive lines.
    Sentence("circuit_logic", "XOR of several inputs is 1 if an odd number of them is 1.", where=r"(.*⊕⊕.*\n){3}"),
    # The question does not say how many decimals the answer needs.
    Sentence("coin_flip", "Give the exact probability, as a fraction or with all its decimals."),
    # There are two ways to turn the bottom to the top.
    Sentence(
        "color_cube_rotation",
        "Whenever the bottom side is brought to the top, the left and the right side stay where they are.",
        where=r"(?:at|bring|make|place) (?:the|its) bottom|bottom side is rotated",
    ),
    # Both men and women have these names. The key takes each name for that of a man, or of a woman.
    Sentence(
        "family_relationships",
        r"\1 is male.",
        where=r"(?:relation is|is|How is) (Aiden|Atlas|Finn|Jayden|Kai|Logan|Mason|Phoenix|Ryder|Zion) (?:to|related)",
    ),
    Sentence(
        "family_relationships",
        r"\1 is female.",
        where=r"(?:relation is|is|How is) (Aria|Nova|Rain|River|Sage|Sky|Willow|Winter) (?:to|related)",
    ),
    # `asin(x)` can be read as a product.
    Sentence("intermediate_integration", "Here asin is the inverse sine.", where="asin"),
    Sentence("intermediate_integration", "Here atan is the inverse tangent.", where="atan"),
    # The arms of a starfish count as legs here.
    Sentence("leg_counting", "Count a starfish as having 5 legs.", where="starfish"),
    Sentence(
        "letter_counting",
        "Capital letters count too.",
        where=r'letter "(\w)" appear in the text: ".*(?!\1)(?i:\1)',
    ),
    # A horizontal mirror can swap top and bottom, or left and right. A rotation has no direction.
    Sentence(
        "manipulate_matrix", "Mirroring horizontally reverses the order of the rows.", where="Horizontally mirror"
    ),
    Sentence(
        "manipulate_matrix",
        "Mirroring vertically reverses the order of the elements in each row.",
        where="Vertically mirror",
    ),
    Sentence("manipulate_matrix", "Rotations are clockwise.", where="Rotate the matrix (90|270) degrees"),
    # A step could be diagonal.
    Sentence("maze", "Each step goes up, down, left or right."),
    # The question does not mention windows that the edge cuts off.
    Sentence(
        "pool_matrix",
        "A window that extends beyond the right or the lower edge is pooled over the elements that it has.",
        condition=cuts_windows,
    ),
    # By the usual precedence, `-2^2` is -4. Here it is 4.
    Sentence("power_function", r"Here \1^\2 means (\1)^\2.", where=r"Compute (-[\d.e-]+)\^(-?\d*[02468])\b"),
    # A copy of a premise follows from the premises too, and so do many weaker statements.
    Sentence(
        "propositional_logic",
        "Give a new statement that says all that the premises say about its letters. It must have fewer "
        "letters and connectives than each premise, and than each selection of premises joined by ∧, from which it "
        "follows.",
    ),
    # `You can only use each number once` also lets a number be left out.
    Sentence("puzzle24", "Use all four numbers."),
    # The text lets a press of any button toggle the light, and the key lets some buttons do nothing.
    Sentence(
        "quantum_lock",
        "A button that is marked with a colour of the light can only be pressed while the light has that colour.",
    ),
    # Outlines that cross can also be taken for more and smaller rectangles. The key is the smallest number.
    Sentence(
        "rectangle_count",
        "If different numbers of rectangles could have made the picture, give the smallest of these numbers.",
    ),
    # Cubes with more than three layers have inner layers, for which there are several notations.
    Sentence(
        "rubiks_cube",
        "`Rw` turns the two outer layers on the right, and `2R` the second layer from the right alone.",
        where=r"(?:You are given a|You see a size) (?:[4-9]|\d\d)",
    ),
    # Other orders of the words are often good sentences too.
    Sentence(
        "sentence_reordering", "Give the sentence as it stands in Project Gutenberg's edition of `In the Year 2889`."
    ),
    # The question does not say what a step against a wall does, and the example alone shows the letters.
    Sentence(
        "sokoban", "Write the steps as the capital letters L, R, U and D. At most two steps may run into an obstacle."
    ),
    # A text of an even length has two characters in its middle.
    Sentence(
        "string_manipulation",
        "If the length is even, the middle character is the first character of the second half.",
        where="remove the middle character",
    ),
    # After a rule, a cycle can continue with the next rule or with the first.
    Sentence(
        "string_synthesis",
        "Each time, apply the first rule of the list that can be applied, and then begin again with rule 1.",
    ),
    # In modern logic, `All A are B` is true if there is no A.
    Sentence("syllogism", "Take for granted that at least one of each kind that is named exists."),
    # A date in figures can begin with the day, and seconds can be truncated or rounded.
    Sentence("time_intervals", "Dates are written as month/day/year.", where=r"\d\d/\d\d/\d{4}"),
    Sentence(
        "time_intervals",
        "Leave out seconds that do not make a whole minute.",
        where=r"\d\d:\d\d:\d\d.* in (?:D days, )?HH:MM\.",
    ),
)
"""The sentences that are added to all questions of a task, or to all that match a pattern, each with its reason."""


IS_SOUND: Mapping[str, Callable[[Entry], bool]] = {
    "aiw": aiw_is_sound,
    "basic_arithmetic": basic_arithmetic_is_sound,
    "caesar_cipher": caesar_cipher_is_sound,
    "calendar_arithmetic": calendar_arithmetic_is_sound,
    "codeio": codeio_is_sound,
    "complex_arithmetic": complex_arithmetic_is_sound,
    "family_relationships": family_relationships_is_sound,
    "figlet_font": figlet_font_is_sound,
    "gsm_symbolic": gsm_symbolic_is_sound,
    "jugs": jugs_is_sound,
    "knight_swap": knight_swap_is_sound,
    "list_functions": list_functions_is_sound,
    "mahjong_puzzle": mahjong_puzzle_is_sound,
    "needle_haystack": needle_haystack_is_sound,
    "number_filtering": number_filtering_is_sound,
    "number_sequence": number_sequence_is_sound,
    "polynomial_equations": polynomial_equations_is_sound,
    "propositional_logic": propositional_logic_is_sound,
    "rearc": rearc_is_sound,
    "sentence_reordering": sentence_reordering_is_sound,
    "simple_geometry": simple_geometry_is_sound,
    "syllogism": syllogism_is_sound,
    "time_intervals": time_intervals_is_sound,
    "tsumego": tsumego_is_sound,
}
"""For each task with unsound items, whether an item has a right answer, and a meaning that a sentence can settle."""

CORRECTED: Mapping[str, Callable[[Entry], str]] = {
    "coin_flip": coin_flip_corrected,
    "decimal_arithmetic": decimal_arithmetic_corrected,
    "gsm_symbolic": gsm_symbolic_corrected,
    "intermediate_integration": intermediate_integration_corrected,
    "sentence_reordering": sentence_reordering_corrected,
    "time_intervals": time_intervals_corrected,
}
"""For each task with wrong keys, the right answer to a sound item. For most items, this is the key."""
