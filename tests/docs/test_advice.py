"""Every setting and flag that a message names exists."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import reasoning_gym_environment
from reasoning_gym_environment import cli
from reasoning_gym_environment.atropos import original_names
from reasoning_gym_environment.atropos.flags import packaged_settings
from reasoning_gym_environment.errors import SETTINGS_ARE_LISTED

PACKAGE = Path(reasoning_gym_environment.__file__).parent
NAMED = re.compile(r"\b(?:env|openai)\.[a-z_]+\b|(?<![\w-])--[a-z][a-z_-]*[a-z](?:\.[a-z_]+)?")
OF_OTHERS = {"--help", "--version", "--init", "openai.com", "--env", "--openai", "env.setup"}
"""Flags of every program and of git, a host, the beginnings of patterns such as --env.NAME, and a method."""


def strings_in(tree: ast.AST) -> Iterator[str]:
    """The strings of a module, without its docstrings."""
    statements = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in statements:
            yield node.value


def test_no_message_names_a_setting_or_a_flag_that_does_not_exist() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    settings = {setting.name for setting in packaged_settings()}
    known = settings | {f"--{name}" for name in settings} | {"--limit-tokens"} | OF_OTHERS
    # The commands that need no Atropos have some settings as flags of their own.
    known |= {f"--{name.removeprefix('env.').replace('_', '-')}" for name in settings}
    known |= original_names.SETTINGS_WITHOUT_EFFECT.keys()
    texts = [(path.name, text) for path, tree in trees.items() for text in strings_in(tree)]
    # A string that is nothing but a flag declares it.
    known |= {text for _, text in texts if NAMED.fullmatch(text)}
    for file, text in texts:
        unknown = set(NAMED.findall(text)) - known
        assert not unknown, f"{file}: {text}"


def test_the_command_that_messages_name_lists_all_settings(capsys: pytest.CaptureFixture[str]) -> None:
    [command] = re.findall("`reasoning-gym-env (.+)`", SETTINGS_ARE_LISTED)
    with pytest.raises(SystemExit) as end:
        cli.main(shlex.split(command))
    listed = capsys.readouterr().out
    names = [setting.name for setting in packaged_settings() if setting.group != "unused"]
    assert end.value.code == 0 and [name for name in names if f"--{name}" not in listed] == []
