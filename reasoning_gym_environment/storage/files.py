"""Files that are written whole or not at all, and names of files for names that users choose.

A user chooses the name of a run or of a task, for example.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

LONGEST = 255
"""Bytes that a file system allows in the name of a file."""

EVALUATION_SETTINGS = "evaluate_config.yaml"
"""The file beside the results of `evaluate` that has the settings of the command."""

MARK = "+"
"""Stands before a hash. A name without a hash never contains it, so it never equals a name with a hash."""


def file_name(name: str, ending: str = "") -> str:
    """A name for the file of `name`, which stays in its folder. Different names have different files.

    A name of ASCII letters, digits, `_`, `-` and `.` stays as it is. In other names, in hidden names and in names that
    are too long for a file system, unusual characters are replaced, and a hash of the whole name is added. `ending` is
    a safe name too, such as `.json`.

    Names that stay as they are may differ only in upper and lower case. A file system that ignores the case gives them
    the same file.
    """
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".")
    if safe == name and name and len(name + ending) <= LONGEST:
        return name + ending
    # A name may hold half of a surrogate pair.
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    added = f"{MARK}{digest}{ending}"
    return safe[: LONGEST - len(added)] + added


def write_atomically(path: Path, data: bytes) -> None:
    """Write so that `path` holds either its old content or all of `data`, even if the process is killed.

    A pipe or a device cannot be replaced, so the data goes straight to it. Raises OSError.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    # A link stays a link: the new file replaces the file that the link leads to.
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
