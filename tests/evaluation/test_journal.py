"""What was answered stays, whatever ends the evaluation; and only answers of the same evaluation are taken for it."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.evaluation.journal import ANSWERS, METRICS, MUST_BE_EQUAL, SAMPLES, SETTINGS, Journal

IDENTITY = {**dict.fromkeys(MUST_BE_EQUAL, "same"), "n": 2, "eval_seed": 123}


def sample(index: int, score: float | None = 1.0, **more: Any) -> dict[str, Any]:
    return {"task": "gcd", "index": index, "seed": 7, "question_digest": "d", "attempt": 0, "score": score, **more}


def indices(folder: Path) -> list[int]:
    with Journal(str(folder), IDENTITY) as journal:
        return [one["index"] for one in journal.answered.values()]


def finished(folder: Path, *samples: dict[str, Any]) -> None:
    """As Atropos writes it."""
    folder.mkdir()
    parameters = {name: value for name, value in IDENTITY.items() if name != "model_name"}
    general = {"model_name": IDENTITY["model_name"], "generation_parameters": {**parameters, "more": 1}}
    Path(folder, METRICS).write_text(json.dumps({"config_general": general}))
    Path(folder, SAMPLES).write_text("".join(json.dumps(one) + "\n" for one in samples))


def test_answers_are_there_as_soon_as_they_are_added_and_go_when_all_are_in_the_samples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "results"
    with Journal(str(folder), IDENTITY, settings="env: {}\n") as first:
        assert not folder.exists(), "nothing is written before there is an answer"
        for number in range(3):
            first.add(sample(number, text="a line\u2028and another"))
            assert len(Path(folder, ANSWERS).read_text().split("\n")) == number + 3, "with the first line, all ended"
            with pytest.raises(EnvironmentSetupError, match=r"another run( \(pid \d+\))? is at work there\."):
                indices(folder)
    assert indices(folder) == [0, 1, 2]
    assert Path(folder, SETTINGS).read_text() == "env: {}\n"
    assert f"3 answers are kept in {folder / ANSWERS}: the same command goes on from there." in caplog.messages
    with Journal(str(folder), IDENTITY) as second:
        assert second.answered[("gcd", 1, 7, "d", 0)]["text"] == "a line\u2028and another"
        second.add(sample(3))
        second.finish()
    assert not Path(folder, ANSWERS).exists()


@pytest.mark.parametrize("cut", [1, 5, 10**6])
def test_a_line_that_was_being_written_when_it_was_killed_costs_only_itself(tmp_path: Path, cut: int) -> None:
    with Journal(str(tmp_path), IDENTITY) as journal:
        for number in range(3):
            journal.add(sample(number))
    path = tmp_path / ANSWERS
    path.write_bytes(path.read_bytes()[:-cut])
    kept = [0, 1] if cut < 100 else []
    assert indices(tmp_path) == kept
    with Journal(str(tmp_path), IDENTITY) as journal:
        journal.add(sample(9))
    assert indices(tmp_path) == [*kept, 9]


def test_a_finished_evaluation_is_taken_over_but_for_what_was_not_scored(tmp_path: Path) -> None:
    finished(tmp_path / "results", sample(0), sample(1, None), sample(2, 0.0))
    assert indices(tmp_path / "results") == [0, 2]
    with Journal(str(tmp_path / "results"), IDENTITY) as journal:
        journal.add(sample(1))
    assert sorted(indices(tmp_path / "results")) == [0, 1, 2]


def test_answers_of_another_evaluation_are_refused_with_the_difference(tmp_path: Path) -> None:
    finished(tmp_path / "done", sample(0))
    with Journal(str(tmp_path / "begun"), IDENTITY) as journal:
        journal.add(sample(0))
    for name in ("done", "begun"):
        folder = tmp_path / name
        before = {path: path.read_bytes() for path in folder.iterdir()}
        expected = (
            f"{folder} holds answers of another evaluation: model_name same (now other), n 2 (now 3). "
            "Set env.data_dir_to_save_evals to another folder"
        )
        with pytest.raises(EnvironmentSetupError, match=re.escape(expected)):
            Journal(str(folder), {**IDENTITY, "model_name": "other", "n": 3})
        assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_files_that_are_none_of_ours_are_refused_and_left_alone(tmp_path: Path) -> None:
    Path(tmp_path, ANSWERS).write_text('{"mine": 1}\n{"mine": 2}\n')
    with pytest.raises(EnvironmentSetupError, match="does not say of which evaluation it is"):
        Journal(str(tmp_path), IDENTITY)
    assert Path(tmp_path, ANSWERS).read_text() == '{"mine": 1}\n{"mine": 2}\n'
    finished(tmp_path / "other")
    Path(tmp_path, "other", METRICS).write_text("[]")
    with pytest.raises(EnvironmentSetupError, match=r"metrics.json is no result of an evaluation"):
        Journal(str(tmp_path / "other"), IDENTITY)


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Journal(None, IDENTITY) as journal:
        journal.add(sample(0))
        journal.finish()
    assert not list(tmp_path.iterdir())
