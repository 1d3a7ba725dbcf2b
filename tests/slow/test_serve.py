"""`serve` in real processes, with atroposlib's own run-api and clients: started again, and read from."""

from __future__ import annotations

import itertools
import json
import re
import signal
from pathlib import Path

import pytest

from ..env_support import dumped
from ..mock_dialects import ThreadedMockServer
from ..support import PATIENCE_S, AddingStudent, flags, next_batch, register_trainer, running, trajectory_api

pytestmark = pytest.mark.slow
SERVE = ["-m", "reasoning_gym_environment", "serve"]


def test_serve_started_again_goes_on_where_it_was(
    tmp_path: Path, tokenizer_dir: Path, adding_server: ThreadedMockServer
) -> None:
    """Killed at no notice, beside an API that stays and gives it another number; and once more, by SIGTERM."""
    with trajectory_api(tmp_path) as api:
        settings = {"env__rollout_server_url": api, "env__batch_size": 8, "env__dump_rollouts": True}
        settings["env__rollout_save_score_threshold"] = 0.5
        arguments = flags(tokenizer_dir, adding_server.base_url, **settings)
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
