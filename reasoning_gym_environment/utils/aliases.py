"""Longer names of this package, such as `environments.reasoning_gym_environment` in a tree of Atropos.

A program may import the package under several names. All of them must lead to the same modules, because a class that
exists twice breaks `isinstance` and pickles.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

NAME = "reasoning_gym_environment"


def add_alias(alias: str, package_file: str) -> None:
    """Let `alias` and its submodules be the modules of the package NAME, which is imported already.

    Raises ImportError if the process has imported NAME from another file than `package_file`.
    """
    package = sys.modules[NAME]
    if Path(str(package.__file__)).resolve() != Path(package_file).resolve():
        raise ImportError(
            f"Expected {NAME} from {package_file}, but this process has imported it from {package.__file__}. "
            "Import only one of the two copies."
        )
    sys.modules[alias] = package
    sys.meta_path.insert(0, AliasFinder(alias))
    # Other processes that get a pickled object of this package import it under its own name.
    sys.path.append(str(Path(package_file).resolve().parent.parent))


class AliasFinder:
    """Finds and loads the submodules of an alias: they are the submodules of the package NAME."""

    def __init__(self, alias: str) -> None:
        self._prefix = f"{alias}."

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a submodule of the alias, or None for every other module."""
        if not name.startswith(self._prefix):
            return None
        real = importlib.util.find_spec(self._real_name(name))
        if real is None:
            return None
        is_package = real.submodule_search_locations is not None
        return ModuleSpec(name, self, origin=real.origin, is_package=is_package)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create an empty module. `exec_module` replaces it."""

    def exec_module(self, module: ModuleType) -> None:
        """Replace the new module by the real one."""
        sys.modules[module.__name__] = importlib.import_module(self._real_name(module.__name__))

    def get_code(self, name: str) -> CodeType | None:
        """The code that `python -m` runs."""
        spec = importlib.util.find_spec(self._real_name(name))
        return spec.loader.get_code(spec.name)  # type: ignore[union-attr]

    def _real_name(self, name: str) -> str:
        return f"{NAME}.{name.removeprefix(self._prefix)}"
