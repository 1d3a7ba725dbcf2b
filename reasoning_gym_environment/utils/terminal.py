"""Code that the commands share: they parse numbers, check where they can write, show progress, and print tables.

argparse checks numbers while it parses them (`type=positive`). A command checks that it can write its results before
it starts to work. Tables are never cut, and a program that reads the output may close it early.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from tqdm import tqdm

from ..errors import EnvironmentSetupError

logger = logging.getLogger(__name__)

Number = TypeVar("Number", int, float)

MOST = 10**9
"""The largest number of items, rollouts, seconds and so on that an option accepts."""


def share(text: str) -> float:
    """A number from 0 to 1."""
    return _number(float, text, 0, 1, "a number from 0 to 1")


def positive(text: str) -> int:
    """A whole number from 1 to MOST."""
    return _number(int, text, 1, MOST, f"a whole number from 1 to {MOST}")


def not_negative(text: str) -> int:
    """A whole number from 0 to MOST."""
    return _number(int, text, 0, MOST, f"a whole number from 0 to {MOST}")


def whole(text: str) -> int:
    """Any whole number, such as a seed."""
    return _number(int, text, -math.inf, math.inf, "a whole number")


def port(text: str) -> int:
    """Argparse type of a port; 0 stands for any free port."""
    return _number(int, text, 0, 65535, "a number from 0 to 65535")


def seconds(text: str) -> float:
    """A time of at least a millisecond."""
    return _number(float, text, 0.001, MOST, f"a number of seconds from 0.001 to {MOST}")


def _number(read: Callable[[str], Number], text: str, least: float, most: float, expected: str) -> Number:
    with contextlib.suppress(ValueError):
        if least <= read(text) <= most:
            return read(text)
    raise ArgumentTypeError(f"expected {expected}, got {text!r:.100}")


def path_name(text: str) -> Path:
    """The name of a file or a folder. The empty text of a variable that is not set would be the current folder."""
    if not text:
        raise ArgumentTypeError("expected the name of a file or a folder, got ''")
    return Path(text)


def check_file(setting: str, name: str | Path, *, inputs: Iterable[str | Path] = ()) -> None:
    """Raise EnvironmentSetupError, naming `setting`, unless the file can be written and is not an input.

    An existing file stays as it is. The folder of the file must exist.
    """
    path = Path(name)
    if not str(name) or path.is_dir():
        raise EnvironmentSetupError(f"{setting}: expected the name of a file, got {str(name)!r}.")
    if path.resolve() in [Path(file).resolve() for file in inputs]:
        raise EnvironmentSetupError(f"{setting}: {path} is used already and would be replaced. Name another file.")
    with _must_be_writable(setting, path):
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():
            tempfile.TemporaryFile(dir=path.parent).close()


def check_folder(setting: str, name: str | Path) -> None:
    """Raise EnvironmentSetupError, naming `setting`, unless files can be written in this folder. Creates it."""
    path = Path(name)
    if not str(name) or path.is_file():
        raise EnvironmentSetupError(f"{setting}: expected the name of a folder, got {str(name)!r}.")
    with _must_be_writable(setting, path):
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()


@contextlib.contextmanager
def _must_be_writable(setting: str, path: Path) -> Iterator[None]:
    """Report a failed attempt. Only an attempt shows it: permissions allow root to write even on a read-only disk."""
    try:
        yield
    except OSError as error:
        text = f"{setting}: cannot write {path}: {error.strerror}. Name a place that can be written."
        raise EnvironmentSetupError(text) from error


LINE_S = 60.0
LINE = "{desc}: {n_fmt} of {total_fmt} {unit}s, {rate_fmt}, {remaining} left{postfix}"


class Progress(tqdm):
    """The progress of long work, with the arguments of tqdm: a bar on a terminal, and a line a minute in a log.

    Without a terminal, the first line comes after a minute, and the last at the end.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if not sys.stderr.isatty():
            # With `miniters`, tqdm looks at the clock at each step.
            options |= {"file": _LogLines(), "mininterval": LINE_S, "delay": LINE_S, "miniters": 1, "bar_format": LINE}
        super().__init__(*arguments, **options)


class _LogLines:
    """A file that makes a line of the log of each text."""

    def write(self, text: str) -> None:
        line = text.strip()
        if line:
            logger.info("%s", line)

    def flush(self) -> None:
        """Do nothing, because no text is buffered."""


class Output(Console):
    """Standard output. Raises BrokenPipeError if the reader has closed it, like `print`."""

    def __init__(self) -> None:
        # Names of tasks and reasons come from files and exceptions. Brackets and colons in them mean nothing.
        super().__init__(markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        # rich calls this while it handles the error. Its own version would end the process with exit code 1.
        raise


def print_table(console: Console, table: Table) -> None:
    """Print in the width that the cells need: a narrow terminal wraps lines, but no cell is cut."""
    console.width = max(console.width, Measurement.get(console, console.options.update_width(10_000), table).maximum)
    console.print(table)


def printable(text: str, limit: int) -> str:
    """At most `limit` characters of an untrusted text, without characters that control a terminal."""
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"
