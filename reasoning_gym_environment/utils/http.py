"""HTTP requests with aiohttp, and one exception for all the ways in which no answer arrives."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp


@dataclass(frozen=True)
class HttpReply:
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


def is_local(url: str) -> bool:
    """Whether the address is on this machine or has a host name without a dot, so that no proxy may get its requests.

    >>> [is_local(url) for url in ("http://127.0.0.2:9/v1", "http://[::1]/v1", "http://gpu7/v1", "https://a.com/v1")]
    [True, True, True, False]
    """
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        # The request reports that the address is malformed.
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return "." not in host


async def exchange(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    **options: Any,
) -> HttpReply:
    """Make one request. `options` go to `aiohttp.ClientSession.request`. Raises NoAnswerError."""
    try:
        async with session.request(method, url, **options) as response:
            text = await response.text(errors="replace")
            return HttpReply(response.status, text, response.headers)
    # aiohttp raises ValueError for an address that is malformed, and for an answer that cannot be decoded.
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        raise NoAnswerError(error) from error
