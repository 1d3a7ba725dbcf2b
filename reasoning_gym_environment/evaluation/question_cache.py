"""Remembers in the user's cache directory which draws of a task are its held-out questions.

    search: draw about ten items for each held-out question ──> numbers of the draws ──> FOLDER/TASK-HASH.json
    later:  FOLDER/TASK-HASH.json ──> make these items only, compare each question with its digest

The files hold numbers and digests, not the items. The installed reasoning-gym makes every item again, and the
question must have the recorded digest, so a damaged or outdated file never changes an evaluation. It only costs the
search. Storing whole items would save these few seconds too, but JSON does not keep them intact (83 of 105 tasks hold
tuples and the like), and reading a pickle executes whatever somebody has put into the file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir
from pydantic import BaseModel, ConfigDict

logger = logging.getLogger(__name__)

FORMAT = 1
"""Part of every key. A new number makes all existing files unused."""


class RememberedDraws(BaseModel):
    """The draws whose items are the questions of one task, in order."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    draws: list[tuple[int, str]]
    """Number of the draw and `question_digest` of its question."""


class QuestionCache:
    """The remembered draws in `folder`, a file for each key. A key is everything that the questions depend on, as JSON.

    Neither method raises: without a readable and writable folder there is no cache.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of_this_user(cls) -> QuestionCache:
        """The cache in the user's cache directory (`XDG_CACHE_HOME` or the system's default)."""
        return cls(Path(user_cache_dir("reasoning_gym_environment")) / "held_out_questions")

    def read(self, task: str, key: Mapping[str, Any]) -> RememberedDraws | None:
        """The draws stored under this key; None if there are none, or the file is damaged."""
        path = self._path(task, key)
        try:
            return RememberedDraws.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        # pydantic's ValidationError is a ValueError.
        except (OSError, ValueError) as error:
            logger.warning("Ignoring %s, which is not readable (%s).", path, type(error).__name__)
            return None

    def write(self, task: str, key: Mapping[str, Any], remembered: RememberedDraws) -> None:
        """Store the draws. Readers see the old file or the complete new file."""
        path = self._path(task, key)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent, prefix="partial-") as folder:
                partial = Path(folder, path.name)
                partial.write_text(remembered.model_dump_json())
                partial.replace(path)
        except OSError as error:
            logger.info(
                "Cannot remember the questions of %s in %s: %s.",
                task,
                path.parent,
                error.strerror,
            )

    def _path(self, task: str, key: Mapping[str, Any]) -> Path:
        text = json.dumps([FORMAT, key], sort_keys=True, default=str)
        digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
        return self._folder / f"{task}-{digest}.json"
