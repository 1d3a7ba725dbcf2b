"""From settings to running components: the one place where they are made and joined."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .config import ReasoningGymEnvConfig
from .evaluation import EvaluationSettings
from .evaluation.questions import AT_ONCE, PRESETS, EvalSet, build_eval_set, check_choice
from .evaluation.runner import Evaluator
from .inference.availability import HangLimits
from .inference.client import InferenceClient, Spending
from .inference.prompts import RenderedPrompts, TokenBudget, build_messages
from .sampling.item_maker import ItemMaker
from .sampling.item_stream import ItemStream, Sampler, build_sampler, ladders_of
from .sampling.seeds import HoldOut
from .scoring.rewards import CreditRule
from .scoring.scorer import Scorer
from .tasks import reasoning_gym_source as library
from .tasks.catalog import Catalog, served_tasks
from .tasks.measured_data import load_floors
from .training_log.group_file import WrittenGroup
from .verification import eval_guards
from .workers.generator import ProcessGenerator
from .workers.grader import SandboxGrader

logger = logging.getLogger(__name__)


@dataclass
class Components:
    """Everything a set-up environment consists of."""

    library: library.Library
    catalog: Catalog
    generator: ProcessGenerator
    grader: SandboxGrader
    sampler: Sampler
    stream: ItemStream
    credit: CreditRule
    inference: InferenceClient
    prompts: RenderedPrompts
    token_budget: TokenBudget
    scorer: Scorer
    evaluator: Evaluator
    make_eval_set: Callable[[int], Awaitable[EvalSet]]
    thinking_opened: bool
    eval_set: EvalSet | None = None

    async def questions(self, *, at_once: int = AT_ONCE) -> EvalSet:
        """The held-out questions, made when they are first asked for, `at_once` items at the same time."""
        if self.eval_set is None:
            self.eval_set = await self.make_eval_set(at_once)
        return self.eval_set

    def go_on_with(self, written: Sequence[WrittenGroup]) -> None:
        """Let the choosers see the groups that an earlier start has made, whose items are not drawn again."""
        self.stream.leave_out({group.index for group in written})
        for group in written:
            if group.credits and group.task in self.catalog:
                self.sampler.learn(group.task, group.level, group.credits, group.has_signal)

    def metrics(self) -> dict[str, Any]:
        parts = (self.sampler, self.generator, self.grader, self.inference, self.scorer)
        return {name: value for part in parts for name, value in part.metrics().items()}

    def name_instance(self, name: str) -> None:
        """Give this instance's item stream its name, so that no two instances share an item."""
        self.stream.instance = name
        logger.info("This instance draws item stream %r.", name)

    async def close(self) -> None:
        await self.stream.close()
        await _close(self.generator, self.grader)


async def assemble(
    config: ReasoningGymEnvConfig, server: Any, tokenizer: Any, *, trainer_max_tokens: Callable[[], int]
) -> Components:
    """Build the components for one run. Raises EnvironmentSetupError with what to change; then nothing runs."""
    found = library.find()
    generator, grader = ProcessGenerator.of(config.generation, found), SandboxGrader.of(config.grading, found)
    logger.info("Starting workers, and loading reasoning-gym.")
    # Each of them imports it too, which takes a second or more.
    workers = asyncio.ensure_future(_start_workers(generator, grader))
    try:
        return await _join(config, server, tokenizer, workers, trainer_max_tokens=trainer_max_tokens)
    except BaseException:
        workers.cancel()
        await asyncio.gather(workers, return_exceptions=True)
        await _close(generator, grader)
        raise


async def _join(
    config: ReasoningGymEnvConfig,
    server: Any,
    tokenizer: Any,
    workers: Awaitable[tuple[ProcessGenerator, SandboxGrader]],
    *,
    trainer_max_tokens: Callable[[], int],
) -> Components:
    limits = HangLimits(config.hang_factor, config.hang_floor_s)
    spending = Spending(config.price_per_million, config.limit_tokens)
    inference = InferenceClient(server, tokenizer, config.tokenizer_name, limits, spending)
    max_prompt_tokens = config.max_prompt_tokens or config.max_token_length // 2
    token_budget = TokenBudget(config.max_token_length, max_prompt_tokens, trainer_max_tokens)
    prompts = RenderedPrompts(tokenizer, token_budget)
    thinking_opened = inference.render(build_messages("")).thinking_opened
    found = await asyncio.to_thread(library.load)
    logger.info("Using %s.", found.describe())
    catalog = served_tasks(config.tasks, eval_guards.unguarded_tasks)
    evaluation = config.evaluation
    if evaluation.num_eval_samples_per_task:
        check_choice(catalog, evaluation.eval_tasks, evaluation.eval_seed, evaluation.eval_complexity)
    sampling = config.sampling
    ladders = await ladders_of(catalog, sampling.complexity_mode, sampling.difficulty_range)
    generator, grader = await workers
    hold_out = HoldOut()
    strict = config.tasks.strict
    maker = ItemMaker(catalog, generator, too_long=prompts.too_long, held_out=hold_out, strict=strict)
    sampler = build_sampler(sampling, maker, ladders)
    if evaluation.hold_out == "published":
        await _leave_out_published(hold_out, evaluation, maker)
    evaluator = Evaluator(
        inference,
        # The score of an evaluation is the verifier's.
        Scorer(grader),
        budget=token_budget.of_evaluation,
        # Atropos' test harness has a plain semaphore, which does not tell its size.
        concurrency=sum(getattr(one.eval_sem, "max_val", 1) for one in server.servers),
        thinking_opened=thinking_opened,
        completions=evaluation.eval_completions,
        temperature=evaluation.eval_temperature,
    )
    return Components(
        library=found,
        catalog=catalog,
        generator=generator,
        grader=grader,
        sampler=sampler,
        stream=sampler.stream,
        credit=CreditRule(config.partial_credit, load_floors(), config.binary_threshold),
        inference=inference,
        prompts=prompts,
        token_budget=token_budget,
        scorer=Scorer(grader, with_baselines=config.partial_credit == "baseline"),
        evaluator=evaluator,
        make_eval_set=lambda at_once: _eval_set(evaluation, maker, found.version, at_once=at_once),
        thinking_opened=thinking_opened,
    )


async def _start_workers(generator: ProcessGenerator, grader: SandboxGrader) -> tuple[ProcessGenerator, SandboxGrader]:
    """Both, started at the same time. Raises the error of one that cannot start, once the other has."""
    results = await asyncio.gather(generator.start(), grader.start(), return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        raise failures[0]
    return generator, grader


async def _close(generator: ProcessGenerator, grader: SandboxGrader) -> None:
    await asyncio.gather(generator.close(), grader.close())


async def _eval_set(settings: EvaluationSettings, maker: ItemMaker, version: str, **options: Any) -> EvalSet:
    given = {"complexity": settings.eval_complexity, "difficulty_range": settings.difficulty_range, **options}
    return await build_eval_set(
        maker,
        tasks=settings.eval_tasks,
        per_task=settings.num_eval_samples_per_task,
        seed=settings.eval_seed,
        version=version,
        show_progress=True,
        **given,
    )


async def _leave_out_published(hold_out: HoldOut, settings: EvaluationSettings, maker: ItemMaker) -> None:
    """What an evaluation beside published results would ask, with the run's own eval_tasks, eval_seed and number."""
    for preset in PRESETS:
        for problem in await _eval_set(settings, maker, "", complexity=preset):
            hold_out.add(problem.question)
