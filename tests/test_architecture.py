"""Imports point downward: a folder imports only folders of a lower rank, and nothing imports in a circle.

The list below is the plan (docs/architecture.md). Imports for type checking count like any other.
"""

from __future__ import annotations

import ast
import functools
import graphlib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "reasoning_gym_environment"

RANKS = [
    {"records", "errors", "thinking"},
    {"utils"},
    {"tasks"},
    {"verification"},
    {"settings"},
    {"workers"},
    {"sampling", "scoring", "inference"},
    {"storage"},
    {"telemetry"},
    {"evaluation"},
    {"runtime", "group"},
    {"recipes"},
    {"rows"},
    {"trainer"},
    {"ledger"},
    {"recorder"},
    {"run"},
    {"api", "atropos"},
    {"env"},
    {"html_report", "integrations"},
    {"commands"},
    {"cli"},
    {"__main__", "reasoning_gym_environment"},
]
"""Folders, and single modules of the package's root, the lowest first."""

RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}


def module_name(path: Path) -> str:
    """`workers/pool.py` -> `workers.pool`, `workers/__init__.py` -> `workers`, the root -> ``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


TYPES = {"atropos": "env"}
"""The commands take an environment, whose class runs them. They import the name of this class for type checking only.

A protocol with the same methods would have one implementation, and would have to be read besides the class.
"""


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@functools.cache
def imported(module: str) -> set[str]:
    """Modules of ours that `module` imports anywhere in its source, for type checking too, except those of TYPES."""
    tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
    anchor = module.split(".") if SOURCES[module].name == "__init__.py" and module else module.split(".")[:-1]
    found: set[str] = set()
    typed = {inner for node in ast.walk(tree) if is_for_types(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = [*anchor[: len(anchor) - (node.level - 1)]] if node.level else []
            names_own_package = node.module and node.module.partition(".")[0] == PACKAGE.name
            if not node.level and not names_own_package:
                continue
            base += (node.module or "").removeprefix(f"{PACKAGE.name}").strip(".").split(".")
            target = ".".join(part for part in base if part)
            names = {f"{target}.{name.name}".lstrip(".") for name in node.names}
            # `from ..folder import module` needs the module; `from ..folder.module import name` the module named.
            if node not in typed or TYPES.get(folder(module)) != target:
                found |= (names & SOURCES.keys()) or ({target} & SOURCES.keys())
    return found - {module, ""}


def folder(module: str) -> str:
    return module.split(".")[0]


def test_every_folder_has_a_rank() -> None:
    assert {folder(module) for module in SOURCES if module} == RANK.keys()


def test_a_folder_imports_only_folders_of_a_lower_rank() -> None:
    wrong = [
        f"{module} ({RANK[folder(module)]}) imports {other} ({RANK[folder(other)]})"
        for module in SOURCES
        if module
        for other in imported(module)
        if folder(other) != folder(module) and RANK[folder(other)] >= RANK[folder(module)]
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_imports_in_a_circle() -> None:
    # The package itself names what it loads on first use, and is imported by all.
    graph = {module: imported(module) for module in SOURCES if module}
    graphlib.TopologicalSorter(graph).prepare()


def test_a_door_imports_the_hinge_and_nothing_below_it() -> None:
    doors = [module for module in SOURCES if folder(module) == "integrations"]
    wrong = [
        f"{module} imports {other}"
        for module in doors
        for other in imported(module)
        if other != "api" and folder(other) != "integrations"
    ]
    assert len(doors) >= 8
    assert not wrong, "\n".join(wrong)
