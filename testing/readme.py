"""The outputs that the README shows, to compare them with what a program prints."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).resolve().parents[1].joinpath("README.md").read_text(encoding="utf-8")
COMMANDS_WITH_OUTPUT: list[tuple[str, str]] = re.findall(
    r"^```bash\n(reasoning-gym-env .*?)^```\n\n```\n(.*?)^```", README, re.MULTILINE | re.DOTALL
)
"""Commands of the program, and the output below them."""
DEMO_OUTPUT: str = re.findall(r"^```\n(\[.*?)^```", README, re.MULTILINE | re.DOTALL)[0]

_VALUE = re.compile(r"\b[0-9a-f]{16}\b|\d[\d.,]*")
"""A manifest or a number."""


def is_printed(line: str, text: str) -> bool:
    """Whether a line of the text has the shape of this line.

    A number stands for any number, three dots for anything, and white space for any white space. A bracket may have
    white space before its number, where longer numbers have none.
    """
    pieces = [re.escape(piece.strip()) for piece in re.split(r"\[\.\.\.\]|\.\.\.", _without_values(line))]
    shape = ".*".join(pieces).replace(r"\ ", r"\s+")
    return re.search(re.sub(r"(\\s\+)+", r"\\s+", shape), _without_values(text)) is not None


def _without_values(text: str) -> str:
    return re.sub(r"\[ +0", "[0", _VALUE.sub("0", text))
