"""From settings to the catalog of tasks that a run serves; what is left out is named, with the reason."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

from tqdm import tqdm

from ..config import ReasoningGymEnvConfig
from ..errors import unknown_name
from ..verification import eval_guards as guard
from . import reasoning_gym_source as library
from .catalog import Catalog, discover
from .measured_data import low_entropy_note, quarantine
from .selectors import parse_names, parse_weights

logger = logging.getLogger(__name__)


def served_tasks(config: ReasoningGymEnvConfig) -> Catalog:
    """The tasks to serve, without those whose verifier runs the model's answer as code, or was found to pay garbage."""
    catalog = discover(
        include=parse_names(config.include_tasks),
        exclude=parse_names(config.exclude_tasks),
        weights=parse_weights(config.task_weights),
        overrides=cast(dict[str, dict[str, Any]], config.task_overrides),
        modules=parse_names(config.task_modules),
        progress=progress("tasks"),
    )
    allowed = parse_names(config.allow_unguarded_tasks)
    for name in allowed:
        if name not in library.registry():
            raise unknown_name("task", name, library.registry(), "It is named in allow_unguarded_tasks.")
    refused = {task: reason for task, reason in guard.unguarded_tasks().items() if task not in allowed}
    for task in sorted(set(refused) & set(catalog.names)):
        logger.warning(
            "%s is not served: %s. Name it in allow_unguarded_tasks to serve it all the same.", task, refused[task]
        )
    catalog = catalog.without(refused)
    if config.quarantine:
        strict, asked_for = config.verification == "strict", parse_names(config.include_tasks)
        version = library.load().version
        catalog = catalog.without(quarantine(catalog.names, version=version, strict=strict, asked_for=asked_for))
    _log(catalog)
    if note := low_entropy_note(catalog.names, with_levels=config.complexity_mode is not None):
        logger.info("%s.", note)
    return catalog


def _log(catalog: Catalog) -> None:
    logger.info("Serving %s in %s.", _count(len(catalog), "task"), _count(len(catalog.categories), "category"))
    by_reason: dict[str, list[str]] = {}
    for name, reason in catalog.excluded.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        logger.info("Left out: %s (%s).", shown, reason)


def progress(what: str) -> Callable[[Any], Any]:
    return lambda items: tqdm(items, desc=what, unit="task", disable=None, leave=False)


def _count(number: int, noun: str) -> str:
    plural = f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
