"""The dumps of one instance, counted while they grow."""

from __future__ import annotations

from pathlib import Path


class DumpCounter:
    """Counts lines in all dumps of a folder, or occurrences of `what` in other files. Reads only new bytes."""

    def __init__(self, folder: Path, files: str = "*.jsonl*", what: bytes = b"\n") -> None:
        self._folder, self._files, self._what = folder, files, what
        self._read: dict[str, int] = {}
        self.lines = 0

    def update(self) -> int:
        """The lines so far. A part keeps its count when it gets its final name."""
        for path in self._folder.glob(self._files):
            name = path.name.removesuffix(".part")
            try:
                with path.open("rb") as file:
                    file.seek(self._read.get(name, 0))
                    new = file.read()
            except FileNotFoundError:
                continue
            self._read[name] = self._read.get(name, 0) + len(new)
            self.lines += new.count(self._what)
        return self.lines
