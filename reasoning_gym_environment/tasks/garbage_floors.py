"""What each verifier pays to answers that show no work, as measured; see benchmarks/garbage_floors.py."""

from __future__ import annotations

import json
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data" / "garbage_floors.json"


def load_floors() -> dict[str, float]:
    """Task -> the highest score under 0.1 that garbage got; a task that is missing pays nothing."""
    document = json.loads(DATA.read_text(encoding="utf-8"))
    return {str(task): float(floor) for task, floor in document["floors"].items()}
