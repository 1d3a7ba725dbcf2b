"""The held-out questions: which tasks, at which difficulty, and the hash by which two results can be compared.

    catalog ── eval_tasks ──> tasks ── eval_complexity ──> configs ── eval_seed ──> items ── held out? ──> manifest

The same settings give the same questions in every run and on every instance, each of them once. They are drawn until
there are enough that are held out (see `is_held_out`), so no training run, whatever its settings, asks any of them.
Which draws were held out is remembered (question_cache.py), so a later run makes one item for each question, not ten.

The presets easy and hard are the configs at which nine published models were asked (reasoning-gym-eval): sampled at
temperature 0.6 with their own prompt and scored by reasoning-gym's own verifiers, of several releases. They ask what
comes, as was done then, repeated questions and those that training may draw included.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from tqdm import tqdm

from .. import __version__
from ..errors import EnvironmentSetupError, GenerationError, GenerationTimeoutError
from ..records import Problem
from ..sampling.item_maker import (
    HELD_OUT_ONE_IN,
    ItemAddress,
    ItemMaker,
    Rule,
    derive_seed,
    is_held_out,
    question_digest,
)
from ..settings import EvaluationSettings
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import Catalog, config_of
from ..tasks.difficulty_ladder import Level, Ranges, build_ladder
from ..tasks.measured_data import packaged
from ..tasks.selectors import matching
from ..utils.resilience import ended
from .question_cache import QuestionCache, RememberedDraws

logger = logging.getLogger(__name__)

Preset: TypeAlias = Literal["easy", "hard"]
PRESETS: tuple[Preset, ...] = get_args(Preset)

Asked: TypeAlias = Level | Mapping[str, Any] | None
"""A level, a whole config, or what the task is served with."""

AT_ONCE = 64
"""Items of one set that are under way at once; more only wait for the same few workers."""
WAVE = HELD_OUT_ONE_IN
"""Items of one task that are drawn together: one of them is held out, on average."""
NOTHING_NEW = 40
"""Draws in a row with only questions seen before after which a task is taken to have no more."""
LOG_PROGRESS_S = 10.0
"""Seconds between two log lines on the progress where no terminal shows a bar."""
NONE_HELD_OUT = 200
"""Draws in a row with no further held-out question after which none is looked for; by chance, one time in 10^9."""


@dataclass(frozen=True)
class EvalSet:
    """The questions, in order. `left_out` has task -> reason for what was asked for and cannot be had."""

    problems: list[Problem] = field(default_factory=list)
    left_out: Mapping[str, str] = field(default_factory=dict)
    complexity: str = "default"
    seed: int = 0
    version: str = ""
    hold_out: Rule = "content"
    """content: no training asks these questions. published: asked as published results were, whatever training asks."""

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)

    def __len__(self) -> int:
        return len(self.problems)

    @functools.cached_property
    def manifest(self) -> str:
        """Equal for two sets exactly if they ask the same questions, made by the same release of reasoning-gym.

        16 hex digits over task, config, seed and text of each question, whatever their order.
        """
        entries = sorted(
            (one.task, json.dumps(one.config, sort_keys=True, default=str), one.seed, question_digest(one.question))
            for one in self.problems
        )
        return hashlib.blake2b(json.dumps([self.version, entries]).encode(), digest_size=8).hexdigest()

    def describe(self) -> dict[str, Any]:
        """What a result has to say about its questions."""
        return {
            "manifest": self.manifest,
            "eval_seed": self.seed,
            "eval_complexity": self.complexity,
            "tasks": sorted({problem.task for problem in self.problems}),
            "questions": len(self.problems),
            "left_out": dict(self.left_out),
            "hold_out": self.hold_out,
            "reasoning_gym_version": self.version,
        }


def choose_tasks(catalog: Catalog, wanted: Sequence[str], seed: int) -> list[str]:
    """The names of the tasks to evaluate, sorted. `wanted` is ["20"] (so many), ["all"], or selectors.

    Sampled tasks are those whose names hash lowest, so that one task more in the catalog changes at most one of them.
    Raises UnknownNameError for a selector that matches no task that is served.
    """
    names = catalog.names
    if list(wanted) == ["all"]:
        return names
    if len(wanted) == 1 and wanted[0].isdecimal():
        return sorted(sorted(names, key=lambda name: (derive_seed(seed, "eval task", name), name))[: int(wanted[0])])
    categories = {task.name: task.category for task in catalog.tasks}
    return sorted({name for selector in wanted for name in matching(selector, categories)})


def eval_configs(
    catalog: Catalog, tasks: Sequence[str], complexity: float | str | None, difficulty_range: Ranges = "level"
) -> tuple[dict[str, Asked], dict[str, str]]:
    """For each task at which difficulty to ask it; and task -> why it cannot be asked.

    A preset's config replaces the task's overrides, because only then are results comparable with the published ones.
    """
    if complexity is None:
        return dict.fromkeys(tasks), {}
    if not isinstance(complexity, str):
        ladders = {t: build_ladder(t, difficulty_range=difficulty_range, overrides=catalog[t].overrides) for t in tasks}
        return {task: ladder.at(complexity) for task, ladder in ladders.items()}, {}
    published = published_presets()[complexity]
    configs: dict[str, Asked] = {}
    left_out: dict[str, str] = {}
    for task in tasks:
        if task not in published:
            left_out[task] = f"the preset {complexity!r} has no config for it"
            continue
        try:
            config = config_of(task, published[task])
            library.create_dataset(task, seed=0, size=1, **config)
        # Validation in reasoning-gym raises AssertionError, ValueError, KeyError, ...; it is the reason to report.
        except Exception as error:  # noqa: BLE001
            left_out[task] = f"its config in the preset {complexity!r} is refused: {library.explain(error)}"
            continue
        configs[task] = config
        if catalog[task].overrides:
            logger.warning("The overrides of %s do not hold in its evaluation: the preset sets its config.", task)
    return configs, left_out


async def build_eval_set(
    maker: ItemMaker,
    settings: EvaluationSettings,
    version: str = "",
    *,
    show_progress: bool = False,
    at_once: int = AT_ONCE,
    cache: QuestionCache | None = None,
) -> EvalSet:
    """Make so many items of every chosen task, `at_once` at the same time; what cannot be had is named.

    With a `cache`, the search for the held-out questions of a task is done once.

    Raises EnvironmentSetupError if nothing at all is left of what was asked for.
    """
    start = time.monotonic()
    per_task, seed, complexity = settings.num_eval_samples_per_task, settings.eval_seed, settings.eval_complexity
    named = "default" if complexity is None else str(complexity)
    rule: Rule = "published" if named in PRESETS else "content"
    if per_task == 0:
        return EvalSet(complexity=named, seed=seed, version=version, hold_out=rule)
    names = choose_tasks(maker.catalog, settings.eval_tasks, seed)
    configs, left_out = await asyncio.to_thread(
        eval_configs, maker.catalog, names, complexity, settings.difficulty_range
    )
    search = _Search(maker, settings, version, rule, asyncio.Semaphore(at_once), cache)
    found = await _with_progress(search, configs, show_progress=show_progress)
    for task, (problems, reason) in found.items():
        if len(problems) < per_task:
            left_out[task] = f"{per_task - len(problems)} of {per_task} {reason}"
    for task, reason in left_out.items():
        logger.warning("Left out of the evaluation: %s, %s.", task, reason)
    every = [one for problems, _ in found.values() for one in problems]
    if not every:
        raise EnvironmentSetupError(f"No question is left to ask: {left_out or 'eval_tasks names no task'}.")
    made = EvalSet(every, left_out, named, seed, version, rule)
    counts = f"{len(made)} items of {len(configs)} tasks, difficulty {named}, seed {seed}, held out by {rule}"
    logger.info("Evaluation set %s: %s, made in %.1f s.", made.manifest, counts, time.monotonic() - start)
    return made


async def _with_progress(
    search: _Search, configs: Mapping[str, Asked], *, show_progress: bool
) -> dict[str, tuple[list[Problem], str]]:
    """Search the questions of every task at the same time, and show how many are found."""
    total = len(configs) * search.per_task
    disable = None if show_progress else True
    with tqdm(total=total, desc="evaluation set", unit="item", disable=disable) as bar:
        search.on_found = bar.update
        searches = {task: asyncio.ensure_future(search.questions(task, asked)) for task, asked in configs.items()}
        progress = asyncio.ensure_future(_log_progress(search, searches, total)) if bar.disable else None
        try:
            found = await asyncio.gather(*searches.values())
        finally:
            await ended([*searches.values(), progress])
    return dict(zip(searches, found, strict=True))


async def _log_progress(search: _Search, searches: Mapping[str, asyncio.Future[Any]], total: int) -> None:
    while True:
        await asyncio.sleep(LOG_PROGRESS_S)
        unfinished = [task for task, running in searches.items() if not running.done()]
        named = ", ".join(unfinished[:5]) + (", ..." if len(unfinished) > 5 else "")
        logger.info("Made %d of %d held-out questions. Unfinished: %s.", search.count, total, named)


class _Search:
    """Draws the items of one set, of each task the first that will do. An item's index is its number among the draws.

    A task's questions depend on no other task's, and its first n are the same however many are asked for.
    `on_found` is called after every question; `count` is the number of them.
    """

    def __init__(
        self,
        maker: ItemMaker,
        settings: EvaluationSettings,
        version: str,
        rule: Rule,
        slots: asyncio.Semaphore,
        cache: QuestionCache | None,
    ) -> None:
        self.per_task = settings.num_eval_samples_per_task
        self.count = 0
        self.on_found: Callable[[], Any] = lambda: None
        self._maker = maker
        self._settings = settings
        self._version = version
        self._rule = rule
        self._slots = slots
        self._cache = cache

    async def questions(self, task: str, asked: Asked) -> tuple[list[Problem], str]:
        """The first items, and the reason if there are too few. By content: those held out, no two alike."""
        key = self._key(task, asked)
        remembered = self._cache.read(task, key) if self._cache else None
        if remembered and (problems := await self._made_again(task, asked, remembered)):
            for _ in problems:
                self._found_one()
            return problems, ""
        problems, reason = await self._first(task, asked)
        if self._cache and not reason:
            draws = [(problem.index, question_digest(problem.question)) for problem in problems]
            self._cache.write(task, key, RememberedDraws(draws=draws))
        return problems, reason

    def _key(self, task: str, asked: Asked) -> dict[str, Any]:
        """What the questions of this task depend on."""
        if isinstance(asked, Level):
            config = asked.config
        elif asked is None:
            config = config_of(task, self._maker.catalog[task].overrides)
        else:
            config = asked
        return {
            "release": __version__,
            "reasoning-gym": self._version,
            "task": task,
            "config": dict(config),
            "seed": self._settings.eval_seed,
            "count": self.per_task,
            "rule": self._rule,
            # These two decide which draws give no item.
            "verification": self._settings.verification,
            "generation_timeout_s": self._settings.generation_timeout_s,
        }

    async def _made_again(self, task: str, asked: Asked, remembered: RememberedDraws) -> list[Problem] | None:
        """The items of the remembered draws; None unless each of them asks the question that it asked before."""
        places = [ItemAddress(task, index, "eval", self._settings.eval_seed) for index, _ in remembered.draws]
        problems = await asyncio.gather(*(self._item(place, asked) for place in places))
        same = [
            problem
            for problem, (_, digest) in zip(problems, remembered.draws, strict=True)
            if problem is not None and question_digest(problem.question) == digest
        ]
        if len(same) == self.per_task == len(problems):
            return same
        logger.warning("The remembered questions of %s are not what it asks now. Searching them again.", task)
        return None

    async def _first(self, task: str, asked: Asked) -> tuple[list[Problem], str]:
        found: list[Problem] = []
        seen: set[str] = set()
        draws = last_new = last_found = 0
        while draws - last_new < NOTHING_NEW and draws - last_found < NONE_HELD_OUT:
            places = [
                ItemAddress(task, index, "eval", self._settings.eval_seed) for index in range(draws, draws + WAVE)
            ]
            wave = await asyncio.gather(*(self._item(place, asked) for place in places))
            if not any(wave):
                return found, f"items could not be made ({WAVE} seeds in a row gave none)"
            for problem in wave:
                draws += 1
                if problem is None or (self._rule == "content" and problem.question in seen):
                    continue
                seen.add(problem.question)
                last_new = draws
                if self._rule == "published" or is_held_out(problem.question):
                    last_found = draws
                    found.append(problem)
                    self._found_one()
                if len(found) == self.per_task:
                    return found, ""
        return found, (
            f"questions are missing: {draws} draws gave {len(seen)} different ones, of which {len(found)} are held out"
        )

    def _found_one(self) -> None:
        self.count += 1
        self.on_found()

    async def _item(self, place: ItemAddress, asked: Asked) -> Problem | None:
        level, config = (asked, None) if isinstance(asked, Level) else (None, asked)
        # A busy machine must not change the set, and with it the manifest, at the first late item.
        for is_last in (False, True):
            try:
                async with self._slots:
                    return await self._maker.make(place, level=level, config=config)
            except GenerationError as error:
                if is_last or not isinstance(error, GenerationTimeoutError):
                    logger.debug("Item %d of %s is not used for the evaluation: %s", place.index, place.task, error)
                    break
        return None


# --- the published results


class PublishedScore(NamedTuple):
    """One model on one task at one preset. `counts[k]` is the number of items with k right completions."""

    counts: Sequence[int]
    mean_score: float


@functools.cache
def published_presets() -> Any:
    """Preset -> task -> config fields; what is not given has reasoning-gym's default.

    `verifier_changed_since` has the tasks of which a score of today says little beside the published one.
    """
    return packaged("published_presets.json")


@functools.cache
def published_scores(preset: Preset) -> Mapping[str, Mapping[str, PublishedScore]]:
    """Model -> task -> score. A model that was not run at this preset is missing."""
    place, found = PRESETS.index(preset), {}
    for key, tasks in packaged("published_students.json").items():
        if key.startswith("models/"):
            runs = {task: PublishedScore(*at[place]) for task, at in tasks.items() if len(at) > place and at[place]}
            if runs:
                found[key.removeprefix("models/").replace("_", "/", 1)] = runs
    return found
