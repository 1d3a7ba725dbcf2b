"""ReasoningGymEnv: the environment that Atropos runs. The file reads in the order in which one problem goes:

    draw ──> complete ──> grade ──> reward ──> record ──> send
     │          │           │          │          │         └ run-api                             (atropos/session.py)
     │          │           │          │          └ curriculum and task choice observe; metrics, dumps  (telemetry/)
     │          │           │          └ credit, length penalty, masks                          (scoring/scorer.py)
     │          │           └ the answer is extracted, and graded in a worker          (scoring/scorer.py, workers/)
     │          └ prompt, token budget, requests                                                        (inference/)
     └ task, level, seed, item                                                                           (sampling/)

One `Episode` goes the whole way. Atropos' hooks hand it on inside the item, `(prompt_messages, rg_item, dataset)`.
Around it: atropos/hooks.py for wandb, checkpoints, run-api and the end; the commands `process` and `evaluate` in
atropos/; and parts.py, which makes what all of them use.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from atroposlib.envs.base import APIServerConfig, ScoredDataGroup, ServerBaseline

from .atropos.evaluate import evaluate
from .atropos.hooks import RunHooks
from .atropos.session import why_unused
from .config import ReasoningGymEnvConfig, default_configs
from .errors import EnvironmentSetupError, InferenceError
from .evaluation.questions import EvalSet
from .evaluation.runner import Evaluator
from .inference.prompts import Sampling, TokenBudget, as_dicts, build_messages, prompt_budget, system_prompt
from .parts import Parts
from .records import MASKED, Completion, Episode, Problem
from .sampling.item_maker import TOO_LONG
from .scoring.scorer import Scorer, rollouts_of
from .storage.json_lines import open_groups
from .tasks import reasoning_gym_source as library
from .telemetry.telemetry import GroupOutcome, outcome_without_signal, table_rows
from .utils.resilience import within

__all__ = ["ReasoningGymEnv", "system_prompt"]

logger = logging.getLogger(__name__)

OPTIONAL_KEYS = ("ref_logprobs", "overrides", "group_overrides", "distill_token_ids", "distill_logprobs")
"""What a group may leave out, and is None then."""


class ReasoningGymEnv(RunHooks):
    """Atropos environment over reasoning-gym's tasks.

    An item is `(prompt_messages, rg_item, dataset)`: two hashable messages that `dict()` turns into
    `{"role", "content"}`, the item as reasoning-gym made it, and an object with `score_answer(answer, entry)`.
    """

    name = "reasoning_gym"
    env_config_cls = ReasoningGymEnvConfig
    config: ReasoningGymEnvConfig

    # Made by `setup`.
    evaluator: Evaluator
    eval_set: EvalSet | None = None

    def __init__(
        self,
        config: ReasoningGymEnvConfig,
        server_configs: ServerBaseline | Sequence[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        super().__init__(config, server_configs, slurm=slurm, testing=testing)
        self.datadumps_dir = Path(config.data_dumps_dir)
        self.task_names: list[str] = []
        self.test_items_with_scorers: list[tuple[dict[str, Any], ProblemDataset]] = []
        self.token_budget = TokenBudget(
            config.max_token_length,
            config.max_prompt_tokens or prompt_budget(config.max_token_length),
            lambda: self.run.max_token_len,
            lambda: self.inference.context_length,
        )

    # --- set-up

    @classmethod
    def config_init(cls) -> tuple[ReasoningGymEnvConfig, list[APIServerConfig]]:
        """The defaults of a training run; see `config.default_configs`."""
        return default_configs()

    async def setup(self) -> None:
        """Find the tasks, start the workers, and make the held-out questions. Raises EnvironmentSetupError.

        `serve` and `process` make the questions when they are first asked: what is held out does not depend on them.
        """
        await self.start_parts(self.config)
        if self._needs_questions:
            await self.questions()

    async def start_parts(self, config: ReasoningGymEnvConfig) -> None:
        """Find the tasks and start the workers. Raises EnvironmentSetupError; then no worker runs."""
        logger.info("Starting workers, and loading reasoning-gym.")
        parts = Parts(config)
        await parts.start()
        try:
            logger.info("Using %s.", parts.library.describe())
            parts.check_held_out(config)
            held_out = await parts.hold_out(config)
            self.sampler = parts.sampler(config, too_long=self._too_long, held_out=held_out)
        except BaseException:
            await parts.close()
            raise
        self.evaluator = Evaluator(
            self.inference,
            Scorer(parts.grader, native=config.eval_verification == "native"),
            budget=self.token_budget.of_evaluation,
            concurrency=self.inference.room("eval"),
            thinking_opened=self.thinking_opened,
            completions=config.eval_completions,
            temperature=config.eval_temperature,
        )
        self.parts = parts
        self.task_names = list(parts.catalog.names)
        self.log.dumps.version = parts.library.version
        self.checkpoints.parts = {**self.sampler.stateful, "group_outcomes": self.log.outcomes, "dumps": self.log.dumps}

    async def questions(self) -> EvalSet:
        """The held-out questions. During training they are made one at a time, to leave the workers to training."""
        if self.eval_set is None:
            at_once = {} if self._needs_questions else {"at_once": 1}
            self.eval_set = await self.started.held_out(self.config, show_progress=True, **at_once)
            self.test_items_with_scorers = [
                (problem.entry, ProblemDataset(Episode(problem, []))) for problem in self.eval_set
            ]
        return self.eval_set

    @cached_property
    def thinking_opened(self) -> bool:
        """Whether the chat template opens `<think>` in the prompt."""
        return self.inference.render(build_messages("")).thinking_opened

    # --- draw

    async def get_next_item(self) -> tuple[Any, dict[str, Any], ProblemDataset]:
        """The next problem of the stream, made ahead of time; its prompt leaves room for a completion."""
        problem = await self.stream.next()
        logger.info("Drew item %d: %s (%s).", problem.index, problem.task, problem.category)
        messages = build_messages(problem.question)
        return messages, problem.entry, ProblemDataset(Episode(problem, as_dicts(messages)))

    def _too_long(self, question: str) -> str:
        return self.token_budget.too_long(len(self.inference.render(build_messages(question)).tokens))

    # --- complete

    async def collect_trajectories(self, item: Any) -> tuple[ScoredDataGroup | None, list[Any]]:
        """Sample a group for one item, score it, and return what the trainer gets (or None).

        If this is cancelled while it waits for completions, the item is drawn again; once they have come, it finishes.
        """
        episode = episode_of(item)
        # An error that no part has foreseen costs this group and nothing else.
        try:
            if not (completions := await self._complete(episode)):
                return None, []
            return await _to_the_end(self._finish(episode, completions)), []
        except (asyncio.CancelledError, EnvironmentSetupError):
            self.stream.ledger.requeue(episode.problem, is_counted=False)
            raise
        except Exception as error:  # noqa: BLE001
            self._note_fault(episode, error)
            return None, []

    async def _complete(self, episode: Episode) -> list[Completion]:
        """The completions; none if there are none now, and then it is settled what becomes of the item."""
        prompt = self.inference.render(episode.messages)
        budget = self.token_budget.of_completion(len(prompt.tokens))
        if budget is None:
            # The item is a caller's own, or the trainer has come with a lower limit since it was drawn.
            self.stream.skip(TOO_LONG, episode.problem.task, "no room is left for a completion")
            self.sampler.stream.ledger.finish(episode.problem)
            return []
        sampling = Sampling(self.run.group_size, budget, self.config.train_temperature, self.config.train_top_p)
        limit_s = self.config.worker_timeout if self.config.worker_timeout > 0 else None

        def note_request() -> None:
            episode.sampled_at = None if self.run.is_offline else self.run.step

        try:
            return await within(limit_s, self.inference.complete(prompt, sampling, on_request=note_request))
        except asyncio.TimeoutError:
            detail = f"no completions within worker_timeout, {limit_s:g} s"
            self._without_completions(episode, detail, is_drawn_again=True)
        except InferenceError as error:
            detail = getattr(error, "advice", str(error))
            self._without_completions(episode, detail, is_drawn_again=self.inference.servers.is_unavailable)
        return []

    def _without_completions(self, episode: Episode, detail: str, *, is_drawn_again: bool) -> None:
        """Let an item be drawn again, a bounded number of times; while no server is available that does not count.

        Or drop it, as `process` does: its groups stand in the order of their items, and the next item takes its place.
        """
        problem, is_counted = episode.problem, not self.inference.servers.is_unavailable
        if is_drawn_again and not self.run.is_offline and self.stream.ledger.requeue(problem, is_counted=is_counted):
            self.failures.note("no completions came of an item, it is drawn again", f"{problem.task}: {detail}")
            self.log.outcomes.add(GroupOutcome.INFERENCE_FAILED, problem.task)
        else:
            self.failures.note("item dropped, no completions come", f"{problem.task}: {detail}")
            self.settle(episode, GroupOutcome.INFERENCE_FAILED)

    def _note_fault(self, episode: Episode, error: Exception) -> None:
        kind = "an error in the environment, its group is lost"
        self.failures.note(kind, f"{episode.problem.task}: {type(error).__name__}: {error}")
        if self.failures.counts[kind] == 1:
            logger.error("The first of them in full; please report it:", exc_info=error)
        self.settle(episode, GroupOutcome.FAULT)

    def settle(self, episode: Episode | None, outcome: GroupOutcome) -> None:
        """Count what became of a group; its item is done."""
        self.log.outcomes.add(outcome, episode.problem.task if episode else "unknown")
        if episode is not None:
            self.sampler.stream.ledger.finish(episode.problem)

    # --- grade, reward, record

    async def score(self, rollout_group_data: list[dict[str, Any]]) -> ScoredDataGroup | None:
        """Score a group given as dicts: `messages, rg_item, dataset_obj, finish_reason, tokens, masks, logprobs`.

        All dicts are rollouts of one item, whose dataset may be any reasoning-gym dataset. Returns None for an
        empty group, and for equal scores when `ensure_scores_are_not_same` is set.
        """
        return await _to_the_end(self._finish(*episode_of_dicts(rollout_group_data))) if rollout_group_data else None

    async def _finish(self, episode: Episode, completions: list[Completion]) -> ScoredDataGroup | None:
        """From the completions to what the trainer gets; None if they teach nothing, and then the item is done."""
        config = self.config
        scores = await self.started.scorer.score(episode.problem, completions, thinking_opened=self.thinking_opened)
        episode.rollouts = rollouts_of(
            completions,
            scores,
            config.partial_credit,
            max_token_length=config.max_token_length,
            mask_too_long=config.mask_too_long_completions,
            min_tokens=config.min_completion_tokens,
        )
        if episode.sampled_at is not None:
            # A trainer that was restarted counts from its last checkpoint.
            episode.sampled_at, episode.scored_at = min(episode.sampled_at, self.run.step), self.run.step
        self.sampler.observe_group(episode)
        self.log.observe(episode)
        await self.log.dump(episode)
        if self.run.drops_equal_scores and not episode.has_signal:
            self.settle(episode, outcome_without_signal(episode))
            return None
        return to_scored_data(episode, include_messages=config.include_messages)

    # --- send

    async def make_and_send(self, item: Any) -> bool:
        """The whole way of an item, for the loop of `serve`: whether a group of it was offered to the API."""
        began = time.monotonic()
        group, _ = await self.collect_trajectories(item)
        try:
            if group is not None and (group := await self.postprocess_histories(group)) is not None:
                await self.handle_send_to_api(group, item)
            await self.cleanup()
        except Exception as error:  # noqa: BLE001
            # Ours, or of a subclass; it costs the group.
            self._note_fault(episode_of(item), error)
            group = None
        duration = time.monotonic() - began
        self.task_duration.append(duration)
        (self.failed_task_duration if group is None else self.succeeded_task_duration).append(duration)
        return group is not None

    async def handle_send_to_api(
        self,
        scored_data: Any,
        item: Any = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> None:
        """Check a scored group, write it to the file of groups if there is one, and deliver it to the API.

        It replaces Atropos' own, which drops groups without a word. Its item is settled at the end.
        """
        episode = None if item is None else episode_of(item)
        unused = why_unused(scored_data, self.run, heeds_length=abort_on_any_max_length_exceeded)
        await self.log_group(scored_data, item)
        if unused is not None:
            self.failures.note("group dropped", unused[1])
            self.settle(episode, unused[0])
            return
        self._write_group(scored_data)
        if not do_send_to_api:
            self.settle(episode, GroupOutcome.WRITTEN)
            return
        self.items_sent_this_step += 1
        sampled_at = episode.sampled_at if episode else None
        # It is delivered, also if nobody waits for it.
        await asyncio.shield(self.session.deliver(scored_data, sampled_at, partial(self.settle, episode)))

    async def log_group(self, group: Any, item: Any) -> None:
        """Note a group that is sent or written: its lengths, and rollouts for the table. What it leaves out is None."""
        group.update({key: None for key in OPTIONAL_KEYS if key not in group})
        self.completion_lengths.extend(len(mask) - mask.count(MASKED) for mask in group["masks"])
        await self.add_rollouts_for_wandb(group, item)

    def _write_group(self, group: Any) -> None:
        """Write a group to `data_path_to_save_groups`. A disk that refuses is reported, and the group sent."""
        if (path := self.config.data_path_to_save_groups) is None:
            return
        try:
            self._groups = self._groups or open_groups(Path(path), {}, is_resumed=False)
            self._groups.append(dict(group))
        except OSError as error:
            kind = "group not written to data_path_to_save_groups, it is sent all the same"
            self.failures.note(kind, f"{path}: {error}")

    # --- evaluation

    async def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Score the held-out set; the metrics are returned, and logged with the next wandb step.

        During training an evaluation that scored nothing is reported and training goes on.
        """
        try:
            metrics = await evaluate(self, await self.questions())
        except EnvironmentSetupError as error:
            logger.error("%s", error)
            return {}
        self.eval_metrics.extend(metrics.items())
        return {name: value for name, value in metrics.items() if isinstance(value, float)}

    async def rollout_and_score_eval(self, test_item: tuple[dict[str, Any], Any]) -> float | None:
        """The score of one `(rg_item, dataset)` of the evaluation set, or None if it could not be scored."""
        sample = await self.evaluator.evaluate_one(episode_of(((), *test_item)).problem)
        score: float | None = sample["score"]
        return score

    # --- what the run reports

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Any = None) -> None:
        """Keep some rollouts of a group for the table `train/rollouts`."""
        rows = table_rows(
            scored_data,
            decode=self.tokenizer.decode,
            keep=self.config.num_rollouts_per_group_for_logging,
            expected_answer="" if item is None else item[1].get("answer"),
            task="" if item is None else episode_of(item).problem.task,
        )
        self.rollouts_for_wandb.append(rows)
        del self.rollouts_for_wandb[: -self.config.num_rollouts_to_keep or None]

    @property
    def iter(self) -> int:
        """Index of the next training item."""
        return self.stream.index if self.parts else 0

    @property
    def percent_correct_buffer(self) -> list[float]:
        """1.0 or 0.0 for each rollout since the last log step: whether its score is at least 0.5."""
        return self.log.percent_correct

    def get_curriculum_stats(self) -> dict[str, Any]:
        """Where the curriculum stands: totals, and per task level, recent accuracy and adjustments."""
        return {"mode": self.config.complexity_mode, **self.sampler.curriculum.stats()}


async def _to_the_end(work: Coroutine[Any, Any, ScoredDataGroup | None]) -> ScoredDataGroup | None:
    """The result of a short piece of work that must not be left half done: cancelling it once is ignored."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        return await task


# --- between an Episode and what Atropos' hooks take and give: items, rollout dicts, ScoredDataGroup


def to_scored_data(group: Episode, *, include_messages: bool) -> ScoredDataGroup:
    """What the trajectory API takes: one element per rollout in each list.

    `inference_logprobs` is left out when the server reported none, rather than sent as made-up numbers.
    """
    completions = [rollout.completion for rollout in group.rollouts]
    data: dict[str, Any] = {
        "tokens": [completion.tokens for completion in completions],
        "masks": [completion.masks for completion in completions],
        "scores": group.rewards,
        "overrides": [{"set_advantage_to_zero": True} if rollout.mask_reason else {} for rollout in group.rollouts],
    }
    if all(completion.logprobs is not None for completion in completions):
        data["inference_logprobs"] = [completion.logprobs for completion in completions]
    if include_messages:
        data["messages"] = [
            [*group.messages, {"role": "assistant", "content": completion.text}] for completion in completions
        ]
    return ScoredDataGroup(**data)


def episode_of_dicts(rollouts: Sequence[Mapping[str, Any]]) -> tuple[Episode, list[Completion]]:
    """The episode and the completions of rollout dicts of one item; the last message of each is the model's."""
    first = rollouts[0]
    messages = [dict(message) for message in first["messages"][:-1]]
    problem = problem_of(first["rg_item"], first["dataset_obj"])
    completions = [
        Completion(
            text=str(rollout["messages"][-1]["content"]),
            tokens=list(rollout["tokens"]),
            masks=list(rollout["masks"]),
            logprobs=rollout.get("logprobs"),
            finish_reason=str(rollout.get("finish_reason") or "stop"),
        )
        for rollout in rollouts
    ]
    return Episode(problem, messages), completions


def episode_of(item: Any) -> Episode:
    """The episode that goes with an item `(prompt_messages, rg_item, dataset)`; a new one for an item not of ours."""
    messages, entry, dataset = item
    if isinstance(dataset, ProblemDataset):
        return dataset.episode
    return Episode(problem_of(entry, dataset), [dict(message) for message in messages])


def problem_of(entry: dict[str, Any], dataset: Any) -> Problem:
    """The problem behind an item, from our own dataset handle or from any reasoning-gym dataset.

    Raises TypeError for an object that is neither.
    """
    if isinstance(dataset, ProblemDataset):
        return dataset.episode.problem
    dataset = getattr(dataset, "dataset", dataset)
    config = getattr(dataset, "config", None)
    names = [name for name, (cls, _) in library.registry().items() if cls is type(dataset)]
    if not names or not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"dataset_obj must be a dataset registered with reasoning-gym, got {type(dataset).__name__}.")
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.init}
    seed, _ = fields.pop("seed", 0), fields.pop("size", None)
    return Problem(
        task=names[0],
        category=str(dataset.category),
        split="train",
        index=-1,
        seed=int(seed or 0),
        config=fields,
        entry=entry,
    )


class ProblemDataset:
    """The dataset of an item, as Atropos-style code expects it: something with `score_answer`.

    It carries the item's episode. The reasoning-gym dataset itself is built only if `score_answer` is called here.
    """

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.name = episode.problem.task
        self.config = episode.problem.config
        self._dataset: Any = None

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """reasoning-gym's own verdict, unguarded: it runs in this process and raises what the verifier raises."""
        if self._dataset is None:
            self._dataset = library.create_dataset(self.name, seed=self.episode.problem.seed, size=1, **self.config)
        return float(self._dataset.score_answer(answer=answer, entry=entry))
