"""Log lines on stderr: their format, and a handler for programs that have configured no logging."""

from __future__ import annotations

import logging
import sys
from typing import Any

LINE_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
TIME_FORMAT = "%H:%M:%S"


class StderrHandler(logging.StreamHandler):
    """Writes to what `sys.stderr` is at the moment: a live display replaces it, and writes the lines above itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter(LINE_FORMAT, TIME_FORMAT))

    @property
    def stream(self) -> Any:
        return sys.stderr


class DefaultHandler(StderrHandler):
    """Writes to stderr, except records that a handler of the program gets.

    A program may configure logging at any time, for example with `logging.basicConfig` after it has constructed the
    environment. From then on this handler is silent, because otherwise each line would appear twice.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this handler writes the record."""
        return not has_own_handler(logging.getLogger(record.name)) and bool(super().filter(record))


def has_own_handler(logger: logging.Logger) -> bool:
    """Whether a record of this logger reaches a handler that the program has configured."""
    current: logging.Logger | None = logger
    while current is not None:
        if not all(isinstance(handler, DefaultHandler) for handler in current.handlers):
            return True
        current = current.parent if current.propagate else None
    return False


def add_default_handler(logger: logging.Logger) -> None:
    """Give this logger the default handler, unless it has one already."""
    if not any(isinstance(handler, DefaultHandler) for handler in logger.handlers):
        logger.addHandler(DefaultHandler())
