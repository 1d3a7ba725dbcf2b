"""Grade one answer: what reasoning-gym's verifier pays, and whether it is right. Pure; runs where verifiers may run.

Some items have no right answer: their own is wrong, or what is asked for cannot be known (`has_right_answer`). Training
makes another item in the place of such a one, and an evaluation asks none of them.

    answer ──> form or solver of the task ──> right 1, wrong 0 ──> Verdict.value
      └──────> reasoning-gym's verifier, bare and in <answer> tags ──> Verdict.native (and the value, if neither)

A few of reasoning-gym's verifiers want the answer inside `<answer>` tags, nearly all want it bare. Both are tried and
the better one counts; the second is not run when the first already gives full credit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..records import Status, Verdict
from ..tasks import reasoning_gym_source as library
from . import solvers
from .bounded_eval import evaluate
from .forms import FORMS, Check, Entry, by_name
from .solvers import SOLVERS, is_conclusion, joined_premises, short_formulas

CHECKS: Mapping[str, Check] = {**FORMS, **SOLVERS}
"""By task, for all tasks of reasoning-gym but `composite`."""
FULL_CREDIT = 1.0
ROUNDING = 1e-9
"""Credit that is summed up from parts may miss 1.0 by this."""
Verifier = Callable[..., float]
"""`score_answer(answer=..., entry=...)` of a dataset."""
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a check may raise for hostile text, which is no right answer then."""


def check_for(task: str, entry: Entry) -> Check | None:
    """The form or solver that says whether an answer to this item is right; None for a task that has neither."""
    return CHECKS.get(_own_task(task, entry))


def _own_task(task: str, entry: Entry) -> str:
    """An item of `composite` says whose it is."""
    return str(entry["metadata"]["source_dataset"]) if task == "composite" else task


def grade(score_answer: Verifier, entry: dict[str, Any], answer: str, check: Check | None = None) -> Verdict:
    """The verdict of `check` with reasoning-gym's own score beside it; without a check, that score.

    A format whose verifier raises counts 0. The status is VERIFIER_ERROR if no format could be scored and there is no
    check either.
    """
    native = _native(score_answer, entry, answer)
    if check is None:
        return native
    try:
        is_right = check(entry, answer)
        reason = "right" if is_right else "not the right answer"
    except UNREADABLE as error:
        is_right, reason = False, str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    detail = "" if is_right == (native.native == FULL_CREDIT) else f"{reason}; reasoning-gym pays {native.native:g}"
    return Verdict(FULL_CREDIT if is_right else 0.0, bare=native.bare, tagged=native.tagged, detail=detail[:200])


def _native(score_answer: Verifier, entry: dict[str, Any], answer: str) -> Verdict:
    bare, error = _attempt(score_answer, entry, answer)
    if bare == FULL_CREDIT:
        return Verdict(value=FULL_CREDIT, bare=bare)
    tagged, tagged_error = _attempt(score_answer, entry, f"<answer>{answer}</answer>")
    if bare is None and tagged is None:
        return Verdict(value=0.0, status=Status.VERIFIER_ERROR, detail=error or tagged_error)
    return Verdict(value=max(bare or 0.0, tagged or 0.0), bare=bare, tagged=tagged, detail=error or tagged_error)


def _attempt(score_answer: Verifier, entry: dict[str, Any], answer: str) -> tuple[float | None, str]:
    # Verifiers raise anything on odd text (ValueError, RecursionError, sympy's own); those that evaluate it also
    # raise SystemExit for "exit()". All of it is this answer's failure, and is reported as such in the verdict.
    try:
        value = float(score_answer(answer=answer, entry=entry))
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001
        return None, f"{type(error).__name__}: {error}"[:200]
    if value != value:
        return None, "the verifier returned NaN"
    return FULL_CREDIT if value > FULL_CREDIT - ROUNDING else max(value, 0.0), ""


# --- items ---

RUNS_PROGRAMS = "codeio"
DIFFERS_NEXT_TIME = "differs_next_time"
"""In the metadata of an item that came out otherwise when it was made again, with other random numbers."""


def has_right_answer(task: str, entry: Entry) -> bool:
    """False for an item to which no answer is right."""
    try:
        check = ITEM_CHECKS.get(_own_task(task, entry))
        return check is None or check(entry)
    except LookupError:
        # No item as this task has them: grading names that fault.
        return True


def aiw(entry: Entry) -> bool:
    """Matilda is one of the women in both circles, so all others are her colleagues; the item says one more."""
    if "Matilda" not in entry["question"]:
        return True
    _, women, _, women_of_the_other = map(int, re.findall(r"\d+", entry["question"]))
    return int(entry["answer"]) == women + women_of_the_other - 1


def basic_arithmetic(entry: Entry) -> bool:
    """Not all divisions come out even, and those that do not are rounded down: `3 + 1 / -(5 - 9)` is 3."""
    return evaluate(entry["metadata"]["expression"])[0] == int(entry["answer"])


def caesar_cipher(entry: Entry) -> bool:
    """Letters that the alphabet does not have become others of it for good: the Ë of `AËRIAL` is an I then."""
    return str(entry["answer"]).isascii()


def calendar_arithmetic(entry: Entry) -> bool:
    """Where business days are counted into the next year, the question names the last day with this one's number."""
    end = entry["metadata"].get("end_date")
    return end is None or end[:4] in entry["question"]


def codeio(entry: Entry) -> bool:
    """One in twenty programs draws random numbers without a seed, or shows a time."""
    return not entry["metadata"].get(DIFFERS_NEXT_TIME, False)


def complex_arithmetic(entry: Entry) -> bool:
    """Beyond 2**53 floats pass over whole numbers, so that some products of the last level are wrong."""
    metadata = entry["metadata"]
    (a, b), (c, d) = (map(int, metadata[name]) for name in ("num1", "num2"))
    product = (a * c - b * d, a * d + b * c)
    return metadata["operation"] != "*" or tuple(map(int, metadata["result"])) == product


def family_relationships(entry: Entry) -> bool:
    """`What is Lily to William?` is answered with what William is to Lily, where they are related by marriage.

    A child is niece or nephew by whether its aunt or uncle is a woman; only its name says what itself is.
    """
    own = str(entry["answer"])
    config = library.registry()["family_relationships"][1]()
    wrong = {"niece": config.male_names, "nephew": config.female_names}
    return not own.endswith("-in-law") and entry["metadata"]["person1"] not in wrong.get(own, ())


def knight_swap(entry: Entry) -> bool:
    """What says `No` was made so by taking a move from the board, unknown to the question: a third can be solved."""
    pieces = entry["metadata"]["pieces"]
    if entry["metadata"]["is_possible"]:
        return True
    logic = solvers.module_of("knight_swap").KnightSwapLogic
    board = {here: [there for there in pieces if logic.is_knight_move(here, there)] for here in pieces}
    return logic.solve_swap(board, pieces, entry["metadata"]["start_turn"]) is None


def mahjong_puzzle(entry: Entry) -> bool:
    """Cards drawn to make Chi may make Peng, which goes first, and cards drawn at random, which are Pass, either."""
    last = entry["metadata"]["rounds"][-1]
    new, hand = last["add"], last["cards"][:-1] + last["remove"]
    beside = {ord(card) - ord(new) for card in hand}
    is_chi = any({first, second} <= beside for first, second in ((-2, -1), (-1, 1), (1, 2)))
    return str(entry["answer"]) == ("Peng" if hand.count(new) >= 2 else "Chi" if is_chi else "Pass")


def number_filtering(entry: Entry) -> bool:
    """A number that is in the list twice, as `-23.00` and as `-23.0`, is answered with the first of both, twice."""
    return not Counter(entry["metadata"]["result"]) - Counter(entry["metadata"]["original_numbers"])


def polynomial_equations(entry: Entry) -> bool:
    """The formula for three real roots of a cubic goes by way of complex numbers, and what it gives is left out."""
    # reasoning-gym, which made the item, has imported it.
    import sympy

    metadata = entry["metadata"]
    roots = sympy.Poly(metadata["polynomial_expr"]).count_roots()
    return int(roots) == len(metadata["real_solutions"])


def propositional_logic(entry: Entry) -> bool:
    """A formula of one or two letters is right. From premises that contradict each other everything follows."""
    letters, joined = entry["metadata"]["variables"], joined_premises(entry)
    return 0 not in joined and any(is_conclusion(formula, letters, joined) for formula in short_formulas(letters))


def syllogism(entry: Entry) -> bool:
    """Some items say that what does not follow does: `All A are B, some B are not C`, so `some A are not C`."""
    said = [entry["metadata"][name] for name in ("premise1", "premise2", "conclusion") if entry["metadata"].get(name)]
    return str(entry["answer"]) == "No" or follows(said[:-1], said[-1])


def follows(premises: Sequence[str], conclusion: str) -> bool:
    """Whether it does wherever the premises hold and there are some of each kind, as the items take for granted.

    Each may be `All A are B`, `No A are B`, `Some A are B` or `Some A are not B`. A world is which of the eight sorts
    of things there are, one bit for each.
    """
    words = [one.split() for one in (*premises, conclusion)]
    kinds = list(dict.fromkeys(kind for one in words for kind in (one[1], one[-1])))
    sorts = 1 << len(kinds)
    of = {kind: sum(1 << sort for sort in range(sorts) if sort >> index & 1) for index, kind in enumerate(kinds)}

    def holds(said: list[str], world: int) -> bool:
        outside, inside = world & of[said[1]] & ~of[said[-1]], world & of[said[1]] & of[said[-1]]
        if said[0] in ("All", "No"):
            return not (outside if said[0] == "All" else inside)
        return bool(outside if "not" in said else inside)

    worlds = (world for world in range(1 << sorts) if all(world & of[kind] for kind in kinds))
    return all(holds(words[-1], world) for world in worlds if all(holds(one, world) for one in words[:-1]))


def tsumego(entry: Entry) -> bool:
    return solvers.tsumego(entry, entry["answer"])


def time_intervals(entry: Entry) -> bool:
    """A weekday in brackets hides the time zone behind it from the item."""
    return not ("(%A)" in entry["metadata"]["format"] and entry["metadata"]["format"].endswith("%z"))


ITEM_CHECKS: Mapping[str, Callable[[Entry], bool]] = {
    **by_name(aiw, basic_arithmetic, caesar_cipher, calendar_arithmetic, codeio, complex_arithmetic),
    **by_name(family_relationships, knight_swap, mahjong_puzzle, number_filtering, polynomial_equations),
    **by_name(propositional_logic, syllogism, time_intervals, tsumego),
}
"""By task, for those of which some items have no right answer."""
