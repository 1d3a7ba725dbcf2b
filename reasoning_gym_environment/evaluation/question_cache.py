"""A cache of the draws that give the held-out questions of a task. It lies in the user's cache directory.

    first run:   draw about ten items for each held-out question ──> numbers of the draws ──> FOLDER/TASK-HASH.json
    later runs:  FOLDER/TASK-HASH.json ──> make only these items, and compare each question with its digest

The files hold numbers and digests, not items. The installed reasoning-gym makes every item again, and every question
must have the recorded digest. If a file is damaged, or if it is outdated and a question has changed, the evaluation
searches its questions as if there were no file. A digest cannot show that a draw outside the file has changed. This
happens only in a checkout of reasoning-gym whose code changes while its version stays the same. Delete the folder after
such a change.

The files do not hold whole items, although reading them would save a few more seconds. JSON does not preserve the items
of 83 of the 105 tasks, which contain tuples, for example. Reading a pickle executes any code that somebody has put into
the file.
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

from ..storage.file_names import file_name

logger = logging.getLogger(__name__)

FORMAT = 1
"""A part of every key. After a change of this number, existing files are no longer used."""


class RememberedDraws(BaseModel):
    """The draws that give the questions of one task, in the order of the questions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    draws: list[tuple[int, str]]
    """The number of each draw, and the `question_digest` of its question."""


class QuestionCache:
    """Remembered draws in the files of `folder`. Each key has its own file.

    A key holds everything that determines the questions, as JSON data. If the folder or a file cannot be read or
    written, both methods log this and raise no error. The caller then works without a cache.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of_this_user(cls) -> QuestionCache:
        """The cache in the user's cache directory (`XDG_CACHE_HOME` or the system's default)."""
        return cls(Path(user_cache_dir("reasoning_gym_environment")) / "held_out_questions")

    def read(self, task: str, key: Mapping[str, Any]) -> RememberedDraws | None:
        """The draws stored under this key, or None if there is no file, or if the file cannot be read."""
        path = self._path(task, key)
        try:
            return RememberedDraws.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        # pydantic's ValidationError is a ValueError.
        except (OSError, ValueError) as error:
            logger.warning("Ignoring the remembered questions in %s (%s).", path, type(error).__name__)
            return None

    def write(self, task: str, key: Mapping[str, Any], remembered: RememberedDraws) -> None:
        """Store the draws under this key. Other processes see either the old file or the complete new file."""
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
        return self._folder / file_name(f"{task}-{digest}", ".json")
