"""What the audit found of each task's verifier, and which tasks are kept out of training for it.

`data/audit_verdicts.json` has, for a release of reasoning-gym, the verdicts of `reasoning-gym-env audit`: with the
strict checks, and without. A task of another release, or a user's own, was not audited and is not kept out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data" / "audit_verdicts.json"
QUARANTINED = frozenset({"pays garbage", "refuses its oracle"})
"""Verdicts with which a task teaches the wrong thing."""


@dataclass(frozen=True)
class Audited:
    """Verdicts on one task: `strict` with the checks of `verification: strict`, `native` without."""

    strict: str
    native: str

    def under(self, *, strict: bool) -> str:
        return self.strict if strict else self.native


def load_verdicts(version: str, path: Path = DATA) -> dict[str, Audited]:
    """Task -> verdicts; empty if the audit was of another release than `version`."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if document["reasoning_gym_version"] != version:
        return {}
    return {task: Audited(*verdicts) for task, verdicts in document["verdicts"].items()}


def quarantine(tasks: Iterable[str], *, version: str, strict: bool, asked_for: Collection[str]) -> dict[str, str]:
    """Tasks to leave out, with the reason; those asked for by their own name stay."""
    verdicts = load_verdicts(version)
    found = {task: verdicts[task].under(strict=strict) for task in tasks if task in verdicts and task not in asked_for}
    return {
        task: f"quarantine: the audit's verdict on its verifier is “{verdict}”; include it by name to serve it"
        for task, verdict in found.items()
        if verdict in QUARANTINED
    }
