"""No file that a run writes holds a key, also not what wandb keeps."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from testing.support import PATIENCE_S, flags, next_batch, register_trainer, running, trajectory_api

pytestmark = pytest.mark.slow
KEY = "sk-very-secret-0123"


def holding(folder: Path, text: str) -> list[Path]:
    """Every file in a folder that holds this text."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and text.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("command", "given", "variable"),
    [("serve", ["--openai.api_key", KEY], "NONE"), ("process", ["--openai.api_key_env=MY_KEY"], "MY_KEY")],
)
def test_no_file_that_a_run_writes_holds_a_key(
    tmp_path: Path, tokenizer_dir: Path, adding_server: Any, command: str, given: list[str], variable: str
) -> None:
    folder, temporary = tmp_path / "run", tmp_path / "run" / "tmp"
    temporary.mkdir(parents=True)
    fields: dict[str, Any] = {"env__use_wandb": True, "env__debug_logging": True, "env__dump_rollouts": True}
    fields["env__data_dumps_dir"] = "dumps"
    if command == "serve":
        fields |= {"openai__server_type": "vllm", "env__batch_size": 8}
    else:
        fields |= {"openai__server_type": "openai", "env__total_steps": 2, "env__data_dir_to_save_evals": "results"}
    environment = {"WANDB_MODE": "offline", "TMPDIR": str(temporary), "HOME": str(folder), variable: KEY}
    with trajectory_api(tmp_path) as api:
        settings = flags(tokenizer_dir, adding_server.base_url, env__rollout_server_url=api, **fields)
        arguments = ["-m", "reasoning_gym_environment", command, *given, *settings]
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
