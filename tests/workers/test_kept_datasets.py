"""The datasets that a worker keeps."""

from __future__ import annotations

from typing import Any

import pytest

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.workers import kept_datasets
from reasoning_gym_environment.workers.kept_datasets import DatasetCache


class Meter:
    """Memory as the datasets built below claim it."""

    used = 0

    def resident_bytes(self) -> int:
        return self.used


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of datasets in the order in which they are built; `large_*` takes 10 MiB, others 1 KiB."""
    names: list[str] = []

    class Dataset:
        def __init__(self, name: str) -> None:
            self.name = name

        def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
            return float(answer == self.name)

    def create(task: str, **config: Any) -> Dataset:
        name = task + "".join(str(value) for key, value in sorted(config.items()) if key not in ("seed", "size"))
        names.append(name)
        Meter.used += 10 << 20 if task.startswith("large") else 1 << 10
        return Dataset(name)

    monkeypatch.setattr(library, "create_dataset", create)
    monkeypatch.setattr(kept_datasets, "MAX_BYTES", 25 << 20)
    return names


def cache() -> DatasetCache:
    return DatasetCache(Meter())  # type: ignore[arg-type]


def test_a_dataset_is_built_once_per_config(built: list[str]) -> None:
    datasets = cache()
    for _ in range(2):
        assert datasets.verifier("small", {"a": 1})("small1", {}) == 1.0
        assert datasets.verifier("small", {"a": 2})("small2", {}) == 1.0
    assert built == ["small1", "small2"]


def test_large_datasets_give_way_to_large_ones_and_small_ones_stay(built: list[str]) -> None:
    datasets = cache()
    for number in range(50):
        datasets.verifier("small", {"a": number})
    for number in (1, 2, 1, 3):
        datasets.verifier("large", {"a": number})
    before = len(built)
    for number in range(50):
        datasets.verifier("small", {"a": number})
    datasets.verifier("large", {"a": 1})
    assert len(built) == before
    datasets.verifier("large", {"a": 2})
    assert built[-1] == "large2", "the one used longest ago was given up"


def test_a_dataset_larger_than_the_limit_is_kept_while_it_is_the_newest(
    built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_datasets, "MAX_BYTES", 1 << 20)
    datasets = cache()
    assert [datasets.verifier("large", {})("large", {}) for _ in range(2)] == [1.0, 1.0]
    assert built == ["large"]


def test_the_number_of_datasets_is_limited(built: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_datasets, "MAX_DATASETS", 3)
    datasets = cache()
    for number in (1, 2, 3, 1, 4, 1):
        datasets.verifier("small", {"a": number})
    assert len(datasets._kept) == 3
    assert built == ["small1", "small2", "small3", "small4"]
    datasets.verifier("small", {"a": 2})
    assert built[-1] == "small2"
