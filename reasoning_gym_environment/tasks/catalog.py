"""The catalog: which tasks are served, how often, with which config; and for the others, why not.

    reasoning-gym's registry ── selectors, weights, overrides ──> discover ──> Catalog
        ── unguarded verifiers ──> served_tasks: the Catalog of a run

The registry is asked, so new releases and the user's own datasets are found. A task that cannot be built is left out
by name with the reason; a mistake in what the user asked for is an error. The last part is about the fields of a task's
own config: what the user's overrides may say, and the whole config that results.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import functools
import inspect
import logging
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from ..errors import EnvironmentSetupError, NoTasksError, unknown_name
from ..records import plain
from . import reasoning_gym_source as library
from . import selectors
from .measured_data import load_facts, low_entropy_note

logger = logging.getLogger(__name__)


Registry: typing.TypeAlias = Mapping[str, tuple[type, type]]
"""Task name -> (dataset class, config class)."""

PER_ITEM = {"seed": 0, "size": 1}
"""Fields of every config that belong to a draw, never to the user or to a level; these values build a dataset."""

COMPOSITE = "composite"
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
    def categories(self) -> list[str]:
        return sorted({task.category for task in self.tasks})

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


def served_tasks(settings: Any, unguarded: Callable[[], Mapping[str, str]]) -> Catalog:
    """The tasks that a TasksSettings chooses, without those whose verifier runs the model's answer as code.

    `unguarded` gives the tasks of the first kind, name -> reason; it is asked once the user's modules are imported,
    because it has to know their datasets too.
    """
    catalog = discover(
        include=settings.include_tasks,
        exclude=settings.exclude_tasks,
        weights=settings.task_weights,
        overrides=settings.task_overrides,
        modules=settings.task_modules,
        progress=progress("tasks"),
    )
    for name in settings.allow_unguarded_tasks:
        if name not in library.registry():
            raise unknown_name("task", name, library.registry(), "It is named in allow_unguarded_tasks.")
    refused = {task: reason for task, reason in unguarded().items() if task not in settings.allow_unguarded_tasks}
    for task in sorted(set(refused) & set(catalog.names)):
        logger.warning(
            "%s is not served: %s. Name it in allow_unguarded_tasks to serve it all the same.", task, refused[task]
        )
    catalog = catalog.without(refused)
    _log(catalog)
    facts = load_facts(library.load().version)
    if note := low_entropy_note(catalog.names, facts, with_levels=settings.complexity_mode is not None):
        logger.info("%s.", note)
    return catalog


def progress(what: str) -> Callable[[Any], Any]:
    """A bar over tasks, on a terminal only."""
    return lambda items: tqdm(items, desc=what, unit="task", disable=None, leave=False)


def _log(catalog: Catalog) -> None:
    logger.info("Serving %d tasks in %d categories.", len(catalog), len(catalog.categories))
    by_reason: dict[str, list[str]] = {}
    for name, reason in catalog.excluded.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        logger.info("Left out: %s (%s).", shown, reason)


def discover(
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    weights: Mapping[str, float] | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    modules: Iterable[str] = (),
    progress: Callable[[list[str]], Iterable[str]] | None = None,
) -> Catalog:
    """Find the tasks to serve, and build those once that are not known to build: it takes seconds and 20 MB for all.

    `include` (empty: all), `exclude` (wins over include) and the keys of `weights` are selectors;
    `overrides` maps a task's name to config fields; `modules` are imported first and register the user's
    own datasets; `progress` wraps the list of tasks to build, as tqdm does. Raises EnvironmentSetupError
    for any mistake in these, NoTasksError if nothing is left.
    """
    modules = tuple(modules)
    library.import_modules(modules)
    with library.stdout_to_stderr():
        known, failed = _known_datasets()
    categories = {name: _category(dataset_class) for name, (dataset_class, _) in known.items()}
    resolved = selectors.resolve_weights(weights or {}, categories)
    typed = _checked_overrides(overrides or {}, known)
    excluded = selectors.left_out(include, exclude, resolved, categories)
    if COMPOSITE in known and not (COMPOSITE in include and typed.get(COMPOSITE)):
        excluded.setdefault(COMPOSITE, _IS_COMPOSITE)
    _warn_without_effect(include, {*typed, *(weights or {})}, excluded)
    tasks: list[Task] = []
    with library.stdout_to_stderr():
        for name in (progress or iter)(sorted(known.keys() - excluded.keys())):
            task = Task(name, categories[name], resolved[name], typed.get(name, {}))
            if reason := "" if builds_if_valid(name, task.overrides) else _unbuildable(task):
                failed[name] = reason
            else:
                tasks.append(task)
    if not tasks:
        raise NoTasksError(_why_none(include, exclude, excluded, failed))
    return Catalog(tuple(tasks), dict(sorted({**excluded, **failed}.items())))


def builds_if_valid(task: str, overrides: Mapping[str, Any]) -> bool:
    """Whether a dataset of this task can be built from every config that is valid, so that nothing has to be built.

    This holds for the tasks that were measured with this release of reasoning-gym. Overrides may name a file that does
    not exist.
    """
    if overrides or task not in load_facts(library.load().version):
        return False
    # The name may be that of a user's own dataset.
    return _is_library(_classes_of(task)[0])


def _known_datasets() -> tuple[Registry, dict[str, str]]:
    """What reasoning-gym knows, and (only without a registry) what cannot be built, by reason."""
    try:
        return library.registry(), {}
    except library.RegistryError as error:
        logger.warning("%s Only %d fallback tasks are tried, none of your own.", error, len(FALLBACK_TASKS))
    known: dict[str, tuple[type, type]] = {}
    failed: dict[str, str] = {}
    for name in FALLBACK_TASKS:
        try:
            dataset = library.create_dataset(name, **PER_ITEM)
        # What an unknown release raises is unknown too.
        except Exception as error:  # noqa: BLE001
            failed[name] = _report_unbuildable(name, library.explain(error))
        else:
            known[name] = (type(dataset), type(dataset.config))
    return known, failed


def _category(dataset_class: type) -> str:
    """The dataset's own category, asked without building it.

    reasoning-gym takes it from the second part of the module's name, which says nothing about a module
    that is not reasoning-gym's: such a dataset is "other" unless it defines its own category.
    """
    owner = next((base for base in dataset_class.__mro__ if "category" in vars(base)), object)
    if _is_library(owner) and not _is_library(dataset_class):
        return "other"
    try:
        return str(object.__new__(dataset_class).category)
    # A user's property may need an initialised dataset.
    except Exception as error:  # noqa: BLE001
        logger.warning("%s has no readable category: %s", dataset_class.__qualname__, library.explain(error))
        return "other"


def _is_library(of: type) -> bool:
    return of.__module__.partition(".")[0] == "reasoning_gym"


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
        library.create_dataset(task, **copy.deepcopy(dict(overrides)), **PER_ITEM)
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


# --- overrides ---


def config_of(task: str, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The task's whole config, without `seed` and `size`, as arguments of `library.create_dataset`.

    A dataset built from it equals one built from `overrides` alone, and stays so if a later release
    changes its defaults. A config class that changes what it was given, so that its fields do not build
    the same config again, is represented by the overrides alone.
    """
    config_class = config_class_of(task)
    typed = typed_overrides(task, overrides or {})
    config = config_class(**copy.deepcopy(typed), **PER_ITEM)
    whole = {**copy.deepcopy(typed), **fields_of(config)}
    again = config_class(**copy.deepcopy(whole), **PER_ITEM)
    names = [f.name for f in dataclasses.fields(config)]
    return whole if all(getattr(again, name) == getattr(config, name) for name in names) else typed


@functools.cache
def defaults_of(task: str) -> dict[str, Any]:
    """The whole default config; {} where a class of one's own has none. Raises UnknownNameError for no task."""
    typed_overrides(task, {})
    # A user's config class may raise anything where fields are missing.
    try:
        return config_of(task)
    except Exception:  # noqa: BLE001
        return {}


def config_from_json(task: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """A problem's config, which was JSON in between, as it was. Raises what `typed_overrides` raises."""
    whole, typed = defaults_of(task), typed_overrides(task, config)
    # JSON does not hold all types: what equals the default in JSON is the default. Numbers it holds, and a level may
    # have an integer where the default is a float.
    others = {name for name in typed.keys() & whole.keys() if type(typed[name]) not in (int, float)}
    return {k: whole[k] if k in others and plain(whole[k]) == config[k] else typed[k] for k in typed}


def fields_of(config: Any) -> dict[str, Any]:
    """The fields of a config object by value, without `seed` and `size`: a curriculum hands out its own lists.

    Not dataclasses.asdict, which turns nested configs into dicts that no dataset accepts.
    """
    names = [f.name for f in dataclasses.fields(config) if f.init and f.name not in PER_ITEM]
    return {name: copy.deepcopy(getattr(config, name)) for name in names}


def _checked_overrides(overrides: Mapping[str, Mapping[str, Any]], known: Registry) -> dict[str, dict[str, Any]]:
    """The overrides by task, with every value as its field declares it. Raises EnvironmentSetupError for a mistake."""
    typed: dict[str, dict[str, Any]] = {}
    for task, fields in overrides.items():
        if task not in known:
            raise unknown_name("task", task, known, "Overrides are given by the task's exact name.")
        if not isinstance(fields, Mapping):
            raise EnvironmentSetupError(f"The overrides of {task} must map config fields, got {fields!r}.")
        typed[task] = typed_overrides(task, fields)
    return typed


def config_class_of(task: str) -> type:
    """The class of the task's config. Raises UnknownNameError if there is no such task."""
    return _classes_of(task)[1]


def _classes_of(task: str) -> tuple[type, type]:
    """The classes of the task's datasets and configs."""
    try:
        known = library.registry()
    except library.RegistryError:
        dataset = library.create_dataset(task, **PER_ITEM)
        return type(dataset), type(dataset.config)
    if task not in known:
        raise unknown_name("task", task, known)
    return known[task]


def typed_overrides(task: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of one task's overrides, every value as its field declares it.

    Raises UnknownNameError for a task or field that does not exist, EnvironmentSetupError for another mistake.
    """
    config_class = config_class_of(task)
    parameters = inspect.signature(config_class).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    known = [name for name in parameters if name not in PER_ITEM]
    hints = _type_hints(config_class)
    typed: dict[str, Any] = {}
    for name, value in overrides.items():
        if name in PER_ITEM:
            raise EnvironmentSetupError(f"{name!r} of {task} cannot be overridden: each draw sets its own.")
        if name not in known and not takes_any:
            raise unknown_name(f"config field of {task}", str(name), known, f"Fields: {', '.join(known)}.")
        try:
            typed[name] = _typed_value(hints.get(name), copy.deepcopy(value))
        except (TypeError, ValueError) as error:
            cause = f"{name}={value!r}: {library.explain(error)}"
            raise EnvironmentSetupError(f"The overrides of {task} are not valid: {cause}.") from error
    return typed


def _type_hints(config_class: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(config_class)
    except (NameError, TypeError, AttributeError):  # types that exist only for checkers: use values as given
        return {}


def _typed_value(hint: Any, value: Any) -> Any:
    """Turn what YAML can say (mappings, lists, text) into what the config declares."""
    origin, elements = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is list and elements and isinstance(value, list):
        return [_typed_value(elements[0], element) for element in value]
    if origin is tuple and isinstance(value, list):
        return tuple(value)
    if not isinstance(hint, type):
        return value
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return hint(**value)
    if issubclass(hint, (datetime.date, datetime.time)) and isinstance(value, str):
        return hint.fromisoformat(value)
    return value
