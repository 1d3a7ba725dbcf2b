"""The boundary of both HTTP servers: what a client must show before its request is read.

    a connection ── Connection: how many, time for the header ──> Gate: host or token, length, body ──> the application

A web page can reach a server on its visitor's machine, by a name that its owner rebinds to 127.0.0.1, or through a
WebSocket. Therefore the server without a token accepts only requests to this machine's own name or address, and from no
other origin.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

MOST_CONNECTIONS = 900
"""The server closes further connections at once. Most systems allow a process 1,024 descriptors."""
HEADER_S = 10.0
"""A connection that has not sent the whole header of a request in this time is closed."""
MOST_BYTES = 64 << 20
"""The server refuses larger bodies."""
TOO_LONG = f"A body has at most {MOST_BYTES >> 20} MiB. Send fewer completions in a request."
BODY_S = 120.0
"""A request whose body takes longer to arrive is refused."""


class RefusedError(Exception):
    """A request that is not passed on. The arguments are the status of the reply, and a sentence."""


class Gate:
    """An ASGI application that passes on the requests which may be served.

    With a `token`, requests need `Authorization: Bearer TOKEN`. Without, their host must be an address, or a name in
    `names`, or a name without a dot, which no stranger can register. A body has at most MOST_BYTES.
    """

    def __init__(self, app: ASGIApp, *, token: str, names: Collection[str]) -> None:
        self._app = app
        self._token = token
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        checked = receive
        try:
            if scope["type"] != "lifespan":
                self._check({name: value.decode("latin-1") for name, value in scope["headers"]})
            if scope["type"] == "http":
                checked = await self._read_body(receive)
        except RefusedError as error:
            status, sentence = error.args
            await JSONResponse({"detail": sentence}, status)(scope, receive, send)
        else:
            await self._app(scope, checked, send)

    def _check(self, headers: Mapping[bytes, str]) -> None:
        """Raises RefusedError."""
        authorization = headers.get(b"authorization", "").encode()
        host = headers.get(b"host", "")
        origin = headers.get(b"origin", f"//{host}").rpartition("//")[2]
        if self._token and not hmac.compare_digest(authorization, f"Bearer {self._token}".encode()):
            raise RefusedError(401, "A token is needed: Authorization: Bearer TOKEN.")
        if not self._token and (origin != host or not self._is_here(host)):
            raise RefusedError(
                403,
                f"Host and Origin: expected the name or the address of this machine, got {host!r:.100} and "
                f"{origin!r:.100}. Use an address, or start the server with --token-env.",
            )
        if int(headers.get(b"content-length", "0")) > MOST_BYTES:
            raise RefusedError(413, TOO_LONG)

    def _is_here(self, host: str) -> bool:
        name = host
        try:
            name = urlsplit(f"//{host}").hostname or ""
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names or "." not in name
        return True

    async def _read_body(self, receive: Receive) -> Receive:
        """Read the whole body. Returns a function that gives it again. Raises RefusedError."""
        body = bytearray()
        message: Message = {"more_body": True}
        try:
            async with asyncio.timeout(BODY_S):
                while message.get("more_body"):
                    message = await receive()
                    body += message.get("body", b"")
                    if len(body) > MOST_BYTES:
                        raise RefusedError(413, TOO_LONG)
        except TimeoutError:
            raise RefusedError(408, f"The body has not arrived within {BODY_S:g} s.") from None
        unread = [{**message, "body": bytes(body)}]

        async def read_again() -> Message:
            return unread.pop() if unread else await receive()

        return read_again


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's connection, which is closed if there are too many, or if no whole header arrives in time."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.close()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._watch()

    def _watch(self) -> None:
        """Wait for a header, unless a request is in progress or the connection is no longer one of HTTP."""
        is_served = self.cycle is not None and not self.cycle.response_complete
        if is_served or self not in self.connections:
            if self._waiting is not None:
                self._waiting.cancel()
            self._waiting = None
        elif self._waiting is None:
            self._waiting = self.loop.call_later(HEADER_S, self._close)

    def _close(self) -> None:
        self._waiting = None
        if not self.transport.is_closing():
            self.transport.close()
