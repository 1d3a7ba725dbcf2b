"""What a learner could find: the strategies that pay best for wrong answers, and the constants that are often right.

    items to search on ──> strategies, changed and selected ──> the best few ──> held-out items ──> Searched

Everything is graded as in training under the commands' settings: strict checks, partial credit above the baseline.
Strategies are chosen by what they earn on the items to search on; what is reported they earned on the held-out ones.
The same seed tries the same strategies in the same order: the clock only decides how far it comes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import fmean
from typing import Any

from ..errors import EnvironmentSetupError, GenerationError
from ..evaluation.statistics import wilson
from ..records import Problem, Verdict
from ..sampling.item_maker import ItemGenerator
from ..sampling.seeds import derive_random, derive_seed
from ..scoring.rewards import CreditRule
from ..scoring.scorer import Scorer
from ..tasks.catalog import Task, config_of
from ..tasks.difficulty_ladder import build_ladder
from ..verification.bounded_arithmetic import BoundedFraction
from ..verification.check import ALMOST_FULL_CREDIT
from ..workers import AnswerGrader
from .known_answers import reference_answer
from .measure import same
from .strategies import Strategy, View, described, first_strategies, offspring, trimmed

logger = logging.getLogger(__name__)

FARMABLE = 0.1
"""Mean pay of wrong answers on held-out items above which a strategy is worth learning."""
SOLVED = 0.5
"""A level is none if one constant is right on more of its items than this, at the lower end of the interval."""
MIN_WRONG = 5
"""How many wrong answers a mean must be of."""
MIN_ITEMS = 8
ITEMS = 30
CONSTANT_SUSPECTED = 0.35
CONSTANT_DRAWS = 600
"""Held-out items on which a constant is measured that was right on that share of the first ones."""

SEVERAL_SOLUTIONS = frozenset(
    (
        *("boxnet", "countdown", "graph_color", "group_anagrams", "jugs", "knight_swap", "n_queens"),
        "palindrome_generation",
        *("propositional_logic", "puzzle24", "quantum_lock", "rubiks_cube", "rush_hour", "shortest_path", "sokoban"),
        *("tower_of_hanoi", "word_ladder"),
    )
)
"""Tasks whose verifier works the answer out, or takes it in any order: one with full credit is another right one."""

ROUNDS = (8, 64, 256, 512)
"""Strategies that a round tries, the last number in all further ones: few first, for verifiers that are slow."""
IDLE_ROUNDS = 20
SCOUTS = 6
"""Items on which all strategies of a round are tried; those that promise most are tried on all items."""
PROMOTED = 0.3
POPULATION = 24
CONFIRMED = 3
FROM_LIBRARY = 0.75

_CREDIT = CreditRule("baseline")


@dataclass(frozen=True)
class Searched:
    """What was found at one level of a task. Shares and means are in [0, 1], of held-out items.

    `level` counts along the ladder, None is the default config. `pay` is the mean over the `wrong` answers of
    `strategy`, `in_full` the share of those that got full credit: where an item has several solutions, such an answer
    may be another right one. `right` is the share of items on which its answer was the reference answer.
    `constant` is the text that is right most often, `constant_low` the lower end of the 95 % interval of its share.
    `items` is 0 where too few could be made.
    """

    task: str
    level: int | None
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    items: int = 0
    strategies: int = 0
    gradings: int = 0
    grading_s: float = 0.0
    strategy: str = ""
    example: str = ""
    wrong: int = 0
    pay: float = 0.0
    in_full: float = 0.0
    right: float = 0.0
    constant: str = ""
    constant_share: float = 0.0
    constant_low: float = 0.0
    constant_items: int = 0

    @property
    def is_farmable(self) -> bool:
        lucky = self.in_full if self.task in SEVERAL_SOLUTIONS else 0.0
        return self.wrong >= MIN_WRONG and self.pay - lucky > FARMABLE

    @property
    def is_solved_by_constant(self) -> bool:
        return self.constant_low > SOLVED

    @property
    def level_name(self) -> str:
        return "default" if self.level is None else f"level {self.level}"


LEVEL_NAMES = ("easiest", "middle", "hardest", "default", "all")


def check_levels(asked: Sequence[str]) -> None:
    """Raise EnvironmentSetupError for what is no level."""
    for name in asked:
        if name not in LEVEL_NAMES and not name.isdecimal():
            raise EnvironmentSetupError(f"--levels expects some of {', '.join(LEVEL_NAMES)} or numbers, got {name!r}.")


def levels_of(task: Task, asked: Sequence[str]) -> dict[int | None, Mapping[str, Any]]:
    """Index along the ladder (None: the default config) -> config, of the levels asked for, each once.

    A number beyond the last level is left out. Raises EnvironmentSetupError if no level can be built.
    """
    ladder = build_ladder(task.name, overrides=task.overrides, keep_guessable=True)
    top = len(ladder) - 1
    places = {"easiest": [0], "middle": [top // 2], "hardest": [top], "all": list(range(top + 1))}
    found: dict[int | None, Mapping[str, Any]] = {}
    for name in asked:
        if name == "default":
            found[None] = config_of(task.name, task.overrides)
        else:
            for index in places.get(name) or [int(name)]:
                if index <= top:
                    found[index] = ladder.levels[index].config
    return found


# --- is it right? ---

_AROUND = frozenset({"boxed", "text", "answer", "the", "final", "is"})
_WORD = re.compile(r"-?\d+(?:\.\d+)?|[^\W\d_]+|(?![.,;:!?'\"`()\[\]{}$\\])[^\w\s]")
_NEGATIONS = frozenset({"not", "no", "neither", "nor", "¬"})


def is_right(answer: str, reference: str | None, candidates: Collection[str] = ()) -> bool:
    """Whether it says what the reference answer says, and nothing else that could be an answer.

    The same number in another form or rounded is the same, and so is the right answer among other words and signs:
    none of `candidates` (the words of the level's answers), no number where it is one itself, else no negation.
    """
    if reference is None:
        return False
    if same(answer, reference) or _is_same_number(answer, reference):
        return True
    said, right = words_of(answer), words_of(reference)
    places = [at for at in range(len(said) - len(right) + 1) if right and said[at : at + len(right)] == right]
    if not places:
        return False
    around = {*said[: places[0]], *said[places[0] + len(right) :]} - ({*right} if len(right) == 1 else set())
    others = {word for word in around if word[-1].isdigit()} if right[0][-1].isdigit() else around & _NEGATIONS
    return not others and around.isdisjoint(candidates)


def _is_same_number(answer: str, reference: str) -> bool:
    try:
        given, right = BoundedFraction(_THOUSANDS.sub("", answer.strip(" ,;*"))), BoundedFraction(reference)
    except (ValueError, ZeroDivisionError):
        return False
    is_whole = right.denominator == 1 and "." not in reference
    return given == right or (not is_whole and abs(given - right) <= max(abs(right) / 100, Fraction(1, 10**6)))


_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def words_of(text: str) -> list[str]:
    """Numbers, words, and signs that may be part of what is said."""
    found = [word for word in _WORD.findall(text.strip("* ").lower()) if word not in _AROUND]
    return [word.rstrip("0").rstrip(".") if "." in word[1:] else word for word in found]


# --- items, and what is earned on them ---


@dataclass
class _Item:
    problem: Problem
    reference: str | None
    view: View
    candidates: frozenset[str] = frozenset()
    base: float = 0.0
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    def is_full(self, answer: str) -> bool:
        return self.verdicts[answer].value >= ALMOST_FULL_CREDIT


@dataclass
class _Earned:
    """By one strategy on some items: `pays` for each wrong answer (0 where it has none), `example` the best paid."""

    strategy: Strategy
    pays: list[float] = field(default_factory=list)
    example: str = ""
    rights: int = 0
    full: int = 0
    native: float = 0.0
    constant: str | None = None
    """Its answer, if that is the same for all items."""

    @property
    def pay(self) -> float:
        return fmean(self.pays) if self.pays else 0.0

    @property
    def fitness(self) -> float:
        """Its pay for wrong answers; what the verifiers alone would pay leads the way to where there is pay."""
        return sum(self.pays) / max(len(self.pays), MIN_WRONG) + 0.03 * self.native

    @property
    def promise(self) -> float:
        return (sum(self.pays) + 0.5 * self.rights) / max(len(self.pays) + self.rights, 1) + 0.1 * self.native


class _TooFewItemsError(Exception):
    pass


class Searcher:
    """Searches tasks level by level. `grader` must apply the strict standards.

    `seconds` is what a level's search may take, once its items are made; making them may take that long again, three
    times, and the last round of strategies a little longer.
    """

    def __init__(
        self, generator: ItemGenerator, grader: AnswerGrader, *, seconds: float, seed: int, items: int = ITEMS
    ) -> None:
        self._generator = generator
        self._grader = grader
        self._scorer = Scorer(grader, with_baselines=True)
        self._seconds = seconds
        self._seed = seed
        self._items = items

    async def search(self, task: Task, level: int | None, config: Mapping[str, Any]) -> Searched:
        """What was found at this level. An item that cannot be made is left out, with its reason in the log."""
        place = _Level(task, level, config, self._seed, self._generator, self._grader)
        problems = await place.draw(range(2 * self._items), 3 * self._seconds + 5)
        # Every other one: if time ran out while they were made, both halves are of the same size.
        known = [(trimmed(problem.question), answer) for problem in problems[::2] if (answer := _reference(problem))]
        try:
            items, tests = await self._views(problems[::2], known), await self._views(problems[1::2], known)
        except _TooFewItemsError:
            return Searched(task.name, level, config)
        rng = derive_random(self._seed, "strategies", task.name, str(level))
        found, tried = await place.evolve(items, rng, self._seconds)
        best = sorted(found, key=lambda one: -one.fitness)[:CONFIRMED]
        confirmed = await place.earn([one.strategy for one in best], tests)
        top = max(confirmed, key=lambda one: (len(one.pays) >= MIN_WRONG, one.pay), default=_Earned(("text", "")))
        constant = max((one for one in found if one.constant), key=lambda one: one.full, default=None)
        is_full: list[bool] = []
        if constant and constant.full:
            text = str(constant.constant)
            is_full = await place.is_full(text, tests)
            if constant.full >= CONSTANT_SUSPECTED * len(items):
                numbers = range(2 * self._items, 2 * self._items + CONSTANT_DRAWS - len(tests))
                more = await place.draw(numbers, max(self._seconds, 10.0))
                is_full += await place.is_full(text, [_Item(problem, None, items[0].view) for problem in more])
        return Searched(
            task=task.name,
            level=level,
            config=config,
            items=len(tests),
            strategies=tried,
            gradings=place.gradings,
            grading_s=round(place.grading_s, 2),
            strategy=described(top.strategy),
            example=top.example,
            wrong=len(top.pays),
            pay=round(top.pay, 4),
            in_full=round(fmean(pay >= ALMOST_FULL_CREDIT for pay in top.pays), 4) if top.pays else 0.0,
            right=round(top.rights / len(tests), 4),
            constant=str(constant.constant) if constant and any(is_full) else "",
            constant_share=round(fmean(is_full), 4) if is_full else 0.0,
            constant_low=round(wilson(fmean(is_full), len(is_full))[0], 4) if is_full else 0.0,
            constant_items=len(is_full),
        )

    async def _views(self, problems: Sequence[Problem], known: Sequence[tuple[str, str]]) -> list[_Item]:
        """Raises _TooFewItemsError if there are too few, or they are all the same question."""
        items = []
        candidates = frozenset(word for _, answer in known for word in words_of(answer))
        for problem in problems:
            question = trimmed(problem.question)
            others = tuple(pair for pair in known if pair[0] != question)
            if others or not known:
                # Where no answer is known, the others are seen for what their questions share.
                view = View(question, others or tuple((trimmed(one.question), "") for one in problems))
                _, base = await self._scorer.verdicts(problem, [])
                items.append(_Item(problem, _reference(problem), view, candidates, base))
        if len(items) < MIN_ITEMS:
            raise _TooFewItemsError
        return items


def _reference(problem: Problem) -> str | None:
    return reference_answer(problem.task, problem.entry)


class _Level:
    """One level: makes its items, grades on them, and lets strategies evolve."""

    def __init__(
        self,
        task: Task,
        level: int | None,
        config: Mapping[str, Any],
        seed: int,
        generator: ItemGenerator,
        grader: AnswerGrader,
    ) -> None:
        self._task = task
        self._level = level
        self._config = config
        self._seed = seed
        self._generator = generator
        self._grader = grader
        self.gradings = 0
        self.grading_s = 0.0

    async def draw(self, numbers: range, seconds: float) -> list[Problem]:
        """The items of these numbers; those that are not begun within `seconds` are left out."""
        until = time.monotonic() + seconds

        async def one(number: int) -> Problem | None:
            name = self._task.name
            seed = derive_seed(self._seed, "search", name, str(self._level), number)
            try:
                entry = await self._generator.generate(name, seed, self._config)
            except GenerationError as error:
                logger.info("An item is left out of the search: %s", error)
                return None
            return Problem(name, self._task.category, "search", number, seed, self._config, entry, self._level)

        made: list[Problem | None] = []
        for start in range(numbers.start, numbers.stop, 4):
            if time.monotonic() < until:
                made += await asyncio.gather(*map(one, range(start, min(start + 4, numbers.stop))))
        return [problem for problem in made if problem is not None]

    async def evolve(self, items: Sequence[_Item], rng: random.Random, seconds: float) -> tuple[list[_Earned], int]:
        """What strategies earned that promised something, and how many were tried."""
        queue = first_strategies(items[0].view, rng)
        seen: set[tuple[str | None, ...]] = set()
        found: list[_Earned] = []
        population: list[Strategy] = []
        number = tried = idle = 0
        began, took = time.monotonic(), 0.0
        while idle < IDLE_ROUNDS:
            round_began, size = time.monotonic(), ROUNDS[min(number, len(ROUNDS) - 1)]
            if round_began - began + took > 1.5 * seconds:
                break
            batch: list[Strategy] = []
            for _ in range(6 * size):
                if len(batch) < size:
                    is_first = bool(queue) and (not population or rng.random() < FROM_LIBRARY)
                    view = rng.choice(items).view
                    strategy = queue.pop() if is_first else offspring(population, view, rng)
                    # Two that say the same are one.
                    answers = tuple(item.view.answer(strategy) for item in items[: 2 * SCOUTS])
                    if answers not in seen and any(answers):
                        seen.add(answers)
                        batch.append(strategy)
            scouting = time.monotonic()
            scouted = await self.earn(batch, items[:SCOUTS])
            each = (time.monotonic() - scouting) / (size * SCOUTS)
            in_time = max(seconds - (time.monotonic() - began), 0.2 * seconds) / (len(items) * each + 1e-9)
            promising = sorted((one for one in scouted if one.promise > 0), key=lambda one: -one.promise)
            promoted = promising[: max(CONFIRMED, min(math.ceil(PROMOTED * size), int(in_time)))]
            found += await self.earn([one.strategy for one in promoted], items)
            population = [one.strategy for one in sorted(found, key=lambda one: -one.fitness)[:POPULATION]]
            for item in items:
                item.verdicts.clear()
                item.view.forget()
            tried += len(batch)
            number, idle = number + 1, 0 if batch else idle + 1
            took = time.monotonic() - round_began
        return found, tried

    async def earn(self, strategies: Sequence[Strategy], items: Sequence[_Item]) -> list[_Earned]:
        """What each earns on the items."""
        said = [[item.view.answer(strategy) for strategy in strategies] for item in items]
        await self._grade(items, said)
        found = []
        for strategy, *answers in zip(strategies, *said, strict=True):
            one = _Earned(strategy, constant=answers[0] if len(set(answers)) == 1 else None)
            most = -1.0
            for item, answer in zip(items, answers, strict=True):
                if answer is None:
                    one.pays.append(0.0)
                    continue
                verdict = item.verdicts[answer]
                one.native += verdict.native / len(items)
                one.full += item.is_full(answer)
                if is_right(answer, item.reference, item.candidates):
                    one.rights += 1
                    continue
                one.pays.append(_CREDIT.credit(item.problem.task, verdict.value, item.base))
                if one.pays[-1] > most:
                    most, one.example = one.pays[-1], answer
            found.append(one)
        return found

    async def is_full(self, answer: str, items: Sequence[_Item]) -> list[bool]:
        """Whether it gets full credit, by item."""
        await self._grade(items, [[answer]] * len(items))
        return [item.is_full(answer) for item in items]

    async def _grade(self, items: Sequence[_Item], answers: Sequence[Sequence[str | None]]) -> None:
        async def one(item: _Item, answers: Sequence[str | None]) -> None:
            new = [answer for answer in dict.fromkeys(answers) if answer is not None and answer not in item.verdicts]
            if new:
                problem = item.problem
                verdicts = await self._grader.grade(problem.task, problem.config, problem.entry, new)
                item.verdicts.update(zip(new, verdicts, strict=True))
                self.gradings += len(new)

        began = time.monotonic()
        await asyncio.gather(*map(one, items, answers))
        self.grading_s += time.monotonic() - began
