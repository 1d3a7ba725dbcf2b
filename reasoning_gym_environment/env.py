"""ReasoningGymEnv: what Atropos calls and reads. The hooks are the steps of a group. A Run (run.py) has what they use.

    get_next_item ──> collect_trajectories ──> score ──> postprocess_histories ──> handle_send_to_api
     │                 │                        │         └ of Atropos, for subclasses    └ check, put into the sink
     │                 │                        └ grade in a worker, reward, observe
     │                 └ prompt, token budget, completions
     └ task, level, seed, item

    Atropos' other hooks                  where it happens
    setup                                 start_tasks, Run: tasks, workers, item source
    evaluate                              atropos/evaluate.py
    rollout_and_score_eval                atropos/evaluate.py
    wandb_log, setup_wandb                run.drain_metrics, telemetry/wandb_log.py
    env_manager, process_manager          the commands `serve` and `process`: atropos/serve.py, atropos/process.py
    save_checkpoint, load_checkpoint      trainer/checkpoints.py

The commands replace Atropos' own main loop (atropos/loop.py). They call these methods, so a subclass changes what it
overrides. Where an attempt ends, and what happens to its item, is in ledger.py: a hook only says what it knows.
atropos/original_names.py lists the methods of the original environment that are not here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
import uuid
from collections.abc import Awaitable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wandb
from atroposlib.envs.base import (
    APIServerConfig,
    BaseEnv,
    ScoredDataGroup,
    ServerBaseline,
)
from atroposlib.utils.display import display_metrics_table

from .atropos import command_line, preflight
from .atropos.evaluate import evaluate, evaluate_command, results_folder, rollout_and_score, write_results
from .atropos.original_names import remedy_of, warn_of_unused_overrides
from .atropos.process import process
from .atropos.serve import serve
from .errors import EnvironmentSetupError, InferenceError, RequestRefusedError
from .group import (
    Item,
    TestItem,
    complete_keys,
    drawn_problem,
    group_of,
    group_of_dicts,
    group_with,
    item_of,
    rollout_dicts,
    to_scored_data,
)
from .inference.chat_tokenizer import ChatTokenizer
from .inference.client import InferenceClient
from .inference.prompts import Prompts, RequestParameters, as_dicts, system_message, system_prompt
from .inference.server_types import adapters_of
from .inference.spending import Spending
from .ledger import Attempt, Failure, current_attempt, entered
from .records import MASKED, Completion, Group, GroupOutcome
from .run import Mode, Run, start_tasks
from .sampling.item_maker import Unmade
from .scoring.rewards import rollouts_of
from .settings.environment import ReasoningGymEnvConfig, default_configs
from .telemetry.telemetry import keep_newest
from .telemetry.wandb_log import (
    build_table,
    continue_offline,
    forget_timings,
    table_rows,
)
from .trainer.run_state import RunState, SubclassState
from .trainer.sinks import Sink
from .utils.resilience import BackgroundCalls
from .utils.shutdown import run_then_close, shutdown_step

logger = logging.getLogger(__name__)

__all__ = ["ReasoningGymEnv", "system_prompt"]


class ReasoningGymEnv(BaseEnv):
    """Atropos environment over reasoning-gym's tasks.

    An item is `(prompt_messages, rg_item, dataset)`: two hashable messages that `dict()` turns into
    `{"role", "content"}`, the item as reasoning-gym made it, and an object with `score_answer(answer, entry)`.
    """

    name = "reasoning_gym"
    env_config_cls = ReasoningGymEnvConfig
    config: ReasoningGymEnvConfig

    # --- set-up

    def __init__(
        self,
        config: ReasoningGymEnvConfig,
        server_configs: ServerBaseline | Sequence[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        preflight.set_log_levels(config)
        config.validate_config()
        self.logger = logging.getLogger(__name__).getChild(type(self).__name__)
        warn_of_unused_overrides(type(self), ReasoningGymEnv)
        servers = preflight.prepare_servers(server_configs, config.tokenizer_name)
        # Atropos would open the file of groups here, under another name if it exists, and empty the file that it opens.
        without_file = config.model_copy(update={"data_path_to_save_groups": None})
        with preflight.tokenizers_loaded_once(servers):
            super().__init__(without_file, servers, slurm=slurm, testing=testing)
        self.config = config
        self.mode = Mode.LIBRARY
        self.task_names: list[str] = []
        """The tasks that are served."""
        self.test_items_with_scorers: list[TestItem] = []
        """`(rg_item, dataset)` of each held-out question. `setup` or the first evaluation fills the list."""
        self.eval_metrics: list[tuple[str, Any]] = []
        self.state = RunState(config.group_size, config.batch_size, config.total_steps)
        tokenizer = ChatTokenizer(
            self.tokenizer,
            config.tokenizer_name,
            template=config.chat_template,
            template_kwargs=config.chat_template_kwargs,
            has_system=system_message(config) is not None,
        )
        self._run_id = str(uuid.uuid4())
        self.inference = InferenceClient(
            adapters_of(self.server.servers, self.tokenizer),
            tokenizer,
            jitter=random.Random(f"requests of {self._run_id}"),
            spending=Spending(config.limit_tokens),
        )
        self.prompts = Prompts(
            tokenizer,
            config,
            max_token_length=config.max_token_length,
            trainer=self.state,
            servers=self.inference,
        )
        self.settings_as_yaml = ""
        """All settings of the command `evaluate`, which it writes beside its results."""
        self.sink: Sink | None = None
        """Takes the groups of `process`, which sets this before `setup`."""
        self._settings_read = config.model_copy()
        self._own = SubclassState(config.seed)
        self._run: Run | None = None
        self._has_set_up_wandb = False
        self._is_ending = False

    @classmethod
    def config_init(cls) -> tuple[ReasoningGymEnvConfig, list[APIServerConfig]]:
        """The defaults of a training run; see `settings.environment.default_configs`."""
        return default_configs()

    async def setup(self) -> None:
        """Find the tasks and start the workers. Raises EnvironmentSetupError; then no worker runs.

        `serve` and `process` make the held-out questions at the first evaluation: which questions are held out does
        not depend on them.
        """
        preflight.warn_of_late_settings(self._settings_read, self.config)
        runtime, item_source = await start_tasks(self.config, self.mode, self.prompts.too_long)
        run = Run(
            self.config,
            self.mode,
            runtime,
            item_source,
            inference=self.inference,
            prompts=self.prompts,
            state=self.state,
            own=self._own,
            run_id=self._run_id,
            sink=self.sink,
        )
        self._run = run
        self.task_names = run.task_names
        self.test_items_with_scorers = run.test_items
        # A subclass can edit the list of questions in its `setup`.
        if self.mode.makes_questions_at_start or type(self).setup is not ReasoningGymEnv.setup:
            await run.questions()

    @property
    def run(self) -> Run:
        """The run. Raises EnvironmentSetupError before `setup`."""
        if self._run is None:
            raise EnvironmentSetupError("The environment is not set up: await env.setup() first.")
        return self._run

    # --- one group

    async def get_next_item(self) -> Item:
        """The next problem of the stream, made ahead of time; its prompt leaves room for a completion."""
        stream = self.run.stream
        problem = await stream.next()
        logger.debug("Drew item %d: %s (%s).", problem.index, problem.task, problem.category)
        return item_of(problem, as_dicts(self.prompts.messages(problem.question)))

    async def collect_trajectories(self, item: Any) -> tuple[Any, list[Any]]:
        """Sample a group for one item and score it. Returns what the trainer gets, or None, and an empty backlog."""
        attempt = current_attempt()
        if attempt is not None:
            return await self._sampled_and_scored(attempt, item), []
        # Other code has called this method, so no loop will record the group.
        run = self.run
        with entered(Attempt(item, run.sampling_step())) as attempt:
            payload = await self._sampled_and_scored(attempt, item)
            return await run.recorder.keep(attempt, payload), []

    async def _sampled_and_scored(self, attempt: Attempt, item: Any) -> Any:
        group = group_of(item, self.config.answer_format)
        group.completions = await self._completions(attempt, group)
        if not group.completions:
            return None
        attempt.add(group)
        stream = self.run.stream
        stream.pending.note_completions()
        return await self.score(rollout_dicts(item, group))

    async def _completions(self, attempt: Attempt, group: Group) -> list[Completion]:
        """The completions of a group. If there are none, the attempt knows why."""
        run = self.run
        prompt = self.prompts.render(group.messages)
        max_tokens = self.prompts.room_for_training(len(prompt.tokens))
        if max_tokens is None:
            # The caller made this item, or the trainer has lowered its limit since the stream drew the item.
            if group.problem.is_of_stream:
                detail = "the prompt leaves no room for a completion"
                run.stream.skip(Unmade.PROMPT_TOO_LONG, group.problem.task, detail)
            attempt.conclude(GroupOutcome.TOO_LONG)
            return []
        parameters = RequestParameters(
            n=self.state.group_size,
            max_tokens=max_tokens,
            patience_s=run.mode.patience_s,
            timeout_s=self.config.worker_timeout if self.config.worker_timeout > 0 else None,
            **self.config.train_sampling,
        )
        try:
            return await self.inference.complete(prompt, parameters, step=run.sampling_step)
        except InferenceError as error:
            attempt.fail(self._failure(error))
            return []

    def _failure(self, error: InferenceError) -> Failure:
        """What an error of the servers means for the item."""
        servers = self.inference.servers
        in_outage = servers.unavailable_since() is not None
        if isinstance(error, RequestRefusedError):
            # During an outage, a gateway refuses everything.
            return Failure(error.advice, is_refused=not in_outage, counts=error.was_sent, in_outage=in_outage)
        return Failure(str(error), counts=error.was_sent, in_outage=in_outage)

    async def score(self, rollout_group_data: list[dict[str, Any]]) -> ScoredDataGroup | None:
        """Score a group given as dicts: `messages, rg_item, dataset_obj, finish_reason, tokens, masks, logprobs`.

        Every group passes through here, and what this method returns is sent. A subclass may change the dicts before it
        calls `super().score()`, or the scores of what that returns, or score the dicts on its own. All dicts are
        rollouts of one item, whose dataset may be any reasoning-gym dataset. Returns None for an empty group, and for
        equal scores when `ensure_scores_are_not_same` is set.
        """
        if not rollout_group_data:
            return None
        run = self.run
        config = self.config
        attempt = current_attempt()
        known = [] if attempt is None else attempt.groups
        group = group_of_dicts(rollout_group_data, known, config.answer_format)
        scores = await run.scorer.score(group.problem, group.completions)
        group.rollouts = rollouts_of(
            group.completions,
            scores,
            config.partial_credit,
            max_token_length=self.prompts.longest_sequence,
            mask_too_long=config.mask_too_long_completions,
        )
        await run.recorder.observe(group)
        if attempt is None:
            # Other code has called this method, so no loop will dump the group.
            await run.telemetry.dump(group)
        else:
            attempt.add(group)
        if run.drops_equal_scores and not group.has_signal:
            return None
        return to_scored_data(group, include_messages=config.include_messages)

    async def handle_send_to_api(
        self,
        scored_data: Any,
        item: Any = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> None:
        """Check a scored group, or a list of groups, and deliver it to the API or to the file of `process`.

        Returns when the group has arrived. This replaces Atropos' own method, which drops groups without a log line.
        """
        attempt = current_attempt()
        payloads = scored_data if isinstance(scored_data, list) else [scored_data]
        sending = [
            self._send(payload, item, attempt, do_send_to_api, abort_on_any_max_length_exceeded)
            for payload in payloads
            if payload is not None
        ]
        # If one of several groups fails, the others still arrive before this method returns.
        results = await asyncio.gather(*sending, return_exceptions=True)
        for error in results:
            if error is not None:
                raise error

    async def _send(self, payload: Any, item: Any, attempt: Attempt | None, to_api: bool, heeds_length: bool) -> None:
        run = self.run
        complete_keys(payload)
        self.completion_lengths.extend(len(mask) - mask.count(MASKED) for mask in payload["masks"])
        keep_newest(self.completion_lengths)
        await self.add_rollouts_for_wandb(payload, item)
        problem = self._why_unusable(payload, heeds_length)
        if problem is not None:
            run.ledger.drop(attempt, *problem)
            return
        group = None
        sampled_at = None
        if attempt is not None:
            attempt.begin_delivery()
            group = group_with(payload["tokens"], attempt.groups)
            sampled_at = attempt.step if group is None or group.sampled_at is None else group.sampled_at
        if group is None and item is not None and self.mode is Mode.PROCESS:
            group = group_of(item, self.config.answer_format)
        outcome = await run.sink.put(payload, group, sampled_at=sampled_at, to_api=to_api)
        self.items_sent_this_step += outcome is GroupOutcome.SENT
        if attempt is not None:
            attempt.conclude(outcome)

    def _why_unusable(self, payload: Any, heeds_length: bool) -> tuple[GroupOutcome, str] | None:
        """Why the trainer cannot use a scored group, as an outcome and in words; None if it can."""
        expected = (payload["group_overrides"] or {}).get("group_size", self.state.group_size)
        size = len(payload["tokens"])
        if size != expected:
            return GroupOutcome.DROPPED, f"expected {expected} rollouts, found {size}"
        if self.run.drops_equal_scores and len(set(payload["scores"])) == 1:
            return GroupOutcome.EQUAL_SCORES, "its scores are equal"
        longest = max(len(tokens) for tokens in payload["tokens"])
        limit = self.state.max_token_len
        if heeds_length and 0 < limit <= longest:
            return GroupOutcome.TOO_LONG, f"a sequence has {longest} tokens, the trainer's limit is {limit}"
        return None

    # --- evaluation

    async def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Ask all of `test_items_with_scorers`. Returns the metrics, which the next wandb step logs."""
        return await evaluate(self)

    async def rollout_and_score_eval(self, test_item: TestItem) -> float | None:
        """The score of one `(rg_item, dataset)` of the evaluation set, or None if it could not be scored.

        `evaluate` calls this for each completion of each question. A wrong answer scores what `partial_credit` gives.
        """
        return await rollout_and_score(self, test_item)

    async def evaluate_log(
        self,
        metrics: dict[str, Any],
        task_name: str | None = None,
        model_name: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        generation_parameters: dict[str, Any] | None = None,
        samples: list[dict[str, Any]] | None = None,
        verbose: bool = True,
    ) -> None:
        """Write the results of an evaluation to metrics.json and samples.jsonl, in the format of Atropos.

        An evaluation during training gets a folder of its own. Each file is written whole or not at all, by a thread,
        because a disk that hangs must not stop the event loop. Raises OSError.
        """
        parameters = {"max_new_tokens": self.config.max_token_length, **(generation_parameters or {})}
        folder = results_folder(self, parameters)
        if folder is None:
            logger.warning("The results of the evaluation are not saved: data_dir_to_save_evals is not set.")
            return
        began = time.time() if start_time is None else start_time
        ended = time.time() if end_time is None else end_time
        name = task_name or f"{self.name}_eval"
        if verbose:
            display_metrics_table(name, metrics, began, ended)
        document = {
            "config_general": {
                "model_name": model_name or self.inference.model_name,
                "total_evaluation_time_seconds": str(ended - began),
                "generation_parameters": parameters,
            },
            "results": {f"atropos|{name}|0": metrics, "all": metrics},
        }
        await BackgroundCalls("results").submit(write_results, folder, document, samples or [])

    # --- wandb

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Any = None) -> None:
        """Keep some rollouts of a group for the table `train/rollouts`."""
        attempt = current_attempt()
        group = None if attempt is None else group_with(scored_data["tokens"], attempt.groups)
        problem = drawn_problem(item)
        task = "" if problem is None else problem.task
        rows = table_rows(
            scored_data,
            decode=partial(self.tokenizer.decode, skip_special_tokens=True),
            completions=[] if group is None else group.completions,
            keep=self.config.num_rollouts_per_group_for_logging,
            expected_answer="" if item is None else item[1].get("answer"),
            task=task if group is None else group.problem.task,
        )
        self.rollouts_for_wandb.append(rows)
        del self.rollouts_for_wandb[: -self.config.num_rollouts_to_keep or None]

    async def create_rollout_table(self, wandb_metrics: dict[str, Any]) -> dict[str, Any]:
        """Add the table of kept rollouts: full_text, score, expected_answer, task_name."""
        if self.rollouts_for_wandb and self.config.use_wandb:
            wandb_metrics["train/rollouts"] = build_table(self.rollouts_for_wandb)
        return wandb_metrics

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Log everything that was counted since the last step, then Atropos' own metrics.

        An error of wandb is counted and costs this step's metrics, not the training.
        """
        run = self.run
        metrics = {
            **(wandb_metrics or {}),
            **run.drain_metrics(),
            **dict(self.eval_metrics),
        }
        self.eval_metrics.clear()
        self.curr_step = self.state.log_step
        if self._is_ending:
            # wandb joins what has the same step, and would replace the means of the last log step.
            self.curr_step += 1
        self.max_token_len = self.state.max_token_len
        self.wandb_prepend = self.state.metrics_prefix
        # wandb's service is a separate process, which can end. Then every call fails, in undocumented ways.
        try:
            await super().wandb_log(metrics)
        except Exception as error:  # noqa: BLE001
            what = "metrics not logged to wandb"
            run.failures.note("metrics_not_logged_to_wandb", what, f"{type(error).__name__}: {error}")
        forget_timings(self.server.servers)

    async def setup_wandb(self) -> None:
        """Let Atropos begin the wandb run, in the project of the trainer, which must have registered.

        While wandb is unavailable, it keeps its run on disk, because a restart in the middle of a run must not wait for
        wandb.
        """
        try:
            await super().setup_wandb()
        except wandb.errors.CommError as error:
            continue_offline(error)
            self.wandb_project = None
            await super().setup_wandb()
        self._has_set_up_wandb = True

    # --- checkpoints

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> Awaitable[None]:
        """Begin to write the checkpoint of `step`, with `data` beside the state. Await the result to wait for the disk.

        `load_checkpoint` makes attributes of the data. They must be JSON. A disk that refuses it is logged.
        """
        run = self.run
        return run.checkpoints.begin(step, data)

    def load_checkpoint(self) -> None:
        """Continue from the newest usable checkpoint; see `RunCheckpoints.load`.

        The `data` that was saved with it become attributes, as in Atropos.
        """
        checkpoints = self.run.checkpoints
        for name, value in checkpoints.load().items():
            setattr(self, name, value)

    # --- what other code reads

    @property
    def iter(self) -> int:
        """Index of the next training item. A subclass that makes its own items may count with it."""
        return self._stream_index + self._own.iter_shift

    @iter.setter
    def iter(self, value: int) -> None:
        self._own.iter_shift = value - self._stream_index

    @property
    def _stream_index(self) -> int:
        run = self._run
        return run.stream.index if run else 0

    @property
    def rng(self) -> random.Random:
        """A random generator for subclasses, seeded with `seed`. Checkpoints keep its state. This package does not use
        it."""
        return self._own.rng

    @rng.setter
    def rng(self, value: random.Random) -> None:
        self._own.rng = value

    @property
    def run_uuid(self) -> str:
        """Names this run in dumps and logs. A resumed run keeps the name of the earlier one."""
        return self._run.run_id if self._run else self._run_id

    @run_uuid.setter
    def run_uuid(self, value: str) -> None:
        self._run_id = value
        run = self._run
        if run:
            run.dumps.run_id = value

    @property
    def datadumps_dir(self) -> Path:
        """The folder of the dumps. A new folder is used from the next file on."""
        run = self._run
        return run.dumps.folder if run else self.config.dumps_folder

    @datadumps_dir.setter
    def datadumps_dir(self, folder: str | Path) -> None:
        self.config.data_dumps_dir = str(folder)
        run = self._run
        if run:
            run.dumps.folder = Path(folder)

    @property
    def percent_correct_buffer(self) -> list[float]:
        """1.0 or 0.0 for each rollout since the last log step: whether its base score is at least 0.5.

        If there are very many, the list has only the newest.
        """
        run = self._run
        return run.telemetry.percent_correct if run else []

    @percent_correct_buffer.setter
    def percent_correct_buffer(self, values: list[float]) -> None:
        self.percent_correct_buffer[:] = values

    def get_curriculum_stats(self) -> dict[str, Any]:
        """Where the curriculum is: totals, and per task the level, recent accuracy and adjustments.

        `task_details` and `curriculum_mode` are the original environment's names.
        """
        mode = self.config.complexity_mode
        item_source = self.run.item_source
        stats = item_source.curriculum.stats()
        return {
            "mode": mode,
            "curriculum_mode": mode == "curriculum",
            "task_details": stats["tasks"],
            **stats,
        }

    if not TYPE_CHECKING:
        # With this method, a type checker would accept any name.
        def __getattr__(self, name: str) -> Any:
            # Python calls this after it has found no such attribute, or after a property has raised an AttributeError.
            remedy = remedy_of(name)
            if remedy is not None:
                raise AttributeError(f"{name} is a name of the original environment. Here, {remedy}.")
            return self.__getattribute__(name)

    # --- the three commands

    @classmethod
    def cli(cls) -> None:
        """`serve`, `process` or `evaluate`, as the process's arguments say; see atropos.command_line."""
        command_line.main(cls, sys.argv[1:])

    async def env_manager(self) -> None:
        """`serve`: generate groups for a trainer until total_steps, then close."""
        self.mode = Mode.SERVE
        await run_then_close(serve(self), self._shut_down())

    async def process_manager(self) -> None:
        """`process`: write exactly total_steps groups to a file, then close."""
        self.mode = Mode.PROCESS
        await run_then_close(process(self), self._shut_down())

    async def _run_evaluate(self, settings: str = "") -> None:
        """`evaluate`: score the held-out set once, then close. Writes `settings`, as YAML, beside the results."""
        self.mode = Mode.EVALUATE
        self.settings_as_yaml = settings
        await run_then_close(evaluate_command(self), self._shut_down())

    async def _shut_down(self) -> None:
        await shutdown_step("closing the environment", self.close(), None)
        if self._has_set_up_wandb:
            self._is_ending = True
            # An evaluation may have ended after the last log step, and the last groups have been delivered now.
            await shutdown_step("logging the last metrics", self.wandb_log({}))
        # wandb may have much to send.
        await shutdown_step("finishing the wandb run", asyncio.to_thread(wandb.finish), None)

    async def close(self) -> None:
        """Send what waits, flush the dumps, save the state and stop everything that was started. Safe to call twice."""
        if self._run is not None:
            await self._run.close()
