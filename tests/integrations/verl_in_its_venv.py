"""The reward function in the real verl: dataset, reward managers and workers, replay buffer (test_real_libraries.py).

There is no model and no GPU. The completions are those of doors.py and completions.py.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pytest
import ray
import torch
import transfer_queue as tq
import verl
from omegaconf import DictConfig, OmegaConf
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.experimental.reward_loop.reward_loop import RewardLoopManager, RewardLoopWorker
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.trainer.ppo.utils import create_rl_dataset
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn, get_dataset_class

from reasoning_gym_environment import PromptedProblem, Recipe, Tasks, new_store
from reasoning_gym_environment.api import Row
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.integrations.item_formats import ITEM_FORMATS, verl_row, write_rows
from reasoning_gym_environment.integrations.verl import UnscoredError
from reasoning_gym_environment.integrations.verl_dataset import CurriculumDataset
from testing import level_student
from testing.curriculum_runs import verl as curriculum
from testing.hostile_answers import ATTACK_MODULE, ATTACK_TASK
from tests.integrations.completions import SETTINGS, TASKS, Group, attack_group, shared_groups
from tests.integrations.doors import check_rewards

MODEL = Path(__file__).resolve().parent.parent.parent / "examples" / "demo" / "tiny_model"
REWARD_KWARGS = {"task_modules": ATTACK_MODULE, "allow_unguarded_tasks": ATTACK_TASK}


def configuration() -> DictConfig:
    """verl's own configuration, with the reward function of the package."""
    config = OmegaConf.load(Path(verl.__file__).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml")
    assert isinstance(config, DictConfig)
    config.actor_rollout_ref.model.path = str(MODEL)
    config.reward.num_workers = 1
    config.reward.reward_manager.name = "naive"
    config.reward.custom_reward_function = {
        "path": "pkg://reasoning_gym_environment.integrations.verl",
        "name": "compute_score",
        "reward_kwargs": REWARD_KWARGS,
    }
    return config


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file that no completion may create."""
    marker = tmp_path_factory.mktemp("marker") / "touched"
    yield marker
    assert not marker.exists()


@pytest.fixture(scope="module")
def groups(marker: Path) -> list[Group]:
    with Tasks([*TASKS, ATTACK_TASK], **SETTINGS) as tasks:
        return [readable(group) for group in (*shared_groups(tasks, marker)[:2], attack_group(tasks, marker))]


def readable(group: Group) -> Group:
    """No tokenizer gives or takes half a character, so a question mark replaces it."""
    rewards = {text.encode(errors="replace").decode(): reward for text, reward in group.rewards.items()}
    return Group(group.problem, rewards)


def row_of(index: int, problem: PromptedProblem) -> dict[str, Any]:
    """A row of `export items --format verl`."""
    return verl_row(Row(index, problem, Recipe.of(problem)))


@pytest.fixture(scope="module")
def rows(
    groups: list[Group], tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory
) -> RLHFDataset:
    """The rows of the problems, in the same order, as verl's dataset reads them from parquet."""
    path = tmp_path_factory.mktemp("rows") / "train.parquet"
    made = [row_of(index, group.problem) for index, group in enumerate(groups)]
    write_rows(path, ITEM_FORMATS["verl"], made)
    config = configuration().data
    config.max_prompt_length = 4096
    config.filter_overlong_prompts = True
    dataset = RLHFDataset(str(path), tokenizer, config)
    assert len(dataset) == len(groups)
    return dataset


def batch_of(row: dict[str, Any], texts: list[str], tokenizer: PreTrainedTokenizerBase) -> DataProto:
    """The batch that verl's rollout makes of a row and its completions. Each ends with the end-of-sequence token."""
    prompt = tokenizer.apply_chat_template(row["raw_prompt"], add_generation_prompt=True, tokenize=False)
    prompts = tokenizer([prompt] * len(texts), return_tensors="pt", add_special_tokens=False)
    tokenizer.padding_side = "right"
    responses = tokenizer(
        [text + tokenizer.eos_token for text in texts], return_tensors="pt", padding=True, add_special_tokens=False
    )
    tensors = {
        "prompts": prompts.input_ids,
        "responses": responses.input_ids,
        "attention_mask": torch.cat([prompts.attention_mask, responses.attention_mask], dim=1),
    }
    columns = collate_fn([dict(row) for _ in texts])
    kept = {name: columns[name] for name in ("data_source", "reward_model", "extra_info")}
    return DataProto.from_dict(tensors=tensors, non_tensors=kept)


async def rewards_of(worker: RewardLoopWorker, batches: list[DataProto]) -> list[float | None]:
    """The rewards that a reward worker gives to completions at the same time; None for an UnscoredError."""
    scoring = [worker.compute_score(batch) for batch in batches]
    rewards: list[float | None] = []
    for result in await asyncio.gather(*scoring, return_exceptions=True):
        if isinstance(result, UnscoredError):
            rewards.append(None)
            continue
        assert isinstance(result, dict), result
        assert result["reward_extra_info"]["score"] == result["reward_score"]
        rewards.append(result["reward_score"])
    return rewards


def test_a_right_a_wrong_and_an_unscored_completion(tokenizer: PreTrainedTokenizerBase) -> None:
    async def graded(row: Row, texts: Sequence[str]) -> list[float | None]:
        columns = {**verl_row(row), "raw_prompt": row.prompt}
        batches = [batch_of(columns, [text], tokenizer) for text in texts]
        return await rewards_of(RewardLoopWorker(configuration()), batches)

    check_rewards(lambda row, texts: asyncio.run(graded(row, texts)))


def section_of_the_page() -> str:
    page = (MODEL.parents[2] / "docs" / "trainers.md").read_text(encoding="utf-8")
    return page.partition("\n## verl\n")[2].partition("\n## ")[0]


def test_the_commands_of_the_page(groups: list[Group], tmp_path: Path) -> None:
    page = section_of_the_page()
    commands = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    # The second block has the settings that differ with a store of levels.
    fixed, stored = (shlex.split(" ".join(commands[:count]).replace("\\\n", "")) for count in (1, 2))
    assert fixed[:3] == ["python3", "-m", "verl.trainer.main_ppo"]
    fixed += re.findall(r"`(\+reward\.[^`]*)`", page)
    stored.remove("data.train_files=rows/train.parquet")
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config, curriculum = (hydra.compose("ppo_trainer", overrides[3:]) for overrides in (fixed, stored))
    function = get_custom_reward_fn(config)
    problem = groups[0].problem
    row = row_of(0, problem)
    completion = f"<answer>{problem.entry['answer']}</answer>"
    result = function(row["data_source"], completion, row["reward_model"]["ground_truth"], row["extra_info"])
    assert result == {"score": 1.0, "correct": 1.0, "format_failure": 0.0, "unscored": 0.0}
    assert function.args[1] == {"num_scoring_workers": 4, "unscored_reward": 0}
    assert str(curriculum.data.train_files).endswith(".sqlite")
    assert get_dataset_class(curriculum.data) is CurriculumDataset
    assert get_custom_reward_fn(curriculum) is not None
    with pytest.raises(EnvironmentSetupError, match="no such file"):
        create_rl_dataset([str(tmp_path / "levels.sqlite")], curriculum.data, None, None)


# --- the curriculum: verl's data loader reads rows of a store of levels, and its reward worker reports to it


async def test_the_levels_follow_the_rewards_and_a_run_that_resumes_reads_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "levels.sqlite"
    store = await asyncio.to_thread(new_store, path, **level_student.STORE)
    run = curriculum.Run(path, loader_workers=2)
    read = [await run.step() for _ in range(10)]
    saved = run.loader.state_dict()
    read += [await run.step() for _ in range(40)]
    summary = store.summary()
    assert (summary.complete, summary.repeated) == (200, 0)
    level_student.check_levels(summary)

    # A crash: the run goes back to step 10, and the store stays as it is.
    resumed = curriculum.Run(path, loader_workers=2)
    resumed.loader.load_state_dict(saved)
    assert [await resumed.step() for _ in range(5)] == read[10:15]
    after = store.summary()
    assert after.tasks == summary.tasks
    assert (after.complete, after.repeated) == (200, 5 * curriculum.PROMPTS * level_student.GROUP_SIZE)


# --- Ray: reward workers, agent loops and the replay buffer of the trainer


GROUP = 6
"""Completions of a row. The table for ATTACK_TASK has as many."""
SCRIPT: dict[int, list[str]] = {}
"""The completions by the index of their row."""


@register("scripted")
class Scripted(AgentLoopBase):
    """Replies with a completion of SCRIPT instead of a model's."""

    async def run(self, sampling_params: dict[str, Any], **prompt: Any) -> AgentLoopOutput:
        text = SCRIPT[prompt["index"]][prompt["session_id"]]
        response = self.tokenizer(text + self.tokenizer.eos_token, add_special_tokens=False).input_ids
        return AgentLoopOutput(
            prompt_ids=self.tokenizer.apply_chat_template(prompt["raw_prompt"], return_dict=False),
            response_ids=response,
            response_mask=[1] * len(response),
            metrics={},
            extra_fields={"min_global_steps": 1, "max_global_steps": 1},
        )


def start_ray() -> None:
    """Start Ray. It gives its processes 30 seconds, which a busy machine exceeds, so it gets three tries."""
    for tries_left in (2, 1, 0):
        try:
            ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
            return
        except Exception:
            ray.shutdown()
            if not tries_left:
                raise


@pytest.fixture(scope="module")
def config() -> Iterator[DictConfig]:
    """The configuration of a trainer, while Ray and the transfer queue run."""
    config = configuration()
    config.actor_rollout_ref.rollout.n = GROUP
    config.actor_rollout_ref.rollout.name = "vllm"
    config.actor_rollout_ref.rollout.agent.default_agent_loop = "scripted"
    config.transfer_queue.enable = True
    config.transfer_queue.backend.SimpleStorage.num_data_storage_units = 1
    start_ray()
    try:
        tq.init(config.transfer_queue)
        yield config
    finally:
        tq.close()
        ray.shutdown()


async def test_the_trainer_trains_on_the_scored_completions_of_a_group(
    config: DictConfig,
    groups: list[Group],
    rows: RLHFDataset,
) -> None:
    chosen = [0, 1, len(groups) - 1]
    wanted: dict[str, float] = {}
    for index in chosen:
        completions = [*groups[index].rewards.items()][:GROUP]
        SCRIPT[index] = [text for text, _ in completions]
        for session, (_, reward) in enumerate(completions):
            if reward is not None:
                wanted[f"group{index}_{session}_0"] = reward
    assert len(wanted) < GROUP * len(chosen)

    # The trainer registers the groups, and the agent loops send each completion to a reward worker.
    batch = collate_fn([rows[index] for index in chosen])
    batch["uid"] = np.array([f"group{index}" for index in chosen], dtype=object)
    prompts = tu.get_tensordict(batch)
    tu.assign_non_tensor_data(prompts, "global_steps", 1)
    tag = {"is_prompt": True, "status": "pending", "global_steps": 1}
    tq.kv_batch_put(keys=[*batch["uid"]], partition_id="train", tags=[tag] * len(chosen))
    manager = RewardLoopManager(config)
    worker_class = AgentLoopWorkerTQ.__ray_metadata__.modified_class
    worker = worker_class(config, None, None, manager.reward_loop_worker_handles)
    await worker.generate_sequences(prompts)
    await asyncio.gather(*worker.background_tasks)

    # The replay buffer has no trajectory for a completion without a score. The others of its group are trained on.
    buffer = ReplayBuffer("sync", config.trainer, None, "drop", OmegaConf.create(), poll_interval=0.1)
    sampled, _ = buffer.sample(global_steps=1, partition_id="train", batch_size=len(chosen))
    keys = sorted(sampled.keys)
    assert keys == sorted(wanted)
    data = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=["rm_scores"])
    rewards = data.to_padded_tensor()["rm_scores"].sum(dim=1)
    assert rewards.tolist() == [wanted[key] for key in keys]
