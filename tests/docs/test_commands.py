"""Every command line in README and docs is one that works, up to where it would need a server, a GPU or minutes."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import itertools
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..report_samples import write_dump, write_results
from .test_pages import PAGES, ROOT

ATROPOS_COMMANDS = ("serve", "process", "evaluate")
TO_THEIR_END = re.compile(r"(tasks|report|dumps|preview|audit chain_sum)\b.*")
"""The other audits take minutes, and the demo has tests of its own."""
SLOW = re.compile(r"tasks|(preview|audit chain_sum) .*")
OF_VLLM = "--no-enable-prefix-caching"
"""Atropos' server takes every flag of vLLM's engine; those that its own code names are found there."""
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
    yield from re.findall(r"`((?:reasoning-gym-env|python|pip install|make|run-api|atropos-\S+) [^`]+)`", prose)


def of_ours(command: str) -> str | None:
    """What stands behind the name of our program, in whatever form it is started; None for another program."""
    return next((command.removeprefix(form) for form in FORMS if command.startswith(form)), None)


COMMANDS = sorted({line for page in PAGES for line in command_lines(page.read_text(encoding="utf-8"))})
CASES = [pytest.param(one, marks=pytest.mark.slow if SLOW.fullmatch(of_ours(one) or "") else ()) for one in COMMANDS]


@pytest.fixture(scope="module")
def what_they_name(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for name in ("some-model", "before", "after"):
        write_results(folder / "results" / name, tasks=3, attacks=False)
    write_dump(folder / "data_dumps")
    (folder / "my_tasks.py").write_text("")
    for name in ("reasoning_gym_environment", "benchmarks", "tests", "docs", "requirements.txt"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.parametrize("command", CASES)
def test_a_command_in_the_docs_is_accepted(
    command: str, what_they_name: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(what_they_name)
    rest = of_ours(command)
    has_end = TO_THEIR_END.fullmatch(rest or "") is not None
    if not has_end and (rest or "").split(" ")[0] not in ATROPOS_COMMANDS:
        end_with_the_arguments(monkeypatch)
    try:
        if rest is None:
            check_other(shlex.split(command), monkeypatch)
        else:
            monkeypatch.setenv("API_KEY", "secret")
            run_ours(shlex.split(rest), monkeypatch)
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


def check_other(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is not ours, none of which is really run. Raises Accepted if it has read its arguments itself."""
    variables = list(itertools.takewhile(re.compile(r"[A-Z_]+=").match, words))
    words = words[len(variables) :]
    program = words[0].removeprefix(".venv/bin/")
    if program == "python" and words[2:] and words[2].startswith("example_trainer."):
        # It needs PyTorch to be imported.
        trainer = Path(str(importlib.util.find_spec("example_trainer").origin)).parent
        assert trainer.joinpath(words[2].partition(".")[2] + ".py").exists()
        source = "".join(path.read_text(encoding="utf-8") for path in trainer.glob("*.py"))
        named = [*(word for word in words if word.startswith("--")), *(one.partition("=")[0] for one in variables)]
        assert [name for name in named if name != OF_VLLM and f'"{name}"' not in source] == []
    elif program == "python" and words[1:] != ["-m", "build"]:
        target = words[2] if words[1] == "-m" else words[1]
        file = ROOT / (target.replace(".", "/") + ".py" if words[1] == "-m" else target)
        if "ArgumentParser" not in file.read_text(encoding="utf-8"):
            return  # It would do its work.
        monkeypatch.setattr(sys, "argv", [target, *words[words.index(target) + 1 :]])
        monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
        (runpy.run_module if words[1] == "-m" else runpy.run_path)(target, run_name="__main__")
    elif program in ("run-api", "atropos-sft-gen"):
        (script,) = importlib.metadata.entry_points(group="console_scripts", name=program)
        monkeypatch.setattr(sys, "argv", words)
        script.load()()
    elif program == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    else:
        # They would change this machine or this folder, or a cluster.
        assert program in ("python", "pip", "git", "cp", "sbatch", "pre-commit", "vllm"), program
