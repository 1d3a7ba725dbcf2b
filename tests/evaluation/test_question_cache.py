"""Remembered draws: an evaluation with a cache asks what it asks without one, whatever the cache holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasoning_gym_environment.errors import GenerationCrashedError
from reasoning_gym_environment.evaluation import questions as eval_set
from reasoning_gym_environment.evaluation.question_cache import QuestionCache, RememberedDraws
from reasoning_gym_environment.evaluation.questions import EvalSet, build_eval_set
from reasoning_gym_environment.sampling.item_maker import ItemMaker
from reasoning_gym_environment.settings.components import EvaluationSettings
from reasoning_gym_environment.tasks.catalog import Catalog, Task
from testing.process_table import until

PER_TASK = 4


class CountingGenerator:
    """Makes a question of task, seed and `code`, which stands for the library's code; counts the items."""

    def __init__(self, code: str = "") -> None:
        self.count = 0
        self._code = code

    async def generate(self, task: str, seed: int, config: Any, **_: Any) -> dict[str, Any]:
        self.count += 1
        return {"question": f"{self._code}{task} {seed}", "answer": ("5", seed), "metadata": {}}


async def build(
    generator: Any,
    folder: Path | None,
    version: str = "1",
    overrides: dict[str, Any] | None = None,
    **changed: Any,
) -> EvalSet:
    catalog = Catalog((Task("chain_sum", "arithmetic", overrides=overrides or {}), Task("gcd", "arithmetic")))
    values = {"eval_tasks": ["all"], "num_eval_samples_per_task": PER_TASK, "eval_seed": 7, **changed}
    cache = QuestionCache(folder) if folder else None
    return await build_eval_set(ItemMaker(catalog, generator), EvaluationSettings(**values), version, cache=cache)


async def test_a_second_run_makes_one_item_for_each_question(tmp_path: Path) -> None:
    first, second = CountingGenerator(), CountingGenerator()
    made = await build(first, tmp_path / "cache")
    assert await build(second, tmp_path / "cache") == made == await build(CountingGenerator(), None)
    assert first.count > 2 * PER_TASK == second.count


def test_each_task_has_a_file_in_the_folder_whatever_its_name(tmp_path: Path) -> None:
    cache = QuestionCache(tmp_path / "cache")
    names = ["gcd", "../gcd", "my/gcd", "my_gcd", "größe", "gräße", "long" * 99]
    for number, name in enumerate(names):
        cache.write(name, {}, RememberedDraws(draws=[(number, "digest")]))
    for number, name in enumerate(names):
        assert cache.read(name, {}) == RememberedDraws(draws=[(number, "digest")])
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    assert len(list((tmp_path / "cache").iterdir())) == len(names)


async def test_tasks_with_too_few_questions_are_searched_each_time(tmp_path: Path) -> None:
    class Few(CountingGenerator):
        async def generate(self, task: str, seed: int, config: Any, **_: Any) -> dict[str, Any]:
            return await super().generate(task, seed % 60, config)

    made = [await build(Few(), tmp_path, num_eval_samples_per_task=20) for _ in range(2)]
    assert made[0] == made[1] and "chain_sum" in made[1].left_out


async def test_draws_without_an_item_whose_workers_died_are_not_remembered(tmp_path: Path) -> None:
    class ShortOfMemory(CountingGenerator):
        async def generate(self, task: str, seed: int, config: Any, **_: Any) -> dict[str, Any]:
            made = await super().generate(task, seed, config)
            if task == "gcd" and self.count % 3 == 0:
                raise GenerationCrashedError("its workers died")
            return made

    expected = await build(CountingGenerator(), None)
    assert await build(ShortOfMemory(), tmp_path) != expected
    assert len(names(tmp_path)) == 1, "only chain_sum"
    assert await build(CountingGenerator(), tmp_path) == expected


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


CHANGES: list[dict[str, Any]] = [
    {"version": "2"},
    {"overrides": {"max_terms": 5}},
    {"eval_seed": 8},
    {"num_eval_samples_per_task": 3},
    {"eval_complexity": 0.5},
    {"eval_complexity": "easy"},
    {"verification": "native"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
async def test_whatever_the_questions_depend_on_has_its_own_draws(tmp_path: Path, change: dict[str, Any]) -> None:
    await build(CountingGenerator(), tmp_path)
    before = names(tmp_path)
    made = await build(CountingGenerator(), tmp_path, **change)
    assert made == await build(CountingGenerator(), None, **change)
    assert names(tmp_path) > before


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("intact")
    asyncio.run(build(CountingGenerator(), folder))
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def cut(content: bytes, at: int) -> bytes:
    return content[: at % len(content)]


def flip(content: bytes, at: int) -> bytes:
    changed = bytearray(content)
    changed[at % len(content)] ^= 1
    return bytes(changed)


def fewer(content: bytes, at: int) -> bytes:
    """Valid JSON, but without the last draw."""
    return content[: content.rindex(b",[")] + b"]}"


@settings(deadline=None, max_examples=50, derandomize=True)
@given(
    damage=st.sampled_from([cut, flip, fewer, lambda content, at: b"", lambda content, at: b'{"draws": []}']),
    at=st.integers(0, 10_000),
    code=st.sampled_from(["", "", "changed "]),
)
def test_a_damaged_or_outdated_file_changes_nothing_and_is_replaced(
    tmp_path_factory: pytest.TempPathFactory,
    files: dict[str, bytes],
    damage: Callable[[bytes, int], bytes],
    at: int,
    code: str,
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    for name, content in files.items():
        (folder / name).write_bytes(damage(content, at))
    expected = asyncio.run(build(CountingGenerator(code), None))
    assert asyncio.run(build(CountingGenerator(code), folder)) == expected
    generator = CountingGenerator(code)
    assert asyncio.run(build(generator, folder)) == expected
    assert generator.count == 2 * PER_TASK
    assert names(folder) == files.keys()


async def test_a_folder_that_cannot_be_used_is_no_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "file").touch()
    made = await build(CountingGenerator(), tmp_path / "file" / "cache")
    assert made == await build(CountingGenerator(), None)
    assert "Cannot remember the questions of chain_sum in" in caplog.text


async def test_a_log_without_a_terminal_shows_the_progress(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(eval_set, "LOG_PROGRESS_S", 0.001)
    may_end = asyncio.Event()

    class StuckWithGcd(CountingGenerator):
        async def generate(self, task: str, seed: int, config: Any, **_: Any) -> dict[str, Any]:
            if task == "gcd":
                await may_end.wait()
            return await super().generate(task, seed, config)

    building = asyncio.ensure_future(build(StuckWithGcd(), None))
    await until(lambda: "Made 4 of 8 held-out questions. Unfinished: gcd." in caplog.text)
    may_end.set()
    assert len(await building) == 8
    lines = len(caplog.records)
    await asyncio.sleep(0.01)
    assert len(caplog.records) == lines
