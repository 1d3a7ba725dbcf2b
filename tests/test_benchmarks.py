"""The measuring scripts keep up with the code they measure."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

import reasoning_gym_environment

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
SCRIPTS = sorted([*FOLDER.glob("*.py"), *FOLDER.glob("facts/*.py")])
PARTS = sorted(FOLDER.glob("*_parts/*.py"))
"""What a script is made of, when it is more than one file."""


@pytest.mark.parametrize("script", [*SCRIPTS, *PARTS], ids=lambda path: path.stem)
def test_everything_that_a_script_imports_from_the_package_exists(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("reasoning_gym_environment"):
            if node.module == "reasoning_gym_environment.trl":
                # TRL is not installed here; tests/doors runs what this gives.
                source = Path(reasoning_gym_environment.__file__).with_name("trl.py").read_text(encoding="utf-8")
                assert all(f"class {name.name}(" in source for name in node.names)
                continue
            module = importlib.import_module(str(node.module))
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")


def test_every_part_of_a_script_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    assert [importlib.import_module(f"{part.parent.name}.{part.stem}") for part in PARTS]


def test_every_script_says_how_it_is_run() -> None:
    for script in SCRIPTS:
        source = script.read_text(encoding="utf-8")
        text = ast.get_docstring(ast.parse(source)) or ""
        assert f"python benchmarks/{script.relative_to(FOLDER)}" in text or "__main__" not in source, script.name


@pytest.fixture
def soak_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    return lambda name: importlib.import_module(f"soak_parts.{name}")


def dump_line(index: int, *scores: float, task: str = "gcd") -> str:
    rollouts = [{"score": score} for score in scores]
    return json.dumps({"task": task, "seed": 100 + index, "index": index, "rollouts": rollouts}) + "\n"


def test_a_look_at_dumps_finds_broken_lines_items_twice_and_items_that_are_missing(
    tmp_path: Path, soak_parts: Callable[[str], Any]
) -> None:
    (tmp_path / "a.jsonl").write_text(dump_line(0, 0.0, 1.0) + dump_line(1, 1.0, 1.0) + "{broken}\n")
    (tmp_path / "b.jsonl.part").write_text(dump_line(4, 0.0, 0.0) + dump_line(1, 1.0, 1.0) + '{"task"')
    groups = soak_parts("dumps").read_dumps(tmp_path)
    assert groups.with_signal == 1
    assert groups.report() == {
        "groups_dumped": 6,
        "lines_that_are_not_json": 2,
        "files_without_their_final_name": 1,
        "items_dumped_twice": 1,
        "indices_dumped_twice": 1,
        "indices_not_dumped": 2,
        "tasks": 1,
    }


def test_lines_of_a_part_count_once_when_it_gets_its_final_name(
    tmp_path: Path, soak_parts: Callable[[str], Any]
) -> None:
    counter = soak_parts("dumps").DumpCounter(tmp_path)
    part = tmp_path / "a.jsonl.part"
    part.write_text(dump_line(0, 1.0))
    assert counter.update() == 1
    part.write_text(dump_line(0, 1.0) + dump_line(1, 1.0))
    part.rename(tmp_path / "a.jsonl")
    assert counter.update() == 2


def test_memory_that_grows_along_a_run_has_a_slope_and_what_goes_up_and_down_has_none(
    soak_parts: Callable[[str], Any],
) -> None:
    timeline = soak_parts("timeline")
    held = [{"serve": {"rss_mb": 100 + 0.002 * n, "handles": 20 + n // 50 % 2}} for n in range(0, 2001, 50)]
    samples = [timeline.Sample(50 * number, levels) for number, levels in enumerate(held)]
    found = timeline.holdings(samples, 2000)["serve"]
    assert found["rss_mb"]["per_1000_groups"] == found["rss_mb"]["per_1000_groups_in_second_half"] == 2.0
    assert (found["rss_mb"]["start"], found["rss_mb"]["middle"], found["rss_mb"]["end"]) == (100.2, 102.0, 103.9)
    assert abs(found["handles"]["per_1000_groups"]) < 0.1


def test_groups_per_second_start_with_the_first_group(soak_parts: Callable[[str], Any]) -> None:
    history = [(0.0, 0), (20.0, 0), (21.0, 10), (30.0, 100)]
    assert soak_parts("timeline").rates(history, 100) == {"all": 10.0, "first_tenth": 10.0, "last_tenth": 10.0}


def test_the_cheap_student_solves_some_questions_and_has_an_answer_to_all(soak_parts: Callable[[str], Any]) -> None:
    student = soak_parts("student").Student(seed=1)
    for task in ("chain_sum", "products", "gcd", "lcm", "spell_backward", "count_bits", "letter_counting"):
        dataset = reasoning_gym.create_dataset(task, seed=5, size=3)
        for entry in dataset:
            prompt = f"<|im_start|>user\n{entry['question']}<|im_end|>\n<|im_start|>assistant\n"
            replies = {student.respond(prompt) for _ in range(30)}
            assert any(f"<answer>{entry['answer']}</answer>" in reply for reply in replies), entry
            assert len(replies) > 1
    assert "<answer>" in student.respond("user\nWhy?")


@pytest.mark.slow
def test_real_learning_compares_ways_by_what_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    script = importlib.import_module("real_learning")
    fixed = {"warm_start": str(script.WARM_START), "rate": 3e-4, "target": 0.7, "each": 4, "groups": 32, "curve": 0}
    fixed |= {"partial_credit": "baseline"}
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
