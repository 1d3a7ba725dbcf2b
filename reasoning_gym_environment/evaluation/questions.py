"""The held-out questions: which tasks, at which difficulty, and the hash by which two results can be compared.

    catalog ── eval_tasks ──> tasks ── eval_complexity ──> configs ── eval_seed ──> items ──> manifest

The same settings give the same questions in every run and on every instance, and a run that has them uses none of them
in training. A run with other settings holds out other questions, and may train on some of these.

The presets easy and hard are the configs at which nine published models were asked (reasoning-gym-eval): sampled at
temperature 0.6 with their own prompt and scored by reasoning-gym's own verifiers, of several releases.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from tqdm import tqdm

from ..errors import EnvironmentSetupError, GenerationError, GenerationTimeoutError
from ..records import Problem
from ..sampling.item_maker import ItemMaker, Place
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import Catalog, config_of
from ..tasks.difficulty_ladder import Level, Ranges, build_ladder
from ..tasks.measured_data import packaged
from ..tasks.selectors import matching
from ..utils.seeding import derive_seed

logger = logging.getLogger(__name__)

Preset: TypeAlias = Literal["easy", "hard"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
ALL = "all"

Asked: TypeAlias = Level | Mapping[str, Any] | None
"""A level, a whole config, or what the task is served with."""


@dataclass(frozen=True)
class EvalSet:
    """The questions, in order. `left_out` has task -> reason for what was asked for and cannot be had."""

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
            "reasoning_gym_version": self.version,
        }


def question_digest(question: str) -> str:
    """Names a question's text in 16 hex digits."""
    return hashlib.blake2b(question.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def choose_tasks(catalog: Catalog, wanted: Sequence[str], seed: int) -> list[str]:
    """The names of the tasks to evaluate, sorted. `wanted` is ["20"] (so many), ["all"], or selectors.

    Sampled tasks are those whose names hash lowest, so that one task more in the catalog changes at most one of them.
    Raises UnknownNameError for a selector that matches no task that is served.
    """
    names = catalog.names
    if list(wanted) == [ALL]:
        return names
    if len(wanted) == 1 and wanted[0].isdecimal():
        return sorted(sorted(names, key=lambda name: (derive_seed(seed, "eval task", name), name))[: int(wanted[0])])
    categories = {task.name: task.category for task in catalog}
    return sorted({name for selector in wanted for name in matching(selector, categories)})


def eval_configs(
    catalog: Catalog, tasks: Sequence[str], complexity: float | str | None, *, difficulty_range: Ranges = "level"
) -> tuple[dict[str, Asked], dict[str, str]]:
    """For each task at which difficulty to ask it; and task -> why it cannot be asked.

    A preset's config replaces the task's overrides, because only then are results comparable with the published ones.
    """
    if complexity is None:
        return dict.fromkeys(tasks), {}
    if not isinstance(complexity, str):
        ladders = {t: build_ladder(t, difficulty_range=difficulty_range, overrides=catalog[t].overrides) for t in tasks}
        return {task: ladder.at(complexity) for task, ladder in ladders.items()}, {}
    [preset] = [name for name in PRESETS if name == complexity]
    published = preset_configs(preset)
    configs: dict[str, Asked] = {}
    left_out: dict[str, str] = {}
    for task in tasks:
        if task not in published:
            left_out[task] = f"the preset {preset!r} has no config for it"
            continue
        try:
            configs[task] = _built(task, published[task])
        except EnvironmentSetupError as error:
            left_out[task] = f"its config in the preset {preset!r} is refused: {error}"
            continue
        if catalog[task].overrides:
            logger.warning("The overrides of %s do not hold in its evaluation: the preset sets its config.", task)
    return configs, left_out


def _built(task: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The whole config. Raises EnvironmentSetupError with what the installed reasoning-gym has against it."""
    try:
        config = config_of(task, fields)
        library.create_dataset(task, seed=0, size=1, **config)
    # Validation in reasoning-gym raises AssertionError, ValueError, KeyError, ...; it is the reason to report.
    except Exception as error:
        raise EnvironmentSetupError(library.explain(error)) from error
    return config


async def build_eval_set(
    maker: ItemMaker,
    *,
    tasks: Sequence[str] = (ALL,),
    per_task: int,
    seed: int,
    complexity: float | str | None = None,
    difficulty_range: Ranges = "level",
    version: str = "",
    show_progress: bool = False,
) -> EvalSet:
    """Make `per_task` items of every chosen task, to be held out from training; what cannot be made is named.

    Raises EnvironmentSetupError if nothing at all is left of what was asked for.
    """
    start = time.monotonic()
    named = "default" if complexity is None else str(complexity)
    if per_task == 0:
        return EvalSet(complexity=named, seed=seed, version=version)
    names = choose_tasks(maker.catalog, tasks, seed)
    configs, left_out = eval_configs(maker.catalog, names, complexity, difficulty_range=difficulty_range)
    for task, reason in left_out.items():
        logger.warning("%s is left out of the evaluation: %s.", task, reason)
    if not configs:
        raise EnvironmentSetupError(f"No task is left to evaluate: {left_out or 'eval_tasks names none'}.")
    problems, missing = await _make_items(maker, configs, per_task=per_task, seed=seed, show_progress=show_progress)
    left_out.update({task: f"{count} of {per_task} items could not be made" for task, count in missing.items()})
    made = EvalSet(problems, left_out, named, seed, version)
    logger.info(
        "Evaluation set %s: %d items of %d tasks, difficulty %s, seed %d, made in %.1f s.",
        made.manifest,
        len(problems),
        len(configs),
        named,
        seed,
        time.monotonic() - start,
    )
    return made


async def _make_items(
    maker: ItemMaker, configs: Mapping[str, Asked], *, per_task: int, seed: int, show_progress: bool
) -> tuple[list[Problem], Counter[str]]:
    """The items of every task, in order of task and index, and how many of which task could not be made."""
    places = [(task, index) for task in configs for index in range(per_task)]
    bar = tqdm(total=len(places), desc="evaluation set", unit="item", disable=None if show_progress else True)
    missing: Counter[str] = Counter()

    async def draw(task: str, index: int) -> Problem | None:
        asked = configs[task]
        level, config = (asked, None) if isinstance(asked, Level) else (None, asked)
        draw_it = functools.partial(maker.make, Place(task, index, "eval", seed), level=level, config=config)
        try:
            try:
                return await draw_it()
            except GenerationTimeoutError:
                # A busy machine must not change the set, and with it the manifest, at the first late item.
                return await draw_it()
        except GenerationError as error:
            logger.warning("Item %d of %s is left out of the evaluation set: %s", index, task, error)
            missing[task] += 1
            return None
        finally:
            bar.update()

    drawing = [asyncio.ensure_future(draw(task, index)) for task, index in places]
    with bar:
        try:
            return [problem for problem in await asyncio.gather(*drawing) if problem is not None], missing
        finally:
            for one in drawing:
                one.cancel()


# --- the published results


@dataclass(frozen=True)
class PublishedScore:
    """One model on one task at one preset. `counts[k]` is the number of items with k right completions."""

    mean_score: float
    counts: tuple[int, ...]

    @property
    def accuracy(self) -> float:
        """Share of completions that score at least 0.5."""
        right = sum(number * items for number, items in enumerate(self.counts))
        return right / (sum(self.counts) * (len(self.counts) - 1))


def preset_configs(preset: Preset) -> dict[str, Mapping[str, Any]]:
    """Task -> config fields; what is not given has reasoning-gym's default."""
    return dict(packaged("published_presets.json")[preset])


def changed_verifiers() -> frozenset[str]:
    """Tasks whose verifier has changed since, so that a score of today says little beside the published one."""
    return frozenset(packaged("published_presets.json")["verifier_changed_since"])


@functools.lru_cache(maxsize=2)
def published_scores(preset: Preset) -> Mapping[str, Mapping[str, PublishedScore]]:
    """Model -> task -> score. A model that was not run at this preset is missing."""
    place = PRESETS.index(preset)
    found: dict[str, dict[str, PublishedScore]] = {}
    for key, tasks in packaged("published_students.json").items():
        if not key.startswith("models/"):
            continue
        runs = {task: settings[place] for task, settings in tasks.items() if len(settings) > place and settings[place]}
        if runs:
            name = key.removeprefix("models/").replace("_", "/", 1)
            found[name] = {task: PublishedScore(float(mean), tuple(counts)) for task, (counts, mean) in runs.items()}
    return found
