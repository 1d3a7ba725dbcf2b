"""Rollouts reach the disk whole, one JSON object a line, under the names that others look for."""

from __future__ import annotations

import datetime
import errno
import json
import logging
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.records import FormatFailure, Outcome, Rollout, RolloutGroup, Score
from reasoning_gym_environment.training_log.dump_files import recover_parts
from reasoning_gym_environment.training_log.dumps import MAX_UNFINISHED, RolloutWriter


@pytest.fixture
def make_writer(tmp_path: Path) -> Callable[..., RolloutWriter]:
    def make(
        threshold: int = 2, kind: str = "rollouts", directory: Path | None = None, **options: int
    ) -> RolloutWriter:
        folder = directory or tmp_path / "dumps"
        return RolloutWriter(folder, "RUN", kind=kind, threshold=threshold, version="0.1.25", **options)

    return make


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_a_file_gets_its_final_name_when_it_is_full(tmp_path: Path, make_writer: Any, make_group: Any) -> None:
    writer = make_writer(threshold=2)
    assert not (tmp_path / "dumps").exists()
    writer.add(make_group([1.0], index=0))
    assert names(tmp_path / "dumps") == ["reasoning_gym_environment_rollouts_RUN_0000.jsonl.part"]
    writer.add(make_group([1.0], index=1))
    assert names(tmp_path / "dumps") == ["reasoning_gym_environment_rollouts_RUN_0000.jsonl"]
    writer.add(make_group([1.0], index=2))
    assert names(tmp_path / "dumps")[1] == "reasoning_gym_environment_rollouts_RUN_0001.jsonl.part"
    writer.close()
    assert [len(lines(path)) for path in writer.files] == [2, 1]
    assert [path.name for path in writer.files] == names(tmp_path / "dumps")
    assert writer.groups_written == 3


def test_each_group_can_be_read_as_soon_as_it_is_added(tmp_path: Path, make_writer: Any, make_group: Any) -> None:
    writer = make_writer(threshold=100)
    for index in range(3):
        writer.add(make_group([1.0], index=index))
        [part] = (tmp_path / "dumps").iterdir()
        assert [line["index"] for line in lines(part)] == list(range(index + 1))


def test_close_without_groups_writes_nothing(tmp_path: Path, make_writer: Any) -> None:
    writer = make_writer()
    writer.close()
    writer.close()
    assert not (tmp_path / "dumps").exists()
    assert writer.files == []


def test_close_twice_keeps_what_was_written(make_writer: Any, make_group: Any) -> None:
    writer = make_writer()
    writer.add(make_group([1.0]))
    writer.close()
    writer.close()
    assert len(writer.files) == 1
    assert len(lines(writer.files[0])) == 1


def test_groups_added_after_close_go_to_the_next_file(make_writer: Any, make_group: Any) -> None:
    writer = make_writer()
    writer.add(make_group([1.0], index=0))
    writer.close()
    writer.add(make_group([1.0], index=1))
    writer.close()
    assert [[line["index"] for line in lines(path)] for path in writer.files] == [[0], [1]]


def test_two_kinds_of_one_run_do_not_share_a_file(tmp_path: Path, make_writer: Any, make_group: Any) -> None:
    good, failed = make_writer(), make_writer(kind="FAILED_rollouts")
    good.add(make_group([1.0]))
    failed.add(make_group([0.0]))
    good.close()
    failed.close()
    assert names(tmp_path / "dumps") == [
        "reasoning_gym_environment_FAILED_rollouts_RUN_0000.jsonl",
        "reasoning_gym_environment_rollouts_RUN_0000.jsonl",
    ]


def test_record_has_every_key_of_the_format(make_problem: Any, make_completion: Any) -> None:
    completion = replace(make_completion("no tags", length=4), finish_reason="length")
    score = Score(0.0, Outcome.FORMAT_FAILURE, failure=FormatFailure.NO_ANSWER)
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    problem = make_problem(level=3, complexity=0.5, config={"min_terms": 2})
    group = RolloutGroup(problem, prompt, [Rollout(completion, score, 0.0, "too_long")])
    assert group_record(group, "0.1.25") == {
        "item_id": "chain_sum",
        "rollouts": [
            {
                "conversation": [*prompt, {"role": "assistant", "content": "no tags"}],
                "score": 0.0,
                "raw_score": 0.0,
                "native_score": 0.0,
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
    }


def test_score_is_the_reward_and_raw_score_is_the_verdict(make_group: Any) -> None:
    group = make_group([1.0])
    group = replace(group, rollouts=[replace(group.rollouts[0], reward=0.25)])
    [record] = group_record(group, "v")["rollouts"]
    assert (record["score"], record["raw_score"]) == (0.25, 1.0)


def test_each_text_stays_with_its_own_score(make_group: Any) -> None:
    group = make_group([0.0, 1.0, 0.5])
    records = group_record(group, "v")["rollouts"]
    assert [(r["conversation"][-1]["content"], r["score"]) for r in records] == [
        ("text 0", 0.0),
        ("text 1", 1.0),
        ("text 2", 0.5),
    ]


def test_config_values_without_a_json_form_are_written_as_text(make_writer: Any, make_group: Any) -> None:
    writer = make_writer(threshold=1)
    config = {
        "pair": (1, (2, 3)),
        "day": datetime.date(2024, 2, 29),
        "none": None,
        "weights": {(1, 2): 3},
        "limits": [float("inf"), float("-inf"), float("nan")],
    }
    writer.add(make_group([1.0], config=config))
    [line] = lines(writer.files[0])
    assert line["config"] == {
        "pair": [1, [2, 3]],
        "day": "2024-02-29",
        "none": None,
        "weights": {"(1, 2)": 3},
        "limits": ["inf", "-inf", "nan"],
    }


def test_metadata_of_any_shape_does_not_reach_the_file(make_writer: Any, make_group: Any) -> None:
    entry = {"question": "q", "answer": ("a", 1), "metadata": {(1, 2): {3}, "x": object()}}
    writer = make_writer(threshold=1)
    writer.add(make_group([1.0], entry=entry))
    [line] = lines(writer.files[0])
    assert line["expected_answer"] == ["a", 1]
    assert "metadata" not in line


@pytest.mark.parametrize(
    "text", ["é\U0001f600", "line\nbreak\r\n", "\u2028\u2029\x85\x0b\x0c", "\x00\x1f\x7f", '"\\', "\ud800"]
)
def test_odd_text_survives_on_one_line(make_writer: Any, make_group: Any, text: str) -> None:
    writer = make_writer(threshold=1)
    writer.add(make_group([1.0], task=text))
    raw = writer.files[0].read_bytes()
    assert raw.count(b"\n") == 1
    assert raw.endswith(b"\n")
    assert lines(writer.files[0])[0]["task"] == text


def test_a_disk_that_refuses_is_reported_once_and_counted(
    tmp_path: Path, make_writer: Any, make_group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    writer = make_writer(directory=blocker / "dumps")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            writer.add(make_group([1.0]))
        assert len(caplog.records) == 1
        assert str(blocker) in caplog.text
        writer.close()
    assert "3 groups of rollouts could not be written" in caplog.text
    assert (writer.groups_written, writer.groups_dropped) == (0, 3)


def test_writing_goes_on_when_the_disk_is_back(
    tmp_path: Path, make_writer: Any, make_group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "dumps"
    blocker.write_text("")
    writer = make_writer(threshold=1)
    writer.add(make_group([1.0], index=0))
    blocker.unlink()
    assert writer.groups_waiting == 1
    writer.add(make_group([1.0], index=1))
    assert [lines(path)[0]["index"] for path in writer.files] == [0, 1]
    assert (writer.groups_waiting, writer.groups_written, writer.groups_dropped) == (0, 2, 0)
    assert caplog.text.count("Cannot write") == caplog.text.count("those that waited are written") == 1


def test_what_waits_is_written_at_the_close_too(tmp_path: Path, make_writer: Any, make_group: Any) -> None:
    blocker = tmp_path / "dumps"
    blocker.write_text("")
    writer = make_writer()
    writer.add(make_group([1.0], index=0))
    blocker.unlink()
    writer.close()
    assert [line["index"] for line in lines(writer.files[0])] == [0]


def test_memory_for_waiting_groups_is_bounded(
    tmp_path: Path, make_writer: Any, make_group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "dumps"
    blocker.write_text("")
    size = len(json.dumps(group_record(make_group([1.0], index=0), "0.1.25"))) + 1
    writer = make_writer(threshold=100, max_waiting_bytes=3 * size + size // 2)
    for index in range(9):
        writer.add(make_group([1.0], index=index))
    assert (writer.groups_waiting, writer.groups_dropped) == (3, 6)
    assert caplog.text.count("No more room") == 1
    blocker.unlink()
    writer.add(make_group([1.0], index=9))
    writer.close()
    assert [line["index"] for line in lines(writer.files[0])] == [0, 1, 2, 9]
    assert "6 groups of rollouts could not be written" in caplog.text


def test_a_continued_dump_goes_on_behind_what_is_there(tmp_path: Path, make_writer: Any, make_group: Any) -> None:
    first = make_writer(threshold=2)
    for index in range(3):
        first.add(make_group([1.0], index=index))
    state = json.loads(json.dumps(first.state_dict()))
    first.add(make_group([1.0], index=3))
    second = make_writer(threshold=2)
    second.load_state_dict(state)
    second.add(make_group([1.0], index=4))
    second.close()
    assert [path.name[-10:] for path in second.files] == ["0002.jsonl"]
    assert second.groups_written == 4


@pytest.mark.parametrize("state", [{}, {"batch": -1, "groups_written": 0, "groups_dropped": 0}, {"batch": "1"}])
def test_a_malformed_state_is_refused(make_writer: Any, state: dict[str, Any]) -> None:
    with pytest.raises(EnvironmentSetupError, match="three counts"):
        make_writer().load_state_dict(state)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """A limit on the size of files stands in for a disk that is full for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_the_disk_takes_only_in_part_is_taken_back(
    tmp_path: Path, make_writer: Any, make_group: Any
) -> None:
    writer = make_writer(threshold=100)
    writer.add(make_group([1.0], index=0))
    [part] = (tmp_path / "dumps").iterdir()
    before = part.read_bytes()
    with file_size_limit(len(before) + 50):
        writer.add(make_group([1.0], index=1))
    assert part.read_bytes() == before
    writer.add(make_group([1.0], index=2))
    writer.close()
    assert [line["index"] for line in lines(writer.files[0])] == [0, 1, 2]
    assert (writer.groups_written, writer.groups_dropped) == (3, 0)


@pytest.mark.parametrize("trouble", ["part file deleted", "final name taken by a folder"])
def test_a_file_that_cannot_be_finished_is_reported_and_the_next_one_is_written(
    tmp_path: Path, make_writer: Any, make_group: Any, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    writer = make_writer(threshold=2)
    writer.add(make_group([1.0], index=0))
    [part] = (tmp_path / "dumps").iterdir()
    if trouble == "part file deleted":
        part.unlink()
    else:
        part.with_suffix("").mkdir()
    writer.add(make_group([1.0], index=1))
    assert [message for message in caplog.messages if message.startswith("Cannot finish")] == caplog.messages
    assert len(caplog.messages) == 1
    assert "0000.jsonl with 2 groups of rollouts" in caplog.text
    writer.add(make_group([1.0], index=2))
    writer.close()
    [finished] = writer.files
    assert finished.name.endswith("_0001.jsonl")
    assert [line["index"] for line in lines(finished)] == [2]


def refuse(*arguments: Any, **options: Any) -> Any:
    raise OSError(errno.EIO, "Input/output error")


def test_what_follows_a_line_that_cannot_be_taken_back_is_whole(
    tmp_path: Path, make_writer: Any, make_group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer(threshold=100)
    writer.add(make_group([1.0], index=0))
    [part] = (tmp_path / "dumps").iterdir()
    with monkeypatch.context() as patch, file_size_limit(part.stat().st_size + 50):
        patch.setattr(os, "ftruncate", refuse)
        writer.add(make_group([1.0], index=1))
    writer.add(make_group([1.0], index=2))
    writer.close()
    assert [[line["index"] for line in lines(path)] for path in writer.files] == [[0], [1, 2]]
    assert sorted(path.name for path in writer.files) == names(tmp_path / "dumps")
    assert (writer.groups_written, writer.groups_dropped) == (3, 0)


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_file_that_could_not_be_finished_is_finished_later(
    tmp_path: Path,
    make_writer: Any,
    make_group: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    function: str,
) -> None:
    writer = make_writer(threshold=2)
    with monkeypatch.context() as patch:
        patch.setattr(os if function == "fsync" else Path, function, refuse)
        for index in range(5):
            writer.add(make_group([1.0], index=index))
        assert recover_parts(tmp_path / "dumps") == [], "it is still this writer's"
    assert caplog.text.count("Cannot finish") == 2
    writer.add(make_group([1.0], index=5))
    assert [[line["index"] for line in lines(path)] for path in writer.files] == [[0, 1], [2, 3], [4, 5]]
    writer.close()
    assert sorted(path.name for path in writer.files) == names(tmp_path / "dumps")


def test_parts_that_can_never_be_finished_are_left_to_the_next_start(
    tmp_path: Path, make_writer: Any, make_group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer(threshold=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        for index in range(MAX_UNFINISHED + 3):
            writer.add(make_group([1.0], index=index))
        completed = recover_parts(tmp_path / "dumps")
        assert len(completed) == 3, "only so many are held open"
        writer.close()
    assert writer.files == []
    completed += recover_parts(tmp_path / "dumps")
    assert [lines(path)[0]["index"] for path in completed] == list(range(MAX_UNFINISHED + 3))


def test_close_raises_nothing_when_an_empty_part_cannot_be_removed(
    tmp_path: Path, make_writer: Any, make_group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer()
    with monkeypatch.context() as patch, file_size_limit(0):
        patch.setattr(Path, "unlink", refuse)
        writer.add(make_group([1.0]))
        writer.close()
    assert writer.groups_dropped == 1 and writer.files == []


def test_close_raises_nothing_when_the_last_file_cannot_be_finished(
    tmp_path: Path, make_writer: Any, make_group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    writer = make_writer(threshold=100)
    writer.add(make_group([1.0]))
    next((tmp_path / "dumps").iterdir()).unlink()
    writer.close()
    assert writer.files == []
    assert "Cannot finish" in caplog.text


def test_record_of_a_real_group_is_valid_json(make_group: Any) -> None:
    assert json.loads(json.dumps(group_record(make_group([0.5, 1.0]), "v")))["item_id"] == "chain_sum"
