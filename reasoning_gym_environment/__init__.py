"""Reasoning-gym's tasks for training language models: with Atropos, with other trainers, from Python.

    from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig    # the environment for Atropos
    from reasoning_gym_environment import Tasks, ItemStream, HeldOut, grade         # its parts; docs/python.md
    from reasoning_gym_environment import Rows, grade, report                       # the same for other trainers

What they give and raise: `reasoning_gym_environment.records`, `reasoning_gym_environment.evaluation.results`,
`reasoning_gym_environment.errors`.

The public names load on first use (PEP 562): a worker process that imports one small module of this
package must not load atroposlib and transformers with it.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Grade as Grade
    from .api import HeldOut as HeldOut
    from .api import ItemStream as ItemStream
    from .api import PromptedProblem as PromptedProblem
    from .api import PromptLimit as PromptLimit
    from .api import Recipe as Recipe
    from .api import Rows as Rows
    from .api import Tasks as Tasks
    from .api import grade as grade
    from .api import new_store as new_store
    from .api import problem_of as problem_of
    from .api import report as report
    from .env import ReasoningGymEnv as ReasoningGymEnv
    from .inference.prompts import system_prompt as system_prompt
    from .integrations.trl import RowRewards as RowRewards
    from .integrations.verifiers import load_environment as load_environment
    from .settings.environment import ReasoningGymEnvConfig as ReasoningGymEnvConfig

__version__ = "0.2.0"

_VERIFIERS = (
    "ReasoningGymTaskset",
    "ReasoningGymVerifiersEnv",
    "SingleReplyHarness",
    "load_environment",
)
_NAMES = {
    "api": (
        "Grade",
        "HeldOut",
        "ItemStream",
        "PromptLimit",
        "PromptedProblem",
        "Recipe",
        "Rows",
        "Tasks",
        "grade",
        "new_store",
        "problem_of",
        "report",
    ),
    "env": ("ReasoningGymEnv",),
    "inference.prompts": ("system_prompt",),
    "integrations.trl": ("RowRewards",),
    "settings.environment": ("ReasoningGymEnvConfig",),
    "integrations.verifiers": _VERIFIERS,
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    except ModuleNotFoundError as error:
        from .errors import missing_extra

        raise ModuleNotFoundError(missing_extra(name, error), name=error.name) from error


def __dir__() -> list[str]:
    # verifiers imports each name of `__all__` to find its classes, and must not load Atropos for that. Where verifiers
    # is not installed, its classes cannot be imported.
    left_out = ("env", "settings.environment") if "verifiers" in sys.modules else ("integrations.verifiers",)
    names = (name for name, home in _HOME.items() if home not in left_out)
    return sorted(["__version__", *names])
