"""The messages that two pages of docs quote are messages of the program, and the settings that messages name exist."""

from __future__ import annotations

import ast
import functools
import html
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from reasoning_gym_environment import cli
from reasoning_gym_environment.atropos import original_names
from reasoning_gym_environment.atropos.flags import packaged_settings
from reasoning_gym_environment.errors import SETTINGS_ARE_LISTED

from .test_pages import DOCS, ROOT

PACKAGE = ROOT / "reasoning_gym_environment"
PAGES = ("troubleshooting.md", "prompts.md")
BOLD = re.compile(r"\*\*[^*]+\*\*")
ITALICS = re.compile(r"\*([^*\s][^*]*)\*")
LOG_LINE = re.compile(r"^(?:WARNING|ERROR|INFO) +(?:ALARM \w+: )?(.+)$", re.MULTILINE)
GAP = re.compile(r"'\.\.\.'|\.\.\.|\d+%?")
"""What stands for a value in a quoted message: three dots, in quotation marks or not, and a number or percentage."""


def quoted_messages(page: str) -> Iterator[str]:
    """Yield the messages that a page quotes.

    A message is in italics, in a table, a list or a sentence, or it is a line of a log. A line of a log may consist of
    several texts of the program, so each of its sentences, and what is in brackets, is yielded alone.
    """
    for line in LOG_LINE.findall(page):
        yield from re.split(r"\)?\. | \(", line.rstrip("."))
    for line in page.splitlines():
        text = BOLD.sub("", re.sub(r"^\* ", "", line))
        yield from map(html.unescape, ITALICS.findall(text))


def texts_in(module: Path) -> Iterator[str]:
    """Yield the strings of a module, with `{}` for the values in an f-string. Docstrings are not among them."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.value


@functools.cache
def texts_of_the_program() -> list[str]:
    return [text for module in PACKAGE.rglob("*.py") for text in texts_in(module)]


def pattern_of(message: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(piece) for piece in GAP.split(message)))


MESSAGES = [(page, message) for page in PAGES for message in quoted_messages((DOCS / page).read_text("utf-8"))]


@pytest.mark.parametrize(("page", "message"), MESSAGES)
def test_a_quoted_message_is_a_text_of_the_program(page: str, message: str) -> None:
    assert any(pattern_of(message).search(text) for text in texts_of_the_program())


# --- settings and flags

NAMED = re.compile(r"\b(?:env|openai)\.[a-z_]+\b|(?<![\w-])--[a-z][a-z_-]*[a-z](?:\.[a-z_]+)?")
OF_OTHERS = {"--help", "--version", "--init", "openai.com", "--env", "--openai", "env.setup"}
"""Flags of every program and of git, a host, the beginnings of patterns such as --env.NAME, and a method."""


def test_no_message_names_a_setting_or_a_flag_that_does_not_exist() -> None:
    settings = {setting.name for setting in packaged_settings()}
    known = settings | {f"--{name}" for name in settings} | {"--limit-tokens"} | OF_OTHERS
    # The commands that need no Atropos have some settings as flags of their own.
    known |= {f"--{name.removeprefix('env.').replace('_', '-')}" for name in settings}
    known |= original_names.SETTINGS_WITHOUT_EFFECT.keys()
    # A string that is nothing but a flag declares it.
    known |= {text for text in texts_of_the_program() if NAMED.fullmatch(text)}
    for text in texts_of_the_program():
        assert set(NAMED.findall(text)) <= known, text


def test_the_command_that_messages_name_lists_all_settings(capsys: pytest.CaptureFixture[str]) -> None:
    [command] = re.findall("`reasoning-gym-env (.+)`", SETTINGS_ARE_LISTED)
    with pytest.raises(SystemExit) as end:
        cli.main(shlex.split(command))
    listed = capsys.readouterr().out
    names = [setting.name for setting in packaged_settings() if setting.group != "unused"]
    assert end.value.code == 0 and [name for name in names if f"--{name}" not in listed] == []
