"""However a command ends, it ends with a code and at most one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reasoning_gym_environment import cli

from .support import child_environment, run

MODULE = [sys.executable, "-m", "reasoning_gym_environment"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["tasks", "--include", "category:games"], ["--help"]])
def test_a_reader_that_goes_away_is_no_error(arguments: list[str], unbuffered: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = child_environment(PYTHONUNBUFFERED=unbuffered)
    result = subprocess.run(
        [*MODULE, *arguments], stdout=writing, stderr=subprocess.PIPE, cwd=tmp_path, env=environment, timeout=90
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    # Without a buffer argparse itself passes over what it cannot print.
    [(["tasks", "--include", "gcd"], ""), (["tasks", "--include", "gcd"], "1"), (["dumps", "--help"], "")],
)
def test_a_full_disk_is_one_line(arguments: list[str], unbuffered: str, tmp_path: Path) -> None:
    environment = child_environment(PYTHONUNBUFFERED=unbuffered)
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*MODULE, *arguments], stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, env=environment, timeout=90
        )
    assert result.returncode == 2
    assert result.stderr.decode().count("\n") == 1
    assert "No space left on device" in result.stderr.decode()


def test_another_error_of_the_system_is_a_bug_and_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str]) -> None:
        raise FileNotFoundError(2, "a file of ours")

    monkeypatch.setattr(cli, "_run", fail)
    with pytest.raises(FileNotFoundError):
        cli.main(["tasks"])


INTERRUPT_WHILE_IMPORTING = """
import os, signal, sys

module, *arguments = sys.argv[1:]

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from reasoning_gym_environment.cli import main
main(arguments)
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("rich.console", ["tasks"]),
        ("reasoning_gym", ["tasks"]),
        ("reasoning_gym", ["preview", "gcd"]),
        ("reasoning_gym", ["audit", "gcd"]),
        ("numpy", ["dumps"]),
        ("json", ["report"]),
        ("aiohttp", ["demo"]),
        ("atroposlib", ["serve"]),
        ("atroposlib.envs.base", ["process"]),
        ("transformers", ["evaluate"]),
    ],
)
def test_ctrl_c_ends_a_command_in_one_line_also_while_it_is_imported(
    module: str, arguments: list[str], tmp_path: Path
) -> None:
    result = run(["-c", INTERRUPT_WHILE_IMPORTING, module, *arguments], tmp_path)
    # Python kills itself with the signal if it came in code that was made from text; a shell says 130 of both.
    assert result.returncode in (130, -signal.SIGINT)
    assert result.stderr == "reasoning-gym-env: interrupted.\n"
