"""What wandb gets, in a run of its own that writes to a folder and asks nobody; and what no file of a run holds."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from ..mock_dialects import ThreadedMockServer
from ..support import PATIENCE_S, flags, next_batch, register_trainer, run, running, trajectory_api, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def logged(tmp_path: Path, tokenizer_dir: Path, adding_server: ThreadedMockServer) -> Any:
    """`logged(command, table, **settings)`: what it printed, the raw records, and the table of the offline run."""

    def read(command: str, table: str, **settings: Any) -> tuple[str, bytes, dict[str, Any]]:
        fields = {"openai__server_type": "openai", "env__use_wandb": True, **settings}
        arguments = ["-m", "reasoning_gym_environment", command]
        arguments += flags(tokenizer_dir, adding_server.base_url, **fields)
        result = run(arguments, tmp_path, WANDB_MODE="offline")
        assert result.returncode == 0, result.stderr
        [folder] = tmp_path.glob("wandb/offline-run-*")
        [path] = folder.glob(f"files/media/table/{table}_*.table.json")
        records = b"".join(path.read_bytes() for path in folder.glob("*.wandb"))
        return result.stdout, records, json.loads(path.read_text(encoding="utf-8"))

    return read


def test_process_logs_rewards_by_part_and_the_conversations(tmp_path: Path, logged: Any) -> None:
    settings = {"env__total_steps": 4, "env__data_path_to_save_groups": tmp_path / "g.jsonl"}
    _, records, table = logged("process", "train/conversations", **settings)
    for key in (b"train_reward/length_penalty", b"train_reward/category/arithmetic", b"train_reward/outcome/wrong"):
        assert key in records
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert table["columns"][:2] == ["task", "category"]
    assert len(rows) == 16
    for row in rows:
        assert f"<answer>{row['answer']}</answer>" in row["reply"]
        assert (row["answer"] == row["expected_answer"]) == (row["score"] == 1.0)


KEY = "sk-very-secret-0123"


def holding(folder: Path, text: str) -> list[Path]:
    """Every file in a folder that holds this text."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and text.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("command", "given", "variable"),
    [
        *[("process", ["--openai.api_key", KEY], "NONE"), ("serve", ["--openai.api_key", KEY], "NONE")],
        *[("process", ["--openai.api_key_env=MY_KEY"], "MY_KEY"), ("evaluate", [], "OPENAI_API_KEY")],
        ("evaluate", ["--config", "../settings.yaml"], "MY_KEY"),
    ],
)
def test_no_file_that_a_run_writes_holds_a_key(
    tmp_path: Path,
    tokenizer_dir: Path,
    adding_server: ThreadedMockServer,
    command: str,
    given: list[str],
    variable: str,
) -> None:
    folder = tmp_path / "run"
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    fields: dict[str, Any] = {"env__use_wandb": True, "env__debug_logging": True, "env__dump_rollouts": True}
    if command == "serve":
        fields |= {"openai__server_type": "vllm", "env__batch_size": 8}
    else:
        fields |= {"openai__server_type": "openai", "env__total_steps": 2, "env__data_dir_to_save_evals": "results"}
    (tmp_path / "settings.yaml").write_text("openai: {api_key_env: MY_KEY}")
    environment = {"WANDB_MODE": "offline", "TMPDIR": str(temporary), "HOME": str(folder), variable: KEY}
    with trajectory_api(tmp_path) as api:
        arguments = [
            *("-m", "reasoning_gym_environment", command, *given),
            *flags(tokenizer_dir, adding_server.base_url, env__rollout_server_url=api, **fields),
        ]
        with running(arguments, folder / "log", folder, **environment) as process:
            if command == "serve":
                register_trainer(api, batch_size=8, max_token_len=2048)
                for _ in range(8):
                    next_batch(api)
                assert holding(folder, "reasoning_gym") and not holding(folder, KEY), "while it runs"
                process.terminate()
            code = process.wait(timeout=PATIENCE_S)
    assert code == (128 + signal.SIGTERM if command == "serve" else 0), (folder / "log").read_text()
    assert [path for path in holding(folder, "env.tokenizer_name") if path.suffix == ".wandb"], "it has the arguments"
    assert not holding(folder, KEY)
    assert adding_server.requests[-1].authorization == f"Bearer {KEY}", "the server has got it"


def test_a_start_while_wandb_is_unavailable_trains_and_keeps_its_metrics_on_disk(
    tmp_path: Path, tokenizer_dir: Path, adding_server: ThreadedMockServer
) -> None:
    offline = {"WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "local-" + "0" * 40}
    fields: dict[str, Any] = {"openai__server_type": "vllm", "env__use_wandb": True, "env__batch_size": 8}
    with trajectory_api(tmp_path) as api:
        arguments = ["-m", "reasoning_gym_environment", "serve"]
        arguments += flags(tokenizer_dir, adding_server.base_url, env__rollout_server_url=api, **fields)
        log = tmp_path / "log"
        with running(arguments, log, tmp_path, WANDB_INIT_TIMEOUT="3", **offline) as process:
            register_trainer(api, batch_size=8, max_token_len=2048)
            for _ in range(3):
                next_batch(api)
            wait_for(lambda: "wandb is unavailable (Timed out" in log.read_text(), "the line")
            process.terminate()
            process.wait(timeout=PATIENCE_S)
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb")), log.read_text()


def test_a_killed_run_leaves_temporary_folders_to_the_next_start_which_leaves_none(
    tmp_path: Path, tokenizer_dir: Path, adding_server: ThreadedMockServer
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    fields = {"openai__server_type": "openai", "env__use_wandb": True, "env__total_steps": 10**6}
    fields["env__data_path_to_save_groups"] = str(tmp_path / "groups.jsonl")
    arguments = ["-m", "reasoning_gym_environment", "process", *flags(tokenizer_dir, adding_server.base_url, **fields)]
    for number in (signal.SIGKILL, signal.SIGTERM):
        log = tmp_path / f"{number}.log"
        with running(arguments, log, tmp_path, WANDB_MODE="offline", TMPDIR=str(temporary)) as process:
            wait_for(lambda log=log: log.read_text().count("mean reward") > 20, "groups")
            process.send_signal(number)
            process.wait(timeout=PATIENCE_S)
        if number == signal.SIGKILL:
            [left] = temporary.glob("reasoning-gym-*")
            assert len(list(left.glob("*wandb*"))) >= 1 <= len(list(left.glob("reasoning-gym-items-*")))
    # wandb's own process removes its socket a moment later.
    wait_for(lambda: not list(temporary.iterdir()), "nothing to be left")
