"""The same seed gives what it gave before the move into rooms; see `record.py`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from reasoning_gym import factory

from reasoning_gym_environment import run as run_module
from reasoning_gym_environment import runtime
from reasoning_gym_environment.runtime import Runtime
from reasoning_gym_environment.workers.grader import SandboxGrader
from testing.inference_server import ThreadedMockServer

from . import record

RECORDED = Path(__file__).parent / "recorded"
FEW = 20
"""So many draws show most changes. They are made without workers, so not in the mode `none`: some of its tasks need the
fixed hash seed of the workers. All draws reach the levels and tasks that come late."""


def recorded(mode: str) -> tuple[list[Any], list[list[Any]]]:
    """Digest and task of each held-out question, and the draws."""
    lines = (RECORDED / f"{mode}.jsonl").read_text(encoding="utf-8").splitlines()
    held_out, *draws = map(json.loads, lines)
    return held_out, draws


def assert_same(drawn: list[list[Any]], expected: list[list[Any]]) -> None:
    differ = [(one, other) for one, other in zip(drawn, expected, strict=True) if one != other]
    assert not differ, f"{len(differ)} of {len(drawn)} draws differ; the first, and what was recorded: {differ[0]}"


@pytest.fixture(autouse=True)
def only_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets that other tests registered in this process are no part of the run."""
    for name, (dataset, _) in list(factory.DATASETS.items()):
        if not dataset.__module__.startswith("reasoning_gym."):
            monkeypatch.delitem(factory.DATASETS, name)


@pytest.fixture(autouse=True)
def no_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which items and answers take too long would depend on the machine."""
    monkeypatch.setattr(run_module, "Runtime", partial(Runtime, item_timeout_s=100.0))
    monkeypatch.setattr(runtime, "SandboxGrader", partial(SandboxGrader, timeout_s=30.0))


@pytest.mark.parametrize(
    ("mode", "draws"),
    [("random", FEW), ("curriculum", FEW)]
    + [pytest.param(mode, record.DRAWS, marks=pytest.mark.slow) for mode in record.MODES],
)
async def test_items_prompts_scores_and_groups_are_those_recorded(
    mode: str,
    draws: int,
    make_real_env: Callable[..., Any],
    byte_tokenizer: Any,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if draws == FEW:
        request.getfixturevalue("in_process_workers")
    student = record.Student()
    with ThreadedMockServer(student, byte_tokenizer) as server:
        env = make_real_env(server.base_url, **record.settings(mode))
        await env.setup()
        asked = [[record.digest_of_item(entry), data.problem.task] for entry, data in env.test_items_with_scorers]
        if "RECORD_GOLDEN" in os.environ:
            await write(mode, env, student, asked, tmp_path)
            return
        held_out, expected = recorded(mode)
        assert asked == held_out
        assert_same(await record.record(env, student, draws), expected[:draws])


async def write(mode: str, env: Any, student: record.Student, asked: list[Any], folder: Path) -> None:
    env.state.checkpoint_dir, env.state.checkpoint_interval, env.state.step = str(folder), 1, 5
    lines = await record.record(env, student, record.CHECKPOINT_AT)
    await env.save_checkpoint(5)
    [checkpoint] = folder.rglob("step-5.json")  # noqa: ASYNC240
    shutil.copy(checkpoint, RECORDED / f"{mode}.checkpoint.json")
    lines += await record.record(env, student, record.DRAWS - record.CHECKPOINT_AT)
    rows = [json.dumps(row) for row in (asked, *lines)]
    (RECORDED / f"{mode}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    "mode", [mode if mode == "curriculum" else pytest.param(mode, marks=pytest.mark.slow) for mode in record.MODES]
)
async def test_a_checkpoint_of_before_is_gone_on_from(
    mode: str, make_env: Callable[..., Any], byte_tokenizer: Any, tmp_path: Path
) -> None:
    _, expected = recorded(mode)
    student = record.Student()
    with ThreadedMockServer(student, byte_tokenizer) as server:
        env = make_env(server.base_url, **record.settings(mode), run_id="golden")
        await env.setup()
        folder = tmp_path / "env_checkpoints" / "golden-golden"
        folder.mkdir(parents=True)
        shutil.copy(RECORDED / f"{mode}.checkpoint.json", folder / "step-5.json")
        env.state.checkpoint_dir, env.state.checkpoint_interval, env.state.step = str(tmp_path), 1, 5
        env.load_checkpoint()
        start = record.CHECKPOINT_AT
        assert_same(await record.record(env, student, FEW), expected[start : start + FEW])
