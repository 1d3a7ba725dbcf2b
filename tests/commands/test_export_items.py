"""Rows of items: training and held-out questions stay apart, and a row is graded from its recipe alone."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from reasoning_gym_environment import PromptedProblem, Recipe, Tasks, cli
from reasoning_gym_environment.api import Row
from reasoning_gym_environment.commands import export
from reasoning_gym_environment.commands import export_items as items_module
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.integrations.item_formats import ITEM_FORMATS
from reasoning_gym_environment.sampling.seeds import is_held_out, question_digest
from reasoning_gym_environment.settings.components import EvaluationSettings
from testing.hostile_answers import ATTACK_MODULE, ATTACK_TASK
from testing.in_process import in_process_workers

# Items with tuples, with keys that are no texts, and without an answer.
TASKS = "arc_agi,complex_arithmetic,countdown,graph_color,propositional_logic"
WITHOUT_ANSWER = "propositional_logic"
ITEMS = 15
SPLITS = ("train", "eval")
CASES = [(name, split) for name in ITEM_FORMATS for split in SPLITS]
RECIPE = ("task", "seed", "config", "question_digest")
"""The fields of a recipe that decide about the item."""

Rows = dict[tuple[str, str], list[dict[str, Any]]]


def export_items(folder: Path, kind: str, *options: str) -> Path:
    assert export.main([kind, "--to", str(folder), *options]) == 0
    return folder


def read(folder: Path, name: str, split: str) -> list[dict[str, Any]]:
    path = folder / ITEM_FORMATS[name].files[split]  # type: ignore[index]
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
        return rows
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def recipe_of(name: str, row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = eval(ITEM_FORMATS[name].recipe_in_python, {"row": row})
    return found


def question_of(name: str, row: dict[str, Any]) -> str:
    messages = row["responses_create_params"]["input"] if name == "nemo-gym" else row["prompt"]
    assert [message["role"] for message in messages] == ["system", "user"]
    return str(messages[1]["content"])


def once(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that makes the items for the first format, which takes seconds, and gives the same to the others."""
    made: list[Any] = []

    def items(options: Any) -> Any:
        if not made:
            made.append(make(options))
        return made[0]

    return items


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """A folder of each format and split, from the same items."""
    made = {}
    chosen: dict[str, tuple[str, ...]] = {
        "train": ("items", "--count", str(ITEMS), "--complexity", "none"),
        "eval": ("held-out", "--per-task", "1"),
    }
    with in_process_workers(), pytest.MonkeyPatch.context() as patch:
        for name in ("_training", "_held_out"):
            patch.setattr(items_module, name, once(getattr(items_module, name)))
        for name, split in CASES:
            folder = tmp_path_factory.mktemp(f"{name}-{split}")
            made[name, split] = export_items(folder, *chosen[split], "--tasks", TASKS, "--format", name)
    return made


@pytest.fixture(scope="module")
def rows(folders: dict[tuple[str, str], Path]) -> Rows:
    return {(name, split): read(folder, name, split) for (name, split), folder in folders.items()}


@pytest.fixture(scope="module")
def tasks() -> Iterator[Tasks]:
    with in_process_workers(), Tasks(TASKS) as made:
        yield made


def test_all_formats_have_the_same_questions_and_recipes(rows: Rows) -> None:
    for split in SPLITS:
        expected = [(row["prompt"][1]["content"], recipe_of("hf", row)) for row in rows["hf", split]]
        for name in ITEM_FORMATS:
            found = [(question_of(name, row), recipe_of(name, row)) for row in rows[name, split]]
            assert [question for question, _ in found] == [question for question, _ in expected]
            for (_, recipe), (_, other) in zip(found, expected, strict=True):
                assert {field: recipe[field] for field in RECIPE} == {field: other[field] for field in RECIPE}


@pytest.mark.parametrize("split", SPLITS)
def test_a_row_is_held_out_or_not_and_grades_its_own_right_answer_as_1(split: str, rows: Rows, tasks: Tasks) -> None:
    answers = [row["answer"] for row in rows["hf", split]]
    recipes = [recipe_of("hf", row) for row in rows["hf", split]]
    expected = {"train": ITEMS, "eval": len(TASKS.split(","))}
    assert len({recipe["question_digest"] for recipe in recipes}) == len(recipes) == expected[split]
    for recipe, answer in zip(recipes, answers, strict=True):
        problem = tasks.make(recipe["task"], recipe["seed"], json.loads(recipe["config"]))
        assert is_held_out(problem.library_question) is (split == "eval")
        [grade] = tasks.grade(recipe, [f"<think>so</think><answer>{answer}</answer>"])
        assert grade.reward == (0.0 if answer is None else 1.0), (recipe, grade)
        assert (answer is None) == (recipe["task"] == WITHOUT_ANSWER)


@pytest.mark.parametrize("name", ITEM_FORMATS)
def test_an_item_without_the_keys_answer_and_metadata_has_a_row(name: str) -> None:
    """Training accepts such items of datasets of one's own."""
    entry = {"question": "1 or 2?"}
    problem = PromptedProblem("own", "", split="train", index=0, seed=1, config={}, entry=entry)
    row = ITEM_FORMATS[name].row(Row(0, problem, Recipe.of(problem)))
    assert recipe_of(name, row)["question_digest"] == question_digest("1 or 2?")
    assert not row.get("answer")


async def test_the_manifest_of_an_export_is_what_evaluate_prints(
    tmp_path: Path,
    ready_env: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    chosen = "chain_sum,gcd,products"
    folder = export_items(tmp_path / "eval", "held-out", "--tasks", chosen)
    [manifest] = re.findall(r"held-out questions \(manifest (\w{16})\)", capsys.readouterr().out)
    assert f"**Manifest**: `{manifest}`" in (folder / "README.md").read_text()
    rows = read(folder, "hf", "eval")
    caplog.clear()
    caplog.set_level(logging.INFO)
    per_task = EvaluationSettings.model_fields["num_eval_samples_per_task"].default
    env = await ready_env(include_tasks=chosen, num_eval_samples_per_task=per_task)
    questions = await env.run.questions()
    assert [row["question_digest"] for row in rows] == [question_digest(problem.question) for problem in questions]
    assert questions.manifest == manifest
    assert f"Evaluation set {manifest}: 15 items of 3 tasks" in caplog.text


def test_the_card_counts_the_items_and_has_few_lines_of_python(folders: dict[tuple[str, str], Path]) -> None:
    for (name, split), folder in folders.items():
        card = (folder / "README.md").read_text()
        counts = re.findall(r"^\| (\w+) \| (\d+) \| (.+) \|$", card, re.MULTILINE)
        found = [recipe_of(name, row) for row in read(folder, name, split)]
        assert sorted(task for task, _, _ in counts) == sorted({recipe["task"] for recipe in found})
        for task, count, levels in counts:
            assert sum(recipe["task"] == task for recipe in found) == int(count)
            assert levels == "default config"
        [code] = re.findall(r"^```python\n(.*?)^```", card, re.MULTILINE | re.DOTALL)
        assert code.count("\n") <= 6


def test_training_items_have_the_chosen_levels(tmp_path: Path, in_process_workers: None) -> None:
    for given, expected in (((), 3), (("--complexity", "0"), 1), (("--complexity", "1", "--seed", "7"), 1)):
        folder = tmp_path / "-".join(["out", *given])
        export_items(folder, "items", "--count", "20", "--tasks", "chain_sum", *given)
        counts = Counter(row["level"] for row in read(folder, "hf", "train"))
        assert len(counts) >= expected and (len(counts) == 1) == (expected == 1)
        listed = ", ".join(f"{level} ({counts[level]})" for level in sorted(counts))
        assert f"| chain_sum | 20 | {listed} |" in (folder / "README.md").read_text()


def test_items_have_other_parameters(tmp_path: Path, in_process_workers: None) -> None:
    overrides = '{"chain_sum": {"min_terms": 2, "max_terms": 2}}'
    chosen = ("items", "--count", "3", "--tasks", "chain_sum", "--task-overrides", overrides)
    folder = export_items(tmp_path / "sums", *chosen, "--complexity", "none", "--format", "nemo-gym")
    configs = [json.loads(row["metadata"]["recipe"]["config"]) for row in read(folder, "nemo-gym", "train")]
    assert {config["max_terms"] for config in configs} == {2}


@pytest.mark.slow
def test_a_folder_has_tasks_of_ones_own_and_the_python_of_its_card_serves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_datasets: None
) -> None:
    modules = ("--task-modules", ATTACK_MODULE, "--allow-unguarded-tasks", ATTACK_TASK)
    chosen = ("items", "--count", "1", "--tasks", ATTACK_TASK, "--complexity", "none", "--format", "nemo-gym")
    own = export_items(tmp_path / "own", *chosen, *modules)
    [row] = read(own, "nemo-gym", "train")
    assert row["metadata"]["recipe"]["task"] == ATTACK_TASK
    monkeypatch.chdir(own)
    [code] = re.findall(r"^```python\n(.*?)^```", Path("README.md").read_text(), re.MULTILINE | re.DOTALL)
    capsys.readouterr()
    exec(code.replace("42", "right"), {})
    assert capsys.readouterr().out == "1.0\n"


def test_more_items_than_a_task_has_are_refused_and_leave_no_folder(tmp_path: Path, in_process_workers: None) -> None:
    chosen = ("items", "--count", "20", "--tasks", "coin_flip", "--complexity", "0")
    with pytest.raises(EnvironmentSetupError, match="--count: expected 20 different questions, but"):
        export_items(tmp_path / "out", *chosen)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["items", "--count", "3", "--eval-seed", "1"], "--eval-seed"),
        (["held-out", "--complexity", "1"], "--complexity"),
        (["sft", "PATH", "--tasks", "gcd"], "--tasks"),
        (["cold-start", "--count", "3", "--min-score", "1"], "--min-score"),
    ],
)
def test_an_option_of_another_kind_is_unknown(
    arguments: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        export.main([*arguments, "--to", "out"])
    assert f"unrecognized arguments: {option}" in capsys.readouterr().err


def test_training_items_and_held_out_questions_are_never_in_the_same_folder(
    folders: dict[tuple[str, str], Path],
) -> None:
    for name, split in CASES:
        other = ("items", "--count", "3") if split == "eval" else ("held-out",)
        with pytest.raises(EnvironmentSetupError, match="expected a new folder"):
            export_items(folders[name, split], *other, "--format", name)


def test_a_missing_library_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SystemExit) as end:
        cli.main(["export", "items", "--count", "3", "--to", str(tmp_path / "out")])
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        'reasoning-gym-env: export needs pyarrow: `pip install ".[export]"` in the checkout brings it.\n'
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "split"), [("hf", "train"), ("hf", "eval"), ("verl", "train")])
def test_datasets_reads_the_folder(
    name: str, split: str, folders: dict[tuple[str, str], Path], rows: Rows, tmp_path: Path
) -> None:
    import datasets

    loaded = datasets.load_dataset(str(folders[name, split]), cache_dir=str(tmp_path))
    [(found, table)] = loaded.items()
    assert found == {"train": "train", "eval": "test"}[split]
    assert table.to_list() == rows[name, split]
