"""One item: a place in a stream -> its seed -> a Problem, at a level at which it can be made and fits.

    Place: seed, split, instance, task, index ── derive_seed ──> the item's seed ── generator ──> Problem

`ItemMaker.make` tries once. `make_at_first_of` is what training asks for: for each level, the highest first, further
seeds while the question is held out for evaluation, it has no right answer or one that is right
far too often, or it cannot be made; one that is late, too long for the prompt budget, or to be had with none of the
seeds is made at the next lower level. Evaluation and preview need a maker alone, the item stream draws with one.

`LevelLimits` learns from that which levels a task may use:

    an item is too long, before 100 items of its level were seen      ──> the level is closed
    3 of a level's last 100 items, and 15 %, cannot be had (not in time, not made, all held out)   ──> it is closed

Of the thousands of items in a run of weeks three are late some day, and one is too long, by chance; and a closed level
does not come back. A task's lowest level is never closed: below it there is nothing to fall back on, so its items are
skipped one by one. Facts are taken in in the order of the items, so which levels are open does not depend on which
worker was faster.

Every random choice comes from a hash of named inputs, never from a shared stream. reasoning-gym seeds item i of a
dataset with `seed + i`, so neighbouring seeds share items. Deriving each item's seed from a hash of (run seed, split,
task, index) makes streams disjoint, lets any item be drawn again from its index alone, and leaves no generator state to
save.

Whether a question is held out follows from its text alone: one in HELD_OUT_ONE_IN is, by a hash of its text. No
setting, seed, level, instance or machine comes into it, so no evaluation of this release, now or later, asks what a
training run of it has seen, and training needs no list of questions. Whoever trains elsewhere can apply the same rule:

    int.from_bytes(blake2b(question in UTF-8, digest_size=8, person=b"hold-out").digest(), "big") % 10 == 0

An evaluation that stands beside published results asks what comes, as those did. Training draws such questions too,
unless it is told to leave them out (`hold_out: published`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeAlias

from ..errors import (
    EnvironmentSetupError,
    GenerationCrashedError,
    GenerationError,
    GenerationTimeoutError,
    NoRightAnswerError,
)
from ..records import Problem
from ..tasks.catalog import Catalog, config_of
from ..tasks.difficulty_ladder import Ladder, Level
from ..workers.generator import ProcessGenerator

logger = logging.getLogger(__name__)

SEEDS_TRIED = 5
"""How many seeds a level may have: countdown, for one, finds no item for one seed in three."""

REDRAWS = 20
"""How many further seeds it may have while all questions are held out; so many are only where there are few at all."""

LATE_ITEMS, LATE_SHARE, KNOWN_ITEMS = 3, 0.15, 100

TOO_LONG = "prompt_too_long"
TIMED_OUT = "generation_timed_out"
FAILED = "generation_failed"
HELD_OUT = "held_out"
WRONG = "wrong_answer"


def derive_seed(*parts: str | int) -> int:
    """A seed in [0, 2**32) from named inputs; the same on every machine, process and Python version."""
    # No more bits: pool_matrix passes its seed to numpy. The length keeps parts apart whatever characters they contain.
    text = "".join(f"{type(part).__name__}:{len(str(part))}:{part};" for part in parts)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4)
    return int.from_bytes(digest.digest(), "big")


def derive_random(*parts: str | int) -> Random:
    """A generator for one decision, seeded by `derive_seed`."""
    return Random(derive_seed(*parts))


HELD_OUT_ONE_IN = 10
"""A constant of the release: another number would be another rule, and give results of before away to training."""

Rule: TypeAlias = Literal["content", "published"]


def is_held_out(question: str) -> bool:
    """Whether a question is for evaluation only."""
    digest = hashlib.blake2b(question.encode("utf-8", "surrogatepass"), digest_size=8, person=b"hold-out").digest()
    return int.from_bytes(digest, "big") % HELD_OUT_ONE_IN == 0


def question_digest(question: str) -> str:
    """Names a question's text in 16 hex digits."""
    return hashlib.blake2b(question.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class HoldOut:
    """The questions that training leaves out: those of the rule, and those that were added."""

    def __init__(self) -> None:
        self._added: set[str] = set()

    def __contains__(self, question: object) -> bool:
        return isinstance(question, str) and (is_held_out(question) or question_digest(question) in self._added)

    def add(self, question: str) -> None:
        """Leave this question out too."""
        self._added.add(question_digest(question))


@contextlib.contextmanager
def loading(what: str) -> Iterator[None]:
    """What malformed state raises becomes an EnvironmentSetupError that names `what` was saved."""
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        raise EnvironmentSetupError(
            f"The saved {what} cannot be used: {error}. Start from another checkpoint."
        ) from error


# --- one item


@dataclass(frozen=True)
class Place:
    """Where an item stands: the `index`-th draw, of this task, in the stream that split, seed and instance name.

    A stream that is the same in all instances of a run is that of the instance "shared".
    """

    task: str
    index: int
    split: str
    seed: int
    instance: str = "shared"

    def item_seed(self, retry: int) -> int:
        """The seed of its item; a further `retry` has another one."""
        # The first has no number: its seed is what it was before there were further ones.
        further = (retry,) if retry else ()
        return derive_seed(self.seed, "item", self.split, self.instance, self.task, self.index, *further)


@dataclass
class Drawn:
    """What became of a place: a problem or a reason to skip it, and what was learned about levels on the way."""

    problem: Problem | None = None
    skipped: tuple[str, str] = ("", "")
    """Reason (TOO_LONG, TIMED_OUT, FAILED or HELD_OUT) and detail."""
    redrawn: Counter[str] = field(default_factory=Counter)
    """Items made and not used, another in their place: HELD_OUT, or WRONG, as their own answer is."""
    exceeded: list[tuple[int, str, str]] = field(default_factory=list)
    """Level, reason and detail of every level at which it could not be had."""


class ItemMaker:
    """Makes items of the tasks of a catalog.

    `too_long` says what is wrong with a question that does not fit the prompt budget, "" if it fits. `held_out` are
    the questions that `make_at_first_of` must not give. If `strict`, no item is made that has no right answer.
    """

    def __init__(
        self,
        catalog: Catalog,
        generator: ProcessGenerator,
        *,
        too_long: Callable[[str], str] = lambda question: "",
        held_out: Container[str] = (),
        strict: bool = False,
    ) -> None:
        self.catalog = catalog
        self._generator = generator
        self._too_long = too_long
        self._held_out = held_out
        self._strict = strict
        self._served = {task.name: (task.category, config_of(task.name, task.overrides)) for task in catalog.tasks}

    async def make(
        self, place: Place, *, level: Level | None = None, config: Mapping[str, Any] | None = None, retry: int = 0
    ) -> Problem:
        """The item at `place`, of a level, of a whole config, or as the task is served.

        Neither is its length looked at, nor whether it is held out.

        Raises GenerationError if reasoning-gym cannot make it (in time), NoRightAnswerError if `strict` refuses it.
        """
        category, default = self._served[place.task]
        config = dict(level.config if level else default if config is None else config)
        seed = place.item_seed(retry)
        entry = await self._generator.generate(place.task, seed, config, answerable=self._strict)
        at_level = (level.index, level.complexity) if level else (None, None)
        return Problem(place.task, category, place.split, place.index, seed, config, entry, *at_level)

    async def make_at_first_of(self, levels: Sequence[Level | None], place: Place) -> Drawn:
        """The item at the first of these levels at which it is made, in time, and fits; None is the task's default."""
        drawn = Drawn()
        for level in levels:
            try:
                problem = await self._make_with_some_seed(place, level, drawn.redrawn)
                reason, detail = TOO_LONG, self._too_long(problem.question)
            except GenerationError as error:
                reason, detail = REASONS.get(type(error), FAILED), str(error)
            if not detail:
                drawn.problem = problem
                return drawn
            drawn.skipped = (reason, detail)
            if level is not None:
                drawn.exceeded.append((level.index, reason, detail))
        return drawn

    async def _make_with_some_seed(self, place: Place, level: Level | None, redrawn: Counter[str]) -> Problem:
        failures = 0
        for retry in range(SEEDS_TRIED + REDRAWS):
            try:
                problem = await self.make(place, level=level, retry=retry)
            except (GenerationTimeoutError, GenerationCrashedError):
                # Either took its time, and will again.
                raise
            except NoRightAnswerError:
                redrawn[WRONG] += 1
            except GenerationError:
                failures += 1
                if failures == SEEDS_TRIED:
                    raise
            else:
                if problem.question not in self._held_out:
                    return problem
                redrawn[HELD_OUT] += 1
        raise _NoneLeftError(
            f"none of {retry + 1 - failures} questions in a row is for training: some are held out for evaluation "
            f"({redrawn[HELD_OUT]}), some have no right answer ({redrawn[WRONG]})"
        )


class _NoneLeftError(GenerationError):
    """A level has hardly any question that training may ask."""


REASONS: Mapping[type[GenerationError], str] = {_NoneLeftError: HELD_OUT, GenerationTimeoutError: TIMED_OUT}


class LevelLimits:
    """Open and closed levels of each task."""

    def __init__(self, ladders: Mapping[str, Ladder]) -> None:
        self._ladders = ladders
        self._closed: dict[tuple[str, int], str] = {}
        self._recent: dict[tuple[str, int], deque[bool]] = {}
        self._lowered: Counter[str] = Counter()

    def level(self, task: str, index: int) -> Level:
        """The highest open level that is not above `index`; the lowest is always open."""
        return next(one for one in self._ladders[task].levels[index::-1] if (task, one.index) not in self._closed)

    def top_level(self, task: str) -> int:
        """The highest level of the task that has no closed level below it."""
        closed = [level for name, level in self._closed if name == task]
        return min(closed, default=len(self._ladders[task])) - 1

    def from_level_down(self, task: str, index: int) -> list[Level]:
        """The level `index`, even if it is closed by now, and the open ones below it, the highest first."""
        first, *lower = self._ladders[task].levels[index::-1]
        return [first, *(one for one in lower if (task, one.index) not in self._closed)]

    def made(self, task: str, level: int) -> None:
        """An item of this level was made in time and fits."""
        self._window(task, level).append(False)

    def exceeded(self, task: str, level: int, reason: str, detail: str) -> None:
        """An item of this level is not used for `reason`, TOO_LONG, TIMED_OUT, FAILED or HELD_OUT."""
        if level == 0:
            return
        self._lowered[reason] += 1
        window = self._window(task, level)
        is_too_long = reason == TOO_LONG and len(window) < KNOWN_ITEMS
        window.append(not is_too_long)
        is_often_late = sum(window) >= max(LATE_ITEMS, LATE_SHARE * len(window))
        if (task, level) not in self._closed and (is_too_long or is_often_late):
            self._closed[task, level] = reason
            logger.warning("Level %d of %s is not used from here on (%s): %s.", level, task, reason, detail)

    def metrics(self) -> dict[str, float]:
        """Items drawn from a lower level by reason, and how many levels are closed."""
        values = {f"train/lowered_{reason}": float(count) for reason, count in self._lowered.items()}
        return {**values, "train/closed_levels": float(len(self._closed))}

    def state_dict(self) -> dict[str, Any]:
        """Closed levels and recent lateness, as JSON; of a known level without any, as most are, only its items."""
        noted = {level: late for level, late in self._recent.items() if any(late) or len(late) == KNOWN_ITEMS}
        return {
            "closed": [[*level, why] for level, why in self._closed.items()],
            "recent": [[*level, list(late) if any(late) else len(late)] for level, late in noted.items()],
            "lowered": dict(self._lowered),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; tasks that are not served here are ignored. Raises EnvironmentSetupError."""
        served = {task: len(ladder) for task, ladder in self._ladders.items()}
        with loading("level limits"):
            closed = {(task, level): why for task, level, why in state.get("closed", [])}
            recent = {
                (task, level): deque([False] * late if isinstance(late, int) else late, maxlen=KNOWN_ITEMS)
                for task, level, late in state.get("recent", [])
            }
            self._closed = {place: why for place, why in closed.items() if 0 < place[1] < served.get(place[0], 0)}
            self._recent, self._lowered = recent, Counter(state.get("lowered", {}))

    def _window(self, task: str, level: int) -> deque[bool]:
        return self._recent.setdefault((task, level), deque(maxlen=KNOWN_ITEMS))
