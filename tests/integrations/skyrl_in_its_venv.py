"""The environment in the real skyrl-gym, called as SkyRL's generator calls it; run by test_real_libraries.py.

There is no model and no trainer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import runpy
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv
from skyrl_gym.metrics import aggregate_for_environment

from reasoning_gym_environment import Rows, new_store
from reasoning_gym_environment.api import Row
from reasoning_gym_environment.integrations.item_formats import verl_row
from reasoning_gym_environment.integrations.skyrl import register
from testing import level_student
from testing.curriculum_runs import skyrl as curriculum
from tests.integrations.doors import check_rewards

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "skyrl" / "train_reasoning.py"
ENV_CLASS = "reasoning_gym"
THINKING_OPENED = "with_thinking_opened"
NAN = math.nan


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    register()
    register(THINKING_OPENED, thinking_opened=True)


def episode(row: Row, text: str, env_class: str = ENV_CLASS) -> tuple[float | None, BaseTextEnv]:
    """The reward of an episode, as SkyRL's generator runs it on a row of a file, and its environment."""
    extras = json.loads(json.dumps(verl_row(row)))
    prompt = extras.pop("prompt")
    env = skyrl_gym.make(env_class, env_config={}, extras={**extras, "max_turns": 1})
    assert env.init(prompt) == (prompt, {})
    output = env.step(text)
    env.close()
    assert (output["done"], output["observations"]) == (True, [])
    assert "postprocessed_action" not in output
    reward = output["reward"]
    assert isinstance(reward, float)
    assert output["metadata"]["reason"] or reward == reward
    return (None if math.isnan(reward) else reward), env


def test_a_right_a_wrong_and_an_unscored_completion() -> None:
    def door(row: Row, texts: Sequence[str]) -> list[float | None]:
        """The episodes of a group, in threads as in SkyRL."""
        with ThreadPoolExecutor(max_workers=32) as threads:
            return [reward for reward, _ in threads.map(partial(episode, row), texts)]

    check_rewards(door)


async def test_metrics_and_thinking_and_a_caller_with_an_event_loop() -> None:
    [row] = Rows.fixed(1, include_tasks="chain_sum")
    right = f"<answer>{row.answer}</answer>"
    metrics = [episode(row, text)[1].get_metrics() for text in (right, "<answer>no idea</answer>", "no idea")]
    third = pytest.approx(1 / 3)
    means = aggregate_for_environment(ENV_CLASS, metrics)
    assert means == {"unscored": 0.0, "score": third, "correct": third, "format_failure": third}
    assert episode(row, f"<answer>7</answer> </think> {right}", THINKING_OPENED)[0] == 1.0
    assert episode(row, right, THINKING_OPENED)[0] == 0.0


def test_the_levels_follow_the_rewards(tmp_path: Path) -> None:
    store = new_store(tmp_path / "levels.sqlite", **level_student.STORE)
    curriculum.run(str(store.path), 80)
    summary = store.summary()
    assert (summary.complete, summary.repeated, summary.unscored) == (80, 0, 0)
    assert min(task.level for task in summary.tasks) >= 1


# --- the example: unscored completions are masked


@dataclass(frozen=True)
class Trajectory:
    """The attributes of SkyRL's TrajectoryID."""

    instance_id: str
    repetition_id: int


def batch_of(prompts: str) -> dict[str, Any]:
    """A generator's input. Each letter is the prompt of a completion."""
    trajectories = [Trajectory(prompt, number) for number, prompt in enumerate(prompts)]
    return {"env_classes": [ENV_CLASS] * len(prompts), "trajectory_ids": trajectories}


def output_of(rewards: list[Any]) -> dict[str, Any]:
    """A generator's output for completions of three tokens."""
    return {
        "response_ids": [[7, 8, 9] for _ in rewards],
        "rewards": rewards,
        "loss_masks": [[1, 1, 0] for _ in rewards],
        "rollout_metrics": {"generate/avg_num_tokens": 3.0},
        "trajectory_ids": None,
    }


Mask = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the example. SkyRL itself is not installed."""
    modules: dict[str, dict[str, Any]] = {
        "ray": {"remote": lambda num_cpus: lambda function: function},
        "skyrl": {},
        "skyrl.train": {},
        "skyrl.train.config": {"SkyRLTrainConfig": object},
        "skyrl.train.entrypoints": {},
        "skyrl.train.entrypoints.main_base": {"BasePPOExp": BasePPOExp, "validate_cfg": None},
        "skyrl.train.utils": {"initialize_ray": None},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    return runpy.run_path(str(EXAMPLE))


@pytest.fixture
def mask_unscored(example: dict[str, Any]) -> Mask:
    mask: Mask = example["mask_unscored"]
    return mask


KEPT = [1, 1, 0]
MASKED = [0, 0, 0]


def test_an_unscored_completion_gets_the_mean_of_its_prompt_and_no_loss(
    mask_unscored: Mask, caplog: pytest.LogCaptureFixture
) -> None:
    output = output_of([1.0, NAN, 0.5, 0.0, NAN])
    made = mask_unscored(batch_of("aaabc"), output)
    assert made["rewards"] == [1.0, 0.75, 0.5, 0.0, 0.5]
    assert made["loss_masks"] == [KEPT, MASKED, KEPT, KEPT, MASKED]
    # Nothing else changes, the argument included.
    assert made["response_ids"] is output["response_ids"]
    assert made["rollout_metrics"] is output["rollout_metrics"]
    assert output["loss_masks"] == [KEPT] * 5
    assert math.isnan(output["rewards"][1])
    assert not caplog.records


def test_rewards_may_be_those_of_the_tokens(mask_unscored: Mask) -> None:
    rewards = [[0.0, 0.0, 1.0], [0.0, 0.0, NAN], [0.0, 0.5, 0.0], [0.0, NAN, 0.0]]
    made = mask_unscored(batch_of("aaab"), output_of(rewards))
    assert made["rewards"] == [rewards[0], [0.0, 0.0, 0.75], rewards[2], [0.0, 0.0, 0.75]]
    assert made["loss_masks"] == [KEPT, MASKED, KEPT, MASKED]


def test_the_prompts_are_those_of_the_output_if_it_has_more_rows(mask_unscored: Mask) -> None:
    # With step-wise training, the output has a row for each step, and names their trajectories.
    output = output_of([1.0, NAN, 0.0])
    output["trajectory_ids"] = batch_of("aab")["trajectory_ids"]
    assert mask_unscored(batch_of("ab"), output)["rewards"] == [1.0, 1.0, 0.0]
    # Without trajectories, the batch is one group.
    assert mask_unscored({"trajectory_ids": None}, output_of([1.0, NAN, 0.0]))["rewards"] == [1.0, 0.5, 0.0]


def test_a_batch_without_any_score_is_masked_and_reported(
    mask_unscored: Mask, caplog: pytest.LogCaptureFixture
) -> None:
    made = mask_unscored(batch_of("ab"), output_of([NAN, NAN]))
    assert made["rewards"] == [0.0, 0.0]
    assert made["loss_masks"] == [MASKED, MASKED]
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "None of the 2 completions" in record.getMessage()


class Generator:
    """In the place of SkyRL's generator."""

    async def generate(self, input_batch: dict[str, Any], disable_tqdm: bool = False) -> dict[str, Any]:
        assert disable_tqdm
        return output_of([1.0, NAN])


class BasePPOExp:
    """In the place of SkyRL's class of this name."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def get_generator(self, config: Any, tokenizer: Any, inference_engine_client: Any) -> Generator:
        return Generator()

    def run(self) -> None:
        """Generate a batch, as the fully asynchronous trainer does."""
        generate = self.get_generator(self.config, None, None).generate
        self.config["output"] = asyncio.run(generate(batch_of("aa"), disable_tqdm=True))


def test_the_example_registers_and_masks(example: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(skyrl_gym.registry, ENV_CLASS)
    config: dict[str, Any] = {}
    example["train"](config)
    assert config["output"]["rewards"] == [1.0, 1.0]
    assert config["output"]["loss_masks"] == [KEPT, MASKED]
    assert ENV_CLASS in skyrl_gym.registry
