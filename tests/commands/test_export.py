"""Only good completions are exported, each question as often as asked for, in the shapes that fine-tuning reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.commands import export
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.sampling.seeds import is_held_out
from reasoning_gym_environment.scoring.extraction import extract_answer
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder

FREE = [f"What is {n} + 1?" for n in range(100) if not is_held_out(f"What is {n} + 1?")]
(HELD_OUT, *_) = (f"What is {n} + 1?" for n in range(100) if is_held_out(f"What is {n} + 1?"))
PROMPT = [{"role": "system", "content": "Think."}, {"role": "user", "content": FREE[0]}]


def rollout(text: str, verifier_score: float, *, outcome: str = "wrong", question: str = FREE[0], **more: Any) -> Any:
    conversation = [PROMPT[0], {"role": "user", "content": question}, {"role": "assistant", "content": text}]
    return {"conversation": conversation, "score": 0.25, "verifier_score": verifier_score, "outcome": outcome, **more}


def group(*rollouts: Any, **fields: Any) -> dict[str, Any]:
    values = {"item_id": "gcd", "category": "arithmetic", "index": 3, "seed": 11, "level": 2}
    return {**values, **fields, "rollouts": list(rollouts)}


MIXED = group(
    rollout("half", 0.5),
    rollout("right but cut off", 1.0, mask_reason="too_long"),
    rollout("right", 1.0, outcome="correct"),
    rollout("right", 1.0, outcome="correct"),
    rollout("right too \ud800", 1.0, outcome="correct"),
    rollout("no verdict", 0.0, outcome="timeout"),
    rollout("wrong", 0.0),
)


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "dump.jsonl"
    others = [
        group(rollout("x", 1.0, question=HELD_OUT)),
        group(rollout("y", 0.9, question=FREE[1])),
        MIXED,
        {"question": "?"},
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in [MIXED, *others]) + "torn {\n")
    return path


def exported(dump: Path, *options: str, kind: str = "sft") -> list[dict[str, Any]]:
    folder = dump.parent / "out"
    assert export.main([kind, str(dump), "--to", str(folder), *options]) == 0
    return [json.loads(line) for line in (folder / "data" / "train.jsonl").open(encoding="utf-8")]


def test_messages_are_the_conversations_of_good_completions(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = exported(dump)
    about = {"task": "gcd", "category": "arithmetic", "level": 2, "index": 3, "seed": 11, "score": 1.0}
    assert row == {"messages": [*PROMPT, {"role": "assistant", "content": "right"}], **about}
    output = capsys.readouterr().out
    assert "Skipped: a group without a completion of score 1 or more (1), a line that holds no group (2), " in output
    assert "a question that has its rows already (1), a question that is held out for evaluation (1)." in output
    card = (dump.parent / "out" / "README.md").read_text()
    assert "| gcd | 4 | 1 |" in card and "path: data/train.jsonl" in card


def test_a_question_has_as_many_different_completions_as_asked_for(dump: Path) -> None:
    rows = exported(dump, "--per-question", "5", "--min-score", "0.5")
    texts = [row["messages"][-1]["content"] for row in rows if row["messages"][:-1] == PROMPT]
    assert texts == ["right", "right too \ud800", "half"]
    assert [row["score"] for row in rows] == [1.0, 1.0, 0.5, 0.9]


def test_a_pair_is_the_best_and_the_worst_that_has_a_score(dump: Path) -> None:
    (row,) = exported(dump, kind="dpo")
    assert (row["prompt"], row["chosen"][0]["content"], row["rejected"][0]["content"]) == (PROMPT, "right", "wrong")
    assert (row["score"], row["score_rejected"]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("rollouts", "kind", "reason"),
    [
        ([rollout("x", 0.0, outcome="timeout")], "sft", "a group whose completions are unscored (1)"),
        ([rollout("x", 0.5)], "sft", "a group without a completion of score 0.75 or more (1)"),
        ([rollout("x", 1.0, mask_reason="too_long")], "dpo", "a group whose good completions were masked in training"),
        ([rollout("x", 1.0), rollout("y", 1.0)], "dpo", "a group without a worse completion for a pair"),
    ],
)
def test_a_group_without_a_row_has_the_true_reason(rollouts: list[Any], kind: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "dump.jsonl"
    path.write_text(json.dumps(group(*rollouts)) + "\n")
    with pytest.raises(EnvironmentSetupError) as refused:
        exported(path, "--min-score", "0.75", kind=kind)
    assert reason in str(refused.value)


def test_an_export_is_not_replaced(dump: Path) -> None:
    exported(dump)
    with pytest.raises(EnvironmentSetupError, match=r"expected a new folder, but .* exists and is not empty"):
        exported(dump)


def test_examples_for_a_cold_start_are_training_items_with_their_answers(
    tmp_path: Path, in_process_workers: None
) -> None:
    wanted = ["cold-start", "--count", "40", "--tasks"]
    assert export.main([*wanted, "gcd,spell_backward", "--to", str(tmp_path / "cold")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "cold" / "data" / "train.jsonl").open()]
    assert len(rows) == 40 and {row["task"] for row in rows} == {"gcd", "spell_backward"}
    assert not any(is_held_out(row["messages"][1]["content"]) for row in rows)
    levels = {task: build_ladder(task).levels for task in ("gcd", "spell_backward")}
    for row in rows:
        config = levels[row["task"]][row["level"]].config
        entry = library.create_dataset(row["task"], seed=row["seed"], size=1, **config)[0]
        assert entry["question"] == row["messages"][1]["content"]
        assert extract_answer(row["messages"][2]["content"]).answer == entry["answer"]
    with pytest.raises(EnvironmentSetupError, match="no expected answers"):
        export.main([*wanted, "boxnet", "--to", str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()


def test_an_export_that_is_refused_leaves_folders_as_they_were(dump: Path) -> None:
    dump.write_text(json.dumps(group(rollout("wrong", 0.0))) + "\n")
    empty = dump.parent / "empty"
    empty.mkdir()
    before = sorted(dump.parent.rglob("*"))
    for folder in (dump.parent / "new", empty):
        with pytest.raises(EnvironmentSetupError, match="nothing to export"):
            export.main(["sft", str(dump), "--to", str(folder)])
    assert sorted(dump.parent.rglob("*")) == before


def test_an_export_replaces_what_a_killed_export_left(dump: Path) -> None:
    left = dump.parent / ".out.unfinished" / "data"
    left.mkdir(parents=True)
    (left / "train.jsonl").write_text("half a")
    (left / "other.jsonl").write_text("half a")
    assert len(exported(dump)) == 1
    assert sorted(path.name for path in (dump.parent / "out").rglob("*")) == ["README.md", "data", "train.jsonl"]
    assert not left.exists()
