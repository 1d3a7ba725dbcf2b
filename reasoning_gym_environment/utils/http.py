"""HTTP requests with aiohttp, and one exception for all the ways in which no answer arrives."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec


@dataclass(frozen=True)
class HttpReply:
    """An answer with any status. Its body can have megabytes.

    `redirected_to` is the address that a redirection led to, without its query, or "".
    """

    status: int
    body: bytes
    headers: Mapping[str, str]
    redirected_to: str = ""

    @cached_property
    def text(self) -> str:
        # Some gateways begin with a byte order mark.
        return self.body.decode("utf-8-sig", errors="replace")

    def parsed(self, schema: Any = Any) -> Any:
        """The JSON of the body, as the type `schema`, which msgspec knows. Fields that a structure lacks are skipped.

        Raises ValueError, TypeError or RecursionError for another body.
        """
        try:
            return msgspec.json.decode(self.body, type=schema)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Python's own reader also takes what servers in Python write: NaN, and half of a surrogate pair.
            found = json.loads(self.text)
        try:
            return msgspec.convert(found, type=schema)
        except msgspec.ValidationError as error:
            raise TypeError(str(error)) from error


class NoAnswerError(Exception):
    """No answer arrived. The message is one line.

    `is_late` means that the time ran out. `is_refused` means that nothing listens at the address. `is_unsent` means
    that there was no connection, so the server does not know of the request.
    """

    def __init__(self, error: Exception) -> None:
        # The other words of aiohttp's errors of answers are a status that the server did not send, and the address.
        words = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
        in_one_line = " ".join(words.partition(": <")[0].split()).removeprefix("400, message: ")
        if isinstance(error, aiohttp.ClientProxyConnectionError):
            in_one_line = f"the proxy of the environment (HTTPS_PROXY or HTTP_PROXY) does not answer: {in_one_line}"
        self.is_late = isinstance(error, TimeoutError)
        super().__init__(in_one_line[:200] or ("no answer in time" if self.is_late else type(error).__name__))
        self.is_refused = isinstance(getattr(error, "os_error", error), ConnectionRefusedError)
        self.is_unsent = isinstance(error, aiohttp.ClientConnectorError)


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
            redirected_to = str(response.url.with_query(None)) if response.history else ""
            return HttpReply(response.status, await response.read(), response.headers, redirected_to)
    # aiohttp raises ValueError for an address that is malformed.
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        raise NoAnswerError(error) from error
