"""The held-out questions: the tasks, their difficulty, and a hash that shows whether two results are comparable.

    catalog ── eval_tasks ──> tasks ── eval_complexity ──> difficulties ── eval_seed ──> held-out items ──> manifest

The same settings give the same questions, without repetition, in every run and on every instance. The search draws
items until enough of them are held out (see `is_held_out`). Therefore no training run asks any of these questions,
whatever its settings. The search makes about ten items for each question.

Like the evaluations of the published results (published.py), the presets easy and hard use all draws, including
repeated questions and questions that training may draw.
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
from typing import Any, NamedTuple, TypeAlias

from tqdm import tqdm

from ..errors import EnvironmentSetupError, GenerationError, GenerationTimeoutError
from ..records import Problem
from ..sampling.item_maker import ItemAddress, ItemMaker
from ..sampling.seeds import HELD_OUT_ONE_IN, Rule, derive_seed, is_held_out, question_digest
from ..settings.components import EvaluationSettings
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import Catalog, config_of
from ..tasks.difficulty_ladder import Level, build_ladder
from ..tasks.selectors import matching
from ..utils.resilience import cancel_and_wait
from .published import PRESETS, published_presets

logger = logging.getLogger(__name__)

Difficulty: TypeAlias = Level | Mapping[str, Any] | None
"""A level, a complete config, or None for the config that the task has in training."""

TOO_SLOW: Mapping[tuple[str, str], str] = {
    ("hard", "knight_swap"): "some items take over 5 s to generate, so the questions would depend on the machine",
}
"""The configs of the presets that give no questions, with the reason. No item of another config takes over 2 s."""

AT_ONCE = 64
"""Number of items of one set that are generated concurrently. More items would only wait for the same few workers."""

WAVE = HELD_OUT_ONE_IN
"""Number of items that the search of one task draws together. On average, one item of a wave is held out."""

NOTHING_NEW = 40
"""The search of a task stops after this many consecutive draws that only repeat questions."""

NONE_HELD_OUT = 200
"""The search of a task stops after this many consecutive draws without a held-out question. The chance is 1 in 10^9."""

LOG_PROGRESS_S = 10.0
"""Seconds between two log lines about the progress, if no terminal shows a progress bar."""


@dataclass(frozen=True)
class EvalSet:
    """The questions, in order. `left_out` maps requested tasks without enough questions to the reason."""

    problems: list[Problem] = field(default_factory=list)
    left_out: Mapping[str, str] = field(default_factory=dict)
    complexity: str = "default"
    seed: int = 0
    version: str = ""
    hold_out: Rule = "content"
    """content: training never asks these questions. published: training may ask them, as for the published results."""

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
            "hold_out": self.hold_out,
            "reasoning_gym_version": self.version,
        }


def choose_tasks(catalog: Catalog, wanted: Sequence[str], seed: int) -> list[str]:
    """The names of the tasks to evaluate, sorted. `wanted` is ["20"] for a sample of 20 tasks, ["all"], or selectors.

    A sample consists of the tasks whose names have the lowest hashes. Therefore a further task in the catalog changes
    at most one task of the sample. Raises UnknownNameError for a selector that matches no task of the catalog.
    """
    names = catalog.names
    if list(wanted) == ["all"]:
        return names
    if len(wanted) == 1 and wanted[0].isdecimal():
        count = int(wanted[0])
        by_hash = sorted(names, key=lambda name: (derive_seed(seed, "eval task", name), name))
        return sorted(by_hash[:count])
    categories = {task.name: task.category for task in catalog.tasks}
    selected: set[str] = set()
    for selector in wanted:
        selected.update(matching(selector, categories))
    return sorted(selected)


def eval_difficulties(
    catalog: Catalog,
    tasks: Sequence[str],
    complexity: float | str | None,
) -> tuple[dict[str, Difficulty], dict[str, str]]:
    """The difficulty of each task's questions, and the reason for each task that cannot be asked.

    A preset's config replaces the overrides of the task, because only this config gives results that are comparable
    with the published results.
    """
    if complexity is None:
        return dict.fromkeys(tasks), {}
    difficulties: dict[str, Difficulty] = {}
    if not isinstance(complexity, str):
        for task in tasks:
            overrides = catalog[task].overrides
            ladder = build_ladder(task, overrides=overrides)
            difficulties[task] = ladder.at(complexity)
        return difficulties, {}
    published = published_presets()[complexity]
    left_out: dict[str, str] = {}
    for task in tasks:
        if task not in published:
            left_out[task] = f"the preset {complexity!r} has no config for it"
            continue
        if (complexity, task) in TOO_SLOW:
            left_out[task] = TOO_SLOW[complexity, task]
            continue
        try:
            config = config_of(task, published[task])
            library.create_dataset(task, seed=0, size=1, **config)
        # Validation in reasoning-gym raises AssertionError, ValueError, KeyError and others.
        except Exception as error:  # noqa: BLE001
            reason = library.explain(error)
            left_out[task] = f"reasoning-gym rejects its config in the preset {complexity!r}: {reason}"
            continue
        difficulties[task] = config
        if catalog[task].overrides:
            logger.warning(
                "The evaluation ignores the overrides of %s, because the preset sets its config.",
                task,
            )
    return difficulties, left_out


async def build_eval_set(
    maker: ItemMaker,
    settings: EvaluationSettings,
    version: str = "",
    *,
    show_progress: bool = False,
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
    rule: Rule = "published" if name in PRESETS else "content"
    if per_task == 0:
        return EvalSet(complexity=name, seed=seed, version=version, hold_out=rule)
    tasks = choose_tasks(maker.catalog, settings.eval_tasks, seed)
    # Building ladders and datasets would block the event loop for too long.
    difficulties, left_out = await asyncio.to_thread(
        eval_difficulties,
        maker.catalog,
        tasks,
        complexity,
    )
    search = QuestionSearch(maker, settings, rule, asyncio.Semaphore(at_once))
    found = await _search_all(search, difficulties, show_progress=show_progress)
    problems: list[Problem] = []
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
    eval_set = EvalSet(problems, left_out, name, seed, version, rule)
    logger.info(
        "Evaluation set %s: %d items of %d tasks, difficulty %s, seed %s, held out by %s, made in %.1f s.",
        eval_set.manifest,
        len(eval_set),
        len(difficulties),
        name,
        seed,
        rule,
        time.monotonic() - start,
    )
    return eval_set


class FoundQuestions(NamedTuple):
    """The questions of one task, and the reason if there are fewer than requested."""

    problems: list[Problem]
    why_fewer: str = ""


async def _search_all(
    search: QuestionSearch,
    difficulties: Mapping[str, Difficulty],
    *,
    show_progress: bool,
) -> dict[str, FoundQuestions]:
    """Search the questions of all tasks concurrently, and show the progress."""
    searches: dict[str, asyncio.Future[FoundQuestions]] = {}
    for task, difficulty in difficulties.items():
        searches[task] = asyncio.ensure_future(search.questions(task, difficulty))
    disable = None if show_progress else True
    with tqdm(total=len(searches), desc="evaluation set", unit="task", disable=disable) as bar:
        for running in searches.values():
            running.add_done_callback(lambda _: bar.update())
        logging_progress = [asyncio.ensure_future(_log_progress(searches))] if bar.disable else []
        try:
            await asyncio.gather(*searches.values())
        finally:
            await cancel_and_wait([*searches.values(), *logging_progress])
    return {task: finished.result() for task, finished in searches.items()}


async def _log_progress(searches: Mapping[str, asyncio.Future[Any]]) -> None:
    while True:
        await asyncio.sleep(LOG_PROGRESS_S)
        unfinished = [task for task, running in searches.items() if not running.done()]
        logger.info(
            "The held-out questions of %d of %d tasks are made. The next unfinished task is %s.",
            len(searches) - len(unfinished),
            len(searches),
            unfinished[0],
        )


@dataclass(frozen=True)
class QuestionSearch:
    """Draws items of each task and keeps the first suitable items. The index of an item is the number of its draw.

    The questions of a task do not depend on other tasks, and a larger set of questions begins with the smaller set.
    """

    maker: ItemMaker
    settings: EvaluationSettings
    rule: Rule
    slots: asyncio.Semaphore

    async def questions(self, task: str, difficulty: Difficulty) -> FoundQuestions:
        """The first suitable items. With the rule "content", they are held out and differ from each other."""
        found: list[Problem] = []
        seen: set[str] = set()
        draws = 0
        last_new = 0
        last_found = 0
        while draws - last_new < NOTHING_NEW and draws - last_found < NONE_HELD_OUT:
            wave = await self._draw(task, difficulty, range(draws, draws + WAVE))
            if not any(wave):
                return FoundQuestions(found, f"items could not be made ({WAVE} seeds in a row gave none)")
            for problem in wave:
                draws += 1
                if problem is None:
                    continue
                if self.rule == "content" and problem.library_question in seen:
                    continue
                seen.add(problem.library_question)
                last_new = draws
                if self.rule == "published" or is_held_out(problem.library_question):
                    last_found = draws
                    found.append(problem)
                if len(found) == self.settings.num_eval_samples_per_task:
                    return FoundQuestions(found)
        why_fewer = (
            f"questions are missing: {draws} draws gave {len(seen)} different questions, "
            f"and {len(found)} of them are held out"
        )
        return FoundQuestions(found, why_fewer)

    async def _draw(self, task: str, difficulty: Difficulty, indices: range) -> list[Problem | None]:
        """Make the items with these numbers concurrently. None stands for an item that could not be made."""
        items = []
        for index in indices:
            place = ItemAddress(task, index, "eval", self.settings.eval_seed)
            items.append(self._item(place, difficulty))
        return await asyncio.gather(*items)

    async def _item(self, place: ItemAddress, difficulty: Difficulty) -> Problem | None:
        try:
            try:
                return await self._make(place, difficulty)
            except GenerationTimeoutError:
                # A single late item on a busy machine must not change the set and its manifest.
                return await self._make(place, difficulty)
        except GenerationError as error:
            logger.debug(
                "Item %d of %s is not used for the evaluation: %s",
                place.index,
                place.task,
                error,
            )
            return None

    async def _make(self, place: ItemAddress, difficulty: Difficulty) -> Problem:
        async with self.slots:
            if isinstance(difficulty, Level):
                return await self.maker.make(place, level=difficulty)
            return await self.maker.make(place, config=difficulty)
