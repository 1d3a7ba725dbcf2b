"""A held-out set is written with what another machine needs to make it again, and a check finds each difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import HeldOut, Tasks
from reasoning_gym_environment.commands import benchmark
from reasoning_gym_environment.commands.dataset_folder import CARD
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.evaluation.questions import published_scores
from reasoning_gym_environment.integrations.recipe import Recipe
from reasoning_gym_environment.sampling.item_maker import is_held_out

TASKS = "chain_sum,spell_backward"


def written(folder: Path, *options: str) -> Path:
    assert benchmark.main(["--to", str(folder), "--tasks", TASKS, "--per-task", "2", *options]) == 0
    return folder


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / benchmark.QUESTIONS).open(encoding="utf-8")]


def manifest_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / benchmark.MANIFEST).read_text(encoding="utf-8"))
    return document


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("benchmark") / "set", "--complexity", "0.5")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of the set, which a test may change."""
    copy = tmp_path / "set"
    for path in (benchmark.QUESTIONS, benchmark.MANIFEST, benchmark.PUBLISHED):
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes((made / path).read_bytes())
    return copy


def test_the_folder_has_the_questions_of_the_python_interface_and_their_recipes(made: Path) -> None:
    rows, manifest = rows_of(made), manifest_of(made)
    with Tasks(TASKS) as tasks:
        held_out = HeldOut(tasks, per_task=2, complexity=0.5)
        assert [row["question"] for row in rows] == [problem.question for problem in held_out]
        assert manifest["set"]["manifest"] == held_out.manifest
        assert manifest["versions"]["reasoning-gym"] == tasks.version
    assert len(rows) == 4 and all(is_held_out(row["question"]) for row in rows)
    assert [Recipe.from_row(row) for row in rows] == [Recipe.from_row(row) for row in manifest["questions"]]
    assert {row["level"] for row in rows} != {None}


def test_the_card_says_which_results_belong_to_which_set(made: Path, tmp_path: Path) -> None:
    card = (made / CARD).read_text(encoding="utf-8")
    assert "do not belong to the questions of this folder" in card and "* **Held out.**" in card
    assert "| openai/o3-mini | 0.801 (101 tasks) | 0.635 (100 tasks) |" in card
    assert "| anthropic/claude-sonnet-4 | 0.702 (101 tasks) | not published |" in card
    easy = written(tmp_path / "easy", "--complexity", "easy", "--per-task", "1")
    card = (easy / CARD).read_text(encoding="utf-8")
    assert "have the configs of this folder, and other items" in card and "* **Not held out.**" in card
    assert manifest_of(easy)["set"]["hold_out"] == "published"
    assert benchmark.main(["--check", str(easy)]) == 0


def test_the_results_of_nine_models_are_beside_the_questions(made: Path) -> None:
    published = json.loads((made / benchmark.PUBLISHED).read_text(encoding="utf-8"))
    assert [len(published["sets"][name]["models"]) for name in ("easy", "hard")] == [9, 8]
    result = published["sets"]["easy"]["models"]["openai/o3-mini"]["chain_sum"]
    assert result == published_scores("easy")["openai/o3-mini"]["chain_sum"]._asdict() and sum(result["counts"]) == 50
    assert published["licence"] == "Apache-2.0" and "5f09fecc" in published["source"]


def test_a_check_finds_what_differs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["--check", str(folder)]) == 0
    manifest = manifest_of(folder)
    assert f"All 4 questions are the same here: manifest {manifest['set']['manifest']}." in capsys.readouterr().out
    manifest["questions"][0]["question_digest"] = "0" * 16
    manifest["questions"][3]["config"] = '{"letters": 3}'
    manifest["versions"]["reasoning-gym"] = "0.0.1"
    (folder / benchmark.MANIFEST).write_text(json.dumps(manifest))
    assert benchmark.main(["--check", str(folder)]) == 1
    told = capsys.readouterr()
    assert told.out.startswith("3 differences.") and "the folder was made with reasoning-gym 0.0.1" in told.out
    rows, chain_sum, spell_backward = told.err.splitlines()[-3:]
    assert rows == "data/test.jsonl holds other questions than manifest.json."
    assert chain_sum.startswith("chain_sum, seed ") and "another question" in chain_sum
    assert "'letters'" in spell_backward


def test_a_check_compares_the_manifest_of_the_whole_set(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = manifest_of(folder)
    was, manifest["set"]["manifest"] = manifest["set"]["manifest"], "f" * 16
    (folder / benchmark.MANIFEST).write_text(json.dumps(manifest))
    assert benchmark.main(["--check", str(folder)]) == 1
    assert f"The set has the manifest {was} here, and {16 * 'f'} in manifest.json." in capsys.readouterr().err


NO_RECIPE = '{"set": {"manifest": ""}, "versions": {}, "questions": [{}]}'


@pytest.mark.parametrize("text", ["{}", "[]", "torn {", "[" * 100_000, NO_RECIPE], ids=lambda text: text[:9])
def test_a_folder_that_holds_no_benchmark_is_refused(folder: Path, text: str) -> None:
    (folder / benchmark.MANIFEST).write_text(text)
    with pytest.raises(EnvironmentSetupError, match=r"manifest\.json|export --items"):
        benchmark.main(["--check", str(folder)])


def test_a_check_of_a_folder_without_a_manifest_says_what_it_expected(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match="expected a manifest of `benchmark --to`"):
        benchmark.main(["--check", str(tmp_path)])


def test_a_line_without_a_question_is_refused(folder: Path) -> None:
    (folder / benchmark.QUESTIONS).write_text("{}\n")
    with pytest.raises(EnvironmentSetupError, match="line 1: expected an object with a question"):
        benchmark.main(["--check", str(folder)])


def test_a_folder_is_not_replaced(made: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match="holds a dataset already"):
        benchmark.main(["--to", str(made)])


@pytest.mark.slow
def test_hugging_face_datasets_reads_the_folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from datasets import load_dataset

    loaded = load_dataset(str(made), cache_dir=str(tmp_path))
    assert loaded["test"]["question"][:] == [row["question"] for row in rows_of(made)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--check", "set", "--per-task", "7", "--seed", "1"], "--check does not use --per-task, --seed. Remove"),
        (["--to", "set", "--complexity", "2"], "eval_complexity: expected none, a number from 0 to 1"),
        (["--to", "set", "--tasks", "chain_summ"], "Did you mean chain_sum"),
    ],
)
def test_a_refusal_leaves_nothing_behind(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentSetupError, match=message):
        benchmark.main(arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--to=", "--check="])
def test_the_current_folder_is_not_meant_by_an_empty_name(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.main([option])
    assert f"argument {option[:-1]}: expected the name of a folder, got ''" in capsys.readouterr().err
