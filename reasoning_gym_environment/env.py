"""ReasoningGymEnv: the environment that Atropos runs.

The way of one problem, which this file follows from top to bottom:

    sampling ──> prompt ──> inference ──> extraction ──> grading (workers) ──> reward
        ──> observed by curriculum, task choice and log ──> dump ──> ScoredDataGroup ──> outbox ──> run-api

The environment holds what it uses, and nothing that it holds knows of it:

    config        the settings; nothing writes to them
    run           what changes while a run goes on: its step, the trainer's limits (session.RunState)
    components    sampling, inference, scoring, evaluation: made by `setup`
    log           what the run tells: metrics, outcomes of groups, dumps
    session       the trajectory API: registration, status, delivery
    checkpoints   what goes on after a restart
    loop          `serve`: how many groups are under way
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from atroposlib.envs.base import APIServerConfig, BaseEnv, ScoredDataGroup, ServerBaseline
from tqdm import tqdm

from .atropos import command_line, preflight
from .atropos.checkpoints import RunCheckpoints
from .atropos.conversions import ProblemDataset, group_of_dicts, note_sampling, problem_of, steps_of, to_scored_data
from .atropos.serve_loop import LoopLimits, ServeLoop, is_passed
from .atropos.session import ApiSession, RunState, why_useless
from .atropos.shutdown import LastStep, attempt, cancel_all, freeze_memory, quiet_base_env, run_to_the_end
from .components import Components, assemble
from .config import ReasoningGymEnvConfig, default_configs
from .errors import EnvironmentSetupError, InferenceError
from .evaluation.journal import Journal
from .evaluation.questions import EvalSet
from .evaluation.results import TASK_TABLE, print_table, result_line, summarise, task_table
from .inference.availability import Patience
from .inference.dialects import request_goes_out
from .inference.prompts import EVAL_BUDGET_FACTOR, Prompt, Sampling, build_messages, system_prompt
from .process import ManyGroups
from .records import MASKED, Completion, Problem, RolloutGroup
from .sampling.item_maker import TOO_LONG
from .scoring.rewards import rollouts_of
from .training_log.group_file import GroupFile, described
from .training_log.training_log import GroupOutcome, TrainingLog, build_table, outcome_without_signal, table_rows
from .utils.aio import in_background, to_the_end, watched, within
from .utils.outage_log import Outage, RepeatedEvents
from .utils.terminal import place_of_page

__all__ = ["ReasoningGymEnv", "system_prompt"]

logger = logging.getLogger(__name__)

PROCESS_AWAY_S = 300.0
"""How long inference may be away before `process` gives up; what is written by then stays."""

PROCESS_LOGS_EVERY = 10

PLANNED_FROM = 16
"""Items from which `process` tells how long its prompts are, before it asks the first."""

DELIVERY_GRACE_S = 2.0
"""How long groups that wait for the trajectory API may hold up the end."""

TABLES = 100
"""The n-th log step has tables if n is a multiple of n // TABLES: the first 200 have, and every hundredth in the end.
Each table is a file of megabytes, which wandb keeps on the disk of the run."""

OPTIONAL_KEYS = ("ref_logprobs", "overrides", "group_overrides", "distill_token_ids", "distill_logprobs")
"""What a group may leave out, and is None then."""


class _OfRun:
    """An attribute of Atropos' environments that is a field of the run's state here."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __get__(self, env: ReasoningGymEnv | None, owner: type) -> Any:
        return self if env is None else getattr(env.run, self._field)

    def __set__(self, env: ReasoningGymEnv, value: Any) -> None:
        setattr(env.run, self._field, value)


class ReasoningGymEnv(BaseEnv):
    """Atropos environment over reasoning-gym's tasks.

    An item is `(prompt_messages, rg_item, dataset)`: two hashable messages that `dict()` turns into
    `{"role", "content"}`, the item as reasoning-gym made it, and an object with `score_answer(answer, entry)`.
    """

    name = "reasoning_gym"
    env_config_cls = ReasoningGymEnvConfig
    config: ReasoningGymEnvConfig
    items_sent_this_step: int

    page_of_groups: ClassVar[Callable[[Path], Path] | None] = None
    """Writes the page beside the groups of `process`; the command line sets it, for the page is no part of a run."""

    export_of_groups: ClassVar[Callable[[Path, str], Path] | None] = None
    """Writes the dataset beside them, of a format; the command line sets it too."""

    evaluate_settings: ClassVar[str] = ""
    """The settings of the command `evaluate` as YAML, which are kept beside its results; the command line sets it."""

    # What Atropos reads and writes of these is the run's state.
    env_id: Any = _OfRun("env_id")
    curr_step: Any = _OfRun("step")
    max_token_len: Any = _OfRun("max_token_len")
    wandb_prepend: Any = _OfRun("metrics_prefix")
    checkpoint_dir: Any = _OfRun("checkpoint_dir")
    checkpoint_interval: Any = _OfRun("checkpoint_interval")

    def __init__(
        self,
        config: ReasoningGymEnvConfig,
        server_configs: ServerBaseline | Sequence[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        quiet_base_env(config.suppress_base_env_logs, debug=config.debug_logging)
        server_configs = preflight.prepare_servers(server_configs, config.tokenizer_name)
        if (client := preflight.server_class(server_configs)) is not None:
            self.server_cls = client
        tokenizers = preflight.load_tokenizers(config, server_configs)
        self.run = RunState(
            group_size=config.group_size,
            batch_size=config.batch_size,
            total_steps=config.total_steps,
            drops_equal_scores=config.ensure_scores_are_not_same,
        )
        # Atropos opens a file of groups at once, under another name if there is one, and empties what it opens.
        without_file = config.model_copy(update={"data_path_to_save_groups": None})
        with preflight.given_tokenizers(tokenizers):
            super().__init__(without_file, server_configs, slurm=slurm, testing=testing)
        self.config = config
        self.groups: GroupFile | None = None
        self.run_uuid = str(uuid.uuid4())
        self.datadumps_dir = Path(config.data_dumps_dir)
        self.eval_metrics: list[tuple[str, Any]] = []
        self._logs = 0
        self.test_items_with_scorers: list[tuple[dict[str, Any], ProblemDataset]] = []
        self.task_names: list[str] = []
        # `serve` and `process` begin without the evaluation set: what is held out does not depend on it.
        self._asks_later = False
        self.components: Components | None = None
        self.log = TrainingLog(config.training_log(self.run_uuid))
        self.failures = RepeatedEvents(logger)
        self.patience = Patience(self.failures)
        self.servers_outage = Outage(logger, "Every inference server", first_delay_s=0.0, max_delay_s=0.0)
        self.checkpoints = RunCheckpoints(
            self.run,
            run_id=config.run_id,
            wandb_name=config.wandb_name,
            seed=config.seed,
            instance_id=config.instance_id,
        )
        self.session = ApiSession(
            config.rollout_server_url,
            self.run,
            self.checkpoints,
            registration={
                "max_token_length": config.max_token_length,
                "desired_name": config.wandb_name or str(self.name),
                "weight": config.inference_weight,
                "min_batch_allocation": config.min_batch_allocation,
            },
            max_staleness_steps=config.max_staleness_steps,
        )
        limits = LoopLimits(
            max_groups=self.max_num_workers,
            max_batches_offpolicy=config.max_batches_offpolicy,
            min_batch_allocation=config.min_batch_allocation,
            eval_handling=config.eval_handling,
            eval_limit_ratio=config.eval_limit_ratio,
        )
        self.loop = ServeLoop(
            limits,
            self.run,
            status=self._status,
            checks=self.env_step_checks,
            draw=self.get_next_item,
            work=self._group_of,
            hanging=lambda: self._made.inference.hanging,
        )

    # --- set-up

    @classmethod
    def config_init(cls) -> tuple[ReasoningGymEnvConfig, list[APIServerConfig]]:
        """The defaults of a training run; see `config.default_configs`."""
        return default_configs()

    async def setup(self) -> None:
        """Find the tasks and build the components; and the evaluation set, unless a run that needs none yet is begun.

        Raises EnvironmentSetupError.
        """
        await self._set_up(self.config)
        if not self._asks_later:
            await self._questions()

    async def _set_up(self, config: ReasoningGymEnvConfig) -> None:
        made = await assemble(config, self.server, self.tokenizer, trainer_max_tokens=lambda: self.run.max_token_len)
        self.components = made
        self.task_names = list(made.catalog.names)
        await self.log.open(made.library.version)
        self.checkpoints.parts = {**made.sampler.stateful, "funnel": self.log.outcomes, "dumps": self.log.dumps}

    async def _questions(self) -> EvalSet:
        """The evaluation set. Made while training goes on, it leaves the workers to training between two items."""
        made = await self._made.questions(**({"at_once": 1} if self._asks_later else {}))
        self.test_items_with_scorers = [(problem.entry, ProblemDataset(problem)) for problem in made]
        return made

    @property
    def _made(self) -> Components:
        if self.components is None:
            raise EnvironmentSetupError("The environment is not set up: await env.setup() first.")
        return self.components

    # --- one problem: its item

    async def get_next_item(self) -> tuple[Any, dict[str, Any], ProblemDataset]:
        """The next problem of the stream, made ahead of time; its prompt leaves room for a completion."""
        problem = await self._made.stream.next()
        logger.info("Drew item %d: %s (%s).", problem.index, problem.task, problem.category)
        return build_messages(problem.question), problem.entry, ProblemDataset(problem)

    # --- its completions

    async def collect_trajectories(self, item: Any) -> tuple[ScoredDataGroup | None, list[Any]]:
        """Sample a group for one item, score it, and return what the trainer gets (or None).

        Cancelled while it waits for completions, its item comes again; once they have come it is finished all the same.
        """
        problem = problem_of(*item[1:])
        # Whatever no part has foreseen costs this group and nothing else.
        try:
            prompt = self._made.prompts.take(item[0])
            request_goes_out.set(partial(note_sampling, item, self.run))
            completions = await self._sample(problem, prompt)
            if not completions:
                return None, []
            return await to_the_end(self._finish(problem, prompt.messages, completions, item)), []
        except (asyncio.CancelledError, EnvironmentSetupError):
            self._made.stream.ledger.requeue(problem, is_counted=False)
            raise
        except Exception as error:  # noqa: BLE001
            self._met_fault(problem, error)
            return None, []

    async def _sample(self, problem: Problem, prompt: Prompt) -> list[Completion]:
        """The completions; none if they cannot be had now, and then it is settled what becomes of the item."""
        budget = self._made.token_budget.of_completion(len(prompt.tokens))
        if budget is None:
            # An item that the stream did not check, or a trainer that came with a lower limit since.
            self._made.stream.skip(TOO_LONG, problem.task, "no room is left for a completion")
            self._made.stream.ledger.done(problem)
            return []
        sampling = Sampling(self.run.group_size, budget, self.config.train_temperature, self.config.train_top_p)
        limit_s = self.config.worker_timeout if self.config.worker_timeout > 0 else None

        async def ask() -> list[Completion]:
            request_goes_out.get()()
            return await self._made.inference.complete(prompt, sampling)

        try:
            with self._made.inference.spending.under_way(len(prompt.tokens), sampling.n):
                return await within(limit_s, self.patience.until_answered(ask, problem.task))
        except asyncio.TimeoutError:
            self._try_again(problem, f"no completions within worker_timeout, {limit_s:g} s")
        except InferenceError as error:
            detail = getattr(error, "advice", str(error))
            (self._try_again if self.patience.health.is_away else self._give_up)(problem, detail)
        return []

    def _try_again(self, problem: Problem, detail: str) -> None:
        """Let an item be drawn again, a bounded number of times. While inference is away that does not count.

        Not in `process`, whose groups stand in the order of their items: there the next item takes its place.
        """
        is_counted = not self.patience.health.is_away
        if not self.run.is_offline and self._made.stream.ledger.requeue(problem, is_counted=is_counted):
            self.failures.note("no group came of an item, it is drawn again", f"{problem.task}: {detail}")
            self.log.outcomes.add(GroupOutcome.INFERENCE_FAILED, problem.task)
        else:
            self._give_up(problem, detail)

    def _give_up(self, problem: Problem, detail: str) -> None:
        self.failures.note("item given up, no completions come", f"{problem.task}: {detail}")
        self._is_done(problem, GroupOutcome.INFERENCE_FAILED)

    def _met_fault(self, problem: Problem, error: Exception) -> None:
        kind = "a fault in the environment, its group is lost"
        self.failures.note(kind, f"{problem.task}: {type(error).__name__}: {error}")
        if self.failures.counts[kind] == 1:
            logger.error("The first of them in full; please report it:", exc_info=error)
        self._is_done(problem, GroupOutcome.FAULT)

    def _is_done(self, problem: Problem | None, outcome: GroupOutcome) -> None:
        """What became of the group of an item, of which nothing more is to come."""
        self.log.outcomes.add(outcome, problem.task if problem else "unknown")
        if problem is not None:
            self._made.stream.ledger.done(problem)

    # --- their scores and rewards

    async def score(self, rollout_group_data: list[dict[str, Any]]) -> ScoredDataGroup | None:
        """Score a group given as dicts: `messages, rg_item, dataset_obj, finish_reason, tokens, masks, logprobs`.

        All dicts are rollouts of one item, whose dataset may be any reasoning-gym dataset. Returns None for an
        empty group, and for equal scores when `ensure_scores_are_not_same` is set.
        """
        if not rollout_group_data:
            return None
        return await to_the_end(self._finish(*group_of_dicts(rollout_group_data)))

    async def _finish(
        self, problem: Problem, messages: list[dict[str, str]], completions: list[Completion], item: Any = None
    ) -> ScoredDataGroup | None:
        """From the completions to what the trainer gets; None if they teach nothing."""
        made, config = self._made, self.config
        scores = await made.scorer.score(problem, completions, thinking_opened=made.thinking_opened)
        rollouts = rollouts_of(
            completions,
            scores,
            made.credit,
            problem.task,
            max_token_length=config.max_token_length,
            mask_too_long=config.mask_too_long_completions,
            min_tokens=config.min_completion_tokens,
        )
        return await self._accept(RolloutGroup(problem, messages, rollouts, steps_of(item, self.run)))

    async def _accept(self, group: RolloutGroup) -> ScoredDataGroup | None:
        """Observe, log and dump a scored group; then decide whether it is sent. If not, its item is done."""
        self._made.sampler.observe_group(group)
        self.log.observe(group)
        await self.log.dump(group)
        if self.run.drops_equal_scores and not group.has_signal:
            self._is_done(group.problem, outcome_without_signal(group))
            return None
        data = to_scored_data(group, include_messages=self.config.include_messages)
        if self.run.is_offline and self.groups is not None:
            data.update(described(group, self._made.library.version, self.groups.settings))
        return data

    # --- its way to the trainer, or to a file

    async def handle_send_to_api(
        self,
        scored_data: Any,
        item: Any = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> None:
        """Check a scored group, write it to the file of groups if there is one, and deliver it to the API.

        In place of Atropos' own, which drops a group that the file does not take, and says nothing of what it drops.
        Raises EnvironmentSetupError if a group that is only to be written cannot be.
        """
        problem = None if item is None else problem_of(*item[1:])
        try:
            self.completion_lengths.extend(len(mask) - mask.count(MASKED) for mask in scored_data["masks"])
            useless = why_useless(
                scored_data,
                group_size=self.run.group_size,
                drops_equal_scores=self.run.drops_equal_scores,
                max_token_len=self.run.max_token_len if abort_on_any_max_length_exceeded else 0,
            )
            if useless is not None:
                self.failures.note("group left out", useless[1])
            else:
                scored_data.update({key: None for key in OPTIONAL_KEYS if key not in scored_data})
                await self.add_rollouts_for_wandb(scored_data, item)
                self._write_to_file(scored_data, is_only_written=not do_send_to_api)
        except Exception:
            self._is_done(problem, GroupOutcome.FAULT)
            raise
        if useless is not None or not do_send_to_api:
            self._is_done(problem, useless[0] if useless else GroupOutcome.WRITTEN)
            return
        self.items_sent_this_step += 1
        try:
            delivery = await self.session.outbox.put(
                scored_data,
                partial(self._is_done, problem),
                None if item is None else getattr(item[2], "sampled_at", None),
            )
        except asyncio.CancelledError:
            # It did not get into the outbox.
            if problem is not None:
                self._made.stream.ledger.requeue(problem, is_counted=False)
            raise
        # Once there it is delivered, also if nobody waits for it.
        await asyncio.shield(delivery)

    def _write_to_file(self, group: Any, *, is_only_written: bool) -> None:
        if (path := self.config.data_path_to_save_groups) is None:
            return
        if self.groups is None:
            self.groups = GroupFile(Path(path), {}, goes_on=False)
        try:
            self.groups.write(group)
        except OSError as error:
            problem = f"{self.groups.path}: {error}"
            if is_only_written:
                raise EnvironmentSetupError(f"Cannot write groups to {problem}.") from error
            self.failures.note("group not written to data_path_to_save_groups, it is sent all the same", problem)

    async def _group_of(self, item: Any) -> bool:
        """All of an item's way, for the loop of `serve`: whether a group of it was offered to the API."""
        began = time.monotonic()
        group, _ = await self.collect_trajectories(item)
        try:
            group = None if group is None else await self.postprocess_histories(group)
        except Exception as error:  # noqa: BLE001
            # A subclass may do as it likes there; it costs the group.
            self._met_fault(problem_of(*item[1:]), error)
            group = None
        duration = time.monotonic() - began
        self.task_duration.append(duration)
        (self.failed_task_duration if group is None else self.succeeded_task_duration).append(duration)
        if group is not None:
            await self.handle_send_to_api(group, item)
        await self.cleanup()
        return group is not None

    # --- evaluation

    async def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Score the held-out set; the metrics are returned, and logged with the next wandb step.

        During training an evaluation that scored nothing is reported and training goes on.
        """
        try:
            return await self._evaluate()
        except EnvironmentSetupError as error:
            logger.error("%s", error)
            return {}

    async def _evaluate(self, *, is_command: bool = False) -> dict[str, float]:
        start_time = time.time()
        eval_set = await self._questions()
        parameters = {**self._eval_parameters(), **eval_set.describe()}
        # During training each evaluation is of another model: it takes the last one's place, and continues none.
        folder = self.config.data_dir_to_save_evals if is_command else None
        model = {"model_name": self.server.servers[0].config.model_name}
        with Journal(folder, {**parameters, **model}, settings=type(self).evaluate_settings) as journal:
            if is_command:
                logger.info("%s", self._made.evaluator.plan(eval_set, journal))
                if self.config.dry_run:
                    return {}
            samples = await self._made.evaluator.samples(eval_set, journal, show_progress=is_command)
            results = summarise(samples)
            metrics = results.metrics()
            self.eval_metrics.extend(metrics.items())
            logger.info("%s", result_line(results, eval_set.manifest))
            if self.config.use_wandb:
                self.eval_metrics.append((TASK_TABLE, task_table(results, eval_set.manifest)))
            if is_command:
                print_table(results, eval_set.describe())
            if self.config.data_dir_to_save_evals is not None:
                try:
                    await self.evaluate_log(
                        results.metrics(with_tasks=True),
                        start_time=start_time,
                        end_time=time.time(),
                        samples=samples,
                        generation_parameters=parameters,
                        verbose=False,
                    )
                except OSError as error:
                    if is_command:
                        raise
                    # Training goes on, and the log has the numbers.
                    logger.error("Evaluation not written to data_dir_to_save_evals: %s", error)
                journal.finish()
        return metrics

    def _eval_parameters(self) -> dict[str, Any]:
        """How the completions are sampled and graded: two results say the same only if these are the same."""
        config = self.config
        return {
            "temperature": config.eval_temperature,
            "n": config.eval_completions,
            "max_new_tokens": EVAL_BUDGET_FACTOR * config.max_token_length,
            "verification": config.verification,
            "answer_normalization": config.answer_normalization,
            "scoring_timeout_s": config.scoring_timeout_s,
            # Where the servers refuse some of this.
            **({"asked_otherwise": changes} if (changes := self._made.inference.changes) else {}),
        }

    # --- what the run tells

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Any = None) -> None:
        """Keep some rollouts of a group for the table `train/rollouts`."""
        expected, task = ("", "") if item is None else (item[1].get("answer"), problem_of(*item[1:]).task)
        rows = table_rows(
            scored_data,
            decode=self.tokenizer.decode,
            keep=self.config.num_rollouts_per_group_for_logging,
            expected_answer=expected,
            task=task,
        )
        self.rollouts_for_wandb.append(rows)
        del self.rollouts_for_wandb[: -self.config.num_rollouts_to_keep or None]

    async def create_rollout_table(self, wandb_metrics: dict[str, Any]) -> dict[str, Any]:
        """Add the table of kept rollouts: full_text, score, expected_answer, task_name."""
        if self.rollouts_for_wandb and self.config.use_wandb:
            wandb_metrics["train/rollouts"] = build_table(self.rollouts_for_wandb)
        return wandb_metrics

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Log everything counted since the last step, then Atropos' own metrics.

        Whatever wandb raises is counted and costs this step's metrics, not the training.
        """
        self._logs += 1
        has_tables = self._logs % max(1, self._logs // TABLES) == 0
        if not has_tables:
            self.rollouts_for_wandb.clear()
        metrics = {**(wandb_metrics or {}), **self.log.drain(has_tables=has_tables), **dict(self.eval_metrics)}
        self.eval_metrics.clear()
        if self.components is not None:
            metrics.update(self.components.metrics())
        metrics.update(self.failures.metrics("train/failures"))
        metrics.update(self.patience.health.metrics())
        metrics.update({**self.session.metrics(), **self.session.outbox.drain()})
        metrics.update(self.servers_outage.metrics("inference/all_servers"))
        self.mainloop_timings, self.loop.tick_seconds = self.loop.tick_seconds, []
        self.workers_added_list, self.loop.groups_wanted = self.loop.groups_wanted, []
        # It drops what is below its last step; nothing waits until it has been told this one.
        step, self.run.step = self.run.step, self.run.step + self.run.steps_again
        # Its service is a process of its own, which can end; then every call fails, in ways that nobody documents.
        try:
            await super().wandb_log(metrics)
        except Exception as error:  # noqa: BLE001
            self.failures.note("metrics not logged to wandb", f"{type(error).__name__}: {error}")
        finally:
            self.run.step = step
        # Atropos keeps a number for every request of the run, and averages over all of them each step.
        for server in self.server.servers:
            for name in ("request_timings", "attempts_list", "eval_request_timings", "eval_attempts_list"):
                getattr(server, name, []).clear()

    # --- checkpoints

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        """Write the checkpoint of `step`, with `data` beside the state. A disk that refuses is reported."""
        self.checkpoints.save(step, data)

    def load_checkpoint(self) -> None:
        """Continue from the newest usable checkpoint; see `RunCheckpoints.load`."""
        self.checkpoints.load()
        if self.checkpoints.is_resumed:
            self.run_uuid = self.log.dumps.run_id
            logger.info("The next item is %d of stream %r.", self.iter, self._made.stream.instance)

    # --- the trajectory API, as Atropos asks for it

    async def setup_wandb(self) -> None:
        """Wait for the trainer, whose wandb project is used; then let Atropos start the wandb run.

        While wandb is away its run is kept on disk: a restart in the middle of a run must not wait for it.
        """
        if self.config.use_wandb:
            await self.session.until_trainer()
        try:
            await super().setup_wandb()
        except Exception as error:
            if not preflight.is_wandb_away(error):
                raise
            preflight.keep_wandb_offline(error)
            self.wandb_project = None
            await super().setup_wandb()

    async def register_env(self) -> None:
        """Register with the trajectory API, and continue this run; a new one gets the name of its item stream.

        A run that continues from a checkpoint keeps the stream it had, whatever number it gets now.
        """
        await self.session.register()
        if self.run.checkpoint_interval <= 0:
            logger.warning("The trainer asks for no checkpoints: after a restart the item stream would begin anew.")
        else:
            await self.checkpoints.find()
            self.load_checkpoint()
        if not self.checkpoints.is_resumed:
            self._made.name_instance(await asyncio.to_thread(self.checkpoints.stream_name))
        await self.session.keep_number()
        # From the first moment on, so that a run that is killed early finds its own and not an older run's.
        await self.checkpoints.save_latest()
        freeze_memory()

    async def get_server_info(self) -> None:
        """Take over the trainer's limits. Raises EnvironmentSetupError if a group is larger than its batch."""
        await self.session.take_over_limits()

    async def get_status(self) -> None:
        """Ask the API where the run stands, for `status_dict`. Does not return while the API is away."""
        self.status_dict = await self.session.status()
        await self.server.update_weight(self.status_dict["env_weight"])

    async def _status(self) -> dict[str, Any]:
        await self.get_status()
        return self.status_dict

    async def env_step_checks(self) -> None:
        """Heed the trainer's step in `status_dict`: evaluation, checkpoint, log. Called after each status."""
        before, now = self.run.step, self.status_dict["current_step"]
        interval = self.run.checkpoint_interval
        self.run.step = now
        if is_passed(before, now, self.config.steps_per_eval):
            self.loop.begin_evaluation(self.evaluate)
        if is_passed(before, now, interval):
            self.checkpoints.begin(now // interval * interval)
        if before != now and self.items_sent_this_step >= self.config.min_items_sent_before_logging:
            self.items_sent_this_step = 0
            await self.wandb_log({})
        self.checkpoints.begin_if_due()
        # Atropos' clients wait for a server that fails its health check without a word.
        if any(server.server_healthy for server in self.server.servers):
            self.servers_outage.over()
        else:
            self.servers_outage.failed("no health check succeeds", "items wait")

    # --- the three commands, and their end

    @classmethod
    def cli(cls) -> None:
        """`serve`, `process` or `evaluate`, as the process's arguments say; see atropos.command_line."""
        command_line.run(cls)

    async def env_manager(self) -> None:
        """`serve`: generate groups for a trainer until total_steps, then close."""
        await run_to_the_end(self._serve(), self._last_steps())

    async def process_manager(self) -> None:
        """`process`: write exactly total_steps groups to a file, then close."""
        await run_to_the_end(self._process(), self._last_steps())

    async def _run_evaluate(self) -> None:
        """`evaluate`: score the held-out set once, then close."""
        await run_to_the_end(self._evaluate_once(), self._last_steps())

    async def _serve(self) -> None:
        await preflight.check_serve(self.config, self.server)
        self._asks_later = True
        first = preflight.first_request(self.config, self.tokenizer)
        await watched(self.setup(), preflight.check_first_request(self.server, first))
        self._made.stream.let_overtake()
        await self.setup_wandb()
        await self.register_env()
        await self.get_server_info()
        await self.loop.run()

    async def _process(self) -> None:
        groups = await self._open_groups()
        if len(groups.written) < self.n_groups_to_process and not self.config.dry_run:
            first = preflight.first_request(self.config, self.tokenizer)
            await preflight.check_offline_use(self.config, self.server, first)
        await self._process_groups()

    async def _open_groups(self) -> GroupFile:
        """The file of groups, with those that an earlier start has made."""
        if (path := self.config.data_path_to_save_groups) is None:
            raise EnvironmentSetupError("process needs a file to write to: set env.data_path_to_save_groups.")
        if self.config.include_messages:
            place_of_page(Path(path))
        settings = self.config.of_groups(self.server.servers[0].config.model_name)
        self.groups = await asyncio.to_thread(GroupFile, Path(path), settings, goes_on=True)
        if count := len(self.groups.written):
            logger.info("%d groups are there already, %d are asked for.", count, self.n_groups_to_process)
        return self.groups

    async def _process_groups(self) -> None:
        groups = self.groups or await self._open_groups()
        self.run.step = len(groups.written)
        if self.run.step < self.n_groups_to_process:
            await self._make_groups(groups)
        if self.config.dry_run:
            return
        await asyncio.to_thread(groups.put_in_order)
        logger.info("%d groups are in %s.", self.run.step, groups.path)
        if self.run.step and self.config.include_messages and (write_page := type(self).page_of_groups) is not None:
            page = await asyncio.to_thread(write_page, groups.path)
            logger.info("A page to look at them: %s.", page)
        form, write_export = self.config.process_format, type(self).export_of_groups
        if self.run.step and form is not None and write_export is not None:
            try:
                logger.info("A dataset of them: %s.", await asyncio.to_thread(write_export, groups.path, form))
            except EnvironmentSetupError as error:
                # The groups are there, and the command `export` makes another choice of them.
                logger.warning("No dataset of them was written: %s", error)

    async def _make_groups(self, groups: GroupFile) -> None:
        self._asks_later = True
        await self.setup()
        self._made.go_on_with(groups.written)
        self.run.group_size = self.group_size_to_process
        # Equal scores are data here: without them the number of groups would not be the one asked for.
        self.run.drops_equal_scores = False
        self.run.is_offline = True
        self.patience.gives_up_after_s = PROCESS_AWAY_S
        freeze_memory()
        missing = self.n_groups_to_process - self.run.step
        first = deque([await self.get_next_item() for _ in range(min(missing, PLANNED_FROM))])
        size = round(fmean(len(self._made.inference.render(item[0]).tokens) for item in first))
        most = missing * self.run.group_size * (self._made.token_budget.of_completion(size) or 0)
        logger.info("%s", self._made.inference.spending.plan(missing, missing * size, most))
        if not self.config.dry_run:
            with preflight.wandb_run(self.config, str(self.name)):
                await self._write_groups(missing, first)

    async def _write_groups(self, missing: int, first: deque[Any]) -> None:
        """`first` are the items that are drawn already."""
        spending = self._made.inference.spending

        async def draw() -> Any:
            return first.popleft() if first else await self.get_next_item()

        async def make(item: Any) -> ScoredDataGroup | None:
            return (await self.collect_trajectories(item))[0]

        async def write(group: ScoredDataGroup, item: Any) -> None:
            processed = await self.postprocess_histories(group)
            await self.handle_send_to_api(processed, item, do_send_to_api=False, abort_on_any_max_length_exceeded=False)
            self.run.step += 1
            bar.set_postfix_str(spending.expected(missing * self.run.group_size), refresh=False)
            bar.update()
            if self.config.use_wandb and self.run.step % PROCESS_LOGS_EVERY == 0:
                await self.wandb_log()

        def why() -> str:
            return self.failures.last_detail or "the prompts leave no room for a completion"

        total, done = self.run.step + missing, self.run.step
        with tqdm(total=total, initial=done, desc="process", unit="group", disable=None, smoothing=0.1) as bar:
            made = ManyGroups(
                missing,
                self.config.process_concurrency,
                draw=draw,
                make=make,
                write=write,
                why=why,
                is_enough=lambda: spending.is_over,
                begins_alone=self.config.limit_tokens is not None,
            )
            await made.run()
        logger.info("%s", spending.total())
        if self.run.step < total:
            logger.warning("limit_tokens is reached: the same command with a higher one goes on.")
        if self.config.use_wandb:
            await self.wandb_log()

    async def _evaluate_once(self) -> None:
        first = preflight.first_request(self.config, self.tokenizer, evaluates=True)
        if not self.config.dry_run:
            await preflight.check_offline_use(self.config, self.server, first)
        # Nothing is trained on: the ladders of all tasks, which take seconds to build, would not be used.
        await self._set_up(self.config.model_copy(update={"complexity_mode": None}))
        if self.config.dry_run:
            await self._evaluate(is_command=True)
            return
        with preflight.wandb_run(self.config, str(self.name)):
            await self._evaluate(is_command=True)
            logger.info("%s", self._made.inference.spending.total())
            await self.wandb_log()

    def _last_steps(self) -> list[LastStep]:
        steps = [
            LastStep("stopping what is in progress", self._stop, is_limited=False),
            LastStep("closing the environment", self.close, is_limited=False),
            LastStep("signing off at the trajectory API", self.session.sign_off),
        ]
        if self.config.use_wandb:
            # It may have much to send.
            steps.append(LastStep("finishing the wandb run", preflight.finish_wandb, is_limited=False))
        return steps

    async def _stop(self) -> None:
        await cancel_all([*self.loop.tasks, *(getattr(one, "check_task", None) for one in self.server.servers)])

    async def close(self) -> None:
        """Send what waits, flush the dumps, save the state and stop everything that was started. Safe to call twice.

        Every step is made, whatever becomes of the others; what fails or hangs is logged.
        """
        grace_s = 0.0 if self.session.is_away else DELIVERY_GRACE_S
        try:
            await attempt(LastStep("sending the groups that wait", lambda: self.session.outbox.close(grace_s)))
            await attempt(LastStep("finishing the dumps", self.log.close))
            if (groups := self.groups) is not None:
                await attempt(LastStep("finishing the file of groups", lambda: in_background(groups.close)))
            if self.components is not None:
                await attempt(LastStep("writing the last checkpoint", self.checkpoints.save_latest))
            self.failures.summarise()
            self.log.summarise()
        finally:
            await attempt(LastStep("giving up the number at the trajectory API", self.checkpoints.forget_number))
            self.checkpoints.leave()
            if (made := self.components) is not None:
                await attempt(LastStep("stopping the workers", made.close, is_limited=False))

    # --- what the original environment offers beside all this

    @property
    def iter(self) -> int:
        """Index of the next training item."""
        return self.components.stream.index if self.components else 0

    @property
    def percent_correct_buffer(self) -> list[float]:
        """1.0 or 0.0 for each rollout since the last log step: whether its score is at least 0.5."""
        return self.log.percent_correct

    def get_curriculum_stats(self) -> dict[str, Any]:
        """Where the curriculum stands: totals, and per task level, recent accuracy and adjustments."""
        return {"mode": self.config.complexity_mode, **self._made.sampler.curriculum.stats()}

    async def rollout_and_score_eval(self, test_item: tuple[dict[str, Any], Any]) -> float | None:
        """The score of one `(rg_item, dataset)` of the evaluation set, or None if it could not be scored."""
        result = await self._made.evaluator.evaluate_one(problem_of(*test_item))
        return result.score.value if result.score else None
