"""Asking the model the held-out questions, what came of each completion, and what is on disk of it.

    completion scored ──> a line of answers.jsonl        all answered ──> samples.jsonl, metrics.json (Atropos')
                               └── the next start: same questions, model and sampling? ──> only the rest is asked

The first line of answers.jsonl says which evaluation it belongs to. The file is removed once samples.jsonl has all of
its lines. An answer that could not be scored is not kept, so that it is asked for again.

A completion that the server could not give, or whose grading broke down, is *unscored*: it is counted and named, and
does not lower any mean. An answer whose verifier twice ran out of time or memory scores 0: that is the answer's doing,
and a model must not leave the hard questions out of its accuracy by it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tqdm import tqdm

from ..errors import EnvironmentSetupError, InferenceError
from ..inference.prompts import Sampling, build_messages
from ..records import Completion, Outcome, Problem, Score, plain
from ..sampling.item_maker import question_digest
from ..scoring.scorer import Scorer, score_with_retry
from ..storage.json_lines import AppendLog, BrokenLineError, differences, read_object
from ..utils.resilience import ended
from .questions import EvalSet

if TYPE_CHECKING:
    # It needs Atropos; who only grades given replies does not.
    from ..inference.client import InferenceClient

logger = logging.getLogger(__name__)

NO_TOKENS_LEFT = "not asked: limit_tokens is reached"


@dataclass
class Evaluator:
    """Asks the model every held-out problem `completions` times and scores the replies."""

    inference: InferenceClient
    scorer: Scorer
    _: KW_ONLY
    budget: Callable[[int], int | None]
    concurrency: int
    thinking_opened: bool
    completions: int = 1
    temperature: float = 0.1
    patience_s: float | None = None

    def plan(self, eval_set: EvalSet, journal: Journal) -> str:
        """One sentence on what `samples` will ask."""
        missing = [one for key, (one, _) in self._places(eval_set).items() if key not in journal.answered]
        sizes = [len(self.inference.render(build_messages(one.question)).tokens) for one in missing]
        budgets = [self.budget(size) or 0 for size in sizes]
        return self.inference.spending.plan(len(sizes), sum(sizes), sum(budgets))

    def _places(self, eval_set: EvalSet) -> dict[Key, tuple[Problem, int]]:
        """Every completion that is asked for: the problem, and the number of the attempt."""
        return {
            (problem.task, problem.index, problem.seed, question_digest(problem.question), attempt): (problem, attempt)
            for problem in eval_set
            for attempt in range(self.completions)
        }

    async def samples(
        self, eval_set: EvalSet, journal: Journal, *, show_progress: bool = False
    ) -> list[dict[str, Any]]:
        """`completions` samples of each question, in order: those that `journal` has, and the rest from the model.

        The journal gets each scored sample at once. Raises EnvironmentSetupError if it cannot be written.
        """
        places = self._places(eval_set)
        found = {key: journal.answered[key] for key in places if key in journal.answered}
        if found:
            logger.info("%d of %d completions are there already.", len(found), len(places))
        missing, spending = {key: place for key, place in places.items() if key not in found}, self.inference.spending
        bar = tqdm(total=len(missing), desc="evaluate", unit="completion", disable=None if show_progress else True)

        slots = asyncio.Semaphore(max(1, self.concurrency))

        async def one(key: Key, problem: Problem, attempt: int) -> None:
            async with slots:
                if spending.is_over:
                    sample = sample_of(problem, attempt, unscored_reason=NO_TOKENS_LEFT)
                else:
                    sample = await self.evaluate_one(problem, attempt)
            found[key] = {**sample, "manifest": eval_set.manifest}
            if sample["score"] is not None:
                journal.add(found[key])
            bar.set_postfix_str(spending.total(), refresh=False)
            bar.update()

        tasks = [asyncio.ensure_future(one(key, *place)) for key, place in missing.items()]
        with bar:
            try:
                await asyncio.gather(*tasks)
            finally:
                # After an error the others must not continue asking the server.
                await ended(tasks)
        return [found[key] for key in places]

    async def evaluate_one(self, problem: Problem, attempt: int = 0) -> dict[str, Any]:
        """The sample of one completion; without a score if we could not get one."""
        prompt = self.inference.render(build_messages(problem.question))
        budget = self.budget(len(prompt.tokens))
        if budget is None:
            return sample_of(problem, attempt, unscored_reason="prompt_too_long")
        sampling = Sampling(
            n=1, max_tokens=budget, temperature=self.temperature, split="eval", patience_s=self.patience_s
        )
        try:
            [completion] = await self.inference.complete(prompt, sampling)
        except InferenceError as error:
            logger.debug("Evaluation item of %s is unscored: %s", problem.task, error)
            return sample_of(problem, attempt, unscored_reason=f"inference failed: {error}")
        return await graded_sample(self.scorer, problem, completion, attempt, thinking_opened=self.thinking_opened)


# --- one completion: graded, and as a line of samples.jsonl


async def graded_sample(
    scorer: Scorer, problem: Problem, completion: Completion, attempt: int, *, thinking_opened: bool
) -> dict[str, Any]:
    """What broke our grading is unscored; what was too much for its verifier is wrong."""
    [score] = await score_with_retry(scorer, problem, [completion], thinking_opened=thinking_opened)
    if score.outcome is Outcome.CRASHED:
        return sample_of(problem, attempt, completion, unscored_reason=score.outcome.value)
    return sample_of(problem, attempt, completion, score)


def sample_of(
    problem: Problem,
    attempt: int,
    completion: Completion | None = None,
    score: Score | None = None,
    unscored_reason: str = "",
) -> dict[str, Any]:
    """One line of Atropos' samples.jsonl, as plain data."""
    messages = [dict(message) for message in build_messages(problem.question)]
    if completion is not None:
        messages.append({"role": "assistant", "content": completion.text})
    sample = {
        "messages": messages,
        "question": problem.question,
        "gold_answer": problem.entry.get("answer"),
        **scored_fields(score, unscored_reason),
        "finish_reason": completion.finish_reason if completion else None,
        "num_completion_tokens": completion.num_completion_tokens if completion else None,
        **{name: getattr(problem, name) for name in ("task", "category", "seed", "index", "level", "complexity")},
        "config": dict(problem.config),
        "attempt": attempt,
        "question_digest": question_digest(problem.question),
    }
    return {name: plain(value) for name, value in sample.items()}


def scored_fields(score: Score | None, unscored_reason: str = "") -> dict[str, Any]:
    """What a sample says of its score; None where it has none."""
    return {
        "model_parsed": score.answer if score else None,
        "score": score.value if score else None,
        "native_score": score.native if score else None,
        "correct": bool(score and score.value >= 1.0),
        "outcome": score.outcome.value if score else "unscored",
        "format_failure": score.failure.value if score and score.failure else None,
        "unscored_reason": unscored_reason or None,
    }


# --- the answers so far, on disk: an evaluation that is killed is resumed where it stopped

ANSWERS = "answers.jsonl"
SAMPLES, METRICS = "samples.jsonl", "metrics.json"
SETTINGS = "evaluate_config.yaml"

MUST_BE_EQUAL = (
    "model_name",
    "manifest",
    "system_prompt",
    "temperature",
    "n",
    "max_new_tokens",
    "verification",
    "grading",
    "scoring_timeout_s",
)
"""What makes answers those of one evaluation: the questions, the model, how it is sampled and how it is graded."""


def grading(verification: str) -> str:
    """The rule behind a value of `verification`; `strict` had another one in answers that do not name theirs."""
    return "by canonical value" if verification == "strict" else "by reasoning-gym"


REMEDY = "Set env.data_dir_to_save_evals to another folder, or the settings to what they were."

Key: TypeAlias = tuple[Any, ...]
"""Which completion of which question a sample is: task, index, seed, digest of the text, attempt."""


class Journal:
    """The answers of one evaluation in `folder`; nothing is kept without one. Closed by `with`.

    `identity` has the names of MUST_BE_EQUAL; `settings` is written as evaluate_config.yaml with the first answer.
    `answered` has the scored samples of earlier starts. Raises EnvironmentSetupError if another run writes there, or if
    the folder cannot be read or has answers of another evaluation.
    """

    def __init__(self, folder: str | None, identity: Mapping[str, Any], *, settings: str = "") -> None:
        self.answered: Mapping[Any, dict[str, Any]] = {}
        self._log: AppendLog | None = None
        self._settings = settings
        if folder is None:
            return
        path = Path(folder, ANSWERS)
        identity = {name: identity.get(name) for name in MUST_BE_EQUAL}
        try:
            finished = {key: one for one in _finished(path.parent, identity) if (key := _scored_key(one))}
            self._log = AppendLog(
                path, identity, identity_key="evaluation", has_header=True, key=_scored_key, remedy=REMEDY
            )
        except OSError as error:
            raise EnvironmentSetupError(f"Cannot read the answers in {folder}: {error}.") from error
        self.answered = {**finished, **self._log.done}

    def add(self, sample: dict[str, Any]) -> None:
        """Keep a scored sample (plain data). Raises EnvironmentSetupError if it cannot be written."""
        if self._log is None:
            return
        try:
            if not self._log.size and self._settings:
                self._log.path.with_name(SETTINGS).write_text(self._settings, encoding="utf-8")
            self._log.append(sample)
        except OSError as error:
            raise EnvironmentSetupError(f"Cannot keep answers in {self._log.path}: {error}.") from error

    def finish(self) -> None:
        """All answers are in samples.jsonl: those kept on the way are removed."""
        if self._log is not None:
            self._log.path.unlink(missing_ok=True)
        self._close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._log is not None and self._log.count:
            logger.info("%d answers are kept in %s: the same command resumes there.", self._log.count, self._log.path)
        self._close()

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _scored_key(sample: Mapping[str, Any]) -> Key | None:
    names = ("task", "index", "seed", "question_digest", "attempt")
    return None if sample.get("score") is None else tuple(sample.get(name) for name in names)


def _finished(folder: Path, identity: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The samples of an evaluation that has ended. Raises EnvironmentSetupError if it was another one."""
    metrics, samples = folder / METRICS, folder / SAMPLES
    if not metrics.is_file() or not samples.is_file():
        return
    try:
        general = json.loads(metrics.read_text(encoding="utf-8"))["config_general"]
        old = {**general["generation_parameters"], "model_name": general["model_name"]}
    except (ValueError, KeyError, TypeError) as error:
        raise EnvironmentSetupError(f"{metrics} is no result of an evaluation ({error!r}). {REMEDY}") from error
    if changes := differences(old, identity):
        raise EnvironmentSetupError(f"{folder} holds another evaluation: {changes}. {REMEDY}")
    with samples.open("rb") as file:
        for line in file:
            try:
                yield read_object(line)
            except BrokenLineError as error:
                # Atropos writes this file at once, and may be killed while it does; the answer is asked for again.
                logger.warning("%s has a line with %s, which is not used.", samples, error)
