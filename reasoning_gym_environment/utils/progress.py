"""The progress of long work: a bar on a terminal, and a line a minute in a log."""

from __future__ import annotations

import logging
import sys
from typing import Any

from tqdm import tqdm

logger = logging.getLogger(__name__)

LINE_S = 60.0
LINE = "{desc}: {n_fmt} of {total_fmt} {unit}s, {rate_fmt}, {remaining} left{postfix}"


class Progress(tqdm):
    """Takes the arguments of tqdm. Without a terminal, the first line comes after a minute, and the last at the end."""

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
