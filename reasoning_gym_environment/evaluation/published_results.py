"""What nine published models scored on reasoning-gym, and the configs they were asked at: the presets easy and hard.

data/published_presets.json has the config fields of each task in the two settings, data/published_students.json the
results (items by number of completions that score at least 0.5, and the mean score). Models were sampled at
temperature 0.6 with their own prompt and scored by reasoning-gym's own verifiers, of several releases.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

DATA = Path(__file__).resolve().parent.parent / "data"

Preset = Literal["easy", "hard"]
PRESETS: tuple[Preset, ...] = ("easy", "hard")
_MODEL_KEY = "models/"


@dataclass(frozen=True)
class PublishedScore:
    """One model on one task in one setting. `counts[k]` is the number of items with k right completions."""

    mean_score: float
    counts: tuple[int, ...]

    @property
    def accuracy(self) -> float:
        """Share of completions that score at least 0.5."""
        right = sum(number * items for number, items in enumerate(self.counts))
        return right / (sum(self.counts) * (len(self.counts) - 1))


@functools.lru_cache(maxsize=1)
def _presets() -> dict[str, Any]:
    return dict(json.loads((DATA / "published_presets.json").read_text(encoding="utf-8")))


def preset_configs(preset: Preset) -> Mapping[str, Mapping[str, Any]]:
    """Task -> config fields; what is not given has reasoning-gym's default."""
    return dict(_presets()[preset])


def changed_verifiers() -> frozenset[str]:
    """Tasks whose verifier has changed since, so that a score of today says little beside the published one."""
    return frozenset(_presets()["verifier_changed_since"])


@functools.lru_cache(maxsize=2)
def published_scores(preset: Preset) -> Mapping[str, Mapping[str, PublishedScore]]:
    """Model -> task -> score. A model that was not run in this setting is missing."""
    data = json.loads((DATA / "published_students.json").read_text(encoding="utf-8"))
    place = PRESETS.index(preset)
    found: dict[str, dict[str, PublishedScore]] = {}
    for key, tasks in data.items():
        if not key.startswith(_MODEL_KEY):
            continue
        runs = {task: settings[place] for task, settings in tasks.items() if len(settings) > place and settings[place]}
        if runs:
            name = key[len(_MODEL_KEY) :].replace("_", "/", 1)
            found[name] = {task: PublishedScore(float(mean), tuple(counts)) for task, (counts, mean) in runs.items()}
    return found
