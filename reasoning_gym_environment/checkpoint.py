"""The environment's state in one JSON document: an envelope with a name and a version, written atomically."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .errors import EnvironmentSetupError

KEY = "reasoning_gym_environment"
"""The one key saved. Atropos sets every key of a checkpoint as an attribute on the environment."""

VERSION = 1


def envelope(state: dict[str, Any]) -> dict[str, Any]:
    """Wrap component states for saving."""
    return {KEY: {"version": VERSION, "state": state}}


def open_envelope(data: Any, where: str) -> dict[str, Any]:
    """The component states inside a loaded checkpoint value.

    Raises EnvironmentSetupError if `data` is not the value that `envelope` stores under KEY.
    """
    if not isinstance(data, dict) or "state" not in data or not isinstance(data["state"], dict):
        raise EnvironmentSetupError(f"{where} is not a checkpoint of this environment: no {KEY!r} state in it.")
    if data.get("version") != VERSION:
        raise EnvironmentSetupError(
            f"{where} has checkpoint version {data.get('version')!r}, this release reads version {VERSION}."
        )
    return dict(data["state"])


def read(path: Path) -> dict[str, Any]:
    """The component states in a checkpoint file. Raises EnvironmentSetupError if it is damaged or foreign."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentSetupError(
            f"The checkpoint {path} cannot be read ({error}): remove it, or start from another step."
        ) from error
    return open_envelope(data.get(KEY) if isinstance(data, dict) else None, str(path))


def write_atomically(path: Path, data: dict[str, Any]) -> None:
    """Write JSON so that `path` holds either its old content or all of the new one."""
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
