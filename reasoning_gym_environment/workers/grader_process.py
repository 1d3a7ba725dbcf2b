"""One scoring worker as the environment sees it: start it, give it a group, kill it. asyncio only.

The worker (zygote.py) holds every answer to its deadline by itself. The limits here are for a worker that
does not answer at all: then `WorkerDiedError` is raised, and whoever owns the worker starts it anew.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable

from ..errors import EnvironmentSetupError
from .child_process import START_ALLOWANCE_S, ChildProcess, WorkerDiedError
from .grading_worker import Request, Start
from .protocol import Kind, ProtocolError, Record, RecordReader, pack_frame

BUILD_ALLOWANCE_S = 60.0
SILENCE_ALLOWANCE_S = 5.0
"""How long beyond an answer's deadline a worker may stay silent before it counts as dead."""


class WorkerProcess(ChildProcess):
    """A scoring worker; it grades one group at a time."""

    def __init__(self, start: Start) -> None:
        super().__init__("grading_worker")
        self._start = start
        self._reader = RecordReader()
        self._group = 0
        self.description = ""
        self.is_confined = False
        self.unguarded: dict[str, str] = {}

    async def start(self) -> None:
        """Start the process and wait until it can score. Raises EnvironmentSetupError with its reason."""
        await self.kill()
        self._reader = RecordReader()
        self.unguarded = {}
        try:
            await self.spawn()
            await self.write(pack_frame(self._start))
            async for record in self._records(START_ALLOWANCE_S):
                if record.kind is Kind.UNGUARDED:
                    task, _, reason = record.detail.partition("\t")
                    self.unguarded[task] = reason
                elif record.kind is Kind.READY:
                    self.description, self.is_confined = record.detail, bool(record.group)
                    return
                else:
                    raise WorkerDiedError(record.detail)
        except (OSError, WorkerDiedError) as error:
            await self.kill()
            raise EnvironmentSetupError(
                f"A scoring worker could not start: {error}. It runs {sys.executable} with an empty "
                "environment; `sandbox: off` shows whether the sandbox is the cause."
            ) from error
        except BaseException:
            await self.kill()
            raise

    async def grade(self, make: Callable[[int], Request], on_verdict: Callable[[Record], None]) -> None:
        """Have one group graded. `make` gets the group's number, `on_verdict` each record, in order.

        Raises EnvironmentSetupError if the dataset cannot be built, and WorkerDiedError, after which the
        verdicts seen so far hold and the process is gone. Cancelling kills the process.
        """
        self._group += 1
        request = make(self._group)
        frame = pack_frame(request)
        try:
            await self.write(frame)
            await self._follow(request, on_verdict)
        except (WorkerDiedError, asyncio.CancelledError):
            await self.kill()
            raise

    async def _follow(self, request: Request, on_verdict: Callable[[Record], None]) -> None:
        due = 0
        silence = request.timeout_s + SILENCE_ALLOWANCE_S
        async for record in self._records(BUILD_ALLOWANCE_S, silence):
            if record.group != request.group:
                raise WorkerDiedError(f"expected records of group {request.group}, got {record.group}")
            if record.kind is Kind.FAILED:
                raise EnvironmentSetupError(f"The dataset of {record.detail}. Scoring needs a valid config.")
            if record.kind is Kind.VERDICT:
                if record.index != due:
                    raise WorkerDiedError(f"expected a verdict on answer {due}, got one on {record.index}")
                on_verdict(record)
                due += 1
                if due == len(request.answers):
                    return

    async def _records(self, first_s: float, then_s: float | None = None) -> AsyncIterator[Record]:
        """Records as they come. Raises WorkerDiedError at the end of the stream, or after silence."""
        allowance = first_s
        while True:
            try:
                for record in self._reader.feed(await self._read_within(allowance)):
                    yield record
            except ProtocolError as error:
                raise WorkerDiedError(str(error)) from error
            allowance = then_s or first_s

    async def _read_within(self, allowance: float) -> bytes:
        reading = asyncio.ensure_future(self.read_some())
        try:
            # Not wait_for, which before Python 3.12 loses a cancellation that comes together with the data.
            await asyncio.wait({reading}, timeout=allowance)
            if not reading.done():
                raise WorkerDiedError(f"it was silent for {allowance:g} s")
            return reading.result()
        finally:
            reading.cancel()
