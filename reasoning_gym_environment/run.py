"""A run: everything that `serve`, `process` or `evaluate` works with, made in one place.

    settings, workers, inference client ──> Run ──> env.py: the steps of one group, which Atropos calls hooks
                                             └────> atropos/: the loop that calls them, and the three commands

A Run is complete when it is constructed: no other code assigns its attributes later.
The mode says which command the run belongs to, and decides what differs between the commands. The changing state is in
the components: the trainer's progress in `state`, the items in `item_source`, the counters in `telemetry` and
`failures`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from .evaluation.questions import EvalSet
from .evaluation.results import OWN
from .evaluation.runner import Evaluator
from .group import ProblemDataset, TestItem
from .inference.client import InferenceClient
from .inference.prompts import Prompts
from .ledger import Ledger
from .recorder import Recorder
from .records import Problem
from .runtime import Runtime
from .sampling.item_stream import ItemSource
from .scoring.scorer import Scorer
from .settings.components import workers_for_cores
from .settings.environment import ReasoningGymEnvConfig
from .telemetry.telemetry import Telemetry
from .trainer.checkpoints import RunCheckpoints
from .trainer.run_api import TrajectoryApi
from .trainer.run_state import RunState, SubclassState
from .trainer.sinks import Sink, TrainerSink
from .trainer.transport import Transport
from .utils.resilience import RepeatedEvents
from .utils.shutdown import shutdown_step

logger = logging.getLogger(__name__)

OFFLINE_PATIENCE_S = 300.0
"""`process` and `evaluate` end after all inference servers have been unavailable for this long.

The results so far stay on disk.
"""


class Mode(Enum):
    """Which command a run belongs to."""

    SERVE = "serve"
    """Groups go to a trainer, which takes its own steps and must not wait."""

    PROCESS = "process"
    """Groups go to a file. Groups with equal rewards are data too."""

    EVALUATE = "evaluate"
    """The model answers only the held-out questions."""

    LIBRARY = "library"
    """Other code sets up the environment and calls its methods."""

    @property
    def has_trainer(self) -> bool:
        """Whether the groups are for a trainer. Its steps measure the age of a completion."""
        return self in (Mode.SERVE, Mode.LIBRARY)

    @property
    def makes_questions_at_start(self) -> bool:
        """Whether `setup` makes the held-out questions. Otherwise the first evaluation makes them."""
        return self in (Mode.EVALUATE, Mode.LIBRARY)

    @property
    def patience_s(self) -> float | None:
        """How long all inference servers may be unavailable before a request fails; None for no limit."""
        return OFFLINE_PATIENCE_S if self in (Mode.PROCESS, Mode.EVALUATE) else None


async def start_tasks(
    config: ReasoningGymEnvConfig, mode: Mode, too_long: Callable[[str], str]
) -> tuple[Runtime, ItemSource]:
    """Start the workers and find the tasks. Raises EnvironmentSetupError; then no worker runs.

    `too_long(question)` says why a question does not fit, or returns "" if it fits.
    """
    logger.info("Starting workers and loading reasoning-gym.")
    settings = config
    if mode is Mode.EVALUATE:
        # An evaluation draws no training items, so it needs no levels. While the workers make the questions, the rest
        # of the program is idle, so the workers can use more of the cores.
        workers = config.num_generation_workers or workers_for_cores(1, at_most=8)
        settings = config.model_copy(update={"complexity_mode": None, "num_generation_workers": workers})
    runtime = Runtime(settings)
    await runtime.start()
    try:
        logger.info("Using %s.", runtime.library.describe())
        runtime.check_held_out(config)
        return runtime, runtime.item_source(settings, too_long=too_long)
    except BaseException:
        await runtime.close()
        raise


class Run:
    """One run of one process, until `close`."""

    def __init__(
        self,
        config: ReasoningGymEnvConfig,
        mode: Mode,
        runtime: Runtime,
        item_source: ItemSource,
        *,
        inference: InferenceClient,
        prompts: Prompts,
        state: RunState,
        own: SubclassState,
        run_id: str,
        sink: Sink | None = None,
    ) -> None:
        """The workers of `runtime` must be running; `item_source` gets its training items from them.

        `own` is the state of a subclass. `sink` receives the groups; by default, it is the trainer's.
        """
        self.config = config
        self.mode = mode
        self.runtime = runtime
        self.scorer = Scorer(runtime.grader, thinking_opened=prompts.thinking_opened)
        self.item_source = item_source
        self.stream = item_source.stream
        self.inference = inference
        self.prompts = prompts
        self.state = state
        self.own = own
        self.failures = RepeatedEvents(logger)
        self.telemetry = Telemetry(config, run_id, runtime.library.version)
        self.dumps = self.telemetry.dumps
        self.api = TrajectoryApi(config, state, self.failures, Transport(config.rollout_server_url))
        self.sink = sink or TrainerSink(self.api, config.data_path_to_save_groups, self.failures)
        self.checkpoints = RunCheckpoints(config, state, self._saved_components())
        self.evaluator = self._evaluator()
        self.drops_equal_scores = config.ensure_scores_are_not_same and mode is not Mode.PROCESS
        self.ledger = Ledger(self.stream.pending, self.telemetry, self.failures, requeues=mode.has_trainer)
        self.recorder = Recorder(
            item_source,
            self.telemetry,
            self.failures,
            state,
            self.ledger,
            drops_equal_scores=self.drops_equal_scores,
        )
        if mode is not Mode.EVALUATE and config.keeps_groups:
            logger.info("The dumps of rollouts are in %s.", config.dumps_folder.resolve())
        self._questions: EvalSet | None = None
        self.test_items: list[TestItem] = []
        """`(rg_item, dataset)` of each held-out question; empty until the workers have made the questions."""

    def _saved_components(self) -> dict[str, Any]:
        """What a checkpoint holds, by name."""
        return {
            **self.item_source.stateful,
            "prompts": self.prompts,
            "group_outcomes": self.telemetry.outcomes,
            "dumps": self.dumps,
            "subclass": self.own,
        }

    def _evaluator(self) -> Evaluator:
        config = self.config
        return Evaluator(
            self.inference,
            self.scorer,
            prompts=self.prompts,
            concurrency=self.inference.room("eval"),
            completions=config.eval_completions,
            temperature=config.eval_temperature,
            partial_credit=config.partial_credit,
            patience_s=self.mode.patience_s,
        )

    def sampling_step(self) -> int | None:
        """The trainer's current step, for a request that goes out now; None without a trainer."""
        return self.state.step if self.mode.has_trainer else None

    @property
    def task_names(self) -> list[str]:
        """The names of the served tasks. An evaluation also has the tasks that training excludes."""
        source = self.runtime if self.mode is Mode.EVALUATE else self.stream.maker
        return source.catalog.names

    @property
    def run_id(self) -> str:
        """The name of this run in dumps and logs. A resumed run keeps its name."""
        return self.dumps.run_id

    @property
    def evals_folder(self) -> Path | None:
        """The folder for the results of evaluations during training; None if they are not saved."""
        if self.config.data_dir_to_save_evals is not None:
            return Path(self.config.data_dir_to_save_evals)
        return self.config.dumps_folder / f"evals_{self.run_id}" if self.config.keep_for_report else None

    # --- held-out questions

    async def questions(self) -> EvalSet:
        """The held-out questions, made at the first call.

        During training the workers make one question at a time, so that training has priority. Raises
        EnvironmentSetupError.
        """
        if self._questions is None:
            pace = {} if self.mode.makes_questions_at_start else {"at_once": 1}
            questions = await self.runtime.held_out(self.config, **pace)
            self.test_items += [(problem.entry, ProblemDataset(problem)) for problem in questions]
            self._questions = questions
        return self._questions

    def eval_set_of(self, problems: Sequence[Problem]) -> EvalSet:
        """The description of the questions of an evaluation: our questions, or the choice of a subclass."""
        ours = self._questions
        if ours is not None and problems == ours.problems:
            return ours
        if ours is not None and all(problem in ours.problems for problem in problems):
            return replace(ours, problems=list(problems))
        # Training may ask these questions, because they are not held out.
        library = self.runtime.library
        return EvalSet(list(problems), complexity=OWN, seed=self.config.eval_seed, version=library.version)

    # --- metrics

    def drain_metrics(self) -> dict[str, Any]:
        """Everything to log now: counts since the last call, and totals since the start."""
        return {
            **self.telemetry.drain(),
            **self.item_source.metrics(),
            **self.runtime.metrics(),
            **self.inference.metrics(),
            **self.failures.metrics("train/failures"),
            **self.api.metrics(),
        }

    # --- the end

    async def close(self) -> None:
        """Stop everything, in the order of a group's life: items, workers, delivery, files, state. Safe to call twice.

        The caller must have ended its groups. Every step runs, even if another step fails. A step that fails or hangs
        is logged.
        """
        await shutdown_step("stopping the item stream", self.stream.close())
        await shutdown_step("stopping the workers", self.runtime.close())
        await shutdown_step("leaving the trajectory API", self.api.close())
        await shutdown_step("finishing the dumps", self.dumps.close())
        await shutdown_step("finishing the file of groups", self.sink.close())
        self.failures.summarise()
        events = self.inference.events
        events.summarise()
        self.telemetry.summarise()
        if self.mode is Mode.SERVE and self.config.keeps_groups:
            logger.info("To see this run: reasoning-gym-env report %s", self.dumps.pattern)
        await shutdown_step("writing the last checkpoint", self.checkpoints.save_latest())
        self.checkpoints.leave()
