"""What our own commands share: numbers read from the command line, results written, tables printed.

Numbers are checked as argparse reads them (`type=positive`). Whether results can be written is asked before a command
starts to work for them. Tables are never cut, and a reader may go away.
"""

from __future__ import annotations

import tempfile
from argparse import ArgumentTypeError
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from ..errors import EnvironmentSetupError

WIDEST = 10_000


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return value


def positive(text: str) -> int:
    """A whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return number


def check_file(setting: str, name: str | Path, *, inputs: Iterable[str | Path] = ()) -> None:
    """Raise EnvironmentSetupError, naming `setting`, unless a file can be written there that replaces no input.

    A file that is there stays as it is; its folder must be there.
    """
    path = Path(name)
    if not str(name) or path.is_dir():
        raise EnvironmentSetupError(f"{setting}: expected the name of a file, got {str(name)!r}.")
    for one in inputs:
        if _is_same(path, Path(one)):
            raise EnvironmentSetupError(f"{setting}: {path} is used already and would be replaced. Name another file.")
    try:
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():
            _try_to_write_in(path.parent)
    except OSError as error:
        raise _cannot_write(setting, path, error) from error


def check_folder(setting: str, name: str | Path) -> None:
    """Raise EnvironmentSetupError, naming `setting`, unless files can be written in this folder; makes it."""
    path = Path(name)
    if not str(name) or path.is_file():
        raise EnvironmentSetupError(f"{setting}: expected the name of a folder, got {str(name)!r}.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        _try_to_write_in(path)
    except OSError as error:
        raise _cannot_write(setting, path, error) from error


def place_of_page(groups: Path) -> Path:
    """Where the page of this file will lie. Raises EnvironmentSetupError if it cannot, or would replace the groups."""
    page = groups.with_suffix(".html")
    check_file("The page beside env.data_path_to_save_groups", page, inputs=[groups])
    return page


def _is_same(one: Path, other: Path) -> bool:
    """Whether two names stand for one file, also through links, and for a file that is still to be written."""
    try:
        return one.samefile(other)
    except OSError:
        return one.resolve() == other.resolve()


def _try_to_write_in(folder: Path) -> None:
    """Permissions do not tell: those of root allow everything, also where nothing can be written."""
    with tempfile.TemporaryFile(dir=folder):
        pass


def _cannot_write(setting: str, path: Path, error: OSError) -> EnvironmentSetupError:
    return EnvironmentSetupError(f"{setting}: cannot write {path}: {error.strerror}. Name a place that can be written.")


class Output(Console):
    """Standard output. A reader that has gone away is a BrokenPipeError, as with `print`."""

    def on_broken_pipe(self) -> None:
        # Called while the error is handled; rich would end the process here, with a code of its own.
        raise


def print_table(console: Console, table: Table) -> None:
    """Print in the width that the cells need: a narrow terminal wraps lines, but no cell is cut."""
    console.width = max(console.width, Measurement.get(console, console.options.update_width(WIDEST), table).maximum)
    console.print(table)


def printable(text: str, limit: int) -> str:
    """Text from files that anyone may have written, with an end: nothing in it may steer a terminal."""
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"
