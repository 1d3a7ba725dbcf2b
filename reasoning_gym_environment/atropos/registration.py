"""The number that the trajectory API gave this run, kept in its folder until it has signed off.

The API never finds out that an environment was killed: its share of each batch (`min_batch_allocation`) stays
reserved, and no batch is complete without it. So the run's next start signs the old number off.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checkpoints import write_atomically

logger = logging.getLogger(__name__)

FILE = "registration.json"


def replace_registration(folder: Path, api: Mapping[str, Any], env_id: int) -> set[int]:
    """Keep the new number; returns the old one, if there is one that the same API gave and that still stands there.

    `api` is what tells APIs apart: address and trainer. Numbers of one API only grow; one that is not below the new
    one comes from before a restart. A folder that refuses is reported.
    """
    path = folder / FILE
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        old = {}
    try:
        write_atomically(path, {"api": dict(api), "env_id": env_id})
    except OSError as error:
        logger.warning("%s could not be written: %s. If this run is killed, its share of batches stays.", path, error)
    if not isinstance(old, dict) or old.get("api") != dict(api):
        return set()
    number = old.get("env_id")
    return {number} if isinstance(number, int) and number < env_id else set()


def forget_registration(folder: Path) -> None:
    """It has signed off."""
    try:
        (folder / FILE).unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s could not be removed: %s.", folder / FILE, error)
