"""A child's end of the pipes to its parent, out of reach of whatever else uses stdin and stdout there."""

from __future__ import annotations

import os
import pickle
from typing import Any, TypeVar

from .protocol import HEADER_SIZE, frame_length

AnyChannel = TypeVar("AnyChannel", bound="Channel")


class Channel:
    """Frames in, bytes out, on descriptors that nothing else in this process knows."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests = requests
        self._replies = replies

    @classmethod
    def take_over_stdio(cls: type[AnyChannel]) -> AnyChannel:
        """Move the pipes away from descriptors 0 and 1; stdin, stdout and stderr lead nowhere from here on."""
        channel = cls(os.dup(0), os.dup(1))
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)
        return channel

    def receive(self) -> Any:
        """The next message. Raises EOFError when the parent has hung up."""
        return pickle.loads(self._read(frame_length(self._read(HEADER_SIZE))))

    def write(self, data: bytes) -> None:
        """Hand over all of `data`. Raises BrokenPipeError when the parent has hung up."""
        while data:
            data = data[os.write(self._replies, data) :]

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = os.read(self.requests, min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)
