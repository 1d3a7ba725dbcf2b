"""What our own commands read from the command line and print with.

Numbers are checked as argparse reads them (`type=positive`); tables are never cut; a reader may go away.
"""

from __future__ import annotations

from argparse import ArgumentTypeError

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

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


class Output(Console):
    """Standard output. A reader that has gone away is a BrokenPipeError, as with `print`."""

    def on_broken_pipe(self) -> None:
        # Called while the error is handled; rich would end the process here, with a code of its own.
        raise


def print_table(console: Console, table: Table) -> None:
    """Print in the width that the cells need: a narrow terminal wraps lines, but no cell is cut."""
    console.width = max(console.width, Measurement.get(console, console.options.update_width(WIDEST), table).maximum)
    console.print(table)
