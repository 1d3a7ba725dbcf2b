"""The fields of tasks' own configs: what the user's overrides may say, and the whole config that results."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import inspect
import typing
from collections.abc import Mapping
from typing import Any

from ..errors import EnvironmentSetupError, unknown_name
from . import reasoning_gym_source as library

Kinds = dict[str, tuple[type, type]]  # task name -> (dataset class, config class)
PROBE = {"seed": 0, "size": 1}  # the sampler's fields, never the user's


def config_of(task: str, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The task's whole config, without `seed` and `size`, as arguments of `library.create_dataset`.

    A dataset built from it equals one built from `overrides` alone, and stays so if a later release
    changes its defaults. A config class that changes what it was given, so that its fields do not build
    the same config again, is represented by the overrides alone.
    """
    config_class = _config_class(task)
    typed = _typed_overrides(task, overrides or {}, config_class)
    config = config_class(**copy.deepcopy(typed), **PROBE)
    fields = dataclasses.fields(config)
    values = {f.name: getattr(config, f.name) for f in fields if f.init and f.name not in PROBE}
    whole = copy.deepcopy({**typed, **values})
    again = config_class(**copy.deepcopy(whole), **PROBE)
    faithful = all(getattr(again, f.name) == getattr(config, f.name) for f in fields)
    return whole if faithful else typed


def checked_overrides(overrides: Mapping[str, Mapping[str, Any]], kinds: Kinds) -> dict[str, dict[str, Any]]:
    """The overrides by task, with every value as its field declares it. Raises EnvironmentSetupError for a mistake."""
    typed: dict[str, dict[str, Any]] = {}
    for task, fields in overrides.items():
        if task not in kinds:
            raise unknown_name("task", task, kinds, "Overrides are given by the task's exact name.")
        if not isinstance(fields, Mapping):
            raise EnvironmentSetupError(f"The overrides of {task} must map config fields, got {fields!r}.")
        typed[task] = _typed_overrides(task, fields, kinds[task][1])
    return typed


def _config_class(task: str) -> type:
    try:
        kinds = library.registry()
    except library.RegistryError:
        return type(library.create_dataset(task, **PROBE).config)
    if task not in kinds:
        raise unknown_name("task", task, kinds)
    return kinds[task][1]


def _typed_overrides(task: str, overrides: Mapping[str, Any], config_class: type) -> dict[str, Any]:
    """A copy of the overrides with every value as its field declares it; refuses unknown fields."""
    parameters = inspect.signature(config_class).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    known = [name for name in parameters if name not in PROBE]
    hints = _type_hints(config_class)
    typed: dict[str, Any] = {}
    for name, value in overrides.items():
        if name in PROBE:
            raise EnvironmentSetupError(f"{name!r} of {task} cannot be overridden: the sampler sets it.")
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
