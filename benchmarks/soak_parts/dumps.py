"""The dumps of one instance: counted while they grow, looked at line by line at the end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class DumpCounter:
    """Counts the lines of all dumps in a folder, or `what` stands in other files there, reading only what is new."""

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


@dataclass
class DumpedGroups:
    """Every line of one instance's dumps. `with_signal` are those whose scores differ: the ones that are sent."""

    lines: int = 0
    broken_lines: int = 0
    with_signal: int = 0
    unfinished_files: int = 0
    items: list[tuple[str, int]] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)

    def add(self, line: bytes) -> None:
        self.lines += 1
        try:
            group = json.loads(line)
        except ValueError:
            self.broken_lines += 1
            return
        self.with_signal += len({rollout["score"] for rollout in group["rollouts"]}) > 1
        self.items.append((group["task"], group["seed"]))
        self.indices.append(group["index"])

    def report(self) -> dict[str, Any]:
        return {
            "groups_dumped": self.lines,
            "lines_that_are_not_json": self.broken_lines,
            "files_without_their_final_name": self.unfinished_files,
            "items_dumped_twice": len(self.items) - len(set(self.items)),
            "indices_dumped_twice": len(self.indices) - len(set(self.indices)),
            "indices_not_dumped": max(self.indices, default=-1) + 1 - len(set(self.indices)),
            "tasks": len({task for task, _ in self.items}),
        }


def read_dumps(folder: Path) -> DumpedGroups:
    """All dumps in `folder`; a last line without its end counts as broken."""
    groups = DumpedGroups()
    for path in sorted(folder.glob("*.jsonl*")):
        groups.unfinished_files += path.suffix != ".jsonl"
        with path.open("rb") as file:
            for line in file:
                groups.add(line if line.endswith(b"\n") else b"")
    return groups
