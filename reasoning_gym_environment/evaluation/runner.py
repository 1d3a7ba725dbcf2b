"""Runs an evaluation: requests the completions of the held-out questions, grades them, and keeps the answers on disk.

    scored completion ──> a line of answers.jsonl        last completion ──> samples.jsonl, metrics.json (Atropos')
                               └── next start with the same questions, model and sampling ──> request the rest

Each line of answers.jsonl has the settings of the evaluation. The command removes the file as soon as samples.jsonl has
all of its lines. An unscored completion is not kept. The next start requests it again.

A completion is *unscored* if the server could not give it, or if its grading crashed. The results report its reason,
and no mean counts it. If the verifier of an answer runs out of time or memory twice, the answer scores 0, because the
answer is the cause. Otherwise a model could exclude hard questions from its accuracy.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import EnvironmentSetupError, InferenceError
from ..inference.prompts import Message, Prompts, RequestParameters
from ..inference.spending import plan
from ..records import Completion, Outcome, Problem
from ..sampling.seeds import question_digest
from ..scoring.rewards import base_reward
from ..scoring.scorer import Scorer
from ..settings.components import PartialCredit
from ..storage.append_log import AppendLog, BrokenLineError, differences, read_object
from ..storage.disk_queue import DiskQueue
from ..storage.files import EVALUATION_SETTINGS
from ..storage.lines import sample_fields, sample_of, unscored_fields
from ..telemetry.alarms import CompletionWatch
from ..utils.resilience import cancel_and_wait
from ..utils.shutdown import uninterrupted
from ..utils.terminal import Progress
from .questions import EvalSet
from .results import MORE_ROOM, PROMPT_TOO_LONG
from .statistics import Question

if TYPE_CHECKING:
    # The client needs Atropos. Programs that only grade replies do not.
    from ..inference.client import InferenceClient

logger = logging.getLogger(__name__)

Ask: TypeAlias = Callable[[Problem, int], Awaitable[dict[str, Any]]]
"""Returns the sample of a problem's completion with this number."""

NO_TOKENS_LEFT = "not requested: limit_tokens is reached"


@dataclass(frozen=True)
class AnswerKey:
    """Identifies one completion of one question."""

    task: str
    index: int
    seed: int
    question_digest: str
    attempt: int


@dataclass(frozen=True)
class FirstEvaluation:
    """The right answers of an evaluation, by question, and the trainer's step."""

    step: int
    exact: Mapping[Any, Question]


@dataclass
class Evaluator:
    """Requests `completions` replies of the model to each held-out problem and scores them."""

    inference: InferenceClient
    scorer: Scorer
    _: KW_ONLY
    prompts: Prompts
    concurrency: int
    completions: int = 1
    temperature: float | None = 0.1
    partial_credit: PartialCredit = "exact"
    patience_s: float | None = None
    watch: CompletionWatch = field(default_factory=CompletionWatch)
    first: FirstEvaluation | None = None
    """The first evaluation of the run, with which later ones are compared."""
    newest: str = ""
    """The result of the newest evaluation of the run, for the status."""

    def plan(self, eval_set: EvalSet, answers: AnswerLog) -> str:
        """Sentences on what `samples` will request."""
        requests = 0
        too_long = 0
        prompt_tokens = 0
        completion_tokens = 0
        for key, problem in self._problems_by_key(eval_set).items():
            if key not in answers.finished:
                size = len(self.prompts.of_question(problem.question).tokens)
                budget = self.prompts.room_for_evaluation(size)
                if budget is None:
                    too_long += 1
                    continue
                requests += 1
                prompt_tokens += size
                completion_tokens += budget
        sentences = plan(requests, prompt_tokens, completion_tokens)
        if requests:
            sentences += f" Up to {self.concurrency:,} requests run at the same time."
        if too_long:
            sentences += f" {too_long} completions are not requested, because their prompts are too long: {MORE_ROOM}."
        return sentences

    def _problems_by_key(self, eval_set: EvalSet) -> dict[AnswerKey, Problem]:
        """The problem of every completion that this evaluation needs."""
        problems = {}
        for problem in eval_set:
            digest = question_digest(problem.library_question)
            for attempt in range(self.completions):
                key = AnswerKey(problem.task, problem.index, problem.seed, digest, attempt)
                problems[key] = problem
        return problems

    async def samples(
        self,
        eval_set: EvalSet,
        answers: AnswerLog,
        *,
        ask: Ask | None = None,
    ) -> list[dict[str, Any]]:
        """The samples of all completions, in order. `ask`, by default `evaluate_one`, makes what `answers` lacks.

        `answers` receives each scored sample immediately. While its disk is full or hangs, samples wait in memory, and
        no further requests go out.
        """
        ask = self.evaluate_one if ask is None else ask
        problems = self._problems_by_key(eval_set)
        samples = {key: answers.finished[key] for key in problems if key in answers.finished}
        missing = [key for key in problems if key not in samples]
        if samples:
            logger.info("%d of %d completions exist already.", len(samples), len(problems))
        bar = Progress(total=len(missing), desc="evaluate", unit="completion")
        slots = asyncio.Semaphore(max(1, self.concurrency))
        spending = self.inference.spending
        writer = DiskQueue(
            answers.add,
            name="answers",
            remedy="no further requests go out, and the write is tried again every few seconds. Free some space",
        )

        async def add_sample(key: AnswerKey) -> None:
            async with slots:
                if spending.is_over:
                    sample = self._unscored(problems[key], key.attempt, NO_TOKENS_LEFT)
                else:
                    sample = await ask(problems[key], key.attempt)
                sample["manifest"] = eval_set.manifest
                samples[key] = sample
                if sample["score"] is not None:
                    # The inference for this answer is paid, so the answer is saved even if the evaluation stops now.
                    await uninterrupted(writer.put(sample))
            bar.set_postfix_str(spending.total(), refresh=False)
            bar.update()

        tasks = [asyncio.ensure_future(add_sample(key)) for key in missing]
        with bar:
            try:
                if tasks:
                    # Unlike `gather`, `wait` leaves it to the lines below what a cancellation does to the tasks.
                    finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                    for task in finished:
                        task.result()
            finally:
                # After an error, the remaining tasks must not send further requests.
                writer.stop()
                await cancel_and_wait(tasks)
                if writer.lost:
                    logger.error("%d answers were not written. The same command asks for them again.", writer.lost)
                if writer.hangs:
                    answers.abandon()
        self.watch.look()
        return [samples[key] for key in problems]

    async def evaluate_one(self, problem: Problem, attempt: int = 0) -> dict[str, Any]:
        """The sample of one completion, which has no score if the completion could not be requested or graded."""
        messages = self.prompts.messages(problem.question)
        prompt = self.prompts.render(messages)
        budget = self.prompts.room_for_evaluation(len(prompt.tokens))
        if budget is None:
            return self._unscored(problem, attempt, PROMPT_TOO_LONG)
        parameters = RequestParameters(
            n=1,
            max_tokens=budget,
            split="eval",
            patience_s=self.patience_s,
            temperature=self.temperature,
        )
        try:
            [completion] = await self.inference.complete(prompt, parameters)
        except InferenceError as error:
            logger.debug("Evaluation item of %s is unscored: %s", problem.task, error)
            return self._unscored(problem, attempt, f"inference failed: {error}")
        return await graded_sample(
            self.scorer,
            self.watch,
            problem,
            messages,
            completion,
            attempt,
            partial_credit=self.partial_credit,
        )

    def _unscored(self, problem: Problem, attempt: int, reason: str) -> dict[str, Any]:
        messages = self.prompts.messages(problem.question)
        return sample_of(problem, messages, attempt, unscored_fields(reason))


async def graded_sample(
    scorer: Scorer,
    watch: CompletionWatch,
    problem: Problem,
    messages: Iterable[Message | Mapping[str, str]],
    completion: Completion,
    attempt: int,
    *,
    partial_credit: PartialCredit,
) -> dict[str, Any]:
    """Grade a completion. It is unscored if grading crashed. It is wrong if its verifier ran out of time or memory."""
    [score] = await scorer.score(problem, [completion])
    if not score.outcome.is_scored and not completion.invalid_reason:
        # The grader can fail because the machine is busy. The second attempt then usually succeeds.
        [score] = await scorer.score(problem, [completion])
    watch.observe(problem, [completion], [score])
    if score.outcome is Outcome.CRASHED:
        return sample_of(problem, messages, attempt, unscored_fields(score.outcome.value), completion)
    scored = sample_fields(score, base_reward(score, partial_credit))
    return sample_of(problem, messages, attempt, scored, completion)


# --- answers on disk, with which a killed evaluation resumes

ANSWERS = "answers.jsonl"
SAMPLES = "samples.jsonl"
METRICS = "metrics.json"

IDENTITY_SETTINGS = (
    "model_name",
    "manifest",
    "answer_format",
    "system_prompt",
    "chat_template",
    "chat_template_kwargs",
    "temperature",
    "n",
    "max_new_tokens",
    "verification",
    "partial_credit",
)
"""Answers belong to the same evaluation if these are equal: its questions, its model, its sampling and its grading."""

REMEDY = "Set env.data_dir_to_save_evals to another folder, or the settings to what they were."


class AnswerLog:
    """The answers of one evaluation in `folder`, which a later start resumes. Without a folder, it keeps nothing.

    Use it in a `with` statement. `identity` has the names of IDENTITY_SETTINGS. The first answer writes `settings` to
    evaluate_config.yaml. `finished` has the scored samples of earlier starts.

    Raises EnvironmentSetupError if another run writes to the folder, if the folder cannot be read, or if it has the
    answers of another evaluation.
    """

    def __init__(self, folder: str | None, identity: Mapping[str, Any], *, settings: str = "") -> None:
        self.finished: dict[Any, dict[str, Any]] = {}
        self._file: AppendLog | None = None
        self._settings = settings
        if folder is None:
            return
        path = Path(folder, ANSWERS)
        identity = {name: identity.get(name) for name in IDENTITY_SETTINGS}
        try:
            for sample in _finished_samples(path.parent, identity):
                key = _key_if_scored(sample)
                if key is not None:
                    self.finished[key] = sample
            self._file = AppendLog(
                path,
                identity,
                key=_key_if_scored,
                keep=_without_settings,
                remedy=REMEDY,
            )
        except OSError as error:
            raise EnvironmentSetupError(f"Cannot read the answers in {folder}: {error}.") from error
        self.finished.update(self._file.done)

    def add(self, sample: dict[str, Any]) -> None:
        """Keep a scored sample (plain data). Raises OSError if the disk refuses it; then it can be added again."""
        file = self._file
        if file is None:
            return
        if not file.size and self._settings:
            file.path.with_name(EVALUATION_SETTINGS).write_text(self._settings, encoding="utf-8")
        file.append({**sample, "settings": file.settings})

    def abandon(self) -> None:
        """Leave the file to the end of the process, because closing it would wait for a disk that hangs."""
        self._file = None

    def finish(self) -> None:
        """Remove the file of answers, because samples.jsonl has all of them."""
        if self._file is not None:
            self._file.path.unlink(missing_ok=True)
        self._close()

    def __enter__(self) -> AnswerLog:
        return self

    def __exit__(self, *_: object) -> None:
        file = self._file
        if file is not None and file.count:
            logger.info(
                "Kept %d answers in %s. Run the same command again to resume.",
                file.count,
                file.path,
            )
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _key_if_scored(sample: Mapping[str, Any]) -> AnswerKey | None:
    if sample.get("score") is None:
        return None
    values: Any = [sample.get(field.name) for field in fields(AnswerKey)]
    return AnswerKey(*values)


def _without_settings(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "settings"}


def _finished_samples(folder: Path, identity: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The samples of a complete evaluation in `folder`. Raises EnvironmentSetupError if its identity is another."""
    metrics = folder / METRICS
    samples = folder / SAMPLES
    if not metrics.is_file() or not samples.is_file():
        return
    try:
        general = json.loads(metrics.read_text(encoding="utf-8"))["config_general"]
        old = {**general["generation_parameters"], "model_name": general["model_name"]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise EnvironmentSetupError(f"Expected results of an evaluation in {metrics}: {error!r}. {REMEDY}") from error
    changes = differences(old, identity)
    if changes:
        raise EnvironmentSetupError(f"{folder} holds another evaluation: {changes}. {REMEDY}")
    with samples.open("rb") as file:
        for line in file:
            try:
                yield read_object(line)
            except BrokenLineError as error:
                # Atropos writes this file in one go. If it is killed meanwhile, the last line is torn.
                logger.warning(
                    "Ignoring a line with %s in %s. The evaluation repeats its request.",
                    error,
                    samples,
                )
