"""The measuring scripts keep up with the code they measure."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
SCRIPTS = sorted([*FOLDER.glob("*.py"), *FOLDER.glob("facts/*.py"), *FOLDER.glob("audit/*.py")])
PARTS = sorted(FOLDER.glob("*_parts/*.py"))
"""What a script is made of, when it is more than one file."""


@pytest.mark.parametrize("script", [*SCRIPTS, *PARTS], ids=lambda path: path.stem)
def test_everything_that_a_script_imports_from_the_package_exists(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("reasoning_gym_environment"):
            continue
        # TRL is not installed here; tests/integrations runs what stands for it.
        if node.module != "reasoning_gym_environment.trl":
            module = importlib.import_module(str(node.module))
            for name in node.names:
                assert hasattr(module, name.name) or importlib.import_module(f"{node.module}.{name.name}")


def test_every_part_of_a_script_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    assert [importlib.import_module(f"{part.parent.name}.{part.stem}") for part in PARTS]
