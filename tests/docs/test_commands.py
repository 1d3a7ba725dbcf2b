"""Every command of ours in README and docs is one that works, up to where it would need a server, a GPU or minutes."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testing.report_samples import write_dump, write_results

from .test_pages import PAGES, ROOT

ATROPOS_COMMANDS = ("serve", "process", "evaluate")
TO_THEIR_END = re.compile(r"(tasks|report|audit --tasks chain_sum)\b.*")
"""The other audits take minutes, and the demo has tests of its own."""
SLOW = re.compile(r"tasks( [^-].*)?|audit --tasks chain_sum.*")
US = "reasoning_gym_environment"
FORMS = ["reasoning-gym-env ", *(f"python {form} " for form in (f"-m {US}", f"{US}.py", f"{US}/{US}.py"))]


class Accepted(Exception):
    """The arguments are read, and good; the work would begin."""


def command_lines(text: str) -> Iterator[str]:
    """Those of bash blocks, a line each, and those in running text that are no mere name of a command."""
    for block in re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if command := shlex.join(shlex.split(line, comments=True)):
                yield command
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`((?:reasoning-gym-env|python) [^`]+)`", prose)


def of_ours(command: str) -> str | None:
    """What stands behind the name of our program, in whatever form it is started; None for another program."""
    return next((command.removeprefix(form) for form in FORMS if command.startswith(form)), None)


def commands_of_examples() -> Iterator[str]:
    """Those of the first lines of our examples, without the remark that may follow in the same line."""
    for path in (ROOT / "examples").glob("*.py"):
        # reasoning-core is not installed here.
        if path.name != "reasoning_core_tasks.py":
            yield from re.findall(r"^(reasoning-gym-env .*?)(?:   .*)?$", path.read_text("utf-8"), re.MULTILINE)


LINES = {line for page in PAGES for line in command_lines(page.read_text("utf-8"))} | set(commands_of_examples())
COMMANDS = sorted({of_ours(line) or "" for line in LINES} - {""})
CASES = [pytest.param(one, marks=[pytest.mark.slow] * bool(SLOW.fullmatch(one))) for one in COMMANDS]


@pytest.fixture(scope="module")
def what_they_name(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for name in ("first-steps", "some-model", "some-model-easy", "before", "after"):
        write_results(folder / "results" / name, tasks=3, attacks=False)
    write_dump(folder / "data_dumps", groups=40)
    (folder / "my_tasks.py").write_text("")
    for name in (
        "reasoning_gym_environment",
        "benchmarks",
        "testing",
        "tests",
        "docs",
        "examples",
        "requirements",
        "requirements.txt",
    ):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.parametrize("command", CASES)
def test_a_command_in_the_docs_is_accepted(
    command: str, what_they_name: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(what_they_name)
    monkeypatch.setenv("API_KEY", "secret")
    has_end = TO_THEIR_END.fullmatch(command) is not None
    if not has_end and command.split(" ")[0] not in ATROPOS_COMMANDS:
        end_with_the_arguments(monkeypatch)
    try:
        run_ours(shlex.split(command), monkeypatch)
    except Accepted:
        assert not has_end
    except SystemExit as end:
        assert (end.code or 0, bool(capsys.readouterr().out)) == (0, True)


def end_with_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = argparse.ArgumentParser.parse_args

    def read(self: argparse.ArgumentParser, *args: Any, **options: Any) -> Any:
        parse(self, *args, **options)
        raise Accepted

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", read)


def run_ours(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process. Raises Accepted where a command that needs a server has checked its settings."""
    from reasoning_gym_environment import ReasoningGymEnv, cli
    from reasoning_gym_environment.atropos import preflight

    def start(env: Any, config: Any, server_configs: Any, *args: Any, **options: Any) -> None:
        preflight.prepare_servers(server_configs, config.tokenizer_name)
        raise Accepted

    monkeypatch.setattr(ReasoningGymEnv, "__init__", start)
    monkeypatch.setattr(sys, "argv", ["reasoning-gym-env"])
    cli.main([str(path) for one in arguments for path in (Path().glob(one) if "/*." in one else [one])])
