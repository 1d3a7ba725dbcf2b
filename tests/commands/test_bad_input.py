"""Files, paths and numbers that a command may get from anybody end in a result or in one sentence."""

from __future__ import annotations

import argparse
import importlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from reasoning_gym_environment import cli
from reasoning_gym_environment.commands import export
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.html_report import main as report
from reasoning_gym_environment.storage.lines import files_of
from reasoning_gym_environment.utils.terminal import MOST
from testing.report_samples import group_line, sample, write_lines, write_results

ODD: list[Any] = [None, True, -1, 1e300, "", "\u202e\x00<b>", [], {"a": []}]


def lines_with_odd_values() -> Iterator[tuple[str, dict[str, Any]]]:
    """Lines of each kind in which one field, or one field of a rollout, has another value or is missing."""
    group = group_line("gcd", 1, 1, [1.0, 0.0], Random(1))
    answered = sample("gcd", "arithmetic", 1, 0, "correct", "m", Random(1))
    unanswered = {**answered, "messages": answered["messages"][:1]}
    for line in (group, answered, unanswered):
        for name in line:
            for value in ODD:
                yield name, {**line, name: value}
            yield name, {other: value for other, value in line.items() if other != name}
    rollout = group["rollouts"][0]
    for name in rollout:
        for value in ODD:
            yield name, {**group, "rollouts": [{**rollout, name: value}, group["rollouts"][1]]}


def run_all(path: str | Path, folder: Path) -> set[str]:
    """The names of the commands that had a result. All others must have refused the path in a sentence."""
    commands = {
        "report": (report.main, [str(path), "-o", f"{folder}.html"]),
        "export": (export.main, ["sft", str(path), "--to", f"{folder}.export", "--min-score", "0"]),
    }
    succeeded = set()
    for name, (main, arguments) in commands.items():
        try:
            main(arguments)
        except EnvironmentSetupError as error:
            assert len(str(error).splitlines()) == 1
        else:
            succeeded.add(name)
    return succeeded


def test_no_value_in_a_line_ends_a_command_in_a_traceback(tmp_path: Path, in_process_workers: None) -> None:
    succeeded: set[str] = set()
    by_name: dict[str, list[dict[str, Any]]] = {}
    for name, line in lines_with_odd_values():
        by_name.setdefault(name, []).append(line)
    for number, lines in enumerate(by_name.values()):
        path = write_lines(tmp_path / f"in{number}" / "lines.jsonl", lines)
        succeeded |= run_all(path, tmp_path / f"out{number}")
    assert succeeded == {"report", "export"}


def test_a_folder_that_cannot_be_read_is_not_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_results(tmp_path / "readable", tasks=1)
    (tmp_path / "locked").mkdir()
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="locked"):
        files_of(tmp_path)


@pytest.mark.parametrize("port", ["-1", "65536", "http", ""])
def test_a_port_that_does_not_exist_is_refused_before_anything_starts(port: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["grade-server", f"--port={port}"])
    assert end.value.code == 2
    assert f"expected a number from 0 to 65535, got {port!r}" in capsys.readouterr().err


# --- names and paths

EMPTY = [
    ["report", ""],
    ["report", "--compare", "", "samples.jsonl"],
    ["report", "samples.jsonl", "--output="],
    ["export", "sft", "", "--to=out"],
    ["export", "sft", "samples.jsonl", "--to="],
    ["audit", "--tasks="],
    ["audit", "--exclude", " , "],
    ["audit", "--tasks", "gcd", "--json="],
    ["tasks", ""],
    ["grade-server", "--token-env="],
]


@pytest.mark.parametrize("arguments", EMPTY, ids=" ".join)
def test_an_empty_name_is_refused_and_means_neither_this_folder_nor_all_tasks(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("samples.jsonl").touch()
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    *usage, line = capsys.readouterr().err.splitlines()
    assert re.search("expected (the name of|a name)", line.lower()) and "'" in line
    assert not usage or usage[0].startswith("usage: ")
    assert [path.name for path in tmp_path.iterdir()] == ["samples.jsonl"]


# --- numbers

SEEDS = ("seed", "eval_seed")
MAY_BE_ZERO = ("max_rollouts", "port", "complexity", "eval_complexity", "min_score", "curriculum_target_accuracy")
"""The setting of the last refuses 0."""
NUMBERS = ["-1", "-5", "0", "-0.5", "0.5", "nan", "inf", "-inf", "1e400", "9" * 30, "9" * 400, "9" * 5000, "", "x"]


class Captured(Exception):
    """The parser of a command, instead of its arguments."""


def numeric_options() -> Iterator[tuple[str, argparse.Action]]:
    """Every option of the commands without Atropos that reads the text `1` as a number."""
    for name, command in cli.COMMANDS.items():
        if command.target == cli.ATROPOS:
            continue
        # `tasks TASK` has options of its own.
        for words in ([], ["gcd"]) if name == "tasks" else ([],):
            for action in actions_of(parser_of(command.target, words)):
                if action.type is not None and isinstance(action.type("1"), int | float):
                    yield name, action


def parser_of(target: str, words: list[str]) -> argparse.ArgumentParser:
    module, _, function = target.partition(":")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", capture)
        with pytest.raises(Captured) as captured:
            getattr(importlib.import_module(f"reasoning_gym_environment.{module}"), function)(words)
    parser: argparse.ArgumentParser = captured.value.args[0]
    return parser


def actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The options of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for kind in action.choices.values():
                yield from actions_of(kind)


def capture(parser: argparse.ArgumentParser, *_: Any) -> None:
    raise Captured(parser)


OPTIONS = [pytest.param(action, id=f"{name} {action.dest}") for name, action in numeric_options()]


def test_the_numeric_options_are_found() -> None:
    names = {parameter.id for parameter in OPTIONS}
    assert {"report max_rollouts", "audit per_level", "tasks count", "export count", "openenv port"} <= names


@pytest.mark.parametrize("action", OPTIONS)
def test_a_number_without_a_meaning_is_refused(action: Any) -> None:
    for text in NUMBERS:
        try:
            number = action.type(text)
        except argparse.ArgumentTypeError as error:
            assert "expected" in str(error) and len(str(error)) < 250
            continue
        if action.dest in SEEDS:
            assert isinstance(number, int)
        else:
            assert math.isfinite(number) and 0 <= number <= MOST
            assert number > 0 or action.dest in MAY_BE_ZERO, f"{action.dest} {text}"
