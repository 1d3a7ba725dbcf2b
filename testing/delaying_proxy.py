"""A TCP proxy that delays what one server answers, as a slow network or a busy server does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

CHUNK_BYTES = 2**16


class DelayingProxy:
    """`async with DelayingProxy(port) as proxy`; clients connect to `proxy.url`.

    Requests pass without delay. Each part of an answer arrives `delay_s` seconds late, and the parts of a connection
    keep their order. `delay_s` may change at any time, and applies to all later parts. `target_port` may be set until
    the first client connects.
    """

    def __init__(self, target_port: int = 0, delay_s: float = 0.0) -> None:
        self.target_port = target_port
        self.delay_s = delay_s
        self._connections: set[asyncio.Task[Any] | None] = set()

    async def __aenter__(self) -> DelayingProxy:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        connections = [connection for connection in self._connections if connection is not None]
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        self._connections.add(connection)
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
            requests = _copy(reader, server_writer, lambda: 0.0)
            answers = _copy(server_reader, writer, lambda: self.delay_s)
            await asyncio.gather(requests, answers)
        except (OSError, asyncio.CancelledError):
            # The client sees a closed connection, as it does when the server itself goes away.
            pass
        finally:
            self._connections.discard(connection)
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: Callable[[], float]) -> None:
    """Write each part when it is due, and close the connection after the last part."""
    loop = asyncio.get_running_loop()
    due = 0.0
    while part := await reader.read(CHUNK_BYTES):
        due = max(due, loop.time() + delay())
        loop.call_at(due, writer.write, part)
    loop.call_at(due, writer.close)
