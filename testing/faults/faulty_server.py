"""The mock inference server of the tests, with faults that are switched on and off while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from testing.inference_server import Generation, GenerationRequest
from testing.mock_dialects import MockServer


@dataclass
class Faults:
    """What goes wrong. Fields may be set at any moment, from any thread.

    A request for completions passes them in this order: wait `latency_s`; wait while `hang`; then the
    first of these that applies: `failing` (status 500), `drop_next` (close the connection without an answer),
    `hang_next` (never answer), `cut_next` (send half of the body, then close). The `*_next` fields count down, one per
    request. `spoil` changes what was generated before it is sent. /health knows `failing` only.
    """

    latency_s: float = 0.0
    failing: bool = False
    hang: bool = False
    drop_next: int = 0
    hang_next: int = 0
    cut_next: int = 0
    spoil: Callable[[list[Generation]], list[Generation]] | None = None

    def take(self) -> str:
        """The fault of one request, "fail", "drop", "hang" or "cut", counted down; "" for none."""
        if self.failing:
            return "fail"
        for fault in ("drop", "hang", "cut"):
            left = getattr(self, f"{fault}_next")
            if left > 0:
                setattr(self, f"{fault}_next", left - 1)
                return fault
        return ""


class FaultyServer(MockServer):
    """Fails as `faults` say."""

    def __init__(self, *arguments: Any, faults: Faults, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._faults = faults

    async def health(self, request: web.Request) -> web.Response:
        return _failed() if self._faults.failing else await super().health(request)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(self._faults.latency_s)
        # Polled, because the flag may be set from another thread, where an asyncio.Event may not.
        while self._faults.hang:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        fault = self._faults.take()
        if fault == "fail":
            return _failed()
        if fault == "drop":
            return await _send_part(request, b"")
        if fault == "hang":
            await asyncio.Event().wait()
        reply = await super().complete(request)
        if fault == "cut":
            return await _send_part(request, reply.body)
        return reply

    async def generate(self, asked: GenerationRequest) -> list[Generation]:
        made = await super().generate(asked)
        return made if self._faults.spoil is None else self._faults.spoil(made)


def _failed() -> web.Response:
    body = {"error": {"message": "the mock server was told to fail", "type": "server_error", "code": 500}}
    return web.json_response(body, status=500)


async def _send_part(request: web.Request, payload: bytes) -> web.StreamResponse:
    """Send the headers and half of `payload`, or nothing at all if it is empty, and close the connection."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = len(payload)
    if payload:
        await response.prepare(request)
        await response.write(payload[: len(payload) // 2])
    if request.transport is not None:
        request.transport.close()
    return response
