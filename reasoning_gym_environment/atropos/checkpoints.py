"""The environment's state in one JSON document, and the folder of such documents that one run keeps.

    step-50.json   step-100.json   ...    when the trainer passes a checkpoint step
    latest.json                           every few seconds, and at the end

An envelope carries a version, the step, a serial number and a checksum of the state. To continue at some step, the
newest document of that step or an earlier one is used, the newest by serial number: an old run may have left later
steps in the same folder. A damaged or foreign document is named and passed over.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import EnvironmentSetupError

logger = logging.getLogger(__name__)

KEY = "reasoning_gym_environment"
"""The one key saved. Atropos sets every key of a checkpoint as an attribute on the environment."""

VERSION = 2
LATEST = "latest.json"


class Stateful(Protocol):
    """A part of the environment that goes on after a restart as if nothing had been."""

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. Raises EnvironmentSetupError if it is malformed."""

    def metrics(self) -> dict[str, Any]: ...


def state_of(parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Each part's state, by the part's name."""
    return {name: part.state_dict() for name, part in parts.items()}


def load_into(parts: Mapping[str, Stateful], state: Mapping[str, Any]) -> None:
    """Hand each part its state. Raises EnvironmentSetupError if the names differ or a part refuses its state."""
    if parts.keys() != state.keys():
        raise EnvironmentSetupError(f"it holds the state of {sorted(state)}, expected {sorted(parts)}")
    for name, part in parts.items():
        part.load_state_dict(state[name])


@dataclass(frozen=True)
class Checkpoint:
    """A document that was read whole."""

    path: Path
    step: int
    serial: int
    state: dict[str, Any]


def envelope(state: dict[str, Any], *, step: int, serial: int) -> dict[str, Any]:
    """Wrap component states, plain JSON data, for saving."""
    return {KEY: {"version": VERSION, "step": step, "serial": serial, "sha256": _checksum(state), "state": state}}


def read(path: Path) -> Checkpoint:
    """Raises EnvironmentSetupError if the document cannot be read, is damaged, or is not of this environment."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentSetupError(f"{path} cannot be read ({error})") from error
    match data.get(KEY) if isinstance(data, dict) else None:
        case {"version": version} if version != VERSION:
            raise EnvironmentSetupError(f"{path} has checkpoint version {version!r}, this release reads {VERSION}")
        case {"step": int(step), "serial": int(serial), "sha256": checksum, "state": dict(state)}:
            if checksum != _checksum(state):
                raise EnvironmentSetupError(f"{path} is damaged: its checksum does not match")
            return Checkpoint(path, step, serial, state)
    raise EnvironmentSetupError(f"{path} is not a checkpoint of this environment: no {KEY!r} state in it")


def _checksum(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode("utf-8")).hexdigest()


class CheckpointFolder:
    """The checkpoints of one run in `path`. All methods touch the disk: call them from a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        self.latest_step = -1
        self._serial: int | None = None
        self._writing = threading.Lock()

    def write(self, name: str, state: str, *, step: int, extra: Mapping[str, Any] | None = None) -> Path:
        """Write a document, newer than all before it; `state` is JSON, as of one moment. Raises OSError."""
        path = self.path / name
        with self._writing:
            if self._serial is None:
                self._read_all()
            self._serial = (self._serial or 0) + 1
            write_atomically(path, {**(extra or {}), **envelope(json.loads(state), step=step, serial=self._serial)})
        return path

    def up_to(self, step: int) -> Iterator[Checkpoint]:
        """The documents of `step` and before, newest first. Names those that cannot be used, in the log.

        `damaged` is then how many there were of those, and `latest_step` the highest step of the others.
        """
        found = self._read_all()
        yield from sorted((one for one in found if one.step <= step), key=lambda one: one.serial, reverse=True)

    def _read_all(self) -> list[Checkpoint]:
        found = []
        self.damaged = 0
        for path in [*sorted(self.path.glob("step-*.json")), self.path / LATEST]:
            if path.exists():
                try:
                    found.append(read(path))
                except EnvironmentSetupError as error:
                    self.damaged += 1
                    logger.error("A checkpoint is passed over: %s.", error)
        self.latest_step = max((one.step for one in found), default=-1)
        self._serial = max([self._serial or 0, *(one.serial for one in found)])
        return found


def write_atomically(path: Path, data: dict[str, Any]) -> None:
    """Write JSON so that `path` holds either its old content or all of the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(data, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
