"""The standard streams of a command, which may be full, read by nobody, or a terminal that obeys characters.

This module imports nothing that takes time, so that Ctrl-C is answered in one line from the first moment.
"""

from __future__ import annotations

import logging
import os
import sys
from io import TextIOWrapper
from typing import Any, TextIO

ESCAPED = {one: f"\\x{one:02x}" for one in (*range(32), *range(127, 160)) if chr(one) not in "\n\t"}
"""Characters that a terminal obeys, other than the ends of lines and tabs, for `str.translate`."""


class ShownRecord(logging.LogRecord):
    """A log record without characters that a terminal obeys: its text may come from a server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.exc_info:
            self.exc_text = logging.Formatter().formatException(self.exc_info).translate(ESCAPED)

    def getMessage(self) -> str:
        return super().getMessage().translate(ESCAPED)


def mend_streams() -> None:
    """Show a character that the terminal cannot print escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def discard(stream: TextIO) -> None:
    """Drop what is still buffered, which would fail once more when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def last_words(text: str, code: int) -> int:
    """Print why the command ends, if that is possible; returns the exit code."""
    try:
        print(f"reasoning-gym-env: {text}", file=sys.stderr)  # noqa: T201
    except OSError:
        discard(sys.stderr)
    return code
