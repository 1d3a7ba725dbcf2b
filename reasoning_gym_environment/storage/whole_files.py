"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


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
