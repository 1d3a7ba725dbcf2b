"""HTTP requests with aiohttp, and one exception for all the ways in which no answer arrives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass(frozen=True)
class Answer:
    """An answer with any status."""

    status: int
    text: str
    headers: Mapping[str, str]


class NoAnswerError(Exception):
    """No answer arrived. The message is one line.

    `is_late` means that the time ran out. `is_refused` means that nothing listens at the address.
    """

    def __init__(self, error: Exception) -> None:
        first_line = str(error).partition("\n")[0]
        super().__init__(first_line[:200] or type(error).__name__)
        self.is_late = isinstance(error, TimeoutError)
        self.is_refused = isinstance(getattr(error, "os_error", error), ConnectionRefusedError)


async def exchange(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    **options: Any,
) -> Answer:
    """Make one request. `options` go to `aiohttp.ClientSession.request`. Raises NoAnswerError."""
    try:
        async with session.request(method, url, **options) as response:
            text = await response.text(errors="replace")
            return Answer(response.status, text, response.headers)
    # aiohttp raises ValueError for an address that is malformed, and for an answer that cannot be decoded.
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        raise NoAnswerError(error) from error
