"""`serve` in real processes, with atroposlib's own run-api and clients: started again, read from, told to stop."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..env_support import dumped
from ..mock_dialects import ThreadedMockServer
from ..support import (
    PATIENCE_S,
    AddingStudent,
    flags,
    get_json,
    next_batch,
    register_trainer,
    running,
    trajectory_api,
    wait_for,
)

pytestmark = pytest.mark.slow
SERVE = ["-m", "reasoning_gym_environment", "serve"]


def test_serve_started_again_goes_on_where_it_was(
    tmp_path: Path, tokenizer_dir: Path, adding_server: ThreadedMockServer
) -> None:
    """Killed at no notice, beside an API that stays and gives it another number; and once more, by SIGTERM."""
    with trajectory_api(tmp_path) as api:
        arguments = flags(
            tokenizer_dir,
            adding_server.base_url,
            env__rollout_server_url=api,
            env__batch_size=8,
            env__dump_rollouts=True,
            env__rollout_save_score_threshold=0.5,
        )
        drawn = []
        for number, end in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGTERM)):
            log = tmp_path / f"serve-{number}.log"
            with running([*SERVE, *arguments], log, tmp_path) as process:
                if number == 0:
                    register_trainer(api, batch_size=8, max_token_len=2048)
                for _ in range(12):
                    next_batch(api)
                process.send_signal(end)
                process.wait(timeout=PATIENCE_S)
            drawn.append([int(index) for index in re.findall(r"Drew item (\d+): chain_sum", log.read_text())])
    assert min(drawn[0]) == 0
    for before, after in itertools.pairwise(drawn):
        assert 0 < min(after) <= max(before) + 1, "it starts where the last checkpoint was, and leaves out nothing"
    assert "Resumed from" in log.read_text()
    lines = dumped(tmp_path / "data_dumps", "*.jsonl")
    assert {line["index"] for line in lines} <= {index for indices in drawn for index in indices}
    stems = {path.name[:-11] for path in (tmp_path / "data_dumps").glob("*.jsonl")}
    assert len(stems) == 1, "all in the files of one run"


def test_sft_data_from_atropos_own_client_is_the_true_conversation(
    tmp_path: Path, tokenizer_dir: Path, adding_server: ThreadedMockServer
) -> None:
    output = tmp_path / "sft.jsonl"
    with trajectory_api(tmp_path) as api:
        arguments = flags(
            tokenizer_dir,
            adding_server.base_url,
            env__rollout_server_url=api,
            env__batch_size=8,
            env__include_messages=True,
        )
        client = [
            *("-m", "atroposlib.cli.sft", str(output), "--api-url", api, "--tokenizer", str(tokenizer_dir)),
            *("--save-messages", "--group-size", "4", "--tasks-per-step", "2", "--num-seqs-to-save", "6"),
        ]
        serve = running([*SERVE, *arguments], tmp_path / "serve.log", tmp_path)
        with running(client, tmp_path / "sft.log", tmp_path) as sft, serve:
            assert sft.wait(timeout=PATIENCE_S) == 0, (tmp_path / "sft.log").read_text()
    lines = [json.loads(line) for line in output.open()]
    assert len(lines) >= 6
    solve = AddingStudent(wrong_every=0)
    for line in lines:
        system, user, assistant = line["messages"]
        assert "<answer>" in system["content"]
        right = solve(f"user\n{user['content']}")
        assert (assistant["content"] == right) == (line["score"] == 1.0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_waiting_for_the_trajectory_api_ends_serve_cleanly(
    tmp_path: Path, tokenizer_dir: Path, adding_server: ThreadedMockServer, number: signal.Signals
) -> None:
    arguments = flags(tokenizer_dir, adding_server.base_url, env__rollout_server_url="http://127.0.0.1:9")
    log = tmp_path / "serve.log"
    with running([*SERVE, *arguments], log, tmp_path) as process:
        wait_for(lambda: "start it with `run-api`" in log.read_text(), "serve to wait")
        process.send_signal(number)
        assert process.wait(timeout=PATIENCE_S) == 128 + number
    assert "Traceback" not in log.read_text()


async def test_a_full_queue_and_a_slow_trainer_cost_no_worker_and_no_group(
    tmp_path: Path, byte_tokenizer: Any, make_real_env: Callable[..., Any]
) -> None:
    """The trainer takes a batch a second, of a queue that is mostly full; every completion paid for has its outcome."""
    student = AddingStudent()

    async def slowly(prompt: str) -> str:
        await asyncio.sleep(0.1)
        return student(prompt)

    with ThreadedMockServer(slowly, byte_tokenizer) as server, trajectory_api(tmp_path) as api:
        register_trainer(api, batch_size=8, max_token_len=2048)
        env = make_real_env(
            server.base_url, rollout_server_url=api, batch_size=8, include_tasks="chain_sum", steps_per_eval=0
        )
        serving = asyncio.create_task(env._serve())
        was_full = 0
        for _ in range(15):
            while not (await asyncio.to_thread(get_json, f"{api}/batch"))["batch"]:
                await asyncio.sleep(0.1)
                assert not serving.done()
            await asyncio.sleep(1.0)
            was_full += env.status_dict["queue_size"] >= 3 * 8 // 4
        under_way = len(env.loop._groups)
        outcomes = sum(sum(of_task.values()) for of_task in env.log.outcomes.by_task().values())
        assert env.parts.metrics().get("grading/worker_restarts", 0.0) == 0.0
        asked = len(server.requests) - 1  # without the one before all others
        assert 0 <= asked - outcomes <= under_way, "no group that was asked for came to nothing"
        assert env.log.outcomes.metrics().keys() == {"groups/sent"} and not env.failures.counts
        assert was_full > 5
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await env.loop.stop()
