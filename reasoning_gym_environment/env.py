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

from .atropos.conversions import (
    ProblemDataset,
    completion_from_dict,
    problem_of,
    prompt_from_dict,
    rollout_dict,
    to_scored_data,
)
from .atropos.shutdown import to_the_end
from .components import assemble
from .config import ReasoningGymEnvConfig, default_configs
from .env_shell import EnvShell
from .errors import EnvironmentSetupError, InferenceError
from .evaluation.results import TASK_TABLE, print_table, result_line, summarise, task_table
from .evaluation.runner import generation_parameters, sample_record
from .inference.client import Prompt, Sampling, completion_budget
from .inference.prompts import build_messages, system_prompt
from .records import Completion, Problem, RolloutGroup
from .sampling.level_limits import TOO_LONG
from .scoring.rewards import rollouts_of
from .training_log.dumps import FAILED, ROLLOUTS, RolloutDumps
from .training_log.group_outcomes import Fate, fate_without_signal
from .training_log.metrics import group_line
from .training_log.part_recovery import recover_parts
from .training_log.rollout_records import plain
from .training_log.rollout_writer import FILE_STEM
from .utils.aio import within

__all__ = ["ReasoningGymEnv", "system_prompt"]

logger = logging.getLogger(__name__)

MAX_FAILURES = 5
"""How often inference may fail for one item while it works for others, each time after the client's own retries."""

MAX_PROBES = 8
"""How often one item is tried while inference is away; then another one is, in case it is the item."""

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
        """The defaults of a training run; see `defaults.default_configs`."""
        return default_configs()

    # --- set-up and shutdown

    async def setup(self) -> None:
        """Find the tasks, build the components and the evaluation set. Raises EnvironmentSetupError."""
        self.parts = await assemble(self.config, self.server, self.tokenizer, budget=self._budget)
        self.task_names = list(self.parts.catalog.names)
        self.test_items_with_scorers = [(p.entry, ProblemDataset(p)) for p in self.parts.eval_set]
        kinds = {ROLLOUTS: self.config.dump_rollouts, FAILED: self.config.dump_failed_rollouts}
        wanted = [kind for kind, is_wanted in kinds.items() if is_wanted]
        if wanted:
            await asyncio.to_thread(recover_parts, self.datadumps_dir, FILE_STEM)
        version = self.parts.library.version
        self.dumps = RolloutDumps(self.datadumps_dir, self.run_uuid, kinds=wanted, version=version)

    # --- one problem, first part

    async def get_next_item(self) -> tuple[Any, dict[str, Any], ProblemDataset] | None:
        """The next problem of the stream, made ahead of time; its prompt leaves room for a completion.

        None, only while Atropos' main loop starts groups, if it is not there before the loop has other things to do.
        """
        return await self.while_filling(self._next_item())

    async def _next_item(self) -> tuple[Any, dict[str, Any], ProblemDataset]:
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
        if self._wired.sampler.ledger.is_accepted(problem):
            # Atropos cancelled its group too late, and runs it again.
            return None, []
        # Whatever no part has foreseen costs this group and nothing else; Atropos would leave its item pending.
        try:
            completions = await self._sample(problem, item)
            return await self.score([rollout_dict(item, completion) for completion in completions]), []
        except Exception as error:  # noqa: BLE001
            self._met_fault(problem, error)
            return None, []

    async def _sample(self, problem: Problem, item: Any) -> list[Completion]:
        """The completions; none if they cannot be had now, and then it is settled what becomes of the item."""
        prompt = self._wired.inference.render(item[0])
        budget = self._budget(len(prompt.tokens))
        if budget is None:
            # An item that the sampler did not check, or a trainer that came with a lower limit since.
            self._wired.sampler.skip(TOO_LONG, problem.task, "no room is left for a completion")
            self._settled(problem)
            return []
        sampling = Sampling(self.config.group_size, budget, TRAIN_TEMPERATURE, TRAIN_TOP_P)
        try:
            return await within(self.group_limit_s, self._complete(problem, prompt, sampling))
        except asyncio.TimeoutError:
            self._give_back(problem, f"no completions within worker_timeout, {self.group_limit_s:g} s")
        except InferenceError as error:
            if self.inference_health.is_away:
                self._give_back(problem, str(error))
            else:
                self._give_up(problem, str(error))
        return []

    async def _complete(self, problem: Problem, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Ask until they come. Raises InferenceError when it is time to try another item."""
        failures = probes = 0
        while True:
            try:
                async with self.inference_health.attempt():
                    return await self._wired.inference.complete(prompt, sampling)
            except InferenceError as error:
                self.failures.note("inference failed", f"{problem.task}: {error}")
                if self.inference_health.is_away:
                    probes += 1
                else:
                    failures += 1
                if failures >= MAX_FAILURES or probes >= MAX_PROBES or self._is_away_too_long():
                    raise

    def _is_away_too_long(self) -> bool:
        return self.inference_limit_s is not None and self.inference_health.away_s > self.inference_limit_s

    def _give_back(self, problem: Problem, detail: str) -> None:
        """Let an item be drawn again, a bounded number of times. While inference is away that does not count."""
        is_counted = not self.inference_health.is_away
        if self.tries_items_again and self._wired.sampler.ledger.requeue(problem, is_counted=is_counted):
            self.failures.note("no group came of an item, it is drawn again", f"{problem.task}: {detail}")
            self.funnel.note(Fate.INFERENCE_FAILED, problem.task)
        else:
            self._give_up(problem, detail)

    def _give_up(self, problem: Problem, detail: str) -> None:
        self.failures.note("item given up, no completions come", f"{problem.task}: {detail}")
        self.funnel.note(Fate.INFERENCE_FAILED, problem.task)
        self._settled(problem)

    def _met_fault(self, problem: Problem, error: Exception) -> None:
        kind = "a fault in the environment, its group is lost"
        self.failures.note(kind, f"{problem.task}: {type(error).__name__}: {error}")
        if self.failures.counts[kind] == 1:
            logger.error("The first of them in full; please report it:", exc_info=error)
        self.funnel.note(Fate.FAULT, problem.task)
        self._settled(problem)

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
        group = await self._score_group(problem, prompt_from_dict(first), completions)
        return await to_the_end(self._accept(group))

    async def _score_group(
        self, problem: Problem, messages: list[dict[str, str]], completions: list[Completion]
    ) -> RolloutGroup:
        scores = await self._wired.scorer.score(problem, completions, thinking_opened=self._wired.thinking_opened)
        config = self.config
        rollouts = rollouts_of(
            completions,
            scores,
            self._wired.credit,
            problem.task,
            config.max_token_length,
            config.mask_too_long_completions,
        )
        return RolloutGroup(problem, messages, rollouts)

    async def _accept(self, group: RolloutGroup) -> ScoredDataGroup | None:
        """Observe, log and dump a scored group; then decide whether it is sent. If not, its item is settled."""
        self._wired.sampler.ledger.accept(group.problem)
        self._wired.observe(group)
        self.train_metrics.observe(group)
        self.breakdown.observe(group)
        self.reward_parts.observe(group, self._wired.credit)
        self.conversations.observe(group)
        logger.info("%s", group_line(group))
        await self._dump(group)
        if self.config.ensure_scores_are_not_same and not group.has_signal:
            self.funnel.note(fate_without_signal(group), group.problem.task)
            self._settled(group.problem)
            return None
        return to_scored_data(group, include_messages=self.config.include_messages)

    async def _dump(self, group: RolloutGroup) -> None:
        if self.dumps is None:
            return
        if max(group.rewards) > self.config.rollout_save_score_threshold:
            await self.dumps.add(group, ROLLOUTS)
        # By credit, not by reward: a group that is correct but too long has not failed.
        if not any(rollout.credit for rollout in group.rollouts):
            await self.dumps.add(group, FAILED)

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
        """How the completions are sampled and graded: two results say the same only if these are the same."""
        config = self.config
        sampled = generation_parameters(
            config.max_token_length, completions=config.eval_completions, temperature=config.eval_temperature
        )
        return {
            **sampled,
            "verification": config.verification,
            "answer_normalization": config.answer_normalization,
            "scoring_timeout_s": config.scoring_timeout_s,
        }

    async def rollout_and_score_eval(self, test_item: tuple[dict[str, Any], Any]) -> float | None:
        """The score of one `(rg_item, dataset)` of the evaluation set, or None if it could not be scored."""
        result = await self._wired.evaluator.evaluate_one(problem_of(*test_item))
        return result.score.value if result.score else None
