"""A line on stderr holds no character that a terminal obeys."""

from __future__ import annotations

import logging

from reasoning_gym_environment.utils.logs import LineFormatter


def test_a_log_line_has_no_character_that_a_terminal_obeys() -> None:
    error = ValueError("\x1b]0;title\x07\x9b2J\u00e9\n\tmore\r\x7f")
    record = logging.LogRecord("name", logging.ERROR, "file", 1, "refused: %s", (error,), (ValueError, error, None))
    text = "\\x1b]0;title\\x07\\x9b2J\u00e9\n\tmore\\x0d\\x7f"
    shown = LineFormatter().format(record)
    assert shown.endswith(f" ERROR   refused: {text}\nValueError: {text}")
