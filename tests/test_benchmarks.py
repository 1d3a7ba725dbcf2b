"""The measuring scripts keep up with the code they measure."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
SCRIPTS = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_everything_that_a_script_imports_from_the_package_exists(script: Path) -> None:
    imports = [
        node
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("reasoning_gym_environment")
    ]
    assert imports or script.stem in ("reduce_published_scores", "faults")
    for node in imports:
        module = importlib.import_module(str(node.module))
        for name in node.names:
            if not hasattr(module, name.name):
                importlib.import_module(f"{node.module}.{name.name}")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_says_how_it_is_run(script: Path) -> None:
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    assert f"python benchmarks/{script.name}" in text
