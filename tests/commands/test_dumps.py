"""One summary over the dumps of many runs: what it counts, what it names, and what it refuses."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import cli
from reasoning_gym_environment.commands import dumps as command
from reasoning_gym_environment.training_log.dump_files import FILE_STEM, is_held
from reasoning_gym_environment.training_log.dumps import RolloutWriter

ALPHA, BETA = "aaaaaaaa-1111", "bbbbbbbb-2222"


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def write(tmp_path: Path, make_group: Any) -> Callable[..., RolloutWriter]:
    """`write(run, (seed, rewards), ..., task=, kind=, close=)`: a run's dumps, by the writer itself."""

    def build(run: str, *groups: tuple[int, list[float]], **options: Any) -> RolloutWriter:
        folder = options.get("folder", tmp_path)
        writer = RolloutWriter(folder, run, kind=options.get("kind", "rollouts"), threshold=2)
        for seed, rewards in groups:
            writer.take(make_group(rewards, seed=seed, task=options.get("task", "chain_sum")))
            writer.write()
        if options.get("close", True):
            writer.close()
        return writer

    return build


def summed(capsys: pytest.CaptureFixture[str], *paths: Path) -> dict[str, Any]:
    assert command.main([*map(str, paths), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert command.main(arguments) == 0
    return " ".join(capsys.readouterr().out.split())


def raw(folder: Path, data: bytes, *, run: str = ALPHA, suffix: str = "") -> Path:
    path = folder / f"{FILE_STEM}_rollouts_{run}_0000.jsonl{suffix}"
    path.write_bytes(data)
    return path


def line(**fields: Any) -> bytes:
    rollouts = [{"conversation": [{"content": "q"}, {"content": "a"}], "score": 1.0}]
    return json.dumps({"item_id": "gcd", "rollouts": rollouts, "seed": 1, **fields}).encode() + b"\n"


def test_a_run_is_summed_over_its_files(tmp_path: Path, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write(ALPHA, (1, [1.0, 0.0]), (2, [1.0, 0.5]), (3, [1.0, 1.0]))
    write(ALPHA, (4, [0.0, 0.0]), kind="FAILED_rollouts", task="gcd")
    [run] = summed(capsys, tmp_path)["runs"]
    assert (run["run"], run["files"], run["folders"]) == (ALPHA, 3, [str(tmp_path)])
    assert (run["groups"], run["failed_groups"], run["rollouts"], run["tasks"]) == (4, 1, 8, 2)
    assert run["mean_reward"] == 4.5 / 8
    assert (run["distinct_items"], run["repeated_items"], run["malformed_lines"]) == (4, 0, 0)
    assert run["bytes"] == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_an_item_dumped_twice_is_repeated(tmp_path: Path, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write(ALPHA, (1, [1.0]), (1, [1.0]), (1, [1.0]), (2, [1.0]))
    write(ALPHA, (2, [0.0]), kind="FAILED_rollouts", task="gcd")
    [run] = summed(capsys, tmp_path)["runs"]
    assert (run["groups"], run["distinct_items"], run["repeated_items"]) == (5, 3, 1)


def test_items_that_runs_share_are_counted_and_the_runs_named(
    tmp_path: Path, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write(ALPHA, (1, [1.0]), (2, [1.0]), (3, [1.0]), folder=tmp_path / "0")
    write(BETA, (2, [1.0]), (3, [0.0]), (4, [1.0]), folder=tmp_path / "1")
    write("cccccccc-3333", (1, [1.0]), task="gcd", folder=tmp_path / "1")
    summary = summed(capsys, tmp_path)
    assert summary["total"]["items_shared_by_runs"] == 2
    assert summary["shared_by"] == [{"runs": [ALPHA, BETA], "items": 2}]
    assert (summary["total"]["distinct_items"], summary["total"]["repeated_items"]) == (5, 2)
    text = printed(capsys, str(tmp_path))
    assert "items that two runs share: 2 (0, unless one seed was begun anew)" in text
    assert f"{ALPHA} and {BETA}: 2" in text
    assert "items that two runs share: 0" in printed(capsys, str(tmp_path / "1")), "another task, other items"


def test_tasks_are_summed_over_all_runs(tmp_path: Path, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write(ALPHA, (1, [1.0, 0.0]))
    write(BETA, (2, [1.0, 1.0]))
    write(BETA, (2, [0.0, 0.0]), task="gcd", kind="FAILED_rollouts")
    names = ("task", "groups", "failed_groups", "rollouts", "mean_reward", "distinct_items", "repeated_items")
    assert [tuple(record[name] for name in names) for record in summed(capsys, tmp_path)["tasks"]] == [
        ("chain_sum", 2, 0, 4, 0.75, 2, 0),
        ("gcd", 1, 1, 2, 0.0, 1, 0),
    ]
    assert "chain_sum" not in printed(capsys, str(tmp_path))
    assert "chain_sum 2 0 4 0.750 2 0" in printed(capsys, str(tmp_path), "--by-task")


def test_a_part_tells_whether_its_writer_lives(tmp_path: Path, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    living = write(ALPHA, (1, [1.0]), close=False)
    part = next(tmp_path.iterdir())
    raw(tmp_path, line() + b'{"item_id": "gc', run=BETA, suffix=".part")
    raw(tmp_path, b"", run="empty", suffix=".part")
    summary = summed(capsys, tmp_path)
    assert summary["total"]["open_parts"] == {"being_written": 1, "left_by_a_dead_run": 1, "unknown": 1}
    assert (summary["total"]["groups"], summary["total"]["malformed_lines"]) == (2, 0)
    assert summary["total"]["unended_bytes"] == 15
    assert "1 being written, 1 left by a dead run" in printed(capsys, str(tmp_path))
    assert is_held(part), "looking at a part leaves it to its writer"
    living.close()
    assert not part.exists()
    assert [run["open_parts"]["being_written"] for run in summed(capsys, tmp_path)["runs"]] == [0, 0, 0]


def test_a_part_that_is_finished_or_removed_meanwhile_is_read_once_or_not_at_all(tmp_path: Path, write: Any) -> None:
    living = write(ALPHA, (1, [1.0]), close=False)
    dumps, _ = command.find_dumps([tmp_path])
    living.close()
    [run] = command.scan(dumps)
    assert sum(tally.groups for tally in run.tasks.values()) == 1
    [run] = command.scan([*dumps, *command.find_dumps([tmp_path])[0]])
    assert sum(tally.groups for tally in run.tasks.values()) == 1
    empty = raw(tmp_path, b"", run=BETA, suffix=".part")
    dumps, _ = command.find_dumps([tmp_path])
    empty.unlink()
    assert [len(run.tasks) for run in command.scan(dumps)] == [1, 0], "an empty one may go away"


def test_torn_lines_set_aside_are_weighed_and_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw(tmp_path, line())
    raw(tmp_path, b'{"item', suffix=".torn")
    [run] = summed(capsys, tmp_path)["runs"]
    assert (run["torn_files"], run["torn_bytes"], run["groups"], run["malformed_lines"]) == (1, 6, 1, 0)
    assert "torn lines set aside: 6 bytes in 1 .torn files" in printed(capsys, str(tmp_path))


def test_a_malformed_line_is_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = [line(rollouts=[]), b"not json\n", b"[" * 100_000 + b"\n", line(item_id=3)]
    path = raw(tmp_path, line() + b"\n" + b"".join(bad) + line(seed=2) + b"x" * 30)
    [run] = summed(capsys, tmp_path)["runs"]
    assert (run["groups"], run["malformed_lines"]) == (2, 5)
    assert run["malformed"] == [{"file": str(path), "lines": 5, "first_line": 3, "first_fault": "no rollouts"}]
    assert f"malformed: 5 lines of {path}, first line 3 (no rollouts)" in printed(capsys, str(tmp_path))
    path.write_bytes(b"{\n")
    [run] = summed(capsys, tmp_path)["runs"]
    assert (run["groups"], run["mean_reward"], run["distinct_items"]) == (0, None, 0)
    assert "aaaaaaaa 1 0 0 0 0 - 0 0" in printed(capsys, str(tmp_path)), "a run of broken lines is still listed"


def test_groups_without_a_seed_are_no_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw(tmp_path, line(seed=None) + line(seed="1") + line(seed=True) + line(seed=2**70))
    [run] = summed(capsys, tmp_path)["runs"]
    assert (run["groups"], run["groups_without_seed"], run["distinct_items"]) == (4, 3, 1)
    assert "groups without a seed, which are not among the items: 3" in printed(capsys, str(tmp_path))


def test_first_and_last_modification_are_those_of_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run, seconds in ((ALPHA, 0), (BETA, 3600)):
        os.utime(raw(tmp_path, line(), run=run), (seconds, seconds))
    os.utime(raw(tmp_path, b"x", run=BETA, suffix=".torn"), (7200, 7200))
    total = summed(capsys, tmp_path)["total"]
    assert (total["first_modified"], total["last_modified"]) == (
        "1970-01-01T00:00:00+00:00",
        "1970-01-01T02:00:00+00:00",
    )


def test_other_files_are_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = raw(tmp_path, line())
    other = tmp_path / "groups.jsonl"
    other.write_bytes(line())
    os.mkfifo(tmp_path / f"{FILE_STEM}_rollouts_pipe_0000.jsonl")
    summary = summed(capsys, tmp_path, dump, tmp_path)
    assert summary["total"]["groups"] == 1, "a path given twice counts once"
    assert str(other) in summary["files_left_out"]
    assert len(summary["files_left_out"]) == 2
    assert "left out: 2 files that are no dumps by their name" in printed(capsys, str(tmp_path))


def test_the_default_folder_is_data_dumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data_dumps").mkdir()
    raw(tmp_path / "data_dumps", line())
    with pytest.raises(SystemExit) as end:
        cli.main(["dumps"])
    assert end.value.code == 0
    assert "aaaaaaaa" in capsys.readouterr().out


def test_paths_that_hold_nothing_to_sum_up_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(path: Path) -> str:
        assert command.main([str(path)]) == 2
        [message] = capsys.readouterr().err.splitlines()
        return message

    assert "none does not exist: expected a folder of rollout dumps" in refused(tmp_path / "none")
    assert "No dumps in" in refused(tmp_path)
    other = tmp_path / "notes.txt"
    other.write_text("x")
    assert "No dumps in" in refused(other)
    (tmp_path / f"{FILE_STEM}_rollouts_run_0000.jsonl").symlink_to(tmp_path / "gone")
    assert "Cannot read" in refused(tmp_path)
    path = raw(tmp_path, line())
    found = command.find_dumps([path])
    path.unlink()
    monkeypatch.setattr(command, "find_dumps", lambda paths: found)
    assert f"Cannot read {path}: No such file" in refused(tmp_path), "it goes away after it was found"


def test_names_in_a_dump_do_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw(tmp_path, line(item_id="\x1b[31m[bold]\ud800" + "x" * 500))
    text = printed(capsys, str(tmp_path), "--by-task")
    assert "\x1b" not in text
    assert "?[31m[bold]?xxx" in text
    assert "x" * 60 not in text


def test_many_names_are_cut_short_in_print_and_whole_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(12):
        raw(tmp_path, line() + b"{\n", run=f"run{number}")
    text = printed(capsys, str(tmp_path))
    assert "and 2 more files with malformed lines" in text
    assert "and 56 more pairs of runs" in text
    assert len(summed(capsys, tmp_path)["shared_by"]) == 66


def test_groups_do_not_stay_in_memory(tmp_path: Path) -> None:
    text = "x" * 1_000_000
    rollouts = [{"conversation": [{"content": "q"}, {"content": text}], "score": 1.0}]
    raw(tmp_path, b"".join(line(seed=seed, rollouts=rollouts) for seed in range(30)))
    tracemalloc.start()
    try:
        [run] = command.scan(command.find_dumps([tmp_path])[0])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert run.tasks["gcd"].groups == 30
    assert peak < 10_000_000
