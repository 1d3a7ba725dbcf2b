"""ReasoningGymEnv: the environment that Atropos runs. It wires the components and drives one group.

The way of one problem:

    sampler ──> prompts ──> inference server ──> extraction ──> scoring (workers)
        ──> curriculum.observe + metrics ──> rewards ──> rollout_writer ──> ScoredDataGroup ──> run-api

`get_next_item` is the first part, `collect_trajectories` the second; BaseEnv calls both and sends what comes back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from atroposlib.envs.base import APIServerConfig, ScoredDataGroup

from .assembly import assemble
from .budgets import TOO_LONG
from .config import ReasoningGymEnvConfig, default_configs
from .env_shell import EnvShell
from .errors import EnvironmentSetupError, InferenceError
from .eval_results import summarise
from .eval_tables import TASK_TABLE, print_table, result_line, task_table
from .evaluation import generation_parameters, sample_record
from .funnel import Fate, fate_without_signal
from .groups import completion_from_dict, problem_of, prompt_from_dict, rollout_dict, to_scored_data
from .inference import Sampling, completion_budget
from .metrics import group_line
from .part_recovery import recover_parts
from .problem_dataset import ProblemDataset
from .prompts import build_messages, system_prompt
from .records import Completion, Problem, Rollout, RolloutGroup
from .rewards import length_penalty, mask_reason, neutral_if_unscored
from .rollout_writer import FILE_STEM, RolloutWriter, plain

__all__ = ["ReasoningGymEnv", "system_prompt"]

logger = logging.getLogger(__name__)

GROUPS_PER_DUMP = 100
GROUPS_PER_FAILED_DUMP = 50
TRAIN_TEMPERATURE = 1.0
TRAIN_TOP_P = 0.95


class ReasoningGymEnv(EnvShell):
    """Atropos environment over reasoning-gym's tasks.

    An item is `(prompt_messages, rg_item, dataset)`: two hashable messages that `dict()` turns into
    `{"role", "content"}`, the item as reasoning-gym made it, and an object with `score_answer(answer, entry)`.
    """

    name = "reasoning_gym"
    env_config_cls = ReasoningGymEnvConfig

    @classmethod
    def config_init(cls) -> tuple[ReasoningGymEnvConfig, list[APIServerConfig]]:
        """The defaults of a training run; see `config.default_configs`."""
        return default_configs()

    # --- set-up and shutdown

    async def setup(self) -> None:
        """Find the tasks, build the components and the evaluation set. Raises EnvironmentSetupError."""
        self.parts = await assemble(self.config, self.server, self.tokenizer, budget=self._budget)
        self.task_names = list(self.parts.catalog.names)
        self.test_items_with_scorers = [(p.entry, ProblemDataset(p)) for p in self.parts.eval_set]
        version = self.parts.library.version
        if self.config.dump_rollouts or self.config.dump_failed_rollouts:
            await asyncio.to_thread(recover_parts, self.datadumps_dir, FILE_STEM)
        if self.config.dump_rollouts:
            self.rollout_writer = self._writer("rollouts", GROUPS_PER_DUMP, version)
        if self.config.dump_failed_rollouts:
            self.failed_rollout_writer = self._writer("FAILED_rollouts", GROUPS_PER_FAILED_DUMP, version)

    def _writer(self, kind: str, threshold: int, version: str) -> RolloutWriter:
        return RolloutWriter(self.datadumps_dir, self.run_uuid, kind=kind, threshold=threshold, version=version)

    # --- one problem, first part

    async def get_next_item(self) -> tuple[Any, dict[str, Any], ProblemDataset]:
        """The next problem of the stream, made ahead of time; its prompt leaves room for a completion."""
        problem = await self._wired.sampler.next()
        logger.info("Drew item %d: %s (%s).", problem.index, problem.task, problem.category)
        return build_messages(problem.question), problem.entry, ProblemDataset(problem)

    def _budget(self, prompt_tokens: int, split: str = "train") -> int | None:
        return completion_budget(
            prompt_tokens,
            max_token_length=self.config.max_token_length,
            trainer_max_tokens=self.max_token_len,
            split=split,
        )

    # --- one problem, second part

    async def collect_trajectories(self, item: Any) -> tuple[ScoredDataGroup | None, list[Any]]:
        """Sample a group for one item, score it, and return what the trainer gets (or None)."""
        problem = problem_of(*item[1:])
        group = await self._sample_and_score(problem, item)
        # Not if this was cancelled: then the item is pending still, and drawn again after a restart.
        self._wired.sampler.finish(problem)
        return group, []

    async def _sample_and_score(self, problem: Problem, item: Any) -> ScoredDataGroup | None:
        prompt = self._wired.inference.render(item[0])
        budget = self._budget(len(prompt.tokens))
        if budget is None:
            # An item that the sampler did not check, or a trainer that came with a lower limit since.
            self._wired.sampler.skip(TOO_LONG, problem.task, "no room is left for a completion")
            return None
        sampling = Sampling(self.config.group_size, budget, TRAIN_TEMPERATURE, TRAIN_TOP_P)
        try:
            completions = await self._wired.inference.complete(prompt, sampling)
        except InferenceError as error:
            is_kept = self.tries_items_again and self._wired.sampler.try_again(problem)
            what = "inference failed, the item is tried again" if is_kept else "item given up, inference keeps failing"
            self.failures.note(what, f"{problem.task}: {error}")
            self.funnel.note(Fate.INFERENCE_FAILED, problem.task)
            return None
        return await self.score([rollout_dict(item, completion) for completion in completions])

    async def score(self, rollout_group_data: list[dict[str, Any]]) -> ScoredDataGroup | None:
        """Score a group given as dicts: `messages, rg_item, dataset_obj, finish_reason, tokens, masks, logprobs`.

        All dicts are rollouts of one item, whose dataset may be any reasoning-gym dataset. Returns None for an
        empty group, and for equal scores when `ensure_scores_are_not_same` is set.
        """
        if not rollout_group_data:
            return None
        first = rollout_group_data[0]
        problem = problem_of(first["rg_item"], first["dataset_obj"])
        completions = [completion_from_dict(rollout) for rollout in rollout_group_data]
        group = self._accept(await self._score_group(problem, prompt_from_dict(first), completions))
        self._wired.sampler.finish(problem)
        return group

    async def _score_group(
        self, problem: Problem, messages: list[dict[str, str]], completions: list[Completion]
    ) -> RolloutGroup:
        scores = await self._wired.scorer.score(problem, completions, thinking_opened=self._wired.thinking_opened)
        credit = self._wired.credit
        values = neutral_if_unscored(scores, [credit.credit(problem.task, score.value) for score in scores])
        lengths = [completion.num_tokens for completion in completions]
        rewards = neutral_if_unscored(scores, length_penalty(values, lengths, self.config.max_token_length))
        mask_too_long = self.config.mask_too_long_completions
        rollouts = [
            Rollout(completion, score, reward, mask_reason(completion, score, mask_too_long=mask_too_long))
            for completion, score, reward in zip(completions, scores, rewards, strict=True)
        ]
        return RolloutGroup(problem, messages, rollouts)

    def _accept(self, group: RolloutGroup) -> ScoredDataGroup | None:
        """Observe, log and dump a scored group; then decide whether it is sent."""
        self._wired.observe(group)
        self.train_metrics.observe(group)
        self.breakdown.observe(group)
        self.reward_parts.observe(group, self._wired.credit)
        self.conversations.observe(group)
        logger.info("%s", group_line(group))
        self._dump(group)
        if self.config.ensure_scores_are_not_same and not group.has_signal:
            self.funnel.note(fate_without_signal(group), group.problem.task)
            return None
        return to_scored_data(group, include_messages=self.config.include_messages)

    def _dump(self, group: RolloutGroup) -> None:
        if self.rollout_writer and max(group.rewards) > self.config.rollout_save_score_threshold:
            self.rollout_writer.add(group)
        # By credit, not by reward: a group that is correct but too long has not failed.
        credit, task = self._wired.credit, group.problem.task
        if self.failed_rollout_writer and not any(credit.credit(task, r.score.value) for r in group.rollouts):
            self.failed_rollout_writer.add(group)

    # --- evaluation

    async def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Score the held-out set; the metrics are returned, and logged with the next wandb step.

        During training an evaluation that scored nothing is reported and training goes on.
        """
        try:
            return await self._evaluate(show_progress=False)
        except EnvironmentSetupError as error:
            logger.error("%s", error)
            return {}

    async def _evaluate(self, *, show_progress: bool) -> dict[str, float]:
        start_time = time.time()
        eval_set = self._wired.eval_set
        answers = await self._wired.evaluator.run(eval_set.problems, show_progress=show_progress)
        samples = [sample_record(answer, eval_set.manifest) for answer in answers]
        results = summarise(samples)
        metrics = results.metrics()
        self.eval_metrics.extend(metrics.items())
        logger.info("%s", result_line(results, eval_set.manifest))
        if self.config.use_wandb:
            self.eval_metrics.append((TASK_TABLE, task_table(results, eval_set.manifest)))
        if show_progress:
            print_table(results, eval_set.describe())
        if self.config.data_dir_to_save_evals is not None:
            await self.evaluate_log(
                results.metrics(with_tasks=True),
                start_time=start_time,
                end_time=time.time(),
                samples=plain(samples),
                generation_parameters={**self._eval_parameters(), **eval_set.describe()},
                verbose=False,
            )
        return metrics

    def _eval_parameters(self) -> dict[str, Any]:
        config = self.config
        return generation_parameters(
            config.max_token_length, completions=config.eval_completions, temperature=config.eval_temperature
        )

    async def rollout_and_score_eval(self, test_item: tuple[dict[str, Any], Any]) -> float | None:
        """The score of one `(rg_item, dataset)` of the evaluation set, or None if it could not be scored."""
        result = await self._wired.evaluator.evaluate_one(problem_of(*test_item))
        return result.score.value if result.score else None
