"""A TCP proxy that delays what one server answers, as a slow network or a busy server does."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

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
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> DelayingProxy:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._relay(reader, writer)
        # The client sees a closed connection, as it does when the server itself goes away.
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        requests = asyncio.create_task(_copy(reader, target_writer))
        try:
            await self._answer(target_reader, writer)
        finally:
            requests.cancel()
            await asyncio.gather(requests, return_exceptions=True)
            target_writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy until the server closes the connection."""
        loop = asyncio.get_running_loop()
        parts: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        forwarding = asyncio.create_task(_forward(parts, writer))
        try:
            while True:
                part = await reader.read(CHUNK_BYTES)
                parts.put_nowait((loop.time() + self.delay_s, part))
                if not part:
                    break
            await forwarding
        finally:
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await reader.read(CHUNK_BYTES):
            writer.write(part)
            await writer.drain()
        writer.write_eof()


async def _forward(parts: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    """Write each part when it is due, until an empty part."""
    loop = asyncio.get_running_loop()
    while True:
        due, part = await parts.get()
        await asyncio.sleep(due - loop.time())
        if not part:
            return
        writer.write(part)
        await writer.drain()
