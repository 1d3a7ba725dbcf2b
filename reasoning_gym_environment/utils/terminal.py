"""What our own commands share: numbers read from the command line, results written, tables printed.

Numbers are checked as argparse reads them (`type=positive`). Whether results can be written is asked before a command
starts to work for them. Tables are never cut, and a reader may go away.
"""

from __future__ import annotations

import contextlib
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from ..errors import EnvironmentSetupError


def share(text: str) -> float:
    """A number from 0 to 1."""
    with contextlib.suppress(ValueError):
        if 0.0 <= float(text) <= 1.0:
            return float(text)
    raise ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")


def positive(text: str) -> int:
    """A whole number of at least 1."""
    with contextlib.suppress(ValueError):
        if int(text) >= 1:
            return int(text)
    raise ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")


def check_file(setting: str, name: str | Path, *, inputs: Iterable[str | Path] = ()) -> None:
    """Raise EnvironmentSetupError, naming `setting`, unless a file can be written there that replaces no input.

    A file that is there stays as it is; its folder must be there.
    """
    path = Path(name)
    if not str(name) or path.is_dir():
        raise EnvironmentSetupError(f"{setting}: expected the name of a file, got {str(name)!r}.")
    if path.resolve() in [Path(one).resolve() for one in inputs]:
        raise EnvironmentSetupError(f"{setting}: {path} is used already and would be replaced. Name another file.")
    with _must_be_writable(setting, path):
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():
            tempfile.TemporaryFile(dir=path.parent).close()


def check_folder(setting: str, name: str | Path) -> None:
    """Raise EnvironmentSetupError, naming `setting`, unless files can be written in this folder; makes it."""
    path = Path(name)
    if not str(name) or path.is_file():
        raise EnvironmentSetupError(f"{setting}: expected the name of a folder, got {str(name)!r}.")
    with _must_be_writable(setting, path):
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()


@contextlib.contextmanager
def _must_be_writable(setting: str, path: Path) -> Iterator[None]:
    """It is tried, for permissions do not tell: root's allow everything, also where nothing can be written."""
    try:
        yield
    except OSError as error:
        text = f"{setting}: cannot write {path}: {error.strerror}. Name a place that can be written."
        raise EnvironmentSetupError(text) from error


class Output(Console):
    """Standard output. A reader that has gone away is a BrokenPipeError, as with `print`."""

    def on_broken_pipe(self) -> None:
        # Called while the error is handled; rich would end the process here, with a code of its own.
        raise


def print_table(console: Console, table: Table) -> None:
    """Print in the width that the cells need: a narrow terminal wraps lines, but no cell is cut."""
    console.width = max(console.width, Measurement.get(console, console.options.update_width(10_000), table).maximum)
    console.print(table)


def printable(text: str, limit: int) -> str:
    """Text from files that anyone may have written, with an end: nothing in it may steer a terminal."""
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"
