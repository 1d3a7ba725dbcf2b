"""The held-out questions: the tasks, their difficulty, and a hash that shows whether two results are comparable.

    catalog ── eval_tasks ──> tasks ── eval_complexity ──> levels ── eval_seed ──> held-out items ──> manifest

The same settings give the same questions, without repetition, in every run and on every instance. The search draws
items until enough of them are held out (see `is_held_out`). Therefore no training run asks any of these questions,
whatever its settings. The search makes about ten items for each question.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import EnvironmentSetupError, GenerationError, GenerationTimeoutError
from ..records import Problem
from ..sampling.item_maker import ItemAddress, ItemMaker
from ..sampling.seeds import HELD_OUT_ONE_IN, derive_seed, is_held_out, question_digest
from ..settings.components import EvaluationSettings
from ..tasks.catalog import Catalog
from ..tasks.difficulty_ladder import Level, build_ladder
from ..utils.resilience import cancel_and_wait
from ..utils.terminal import Progress

logger = logging.getLogger(__name__)

AT_ONCE = 64
"""Number of items of one set that are generated concurrently. More items would only wait for the same few workers."""

WAVE = HELD_OUT_ONE_IN
"""Number of items that the search of one task draws together. On average, one item of a wave is held out."""

NOTHING_NEW = 40
"""The search of a task stops after this many consecutive draws that only repeat questions."""

NONE_HELD_OUT = 200
"""The search of a task stops after this many consecutive draws without a held-out question. The chance is 1 in 10^9."""


@dataclass(frozen=True)
class EvalSet:
    """The questions, in order. `left_out` maps requested tasks without enough questions to the reason."""

    problems: list[Problem] = field(default_factory=list)
    left_out: Mapping[str, str] = field(default_factory=dict)
    complexity: str = "default"
    seed: int = 0
    version: str = ""

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)

    def __len__(self) -> int:
        return len(self.problems)

    @functools.cached_property
    def manifest(self) -> str:
        """16 hex digits that are equal for two sets exactly if they have the same questions and the same release.

        It is a hash over the task, the config, the seed and the text of each question. Their order does not matter.
        """
        entries = []
        for problem in self.problems:
            config = json.dumps(problem.config, sort_keys=True, default=str)
            digest = question_digest(problem.question)
            entries.append((problem.task, config, problem.seed, digest))
        text = json.dumps([self.version, sorted(entries)])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def describe(self) -> dict[str, Any]:
        """The description of the questions that every result contains."""
        return {
            "manifest": self.manifest,
            "eval_seed": self.seed,
            "eval_complexity": self.complexity,
            "tasks": sorted({problem.task for problem in self.problems}),
            "questions": len(self.problems),
            "left_out": dict(self.left_out),
            "reasoning_gym_version": self.version,
        }


def choose_tasks(catalog: Catalog, wanted: Sequence[str], seed: int) -> list[str]:
    """The names of the tasks to evaluate, sorted. `wanted` is ["20"] for a sample of 20 tasks, or selectors.

    A sample consists of the tasks whose names have the lowest hashes. Therefore a further task in the catalog changes
    at most one task of the sample. Raises UnknownNameError for a selector that matches no served task.
    """
    names = catalog.names
    if len(wanted) == 1 and wanted[0].isdecimal():
        count = int(wanted[0])
        by_hash = sorted(names, key=lambda name: (derive_seed(seed, "eval task", name), name))
        return sorted(by_hash[:count])
    return catalog.select(wanted)


def eval_levels(catalog: Catalog, tasks: Sequence[str], complexity: float | None) -> dict[str, Level | None]:
    """The level of each task's questions. None stands for the config that the task has in training without levels."""
    if complexity is None:
        return dict.fromkeys(tasks)
    levels: dict[str, Level | None] = {}
    for task in tasks:
        overrides = catalog[task].overrides
        ladder = build_ladder(task, overrides=overrides)
        levels[task] = ladder.at(complexity)
    return levels


async def build_eval_set(
    maker: ItemMaker,
    settings: EvaluationSettings,
    version: str = "",
    *,
    at_once: int = AT_ONCE,
) -> EvalSet:
    """Make the questions of every chosen task, at most `at_once` items at the same time, and log what is missing.

    Raises EnvironmentSetupError if there is no question at all.
    """
    start = time.monotonic()
    per_task = settings.num_eval_samples_per_task
    seed = settings.eval_seed
    complexity = settings.eval_complexity
    name = "default" if complexity is None else str(complexity)
    if per_task == 0:
        return EvalSet(complexity=name, seed=seed, version=version)
    tasks = choose_tasks(maker.catalog, settings.eval_tasks, seed)
    # Building ladders would block the event loop for too long.
    levels = await asyncio.to_thread(eval_levels, maker.catalog, tasks, complexity)
    search = QuestionSearch(maker, settings, asyncio.Semaphore(at_once))
    found = await _search_all(search, levels)
    problems: list[Problem] = []
    left_out: dict[str, str] = {}
    for task, questions in found.items():
        problems += questions.problems
        missing = per_task - len(questions.problems)
        if missing:
            left_out[task] = f"{missing} of {per_task} {questions.why_fewer}"
    for task, reason in left_out.items():
        logger.warning("Left out of the evaluation: %s, %s.", task, reason)
    if not problems:
        reasons = left_out or "eval_tasks names no task"
        raise EnvironmentSetupError(f"The evaluation has no questions: {reasons}.")
    eval_set = EvalSet(problems, left_out, name, seed, version)
    logger.info(
        "Evaluation set %s: %d items of %d tasks, difficulty %s, seed %s, made in %.1f s.",
        eval_set.manifest,
        len(eval_set),
        len(levels),
        name,
        seed,
        time.monotonic() - start,
    )
    return eval_set


class FoundQuestions(NamedTuple):
    """The questions of one task, and the reason if there are fewer than requested."""

    problems: list[Problem]
    why_fewer: str = ""


async def _search_all(search: QuestionSearch, levels: Mapping[str, Level | None]) -> dict[str, FoundQuestions]:
    """Search the questions of all tasks concurrently, and show the progress."""
    searches: dict[str, asyncio.Future[FoundQuestions]] = {}
    for task, level in levels.items():
        searches[task] = asyncio.ensure_future(search.questions(task, level))
    with Progress(total=len(searches), desc="evaluation set", unit="task") as bar:
        for running in searches.values():
            running.add_done_callback(lambda _: bar.update())
        try:
            await asyncio.gather(*searches.values())
        finally:
            await cancel_and_wait(searches.values())
    return {task: finished.result() for task, finished in searches.items()}


@dataclass(frozen=True)
class QuestionSearch:
    """Draws items of each task and keeps the first that are held out. The index of an item is the number of its draw.

    The questions of a task do not depend on other tasks, and a larger set of questions begins with the smaller set.
    """

    maker: ItemMaker
    settings: EvaluationSettings
    slots: asyncio.Semaphore

    async def questions(self, task: str, level: Level | None) -> FoundQuestions:
        """The first items that are held out, whose questions differ from each other."""
        found: list[Problem] = []
        seen: set[str] = set()
        draws = 0
        last_new = 0
        last_found = 0
        while draws - last_new < NOTHING_NEW and draws - last_found < NONE_HELD_OUT:
            wave = await self._draw(task, level, range(draws, draws + WAVE))
            if not any(wave):
                return FoundQuestions(found, f"items could not be made ({WAVE} seeds in a row gave none)")
            for problem in wave:
                draws += 1
                if problem is None or problem.library_question in seen:
                    continue
                seen.add(problem.library_question)
                last_new = draws
                if is_held_out(problem.library_question):
                    last_found = draws
                    found.append(problem)
                if len(found) == self.settings.num_eval_samples_per_task:
                    return FoundQuestions(found)
        why_fewer = (
            f"questions are missing: {draws} draws gave {len(seen)} different questions, "
            f"and {len(found)} of them are held out"
        )
        return FoundQuestions(found, why_fewer)

    async def _draw(self, task: str, level: Level | None, indices: range) -> list[Problem | None]:
        """Make the items with these numbers concurrently. None stands for an item that could not be made."""
        items = []
        for index in indices:
            place = ItemAddress(task, index, "eval", self.settings.eval_seed)
            items.append(self._item(place, level))
        return await asyncio.gather(*items)

    async def _item(self, place: ItemAddress, level: Level | None) -> Problem | None:
        try:
            try:
                return await self._make(place, level)
            except GenerationTimeoutError:
                # A single late item on a busy machine must not change the set and its manifest.
                return await self._make(place, level)
        except GenerationError as error:
            logger.debug(
                "Item %d of %s is not used for the evaluation: %s",
                place.index,
                place.task,
                error,
            )
            return None

    async def _make(self, place: ItemAddress, level: Level | None) -> Problem:
        async with self.slots:
            return await self.maker.make(place, level=level)
