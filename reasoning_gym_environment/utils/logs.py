"""Log lines on stderr."""

from __future__ import annotations

import logging

LINE_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
TIME_FORMAT = "%H:%M:%S"

CONTROL_CODES = [*range(32), *range(127, 160)]
ESCAPED = {code: f"\\x{code:02x}" for code in CONTROL_CODES if chr(code) not in "\n\t"}
"""A table for `str.translate` that escapes control characters, except ends of lines and tabs."""


class LineFormatter(logging.Formatter):
    """Lines without control characters: the text of a record may come from a server, and could steer the terminal."""

    def __init__(self) -> None:
        super().__init__(LINE_FORMAT, TIME_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).translate(ESCAPED)


def stderr_handler() -> logging.Handler:
    """A handler that writes lines to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    return handler
