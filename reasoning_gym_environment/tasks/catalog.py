"""The catalog: the served tasks with their weights and configs, and the excluded tasks with the reasons.

    reasoning-gym's registry ── selectors, weights, overrides ──> discover ──> Catalog
        ── unguarded verifiers ──> served_tasks: the Catalog of a run

The tasks come from the registry, which also has the tasks of new releases and the user's own datasets. The catalog
excludes a task that cannot be built, and records the reason. A mistake in the user's settings is an error. The last
part of this module handles the fields of a task's config: the user's overrides, and the complete config.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import enum
import functools
import inspect
import logging
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import EnvironmentSetupError, NoTasksError, UnknownNameError, unknown_name
from ..records import to_json
from . import reasoning_gym_source as library
from . import selectors
from .measured_data import load_facts

logger = logging.getLogger(__name__)


Registry: typing.TypeAlias = Mapping[str, tuple[type, type]]
"""Task name -> (dataset class, config class)."""

PER_ITEM = {"seed": 0, "size": 1}
"""Config fields that each draw sets, so neither the user nor a level may set them. The values are placeholders."""

COMPOSITE = "composite"
_IS_COMPOSITE = "it only mixes other datasets; include it by name, with overrides that list its datasets"


@dataclass(frozen=True)
class Task:
    """A task to serve. `weight` is relative to the other tasks. `overrides` are config fields to change."""

    name: str
    category: str
    weight: float = selectors.DEFAULT_WEIGHT
    overrides: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Catalog:
    """The tasks to serve, sorted by name, and the excluded tasks (name -> reason)."""

    tasks: tuple[Task, ...]
    excluded: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def names(self) -> list[str]:
        return [task.name for task in self.tasks]

    @property
    def categories(self) -> list[str]:
        return sorted({task.category for task in self.tasks})

    def without(self, reasons: Mapping[str, str]) -> Catalog:
        """The catalog without the tasks in `reasons` (name -> reason). Raises NoTasksError if no task remains."""
        tasks = tuple(task for task in self.tasks if task.name not in reasons)
        newly_excluded = {name: reasons[name] for name in self.names if name in reasons}
        if not tasks:
            raise NoTasksError(f"No task remains to serve: {newly_excluded}.")
        excluded = {**self.excluded, **newly_excluded}
        return Catalog(tasks, dict(sorted(excluded.items())))

    @functools.cached_property
    def _by_name(self) -> dict[str, Task]:
        return {task.name: task for task in self.tasks}

    def __getitem__(self, name: str) -> Task:
        """The task of that name. Raises UnknownNameError if it is not served."""
        if name in self.excluded:
            raise UnknownNameError(self._not_served([name]))
        if name not in self._by_name:
            raise unknown_name("task", name, self._by_name)
        return self._by_name[name]

    def select(self, wanted: Sequence[str]) -> list[str]:
        """The names of the served tasks that these selectors match, sorted.

        Raises UnknownNameError for a selector that matches no task, or no served task.
        """
        served = {task.name: task.category for task in self.tasks}
        known = categories_in_registry() | served
        found: set[str] = set()
        for selector in wanted:
            matches = selectors.matching(selector, known)
            if matches.isdisjoint(served):
                raise UnknownNameError(self._not_served(sorted(matches)))
            found |= matches & served.keys()
        return sorted(found)

    def _not_served(self, names: Sequence[str]) -> str:
        subject = f"The task {names[0]} is" if len(names) == 1 else f"The tasks {selectors.shortened(names)} are"
        reasons = dict.fromkeys(self.excluded.get(name, "not chosen") for name in names)
        return f"{subject} not served: {'; '.join(reasons)}."

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name


def check_names(names: Iterable[str], modules: Iterable[str]) -> None:
    """Raise UnknownNameError for a name, glob or category that matches no task, also of these modules of the user."""
    library.import_modules(modules)
    categories = categories_in_registry()
    for name in sorted(set(names)):
        selectors.matching(name, categories)


def categories_in_registry() -> dict[str, str]:
    """The category of each task that is registered with reasoning-gym."""
    return {name: _category(dataset_class) for name, (dataset_class, _) in library.registry().items()}


def served_tasks(settings: Any, unguarded: Callable[[], Mapping[str, str]]) -> Catalog:
    """The tasks that a TasksSettings chooses, except the tasks whose verifier runs the model's answer as code.

    `unguarded` returns the tasks with such a verifier, name -> reason. It is called after the import of the user's
    modules, because their datasets may have such verifiers too.
    """
    catalog = discover(
        include=settings.include_tasks,
        exclude=settings.exclude_tasks,
        weights=settings.task_weights,
        overrides=settings.task_overrides,
        modules=settings.task_modules,
    )
    for name in settings.allow_unguarded_tasks:
        if name not in library.registry():
            raise unknown_name(
                "task",
                name,
                library.registry(),
                "allow_unguarded_tasks has this name.",
            )
    refused = {}
    for name, reason in sorted(unguarded().items()):
        if name in catalog and name not in settings.allow_unguarded_tasks:
            refused[name] = reason
            logger.warning(
                "%s is not served: %s. To serve it, add it to allow_unguarded_tasks.",
                name,
                reason,
            )
    catalog = catalog.without(refused)
    _log(catalog)
    return catalog


def _log(catalog: Catalog) -> None:
    logger.info(
        "Tasks: %d. Their categories: %s.",
        len(catalog),
        ", ".join(sorted(catalog.categories)),
    )
    by_reason: dict[str, list[str]] = {}
    for name, reason in catalog.excluded.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        logger.info("Excluded: %s (%s).", selectors.shortened(names), reason)


def discover(
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    weights: Mapping[str, float] | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    modules: Iterable[str] = (),
) -> Catalog:
    """Find the tasks to serve.

    To find out whether a task can be built, this function builds it once. It skips tasks whose valid configs are all
    known to build, because building all tasks takes seconds and 20 MB. `include` (empty: all), `exclude` (takes
    precedence over include) and the keys of `weights` are selectors. `overrides` maps a task's name to config fields.
    `modules` are imported first, and register the user's own datasets. Raises EnvironmentSetupError for any mistake in
    the arguments, and NoTasksError if no task remains.
    """
    library.import_modules(tuple(modules))
    known = library.registry()
    categories = categories_in_registry()
    resolved = selectors.resolve_weights(weights or {}, categories)
    typed = _checked_overrides(overrides or {}, known)
    excluded = selectors.excluded_tasks(include, exclude, resolved, categories)
    if COMPOSITE in known and not (COMPOSITE in include and typed.get(COMPOSITE)):
        excluded.setdefault(COMPOSITE, _IS_COMPOSITE)
    _warn_without_effect(include, {*typed, *(weights or {})}, excluded)
    tasks: list[Task] = []
    failed: dict[str, str] = {}
    with library.stdout_to_stderr():
        for name in sorted(known.keys() - excluded.keys()):
            task = Task(name, categories[name], resolved[name], typed.get(name, {}))
            reason = _unbuildable(task)
            if reason:
                logger.warning("%s is excluded because it %s", name, reason)
                failed[name] = reason
            else:
                tasks.append(task)
    if not tasks:
        causes = [f"{reason} ({count})" for reason, count in Counter(excluded.values()).most_common()]
        causes += [f"{name} {reason}" for name, reason in failed.items()]
        raise NoTasksError(f"No task remains to serve with these settings: {'; '.join(causes)}.")
    return Catalog(tuple(tasks), dict(sorted({**excluded, **failed}.items())))


def builds_if_valid(task: str, overrides: Mapping[str, Any]) -> bool:
    """Whether every valid config of this task is known to build a dataset. Then there is no need to build one.

    This is true for a task without overrides that was measured with this release of reasoning-gym. Overrides may name a
    file that does not exist.
    """
    is_measured = task in load_facts(library.load().version) and is_of_library(task)
    return is_measured and not overrides


def is_of_library(task: str) -> bool:
    """Whether the task's datasets are those of reasoning-gym. A user's own dataset may have the name of its task."""
    dataset_class, _ = _classes_of(task)
    return _is_library(dataset_class)


def _category(dataset_class: type) -> str:
    """The category of a dataset, found without building the dataset.

    reasoning-gym takes the category from the second part of the module's name. For a module of the user this part has
    no meaning, so the category is "other" unless the dataset defines its own.
    """
    owner = next(base for base in dataset_class.__mro__ if "category" in vars(base))
    if _is_library(owner) and not _is_library(dataset_class):
        return "other"
    return str(object.__new__(dataset_class).category)


def _is_library(dataset_class: type) -> bool:
    root, _, _ = dataset_class.__module__.partition(".")
    return root == "reasoning_gym"


def _warn_without_effect(include: Sequence[str], given: Iterable[str], excluded: Mapping[str, str]) -> None:
    for name in sorted(excluded.keys() & set(given)):
        if excluded[name] != selectors.NO_WEIGHT:
            logger.warning(
                "The overrides or weight of %s have no effect: %s.",
                name,
                excluded[name],
            )
    if COMPOSITE in include and excluded.get(COMPOSITE) == _IS_COMPOSITE:
        logger.warning("%s is excluded: %s.", COMPOSITE, _IS_COMPOSITE)


def _unbuildable(task: Task) -> str:
    """Why the task cannot be built, or "". Raises EnvironmentSetupError for a task with overrides."""
    if builds_if_valid(task.name, task.overrides):
        return ""
    try:
        # This builds the dataset only. It makes no item, because some items take seconds.
        library.create_dataset(task.name, **copy.deepcopy(dict(task.overrides)), **PER_ITEM)
    # The code of a user's dataset may raise anything. The other tasks must still be found.
    except Exception as error:
        reason = library.explain(error)
        if not task.overrides:
            return f"cannot be built: {reason}"
        given = ", ".join(f"{name}={value!r}" for name, value in task.overrides.items())
        raise EnvironmentSetupError(f"The overrides of {task.name} are not valid: {given}: {reason}.") from error
    return ""


# --- overrides ---


def config_of(task: str, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The task's complete config, without `seed` and `size`, as arguments of `library.create_dataset`.

    A dataset built from it equals a dataset built from `overrides` alone, even if a later release changes the defaults.
    """
    typed = typed_overrides(task, overrides or {})
    return fields_of(config_class_of(task)(**typed, **PER_ITEM))


@functools.cache
def defaults_of(task: str) -> dict[str, Any]:
    """The complete default config. Raises UnknownNameError for an unknown task."""
    return config_of(task)


def config_from_json(task: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a problem, restored from its JSON. Raises the same errors as `typed_overrides`.

    JSON does not have all types. If a value has the same JSON as the default, this function returns the default.
    Numbers stay as they are, because JSON keeps them, and a level may have an integer where the default is a float.
    """
    defaults = defaults_of(task)
    restored = typed_overrides(task, config)
    for name, value in restored.items():
        is_number = type(value) in (int, float)
        if name in defaults and not is_number and to_json(defaults[name]) == config[name]:
            restored[name] = defaults[name]
    return restored


def fields_of(config: Any) -> dict[str, Any]:
    """Copies of the fields of a config object, without `seed` and `size`.

    These are copies because a curriculum uses the same lists in several configs. dataclasses.asdict would turn nested
    configs into dicts, which no dataset accepts.
    """
    names = [field.name for field in dataclasses.fields(config) if field.init and field.name not in PER_ITEM]
    return {name: copy.deepcopy(getattr(config, name)) for name in names}


def _checked_overrides(overrides: Mapping[str, Mapping[str, Any]], known: Registry) -> dict[str, dict[str, Any]]:
    """The overrides by task, with values of the declared types. Raises EnvironmentSetupError for a mistake."""
    typed: dict[str, dict[str, Any]] = {}
    for task, fields in overrides.items():
        if task not in known:
            raise unknown_name("task", task, known, "Overrides need the task's exact name.")
        if not isinstance(fields, Mapping):
            raise EnvironmentSetupError(f"The overrides of {task} must map config fields, got {fields!r}.")
        typed[task] = typed_overrides(task, fields)
    return typed


def config_class_of(task: str) -> type:
    """The class of the task's config. Raises UnknownNameError for an unknown task."""
    _, config_class = _classes_of(task)
    return config_class


def _classes_of(task: str) -> tuple[type, type]:
    """The class of the task's datasets and the class of its configs."""
    known = library.registry()
    if task not in known:
        raise unknown_name("task", task, known)
    return known[task]


def typed_overrides(task: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a task's overrides, with values of the declared types.

    Raises UnknownNameError for an unknown task or field, and EnvironmentSetupError for any other mistake.
    """
    config_class = config_class_of(task)
    known = [name for name in inspect.signature(config_class).parameters if name not in PER_ITEM]
    hints = typing.get_type_hints(config_class)
    typed: dict[str, Any] = {}
    for name, value in overrides.items():
        if name in PER_ITEM:
            raise EnvironmentSetupError(f"{name!r} of {task} cannot be overridden: each draw sets its own.")
        if name not in known:
            raise unknown_name(
                f"config field of {task}",
                str(name),
                known,
                f"Fields: {', '.join(known)}.",
            )
        try:
            typed[name] = _typed_value(hints.get(name), copy.deepcopy(value))
        except (TypeError, ValueError) as error:
            cause = f"{name}={value!r}: {library.explain(error)}"
            raise EnvironmentSetupError(f"The overrides of {task} are not valid: {cause}.") from error
    return typed


def _typed_value(hint: Any, value: Any) -> Any:
    """Convert a value of YAML (mapping, list, text) to the type that the config declares."""
    origin = typing.get_origin(hint) or hint
    elements = typing.get_args(hint)
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
    if issubclass(hint, enum.Enum) and issubclass(hint, str):
        return hint(value)
    return value
