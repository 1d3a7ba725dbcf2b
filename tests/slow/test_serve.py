"""`serve` in real processes, with atroposlib's own run-api and clients: started again, and read from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..mock_dialects import ThreadedMockServer
from ..support import PATIENCE_S, AddingStudent, flags, running, trajectory_api

pytestmark = pytest.mark.slow
SERVE = ["-m", "reasoning_gym_environment", "serve"]


def test_sft_data_from_atropos_own_client_is_the_true_conversation(
    tmp_path: Path, tokenizer_dir: Path, adding_server: ThreadedMockServer
) -> None:
    output = tmp_path / "sft.jsonl"
    with trajectory_api(tmp_path) as api:
        settings = {"env__rollout_server_url": api, "env__batch_size": 8, "env__include_messages": True}
        arguments = flags(tokenizer_dir, adding_server.base_url, **settings)
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
