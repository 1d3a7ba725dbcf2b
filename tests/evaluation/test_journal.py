"""What was answered stays, whatever ends the evaluation; and only answers of the same evaluation are resumed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.evaluation.runner import ANSWERS, METRICS, MUST_BE_EQUAL, SAMPLES, SETTINGS, Journal

IDENTITY = {**dict.fromkeys(MUST_BE_EQUAL, "same"), "n": 2, "eval_seed": 123}


def sample(index: int, score: float | None = 1.0) -> dict[str, Any]:
    return {"task": "gcd", "index": index, "seed": 7, "question_digest": "d", "attempt": 0, "score": score}


def indices(folder: Path) -> list[int]:
    with Journal(str(folder), IDENTITY) as journal:
        return sorted(one["index"] for one in journal.answered.values())


def finished(folder: Path, *samples: dict[str, Any]) -> None:
    """As Atropos writes it."""
    folder.mkdir()
    parameters = {name: value for name, value in IDENTITY.items() if name != "model_name"}
    general = {"model_name": IDENTITY["model_name"], "generation_parameters": {**parameters, "more": 1}}
    Path(folder, METRICS).write_text(json.dumps({"config_general": general}))
    Path(folder, SAMPLES).write_text("".join(json.dumps(one) + "\n" for one in samples) + '{"torn')


def test_answers_are_there_as_soon_as_they_are_added_until_all_are_in_the_samples(tmp_path: Path) -> None:
    with Journal(str(tmp_path), IDENTITY, settings="env: {}\n") as first:
        first.add(sample(0))
        with pytest.raises(EnvironmentSetupError, match=r"another run( \(pid \d+\))? writes there\."):
            indices(tmp_path)
    assert indices(tmp_path) == [0]
    assert Path(tmp_path, SETTINGS).read_text() == "env: {}\n"
    with Journal(str(tmp_path), IDENTITY) as second:
        second.finish()
    assert not Path(tmp_path, ANSWERS).exists()


def test_a_finished_evaluation_is_resumed_but_for_what_was_not_scored(tmp_path: Path) -> None:
    finished(tmp_path / "results", sample(0), sample(1, None), sample(2, 0.0))
    assert indices(tmp_path / "results") == [0, 2]
    with Journal(str(tmp_path / "results"), IDENTITY) as journal:
        journal.add(sample(1))
    assert indices(tmp_path / "results") == [0, 1, 2]


def test_another_evaluation_is_refused_with_what_differs_and_left_alone(tmp_path: Path) -> None:
    finished(tmp_path / "done", sample(0))
    with Journal(str(tmp_path / "begun"), IDENTITY) as journal:
        journal.add(sample(0))
    for folder in (tmp_path / "done", tmp_path / "begun"):
        before = {path: path.read_bytes() for path in folder.iterdir()}
        expected = re.escape("model_name same (now other), n 2 (now 3). Set env.data_dir_to_save_evals to another")
        with pytest.raises(EnvironmentSetupError, match=f"{folder}.*: {expected}"):
            Journal(str(folder), {**IDENTITY, "model_name": "other", "n": 3})
        assert {path: path.read_bytes() for path in folder.iterdir()} == before
