"""The examples, run as a reader would run them: from another folder, without the repository on the path."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.tasks import reasoning_gym_source as library

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

PRINTED = {
    "grade_answers": r"1\.0  correct  \d+\n0\.0  wrong  about 40\n0\.0  wrong  __import__.*\n" * 2,
    "training_loop": r"(\d (chain_sum|leg_counting) level 0 \[.*\]\n){6}",
    "evaluate_a_model": r"(\w+ +\d+\.\d% \[.*%\]\n){4}the same questions elsewhere: \w{16}\n",
    "several_at_once": r"(\d (chain_sum|leg_counting) [01]\.0\n){8}",
    "own_task": r"It is .* minutes later\?.*\n1\.0 \d\d:\d\d\n0\.0 12:00\n0\.0 noon\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs_and_prints_what_it_says(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(PRINTED[name], done.stdout), done.stdout
    # What the hostile answer would have made.
    assert not list(tmp_path.iterdir())


def sample(task: str, answer: str, score: float | None, **fields: Any) -> dict[str, Any]:
    """A line of samples.jsonl."""
    entry = library.create_dataset(task, seed=3, size=1)[0]
    question = {"role": "user", "content": entry["question"]}
    text = f"<answer>{answer.format(**entry)}</answer>"
    return {
        "messages": [question, {"role": "assistant", "content": text}],
        "question": entry["question"],
        "score": score,
        **{"task": task, "seed": 3, "config": {}, "answer_format": "tags", **fields},
    }


def regraded(*arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["regrade.py", *arguments])
    runpy.run_path(str(EXAMPLES / "regrade.py"))
    return capsys.readouterr().out


def test_saved_completions_of_every_kind_are_graded_again(
    tmp_path: Path, in_process_workers: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = [
        sample("game_of_life_halting", "anything", 1.0),
        sample("syllogism", "{answer}", 0.0),
        sample("chain_sum", "{answer}", 0.0, seed=4),
        sample("chain_sum", "{answer}", 0.0, config={"max_terms": 1}),
        sample("chain_sum", "{answer}", None),
    ]
    conversations = [sample("chain_sum", answer, 0.0)["messages"] for answer in ("{answer}", "no")]
    item = {"task": "chain_sum", "seed": 3, "config": {}, "answer_format": "tags"}
    details = [{"verifier_score": 0.5}, {"verifier_score": 0.0}]
    rollouts = [{**row, "conversation": conversation} for row, conversation in zip(details, conversations, strict=True)]
    groups = [{**item, "rollouts": rollouts}, {**item, "rollout_details": details, "messages": conversations}]
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*samples, *groups]))
    chain_sum = "chain_sum: 4 completions, 2 changed, mean 0.250 before, 0.500 now"
    syllogism = "syllogism: 1 completions, 1 changed, mean 0.000 before, 1.000 now"
    life = "game_of_life_halting: 1 completions, {} changed, mean 1.000 before, {} now"
    skipped = "3 lines were skipped, because they have no scores, or because their items cannot be made again."
    found = regraded(str(path), monkeypatch=monkeypatch, capsys=capsys)
    assert found.splitlines() == [chain_sum, life.format(1, "0.000"), syllogism, skipped]
    found = regraded(str(path), "--set", "verification=native", monkeypatch=monkeypatch, capsys=capsys)
    assert found.splitlines() == [chain_sum, life.format(0, "1.000"), syllogism, skipped]


def test_the_help_of_an_example_with_options_says_what_it_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        regraded("--help", monkeypatch=monkeypatch, capsys=capsys)
    assert "samples.jsonl of `evaluate`, dumps, or groups of `process`" in " ".join(capsys.readouterr().out.split())
