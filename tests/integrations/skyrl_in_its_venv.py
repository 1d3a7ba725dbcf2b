"""The environment in the real skyrl-gym, called as SkyRL's generator calls it; run by test_real_libraries.py.

There is no model and no trainer. The completions are those of tests/integrations/completions.py.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.metrics import aggregate_for_environment

from reasoning_gym_environment import PromptedProblem, Tasks
from reasoning_gym_environment.integrations.curriculum_rows import new_store
from reasoning_gym_environment.integrations.item_formats import ExportedItem, verl_row
from reasoning_gym_environment.integrations.recipe import Recipe, RecipeGrader, grader_for
from reasoning_gym_environment.integrations.skyrl import ENV_CLASS, ReasoningGymSkyRLEnv, mask_unscored, register
from testing import level_student
from testing.curriculum_runs import skyrl as curriculum
from testing.hostile_answers import ATTACK_TASK
from tests.integrations.completions import SETTINGS, TASKS, all_groups

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "skyrl.md"
THINKING_OPENED = "with_thinking_opened"
SLOW = "<answer>while True: pass</answer>"
NAN = math.nan


@pytest.fixture(scope="module", autouse=True)
def grader() -> Iterator[RecipeGrader]:
    """The items and the workers of the registered environments."""
    register(**SETTINGS)
    register(THINKING_OPENED, thinking_opened=True, **SETTINGS)
    grader = grader_for(SETTINGS)
    yield grader
    grader.tasks.close()


@pytest.fixture(scope="module")
def problems() -> dict[str, PromptedProblem]:
    """A problem of each task, by its task."""
    names = ("chain_sum", "countdown", ATTACK_TASK)
    with Tasks(names, **SETTINGS) as tasks:
        return {task: tasks.draw(task, seed=3) for task in names}


@dataclass(frozen=True)
class Episode:
    """A finished episode."""

    env: BaseTextEnv
    output: BaseTextEnvStepOutput

    @property
    def reward(self) -> float | None:
        """The reward, or None for NaN."""
        reward = self.output["reward"]
        assert isinstance(reward, float)
        return None if math.isnan(reward) else reward


def extras_of(problem: PromptedProblem, **changes: Any) -> dict[str, Any]:
    """What SkyRL's dataset makes of a row of `export items --format verl`: all columns but the prompt."""
    row = verl_row(ExportedItem(problem, "train", 0, str(problem.entry["answer"] or ""), Recipe.of(problem).as_row()))
    extras: dict[str, Any] = json.loads(json.dumps(row))
    extras.pop("prompt")
    extras["extra_info"].update(changes)
    extras["max_turns"] = 1
    return extras


def run(problem: PromptedProblem, text: str, env_class: str = ENV_CLASS, **changes: Any) -> Episode:
    """An episode, as SkyRL's generator runs it."""
    extras = extras_of(problem, **changes)
    env = skyrl_gym.make(env_class, env_config={}, extras=extras)
    assert isinstance(env, ReasoningGymSkyRLEnv)
    prompt = [dict(message) for message in problem.messages]
    assert env.init(prompt) == (prompt, {})
    output = env.step(text)
    env.close()
    assert output["done"] is True
    assert output["observations"] == []
    assert "postprocessed_action" not in output
    return Episode(env, output)


def run_all(problem: PromptedProblem, texts: list[str]) -> list[Episode]:
    """An episode for each completion, in threads as in SkyRL."""
    with ThreadPoolExecutor(max_workers=32) as executor:
        return list(executor.map(lambda text: run(problem, text), texts))


def test_completions_earn_what_they_earn_everywhere(tmp_path: Path) -> None:
    marker = tmp_path / "touched"
    with Tasks([*TASKS, ATTACK_TASK], **SETTINGS) as tasks:
        groups = all_groups(tasks, marker)
    for group in groups:
        problem = group.problem
        episodes = run_all(problem, group.completions)
        assert [episode.reward for episode in episodes] == list(group.rewards.values())
        for episode in episodes:
            metadata = episode.output["metadata"]
            assert (metadata["task"], metadata["level"]) == (problem.task, problem.level)
            is_unscored = episode.reward is None
            assert metadata["unscored"] == is_unscored
            assert (metadata["score"] is None) == is_unscored
            assert (metadata["score"] == 1.0) == (episode.reward == 1.0)
            assert metadata["reason"] or not is_unscored
    assert not marker.exists()


def test_metadata_and_metrics(problems: dict[str, PromptedProblem]) -> None:
    problem = problems["chain_sum"]
    right = run(problem, f"<answer>{problem.entry['answer']}</answer>")
    wrong = run(problem, "<answer>no idea</answer>")
    without_answer = run(problem, "no idea")
    unscored = run(problems[ATTACK_TASK], SLOW)
    episodes = [right, wrong, without_answer, unscored]
    outcomes = [episode.output["metadata"]["outcome"] for episode in episodes]
    assert outcomes == ["correct", "wrong", "format_failure", "timeout"]
    assert right.env.get_metrics() == {"unscored": 0.0, "score": 1.0, "correct": 1.0, "format_failure": 0.0}
    assert unscored.env.get_metrics() == {"unscored": 1.0}
    # SkyRL's means of scores are those of the scored completions.
    means = aggregate_for_environment(ENV_CLASS, [episode.env.get_metrics() for episode in episodes])
    third = pytest.approx(1 / 3)
    assert means == {"unscored": 0.25, "score": third, "correct": third, "format_failure": third}


async def test_a_generator_may_call_the_environment_in_its_event_loop(
    problems: dict[str, PromptedProblem], grader: RecipeGrader
) -> None:
    problem = problems["countdown"]
    right = f"<answer>{problem.entry['answer']}</answer>"
    grader._making.clear()
    # Without threads (`max_env_workers` is 0), and with them.
    assert run(problem, right).reward == 1.0
    episodes = await asyncio.gather(*(asyncio.to_thread(run, problem, right) for _ in range(4)))
    assert [episode.reward for episode in episodes] == [1.0] * 4


def test_the_chat_template_may_have_opened_the_thoughts(problems: dict[str, PromptedProblem]) -> None:
    problem = problems["chain_sum"]
    right = f"<answer>{problem.entry['answer']}</answer>"
    assert run(problem, f"<answer>7</answer> </think> {right}", THINKING_OPENED).reward == 1.0
    never_closed = run(problem, right, THINKING_OPENED)
    assert never_closed.output["metadata"]["outcome"] == "format_failure"
    assert run(problem, right).reward == 1.0


# --- the curriculum


def test_the_levels_follow_the_rewards(tmp_path: Path, grader: RecipeGrader) -> None:
    store = new_store(tmp_path / "levels.sqlite", **level_student.STORE)
    curriculum.run(str(store.path), 80)
    summary = store.summary()
    assert (summary.complete, summary.repeated, summary.unscored) == (80, 0, 0)
    assert min(task.level for task in summary.tasks) >= 1


# --- mask_unscored


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


KEPT = [1, 1, 0]
MASKED = [0, 0, 0]


def test_an_unscored_completion_gets_the_mean_of_its_prompt_and_no_loss(caplog: pytest.LogCaptureFixture) -> None:
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


def test_rewards_may_be_those_of_the_tokens() -> None:
    rewards = [[0.0, 0.0, 1.0], [0.0, 0.0, NAN], [0.0, 0.5, 0.0], [0.0, NAN, 0.0]]
    made = mask_unscored(batch_of("aaab"), output_of(rewards))
    assert made["rewards"] == [rewards[0], [0.0, 0.0, 0.75], rewards[2], [0.0, 0.0, 0.75]]
    assert made["loss_masks"] == [KEPT, MASKED, KEPT, MASKED]


def test_the_prompts_are_those_of_the_output_if_it_has_more_rows() -> None:
    # With step-wise training, the output has a row for each step, and names their trajectories.
    output = output_of([1.0, NAN, 0.0])
    output["trajectory_ids"] = batch_of("aab")["trajectory_ids"]
    assert mask_unscored(batch_of("ab"), output)["rewards"] == [1.0, 1.0, 0.0]
    # Without trajectories, the batch is one group.
    assert mask_unscored({"trajectory_ids": None}, output_of([1.0, NAN, 0.0]))["rewards"] == [1.0, 0.5, 0.0]


def test_a_batch_without_any_score_is_masked_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    made = mask_unscored(batch_of("ab"), output_of([NAN, NAN]))
    assert made["rewards"] == [0.0, 0.0]
    assert made["loss_masks"] == [MASKED, MASKED]
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "None of the 2 completions" in record.getMessage()


# --- the script of the page


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
        assert "disable_tqdm" in inspect.signature(generate).parameters
        self.config["output"] = asyncio.run(generate(batch_of("aa"), disable_tqdm=True))


def test_the_script_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
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
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    script: dict[str, Any] = {"__name__": "train_reasoning"}
    exec(code, script)
    monkeypatch.delitem(skyrl_gym.registry, ENV_CLASS)
    config: dict[str, Any] = {}
    script["train"](config)
    assert config["output"]["rewards"] == [1.0, 1.0]
    assert config["output"]["loss_masks"] == [KEPT, MASKED]
    settings = skyrl_gym.registry[ENV_CLASS].kwargs["settings"]
    Tasks(["chain_sum"], **settings).close()
