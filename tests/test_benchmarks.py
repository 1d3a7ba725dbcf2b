"""The measuring scripts keep up with the code they measure."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import reasoning_gym_environment

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
SCRIPTS = sorted([*FOLDER.glob("*.py"), *FOLDER.glob("facts/*.py"), *FOLDER.glob("audit/*.py")])
PARTS = sorted(FOLDER.glob("*_parts/*.py"))
"""What a script is made of, when it is more than one file."""


@pytest.mark.parametrize("script", [*SCRIPTS, *PARTS], ids=lambda path: path.stem)
def test_everything_that_a_script_imports_from_the_package_exists(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("reasoning_gym_environment"):
            if node.module == "reasoning_gym_environment.trl":
                # TRL is not installed here; tests/integrations runs what this gives.
                package = Path(reasoning_gym_environment.__file__).parent
                source = (package / "integrations" / "trl.py").read_text(encoding="utf-8")
                assert all(f"class {name.name}(" in source for name in node.names)
                continue
            module = importlib.import_module(str(node.module))
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")


def test_every_part_of_a_script_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    assert [importlib.import_module(f"{part.parent.name}.{part.stem}") for part in PARTS]


@pytest.mark.slow
def test_real_learning_compares_ways_by_what_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    script = importlib.import_module("real_learning")
    fixed = {"warm_start": str(script.WARM_START), "rate": 3e-4, "target": 0.7, "each": 4, "groups": 32, "curve": 0}
    fixed |= {"partial_credit": "exact"}
    runs = [
        script.learn(
            {**fixed, "mix": "three", "way": way, "seed": seed, "shuffled": shuffled, "options": {"task_floor": 0.12}}
        )
        for way, shuffled in (
            (script.BASE, False),
            ("sampler, curriculum", False),
            (script.AS_SHIPPED, False),
            (script.BASE, True),
        )
        for seed in (1, 2)
    ]
    assert all(sum(run["drawn"].values()) == 32 and run["steps"] >= 2 and 0.0 < run["after"] < 1.0 for run in runs)
    again = script.learn({**fixed, **{name: runs[0][name] for name in ("mix", "way", "seed", "shuffled", "options")}})
    assert {**again, "seconds": 0} == {**runs[0], "seconds": 0}, "a run is a function of its settings"
    made = script.report(runs)["three"]
    difference = made[f"against {script.BASE}"]["sampler, curriculum"]
    gains = {way: made["ways"][way]["gain"] for way in made["ways"]}
    assert difference["difference"] == pytest.approx(gains["sampler, curriculum"] - gains[script.BASE], abs=1e-3)
    assert difference["seeds"] == 2 and made["shuffled_rewards"]["runs"] == 2
