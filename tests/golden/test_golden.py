"""The same seed gives what it gave before the move into rooms; see `record.py`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..mock_dialects import ThreadedMockServer
from . import record

DATA = Path(__file__).parent / "recorded"


def recorded(mode: str) -> tuple[list[Any], list[list[Any]]]:
    held_out, *lines = (json.loads(line) for line in (DATA / f"{mode}.jsonl").read_text(encoding="utf-8").splitlines())
    return held_out, lines


@pytest.mark.parametrize("mode", record.MODES)
async def test_items_prompts_scores_and_groups_are_those_recorded(
    mode: str, make_real_env: Callable[..., Any], byte_tokenizer: Any
) -> None:
    held_out, expected = recorded(mode)
    student = record.Student()
    with ThreadedMockServer(student, byte_tokenizer) as server:
        env = make_real_env(server.base_url, **record.settings(mode))
        await env.setup()
        assert [[record.digest(entry), data.problem.task] for entry, data in env.test_items_with_scorers] == held_out
        lines = await record.record(env, student, record.DRAWS)
    differ = [(line, want) for line, want in zip(lines, expected, strict=True) if line != want]
    assert not differ, f"{len(differ)} of {len(lines)} draws differ; the first, and what was recorded: {differ[0]}"


@pytest.mark.parametrize("mode", record.MODES)
async def test_a_checkpoint_of_before_is_gone_on_from(
    mode: str, make_real_env: Callable[..., Any], byte_tokenizer: Any, tmp_path: Path
) -> None:
    _, expected = recorded(mode)
    student = record.Student()
    with ThreadedMockServer(student, byte_tokenizer) as server:
        env = make_real_env(server.base_url, **record.settings(mode), run_id="golden")
        await env.setup()
        folder = tmp_path / "env_checkpoints" / "golden-golden"
        folder.mkdir(parents=True)
        shutil.copy(DATA / f"{mode}.checkpoint.json", folder / "step-5.json")
        env.checkpoint_dir, env.checkpoint_interval, env.curr_step = str(tmp_path), 1, 5
        env.load_checkpoint()
        lines = await record.record(env, student, 40)
    differ = [(line, want) for line, want in zip(lines, expected[record.CHECKPOINT_AT :], strict=False) if line != want]
    assert not differ, f"{len(differ)} of {len(lines)} draws differ; the first, and what was recorded: {differ[0]}"
