"""Configs as they are published for Atropos, and the snippets of the original's page."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig
from testing.env_support import RIGHT, ReadyEnv, rollout
from testing.support import parsed_command_line

ENV = {"group_size": 16, "max_token_length": 1024, "tokenizer_name": "some-model", "use_wandb": False, "batch_size": -1}
SERVER = {"model_name": "some-model", "base_url": "http://localhost:9001/v1", "api_key": "x", "server_type": "sglang"}

SHAPES: dict[str, dict[str, Any]] = {
    "several servers": {
        "env": {**ENV, "total_steps": 1000, "wandb_name": "reasoning_gym", "steps_per_eval": 100},
        "openai": [{**SERVER, "num_requests_for_eval": 256}, {**SERVER, "base_url": "http://localhost:9002/v1"}],
        "slurm": False,
        "testing": False,
    },
    "one server as a mapping": {"env": ENV, "openai": SERVER, "slurm": False},
    "a trainer with a section of its own": {
        "env": {**ENV, "ensure_scores_are_not_same": False, "max_batches_offpolicy": 3},
        "openai": [{**SERVER, "weight": 1.0, "timeout": 600}],
        "tinker": {"lora_rank": 32, "learning_rate": 4.0e-5, "wandb_project": "p"},
        "slurm": False,
        "testing": False,
    },
    "only the environment": {"env": ENV},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("command", ["serve", "process", "evaluate"])
def test_a_published_config_starts_each_command(
    shape: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.dump(SHAPES[shape]))
    monkeypatch.chdir(tmp_path)
    theirs = ["--max_n_completions", "8", "--proxy_url=http://localhost:9100", "--teacher.model_name", "big"]
    config, servers = parsed_command_line([command, "--config", str(path), *theirs], monkeypatch)
    assert (config.group_size, config.max_token_length, config.batch_size) == (16, 1024, -1)
    given = SHAPES[shape].get("openai", [{}])
    assert len(servers) == (1 if isinstance(given, dict) else len(given))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    names = ["max_n_completions", "proxy_url", "teacher.model_name"]
    names += ["tinker", "openai.weight"] if "tinker" in SHAPES[shape] else []
    assert [warning.partition(" has no effect ")[0] for warning in warnings] == names


async def test_the_snippets_of_the_original_work(ready_env: ReadyEnv) -> None:
    config, servers = ReasoningGymEnv.config_init()
    assert (config.group_size, len(servers)) == (8, 1)
    examples = [{"complexity_mode": None}, {"complexity_mode": "random", "debug_logging": True}]
    examples.append({"complexity_mode": "curriculum", "curriculum_target_accuracy": 0.7, "debug_logging": True})
    for example in examples:
        ReasoningGymEnvConfig(group_size=16, max_token_length=1024 * 16, dump_rollouts=True, **example)
    env = await ready_env(complexity_mode="curriculum")
    await env.score([rollout(await env.get_next_item(), RIGHT)] * 4)
    stats = env.get_curriculum_stats()
    assert [stats[name] for name in ("total_tasks_tracked", "tasks_with_adjustments")] == [1, 0]
    assert f"{stats['avg_complexity']:.2f}" == "0.00"
    for details in stats["task_details"].values():
        if details["adjustable"]:
            raise AssertionError("one group is too few")


async def test_the_module_of_the_original_has_its_names() -> None:
    import reasoning_gym_environment as package
    from reasoning_gym_environment import reasoning_gym_environment as module

    for name in ("ReasoningGymEnv", "ReasoningGymEnvConfig", "system_prompt"):
        assert getattr(module, name) is getattr(package, name)
