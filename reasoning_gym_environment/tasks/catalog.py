"""The catalog: which tasks are served, how often, with which config; and for the others, why not.

`discover` asks reasoning-gym's registry (so new releases and the user's own datasets are found), applies
the selectors, and builds each remaining dataset once. A task that cannot be built is left out by name
with the reason; a mistake in what the user asked for is an error.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import EnvironmentSetupError, NoTasksError, unknown_name
from . import reasoning_gym_source as library
from . import selectors
from .overrides import PROBE, Kinds, checked_overrides

logger = logging.getLogger(__name__)

COMPOSITE = "composite"
_OTHER_CATEGORY = "other"
_IS_COMPOSITE = "it only mixes other datasets; include it by name, with overrides that list its datasets"

# fmt: off
FALLBACK_TASKS = (
    "arc_1d", "base_conversion", "basic_arithmetic", "bf", "caesar_cipher", "chain_sum", "countdown",
    "family_relationships", "gcd", "knights_knaves", "lcm", "leg_counting", "letter_counting",
    "list_functions", "maze", "mini_sudoku", "number_sequence", "number_sorting", "polynomial_equations",
    "shortest_path", "simple_equations", "simple_geometry", "spell_backward", "syllogism",
)
# fmt: on
"""What is tried when a release of reasoning-gym hides its registry: names that have been there for long."""


@dataclass(frozen=True)
class Task:
    """One task to serve. `weight` is relative to the other tasks; `overrides` are config fields to change."""

    name: str
    category: str
    weight: float = selectors.DEFAULT_WEIGHT
    overrides: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Catalog:
    """The tasks to serve, sorted by name, and those left out (name -> reason)."""

    tasks: tuple[Task, ...]
    excluded: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def names(self) -> list[str]:
        return [task.name for task in self.tasks]

    @property
    def categories(self) -> dict[str, list[str]]:
        """Category -> names of its tasks, both sorted."""
        grouped: dict[str, list[str]] = {}
        for task in sorted(self.tasks, key=lambda task: (task.category, task.name)):
            grouped.setdefault(task.category, []).append(task.name)
        return grouped

    def without(self, reasons: Mapping[str, str]) -> Catalog:
        """The catalog less the tasks named in `reasons`. Raises NoTasksError if none is left."""
        left_out = {name: reasons[name] for name in self.names if name in reasons}
        if len(left_out) == len(self):
            raise NoTasksError(f"No task is left to serve: {left_out}.")
        tasks = tuple(task for task in self.tasks if task.name not in reasons)
        return Catalog(tasks, dict(sorted({**self.excluded, **left_out}.items())))

    @functools.cached_property
    def _by_name(self) -> dict[str, Task]:
        return {task.name: task for task in self.tasks}

    def __getitem__(self, name: str) -> Task:
        """The task of that name; UnknownNameError if it is not served."""
        if name not in self._by_name:
            raise unknown_name("task", name, self._by_name, self.excluded.get(name, ""))
        return self._by_name[name]

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name


def discover(
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    weights: Mapping[str, float] | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    modules: Iterable[str] = (),
    progress: Callable[[list[str]], Iterable[str]] | None = None,
) -> Catalog:
    """Find the tasks to serve and build each once.

    `include` (empty: all), `exclude` (wins over include) and the keys of `weights` are selectors;
    `overrides` maps a task's name to config fields; `modules` are imported first and register the user's
    own datasets; `progress` wraps the list of tasks to build, as tqdm does. Raises EnvironmentSetupError
    for any mistake in these, NoTasksError if nothing is left.
    """
    library.import_modules(modules)
    with library.stdout_to_stderr():
        kinds, failed = _known_kinds()
    categories = {name: _category(kind) for name, (kind, _) in kinds.items()}
    resolved = selectors.resolve_weights(weights or {}, categories)
    typed = checked_overrides(overrides or {}, kinds)
    excluded = selectors.left_out(include, exclude, resolved, categories)
    if COMPOSITE in kinds and not (COMPOSITE in include and typed.get(COMPOSITE)):
        excluded.setdefault(COMPOSITE, _IS_COMPOSITE)
    _warn_without_effect(include, {*typed, *(weights or {})}, excluded)
    tasks: list[Task] = []
    with library.stdout_to_stderr():
        for name in (progress or iter)(sorted(kinds.keys() - excluded.keys())):
            task = Task(name, categories[name], resolved[name], typed.get(name, {}))
            if reason := _unbuildable(task):
                failed[name] = reason
            else:
                tasks.append(task)
    if not tasks:
        raise NoTasksError(_why_none(include, exclude, excluded, failed))
    return Catalog(tuple(tasks), dict(sorted({**excluded, **failed}.items())))


def _known_kinds() -> tuple[Kinds, dict[str, str]]:
    """What reasoning-gym knows, and (only without a registry) what cannot be built, by reason."""
    try:
        return library.registry(), {}
    except library.RegistryError as error:
        logger.warning("%s Only %d fallback tasks are tried, none of your own.", error, len(FALLBACK_TASKS))
    kinds: Kinds = {}
    failed: dict[str, str] = {}
    for name in FALLBACK_TASKS:
        try:
            dataset = library.create_dataset(name, **PROBE)
        # What an unknown release raises is unknown too.
        except Exception as error:  # noqa: BLE001
            failed[name] = _report_unbuildable(name, library.explain(error))
        else:
            kinds[name] = (type(dataset), type(dataset.config))
    return kinds, failed


def _category(dataset_class: type) -> str:
    """The dataset's own category, asked without building it.

    reasoning-gym takes it from the second part of the module's name, which says nothing about a module
    that is not reasoning-gym's: such a dataset is "other" unless it defines its own category.
    """
    owner = next((kind for kind in dataset_class.__mro__ if "category" in vars(kind)), object)
    if _is_library(owner) and not _is_library(dataset_class):
        return _OTHER_CATEGORY
    try:
        return str(object.__new__(dataset_class).category)
    # A user's property may need an initialised dataset.
    except Exception as error:  # noqa: BLE001
        logger.warning("%s has no readable category: %s", dataset_class.__qualname__, library.explain(error))
        return _OTHER_CATEGORY


def _is_library(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "reasoning_gym"


def _warn_without_effect(include: Sequence[str], given: Iterable[str], excluded: Mapping[str, str]) -> None:
    for name in sorted(excluded.keys() & set(given)):
        if excluded[name] != selectors.NO_WEIGHT:
            logger.warning("The overrides or weight of %s have no effect: %s.", name, excluded[name])
    if COMPOSITE in include and excluded.get(COMPOSITE) == _IS_COMPOSITE:
        logger.warning("%s is left out: %s.", COMPOSITE, _IS_COMPOSITE)


def _unbuildable(task: Task) -> str:
    """Why the task cannot be built, or ""; EnvironmentSetupError if that is its overrides' fault."""
    error = _build_error(task.name, task.overrides)
    if error is None:
        return ""
    reason = library.explain(error)
    by_itself = _build_error(task.name, {}) if task.overrides else error
    if by_itself is not None and library.explain(by_itself) == reason:
        return _report_unbuildable(task.name, reason)
    guilty = [name for name, value in task.overrides.items() if _build_error(task.name, {name: value})]
    given = ", ".join(f"{name}={task.overrides[name]!r}" for name in guilty or task.overrides)
    raise EnvironmentSetupError(f"The overrides of {task.name} are not valid: {given}: {reason}.") from error


def _report_unbuildable(name: str, reason: str) -> str:
    logger.warning("%s is left out: it cannot be built: %s", name, reason)
    return f"cannot be built: {reason}"


def _build_error(task: str, overrides: Mapping[str, Any]) -> Exception | None:
    """Build the dataset once, without an item (some take seconds); what it raised, if it did."""
    try:
        library.create_dataset(task, **copy.deepcopy(dict(overrides)), **PROBE)
    # Any dataset's code runs here, a user's too: whatever it raises, the other tasks go on.
    except Exception as error:  # noqa: BLE001
        return error
    return None


def _why_none(
    include: Sequence[str], exclude: Sequence[str], excluded: Mapping[str, str], failed: Mapping[str, str]
) -> str:
    causes = [f"{reason} ({count})" for reason, count in Counter(excluded.values()).most_common()]
    causes += [f"{name} {reason}" for name, reason in failed.items()]
    asked = f"include_tasks={list(include)} and exclude_tasks={list(exclude)}"
    return f"No task is left to serve with {asked}: {'; '.join(causes)}."
