"""ReasoningGymEnv: what Atropos calls and reads. Each method is a few lines over a Run (run.py) and its pipeline.

    Atropos' hook                         where it happens
    setup                                 Run.start: tasks, workers, item source
    get_next_item                         pipeline.draw
    collect_trajectories, score           pipeline.make, which calls score; pipeline.score
    handle_send_to_api                    pipeline.send
    evaluate                              atropos/evaluate.py
    rollout_and_score_eval                atropos/asked_questions.py
    wandb_log, setup_wandb                run.drain_metrics, telemetry/wandb_log.py
    env_manager, process_manager          the commands `serve` and `process`: atropos/serve.py, atropos/process.py
    save_checkpoint, load_checkpoint      trainer/checkpoints.py

Follow one problem in pipeline.py. The commands replace Atropos' own main loop. They call these methods, so a subclass
changes what it overrides. atropos/original_names.py lists the methods of the original environment that are not here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
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

from .atropos import command_line, preflight
from .atropos.asked_questions import rollout_and_score
from .atropos.evaluate import evaluate, evaluate_command
from .atropos.original_names import remedy_of, warn_of_unused_overrides
from .atropos.process import process
from .atropos.serve import serve
from .errors import EnvironmentSetupError
from .inference.chat_tokenizer import ChatTokenizer
from .inference.client import InferenceClient
from .inference.prompts import Prompts, system_message, system_prompt
from .inference.server_types import adapters_of
from .inference.spending import Spending
from .items import (
    Item,
    TestItem,
    complete_keys,
    group_of,
    group_of_dicts,
    item_of,
)
from .pipeline import GroupPipeline
from .records import MASKED
from .run import Mode, Run
from .settings.environment import ReasoningGymEnvConfig, default_configs
from .telemetry.telemetry import keep_newest
from .telemetry.wandb_log import (
    build_table,
    continue_offline,
    forget_timings,
    table_rows,
)
from .trainer.group_file import GroupSink
from .trainer.run_state import RunState, SubclassState
from .utils.shutdown import run_then_close, shutdown_step

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
        self.group_file: GroupSink | None = None
        """Takes the groups of `process`, which sets this before `setup`."""
        self._own = SubclassState(config.seed)
        self._pipeline: GroupPipeline | None = None
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
        run = await Run.start(
            self.config,
            self.mode,
            inference=self.inference,
            prompts=self.prompts,
            state=self.state,
            own=self._own,
            run_id=self._run_id,
            group_file=self.group_file,
        )
        self._pipeline = GroupPipeline(run)
        self.task_names = run.task_names
        self.test_items_with_scorers = run.test_items
        # A subclass can edit the list of questions in its `setup`.
        if self.mode.makes_questions_at_start or type(self).setup is not ReasoningGymEnv.setup:
            await run.questions()

    @property
    def run(self) -> Run:
        """The run. Raises EnvironmentSetupError before `setup`."""
        return self.pipeline.run

    @property
    def pipeline(self) -> GroupPipeline:
        """The pipeline of the run. Raises EnvironmentSetupError before `setup`."""
        if self._pipeline is None:
            raise EnvironmentSetupError("The environment is not set up: await env.setup() first.")
        return self._pipeline

    # --- one group

    async def get_next_item(self) -> Item:
        """The next problem of the stream, made ahead of time; its prompt leaves room for a completion."""
        return item_of(await self.pipeline.draw())

    async def collect_trajectories(self, item: Any) -> tuple[ScoredDataGroup | None, list[Any]]:
        """Sample a group for one item and score it. Returns what the trainer gets, or None, and an empty backlog."""
        return await self.pipeline.make(item, self.score), []

    async def score(self, rollout_group_data: list[dict[str, Any]]) -> ScoredDataGroup | None:
        """Score a group given as dicts: `messages, rg_item, dataset_obj, finish_reason, tokens, masks, logprobs`.

        Every group passes through here, and what this method returns is sent. A subclass may change the dicts before it
        calls `super().score()`, or the scores of what that returns, or score the dicts on its own. All dicts are
        rollouts of one item, whose dataset may be any reasoning-gym dataset. Returns None for an empty group, and for
        equal scores when `ensure_scores_are_not_same` is set.
        """
        if not rollout_group_data:
            return None
        group, completions = group_of_dicts(rollout_group_data, self.config.answer_format)
        payload = await self.pipeline.score(group, completions)
        if "group" not in rollout_group_data[0]:
            # Other code has made the dicts, so this is not a step of the pipeline, which would do the rest.
            await self.run.telemetry.dump(group)
            if payload is None:
                self.pipeline.drop_if_unfinished(group)
        return payload

    async def handle_send_to_api(
        self,
        scored_data: Any,
        item: Any = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> None:
        """Check a scored group, begin to write it to the file of groups if there is one, and to deliver it to the API.

        This replaces Atropos' own method, which drops groups without a log line.
        """
        await self.log_group(scored_data, item)
        group = None if item is None else group_of(item)
        is_sent = self.pipeline.send(
            scored_data,
            group,
            to_api=do_send_to_api,
            heeds_length=abort_on_any_max_length_exceeded,
        )
        self.items_sent_this_step += is_sent

    async def log_group(self, payload: Any, item: Any) -> None:
        """Note a group that is sent or written: its lengths, and rollouts for the table."""
        complete_keys(payload)
        self.completion_lengths.extend(len(mask) - mask.count(MASKED) for mask in payload["masks"])
        keep_newest(self.completion_lengths)
        await self.add_rollouts_for_wandb(payload, item)

    # --- evaluation

    async def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Ask all of `test_items_with_scorers`. Returns the metrics, which the next wandb step logs."""
        return await evaluate(self)

    async def rollout_and_score_eval(self, test_item: TestItem) -> float | None:
        """The score of one `(rg_item, dataset)` of the evaluation set, or None if it could not be scored.

        `evaluate` calls this for each completion of each question. A wrong answer scores what `partial_credit` gives.
        """
        return await rollout_and_score(self, test_item)

    # --- wandb

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Any = None) -> None:
        """Keep some rollouts of a group for the table `train/rollouts`."""
        group = None if item is None else group_of(item)
        rows = table_rows(
            scored_data,
            decode=partial(self.tokenizer.decode, skip_special_tokens=True),
            completions=[] if group is None else [rollout.completion for rollout in group.rollouts],
            keep=self.config.num_rollouts_per_group_for_logging,
            expected_answer="" if item is None else item[1].get("answer"),
            task="" if group is None else group.problem.task,
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
        metrics = {
            **(wandb_metrics or {}),
            **self.run.drain_metrics(),
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
            self.run.failures.note("metrics_not_logged_to_wandb", what, f"{type(error).__name__}: {error}")
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
        return self.run.checkpoints.begin(step, data)

    def load_checkpoint(self) -> None:
        """Continue from the newest usable checkpoint; see `RunCheckpoints.load`.

        The `data` that was saved with it become attributes, as in Atropos.
        """
        for name, value in self.run.checkpoints.load().items():
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
        return self._pipeline.run.stream.index if self._pipeline else 0

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
        return self._pipeline.run.run_id if self._pipeline else self._run_id

    @run_uuid.setter
    def run_uuid(self, value: str) -> None:
        self._run_id = value
        if self._pipeline:
            self._pipeline.run.telemetry.dumps.run_id = value

    @property
    def datadumps_dir(self) -> Path:
        """The folder of the dumps. A new folder is used from the next file on."""
        return self._pipeline.run.telemetry.dumps.folder if self._pipeline else self.config.dumps_folder

    @datadumps_dir.setter
    def datadumps_dir(self, folder: str | Path) -> None:
        self.config.data_dumps_dir = str(folder)
        if self._pipeline:
            self._pipeline.run.telemetry.dumps.folder = Path(folder)

    @property
    def percent_correct_buffer(self) -> list[float]:
        """1.0 or 0.0 for each rollout since the last log step: whether its base score is at least 0.5.

        If there are very many, the list has only the newest.
        """
        return self._pipeline.run.telemetry.percent_correct if self._pipeline else []

    @percent_correct_buffer.setter
    def percent_correct_buffer(self, values: list[float]) -> None:
        if self._pipeline:
            self._pipeline.run.telemetry.percent_correct[:] = values

    def get_curriculum_stats(self) -> dict[str, Any]:
        """Where the curriculum is: totals, and per task the level, recent accuracy and adjustments.

        `task_details` and `curriculum_mode` are the original environment's names.
        """
        mode = self.config.complexity_mode
        stats = self.run.item_source.curriculum.stats()
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
        if self._pipeline is not None:
            await self._pipeline.run.close()
