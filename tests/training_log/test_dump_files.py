"""One line of a dump, both ways; what a killed run left behind is completed at the next start, and only that."""

from __future__ import annotations

import datetime
import fcntl
import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.records import FormatFailure, Outcome, Rollout, RolloutGroup, Score
from reasoning_gym_environment.training_log import dump_files
from reasoning_gym_environment.training_log.dump_files import (
    FILE_STEM,
    BrokenLineError,
    hold,
    numbered_lines,
    read_group,
    recover_parts,
)
from reasoning_gym_environment.training_log.dumps import RolloutWriter, group_record, line_of

LINE = b'{"item_id": "gcd"}\n'
NAME = f"{FILE_STEM}_rollouts_run_0000.jsonl"


def test_a_record_has_every_key_of_the_format(make_problem: Any, make_completion: Any) -> None:
    completion = replace(make_completion("no tags", length=4), finish_reason="length")
    score = Score(0.0, Outcome.FORMAT_FAILURE, failure=FormatFailure.NO_ANSWER)
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    problem = make_problem(level=3, complexity=0.5, config={"min_terms": 2})
    group = RolloutGroup(problem, prompt, [Rollout(completion, score, 0.0, "too_long")], steps=(3, 5))
    assert group_record(group, "0.1.25") == {
        "item_id": "chain_sum",
        "rollouts": [
            {
                "conversation": [*prompt, {"role": "assistant", "content": "no tags"}],
                "score": 0.0,
                "raw_score": 0.0,
                "native_score": 0.0,
                "baseline": 0.0,
                "credit": 0.0,
                "outcome": "format_failure",
                "format_failure": "no_answer",
                "answer": None,
                "finish_reason": "length",
                "num_tokens": 7,
                "num_completion_tokens": 4,
                "mask_reason": "too_long",
            }
        ],
        "task": "chain_sum",
        "category": "arithmetic",
        "split": "train",
        "index": 7,
        "seed": 11,
        "level": 3,
        "complexity": 0.5,
        "config": {"min_terms": 2},
        "expected_answer": "5",
        "reasoning_gym_version": "0.1.25",
        "sampled_at_step": 3,
        "scored_at_step": 5,
    }
    assert group_record(replace(group, steps=None), "v")["scored_at_step"] is None, "nobody trains"


def test_each_text_stays_with_its_own_reward_and_verdict(make_group: Any) -> None:
    group = make_group([0.0, 1.0, 0.5])
    group = replace(group, rollouts=[group.rollouts[0], replace(group.rollouts[1], reward=0.25), group.rollouts[2]])
    records = group_record(group, "v")["rollouts"]
    assert [(r["conversation"][-1]["content"], r["score"], r["raw_score"]) for r in records] == [
        ("text 0", 0.0, 0.0),
        ("text 1", 0.25, 1.0),
        ("text 2", 0.5, 0.5),
    ]


def test_values_without_a_json_form_are_written_as_text_and_metadata_not_at_all(make_group: Any) -> None:
    config = {
        "pair": (1, (2, 3)),
        "day": datetime.date(2024, 2, 29),
        "none": None,
        "weights": {(1, 2): 3},
        "limits": [float("inf"), float("-inf"), float("nan")],
    }
    entry = {"question": "q", "answer": ("a", 1), "metadata": {(1, 2): {3}, "x": object()}}
    line = json.loads(line_of(make_group([1.0], config=config, entry=entry), "v"))
    assert line["config"] == {
        "pair": [1, [2, 3]],
        "day": "2024-02-29",
        "none": None,
        "weights": {"(1, 2)": 3},
        "limits": ["inf", "-inf", "nan"],
    }
    assert line["expected_answer"] == ["a", 1]
    assert "metadata" not in line


def test_odd_text_survives_on_one_line_and_is_read_again(make_group: Any) -> None:
    for text in ("é\U0001f600", "line\nbreak\r\n", "\u2028\u2029\x85\x0b\x0c", "\x00\x1f\x7f", '"\\', "\ud800"):
        line = line_of(make_group([1.0, 0.5], task=text, seed=12), "v")
        assert line.count(b"\n") == 1 and line.endswith(b"\n")
        group = read_group(line)
        assert (group.task, group.rewards, group.seed) == (text, (1.0, 0.5), 12)


CONVERSATION = [{"content": "q"}, {"content": "a"}]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"not json", "no JSON"),
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"score": ' + b"9" * 5000 + b"}", "no JSON"),
        (b"[]", "no JSON object"),
        (None, "longer than"),
        ({"item_id": 3}, "no item_id"),
        ({"rollouts": []}, "no rollouts"),
        ({"rollouts": "text"}, "no rollouts"),
        ({"rollouts": ["text"]}, "without a conversation"),
        ({"rollouts": [{"score": 1.0}]}, "without a conversation"),
        ({"rollouts": [{"conversation": CONVERSATION[:1], "score": 1.0}]}, "without a conversation"),
        ({"rollouts": [{"conversation": ["q", "a"], "score": 1.0}]}, "without a conversation"),
        ({"rollouts": [{"conversation": CONVERSATION, "score": "1"}]}, "without a score"),
        ({"rollouts": [{"conversation": CONVERSATION, "score": float("nan")}]}, "without a score"),
        ({"rollouts": [{"conversation": CONVERSATION, "score": 10**400}]}, "without a score"),
        ({"rollouts": [{"conversation": CONVERSATION, "score": True}]}, "without a score"),
    ],
)
def test_what_is_wrong_with_a_broken_line_is_named(line: Any, fault: str) -> None:
    if isinstance(line, dict):
        line = json.dumps({"item_id": "gcd", "rollouts": [{"conversation": CONVERSATION, "score": 1}], **line}).encode()
    with pytest.raises(BrokenLineError, match=fault):
        read_group(line)


def test_a_line_beyond_the_longest_is_passed_over_and_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_files, "LONGEST_LINE", 10)
    file = io.BytesIO(b"x" * 25 + b"\nshort\n" + b"y" * 9 + b"\n" + b"z" * 11)
    assert list(numbered_lines(file)) == [
        (1, None, 26),
        (2, b"short\n", 6),
        (3, b"y" * 9 + b"\n", 10),
        (4, None, 11),
    ]


def part(folder: Path, data: bytes, name: str = NAME) -> Path:
    path = folder / f"{name}.part"
    path.write_bytes(data)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_part_of_whole_lines_gets_its_final_name_or_another_one_if_that_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    part(tmp_path, LINE * 3)
    [final] = recover_parts(tmp_path)
    assert names(tmp_path) == [NAME]
    assert final.read_bytes() == LINE * 3
    assert "3 groups of a run that was killed" in caplog.text
    part(tmp_path, LINE)
    [other] = recover_parts(tmp_path)
    assert final.read_bytes() == LINE * 3, "a file that is there is never overwritten"
    assert (other.name, other.read_bytes()) == (NAME.replace("0000", "0000_1"), LINE)


@pytest.mark.parametrize("torn", [b'{"item_id": "g', b'{"item_id": "g\n', b"\x00\x00\n"])
def test_a_torn_last_line_is_set_aside_and_not_invented(tmp_path: Path, torn: bytes) -> None:
    part(tmp_path, LINE * 2 + torn)
    [final] = recover_parts(tmp_path)
    assert final.read_bytes() == LINE * 2
    assert (tmp_path / f"{NAME}.torn").read_bytes() == torn


def test_other_files_and_empty_parts_are_left_alone_and_what_cannot_be_completed_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    part(tmp_path, b"")
    part(tmp_path, LINE, name="somebody_else.jsonl")
    before = names(tmp_path)
    assert recover_parts(tmp_path) == recover_parts(tmp_path / "missing") == []
    assert names(tmp_path) == before and not caplog.messages
    (tmp_path / f"{NAME.replace('0000', '0001')}.part").mkdir()
    assert recover_parts(tmp_path) == []
    assert "could not be completed" in caplog.text


def test_the_part_of_a_living_writer_is_left_alone(tmp_path: Path, make_group: Any) -> None:
    writer = RolloutWriter(tmp_path, "run", kind="rollouts", threshold=5)
    for _ in range(2):
        writer.take(make_group([1.0, 0.0]))
        writer.write()
        assert recover_parts(tmp_path) == []
    writer.close()
    assert [len((tmp_path / name).read_text().splitlines()) for name in names(tmp_path)] == [2]


def test_a_start_that_looks_at_a_new_part_does_not_leave_its_writer_without_a_lock(tmp_path: Path) -> None:
    path = part(tmp_path, b"")
    with path.open("ab") as new, path.open("rb") as other:
        fcntl.flock(other.fileno(), fcntl.LOCK_EX)
        holding = threading.Thread(target=hold, args=(new,))
        holding.start()
        time.sleep(0.05)
        fcntl.flock(other.fileno(), fcntl.LOCK_UN)
        holding.join()
        with pytest.raises(BlockingIOError):
            fcntl.flock(other.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


_WRITE_FOR_EVER = """
import sys
from pathlib import Path
from reasoning_gym_environment.records import Completion, Outcome, Problem, Rollout, RolloutGroup, Score
from reasoning_gym_environment.training_log.dumps import RolloutWriter
problem = Problem("gcd", "arithmetic", "train", 0, 1, {}, {"question": "q", "answer": "a", "metadata": {}})
text = Completion("x" * 5000, [1], [1], None, "stop")
rollouts = [Rollout(text, Score(1.0, Outcome.CORRECT), 1.0)] * 4
writer = RolloutWriter(Path(sys.argv[1]), sys.argv[2], kind="rollouts", threshold=40)
number = 0
while True:
    writer.take(RolloutGroup(problem, [{"role": "user", "content": str(number)}], rollouts))
    writer.write()
    number += 1
    print(number, flush=True)
"""


def test_kill_9_at_any_moment_loses_no_group_that_was_accepted(tmp_path: Path) -> None:
    moments = random.Random(1)
    accepted = {}
    for number in range(2):
        run = f"run{number}"
        child = subprocess.Popen([sys.executable, "-c", _WRITE_FOR_EVER, str(tmp_path), run], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(moments.uniform(0.0, 0.2))
        os.kill(child.pid, signal.SIGKILL)
        accepted[run] = 1 + len(child.stdout.read().splitlines())
        child.wait()
    recover_parts(tmp_path)
    # Killed between making a part and writing to it.
    assert all(path.stat().st_size == 0 for path in tmp_path.glob("*.part"))
    for run, count in accepted.items():
        lines = [line for path in sorted(tmp_path.glob(f"*_{run}_*.jsonl")) for line in path.read_text().splitlines()]
        found = [int(json.loads(line)["rollouts"][0]["conversation"][0]["content"]) for line in lines]
        # The last line may have been printed by nobody any more.
        assert found in (list(range(count)), list(range(count + 1)))
