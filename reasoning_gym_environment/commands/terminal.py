"""What the commands print with: tables that are never cut, and a reader that may go away."""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

WIDEST = 10_000


class Output(Console):
    """Standard output. A reader that has gone away is a BrokenPipeError, as with `print`."""

    def on_broken_pipe(self) -> None:
        # Called while the error is handled; rich would end the process here, with a code of its own.
        raise


def print_table(console: Console, table: Table) -> None:
    """Print in the width that the cells need: a narrow terminal wraps lines, but no cell is cut."""
    console.width = max(console.width, Measurement.get(console, console.options.update_width(WIDEST), table).maximum)
    console.print(table)
