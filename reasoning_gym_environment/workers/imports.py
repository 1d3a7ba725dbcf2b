"""Which code a child process imports: the same reasoning-gym and the same task modules as its parent.

The parent writes it down (`Imports.as_here`), the child, which starts with an empty environment in another
folder, carries it out (`perform`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..tasks import reasoning_gym_source as library


@dataclass(frozen=True)
class Imports:
    """`library_path` goes to the front of sys.path, `sys_path` to its end; then `task_modules` are imported."""

    library_path: str | None = None
    sys_path: tuple[str, ...] = ()
    task_modules: tuple[str, ...] = ()

    @classmethod
    def as_here(cls, library_path: str | None, task_modules: Sequence[str]) -> Imports:
        """What this process would import. Paths become absolute: the child works in another folder."""
        search_path = tuple(os.path.realpath(path or os.curdir) for path in sys.path)
        modules = tuple(_absolute(module) if module.endswith(".py") else module for module in task_modules)
        return cls(library_path and os.path.realpath(library_path), search_path, modules)

    def perform(self) -> None:
        """Import reasoning-gym and the task modules. Raises EnvironmentSetupError, naming what cannot be."""
        if self.library_path is not None:
            sys.path.insert(0, _import_root(self.library_path))
        sys.path.extend(path for path in self.sys_path if path not in sys.path)
        library.load()
        library.import_modules(self.task_modules)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def _import_root(library_path: str) -> str:
    """The folder to import from: a checkout's root is one, an installed package lies in one."""
    path = Path(library_path)
    return str(path.parent if path.name == "reasoning_gym" and (path / "__init__.py").is_file() else path)
