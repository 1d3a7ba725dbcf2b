"""The same items, sandbox and item source for TRL's GRPOTrainer.

    Tasks, ItemStream, HeldOut ── GRPOTasks ──> train_dataset, eval_dataset, reward_funcs, callback ──> GRPOTrainer

    row n is requested ──> stream.next() ──> its prompt, num_generations times ──> completions
      ──> reasoning_gym (the reward function): grouped by row, graded ──> rewards
    a step ends ──> stream.observe(the rewards of the rows that it has trained on)

The stream draws a row of the training set when the trainer first requests it. Rows are numbered in the order of the
draws. If there are several processes, the first process draws, grades and observes for all, with its own `Tasks`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object
from datasets import Dataset
from transformers.trainer_callback import ExportableState, TrainerCallback

from ..api import HeldOut, ItemStream, PromptedProblem, Tasks
from ..errors import EnvironmentSetupError
from ..evaluation.results import EvalSample, is_correct, summarise
from ..inference.prompts import as_dicts, build_messages, system_message
from ..thinking import opens_thinking
from .recipe import text_of

if TYPE_CHECKING:
    from trl import GRPOConfig

__all__ = ["GRPOTasks"]

Rewards = list[float | None]

GRADED_TOGETHER = 32
"""Groups that are graded at the same time."""

NEEDED = {
    "shuffle_dataset": (
        False,
        "the stream draws rows in the order of the requests",
    ),
    "remove_unused_columns": (
        False,
        "the item of a completion is found by its row",
    ),
    "dataloader_num_workers": (0, "the training process draws the rows"),
    "dataloader_drop_last": (
        False,
        "evaluations would skip the last held-out questions",
    ),
    "restore_callback_states_from_checkpoint": (
        False,
        "the callback restores itself",
    ),
}
"""Settings of GRPOConfig that must have these values, and why."""


class GRPOTasks(TrainerCallback, ExportableState):
    """Arguments for GRPOTrainer: `train_dataset`, `eval_dataset`, `reward_funcs`, and `callback` for its `callbacks`.

    Pass all four to the same trainer, with the arguments `args`. The training set has the rows that `args.max_steps`
    need. The trainer evaluates on the held-out questions before the first step, after the last step, and according to
    `args.eval_strategy`. Without `held_out` there is no `eval_dataset`.

    Every checkpoint has the stream's state, in its trainer_state.json. Training that resumes from a checkpoint draws
    the same rows as without the interruption.

    Raises EnvironmentSetupError, with the change to make, for arguments that do not work together.
    """

    def __init__(
        self,
        tasks: Tasks,
        args: GRPOConfig,
        stream: ItemStream,
        held_out: HeldOut | None = None,
    ) -> None:
        _check(args, evaluates=held_out is not None)
        self._tasks = tasks
        self._args = args
        self._stream = stream
        self._held_out = held_out
        self._drawn: dict[int, PromptedProblem] = {}
        """By row, as long as the trainer may still request it."""
        self._earned: dict[int, Rewards] = {}
        """By row, the rewards that the stream has not observed yet. A checkpoint must keep these rows pending."""
        self._evaluating: dict[int, list[EvalSample]] = {}
        """By question, the graded completions of the evaluation in progress."""
        self._is_attached = False
        self._thinking_opened = False
        rows = range(self._row_at(args.max_steps, rounded=math.ceil))
        # A copy of a dataset copies a bound method together with its object. It does not copy functions.
        self.train_dataset = Dataset.from_dict({"row": rows}).with_transform(lambda batch: self._rows(**batch))
        self.eval_dataset: Any = None
        if held_out is not None:
            questions = self._from_first(lambda: held_out.problems)
            columns = _columns("eval", list(range(len(questions))), questions)
            self.eval_dataset = Dataset.from_dict(columns)
        self.reward_funcs = [self.reasoning_gym]
        self.callback: TrainerCallback = self
        """Saves and loads the stream's state, and starts the first and the last evaluation."""

    def __reduce__(self) -> tuple[Any, ...]:
        # datasets hashes everything that makes its rows; this object has threads, which cannot be pickled.
        return str, (repr(self),)

    # --- items

    def _row_at(self, step: int, *, rounded: Callable[[float], int] = math.floor) -> int:
        """The first row of the generation that step `step` trains on. The trainer requests its rows for each batch."""
        args = self._args
        steps_of_a_generation = args.steps_per_generation * args.num_iterations
        generations = step * args.gradient_accumulation_steps / steps_of_a_generation
        rows_of_a_generation = args.generation_batch_size // args.num_generations
        return rounded(generations) * rows_of_a_generation

    def _rows(self, row: list[int]) -> dict[str, list[Any]]:
        """The training set's columns."""
        missing = sorted(set(gather_object(row)) - self._drawn.keys())
        if missing:
            self._drawn |= self._from_first(lambda: {number: self._stream.next() for number in missing})
        return _columns("train", row, [self._drawn[number] for number in row])

    # --- rewards

    def reasoning_gym(
        self,
        completions: Sequence[Any],
        row: list[int],
        split: list[str],
        log_metric: Any,
        **_: Any,
    ) -> Rewards:
        """The reward function. The reward of a completion without a score is None.

        TRL does not train on such a completion, unless another reward function rewards it.
        """
        if not self._is_attached:
            raise EnvironmentSetupError("GRPOTrainer: give it callbacks=[tasks.callback], of the same GRPOTasks.")
        texts = [text_of(completion) for completion in completions]
        # A group may be spread over processes.
        by_process: list[list[tuple[int, str]]] = gather_object([list(zip(row, texts, strict=True))])
        groups: dict[int, list[str]] = {}
        for number, text in itertools.chain.from_iterable(by_process):
            groups.setdefault(number, []).append(text)
        grade = self._trained if split[0] == "train" else self._evaluated
        rewards, metrics = self._from_first(lambda: grade(groups))
        if self._args.process_index == 0:
            for name, value in metrics.items():
                # The trainer puts train/ or eval/ before every name.
                log_metric(name.removeprefix(f"{split[0]}/"), value)
        return _rewards_of_process(self._args.process_index, by_process, rewards)

    def _trained(self, groups: Mapping[int, list[str]]) -> tuple[dict[int, Rewards], dict[str, float]]:
        """Rewards of training rows, and metrics."""
        grade = partial(self._tasks.grade, thinking_opened=self._thinking_opened)
        rows = sorted(groups)
        problems = [self._drawn[row] for row in rows]
        texts = [groups[row] for row in rows]
        with ThreadPoolExecutor(GRADED_TOGETHER) as threads:
            graded = list(threads.map(grade, problems, texts))
        rewards: dict[int, Rewards] = {}
        for row, grades in zip(rows, graded, strict=True):
            rewards[row] = [grade.reward for grade in grades]
        self._earned |= rewards
        metrics = {**self._tasks.metrics(), **self._stream.metrics()}
        scored = [grade for grade in itertools.chain.from_iterable(graded) if grade.reward is not None]
        if scored:
            metrics["train/percent_correct"] = fmean(is_correct(grade.score.value) for grade in scored)
        return rewards, metrics

    def _evaluated(self, groups: Mapping[int, list[str]]) -> tuple[dict[int, Rewards], dict[str, float]]:
        """Rewards of held-out questions, and after the last question the metrics.

        Several processes fill their last batch with repeated questions, so the latest completions count.
        """
        assert self._held_out is not None
        graded = self._held_out.samples(groups, thinking_opened=self._thinking_opened)
        wanted = self._args.num_generations_eval or self._args.num_generations
        rewards: dict[int, Rewards] = {}
        for number, samples in graded.items():
            rewards[number] = [sample["score"] for sample in samples]
            so_far = self._evaluating.get(number, []) + samples
            self._evaluating[number] = so_far[-wanted:]
        is_complete = all(len(samples) == wanted for samples in self._evaluating.values())
        if len(self._evaluating) < len(self._held_out) or not is_complete:
            return rewards, {}
        in_order = [self._evaluating[number] for number in sorted(self._evaluating)]
        self._evaluating = {}
        return rewards, summarise(list(itertools.chain.from_iterable(in_order))).metrics()

    def _from_first(self, work: Callable[[], Any]) -> Any:
        """The result of the first process, in all processes. If it fails, the launcher ends them all."""
        result = work() if self._args.process_index == 0 else None
        return gather_object([result])[0]

    # --- the trainer's events

    def on_init_end(self, args: GRPOConfig, *_: Any, processing_class: Any, **__: Any) -> None:
        if args is not self._args:
            raise EnvironmentSetupError("GRPOTrainer: give it the same args as the GRPOTasks.")
        self._is_attached = True
        tokenizer = getattr(processing_class, "tokenizer", processing_class)
        if any(getattr(tokenizer, name, None) for name in ("response_template", "response_schema")):
            # TRL parses the completions, and removes the thinking.
            return
        text = processing_class.apply_chat_template(
            as_dicts(build_messages("", system_message(self._tasks.settings))),
            tokenize=False,
            add_generation_prompt=True,
            **args.chat_template_kwargs or {},
        )
        self._thinking_opened = opens_thinking(text)

    def on_train_begin(self, args: GRPOConfig, state: Any, *_: Any, **__: Any) -> None:
        # In a new run this is the stream's own state of a moment ago.
        saved = state.stateful_callbacks.get(type(self).__name__)
        if saved is None:
            raise EnvironmentSetupError("resume_from_checkpoint: it was saved without this callback, so without items.")
        self._stream.load_state_dict(saved["attributes"]["stream"])
        self._drawn = {}
        self._earned = {}
        if self._held_out is not None and state.global_step == 0:
            args.eval_on_start = True

    def on_step_end(self, args: GRPOConfig, state: Any, control: Any, **_: Any) -> None:
        first_row = self._row_at(state.global_step)
        for row in [row for row in self._drawn if row < first_row]:
            problem = self._drawn.pop(row)
            # The first process has the rewards of all processes.
            if args.process_index == 0:
                self._stream.observe(problem, self._earned.pop(row, []))
        if self._held_out is not None and control.should_training_stop:
            control.should_evaluate = True

    def state(self) -> dict[str, Any]:
        """For the checkpoint: the stream's state, in which rows that the trainer may request again are pending."""
        return {"args": {}, "attributes": {"stream": self._stream.state_dict()}}


def _rewards_of_process(
    process: int,
    by_process: Sequence[Sequence[tuple[int, str]]],
    rewards: Mapping[int, Rewards],
) -> Rewards:
    """The rewards of the rows of a process. The completions of a row are graded in the order of the processes."""
    remaining = {number: iter(row_rewards) for number, row_rewards in rewards.items()}
    found: list[Rewards] = []
    for rows in by_process:
        found.append([next(remaining[number]) for number, _ in rows])
    return found[process]


def _check(args: GRPOConfig, *, evaluates: bool) -> None:
    for name, (value, reason) in NEEDED.items():
        if getattr(args, name) != value:
            raise EnvironmentSetupError(f"{name}: set it to {value} in GRPOConfig, because {reason}.")
    if args.accelerator_config.dispatch_batches:
        raise EnvironmentSetupError("dispatch_batches: set it to False, because each process requests its own rows.")
    if args.max_steps < 1:
        raise EnvironmentSetupError("max_steps: set it in GRPOConfig, because the stream of items is endless.")
    batch = args.per_device_eval_batch_size * args.world_size
    generations = args.num_generations_eval or args.num_generations
    if evaluates and batch % generations:
        raise EnvironmentSetupError(
            f"per_device_eval_batch_size: expected a multiple of num_generations_eval ({generations}) over all "
            f"processes, got {batch} completions at a time."
        )


def _columns(split: str, rows: list[int], problems: Sequence[PromptedProblem]) -> dict[str, list[Any]]:
    return {
        "prompt": [as_dicts(problem.messages) for problem in problems],
        "row": rows,
        "split": [split] * len(rows),
        "task": [problem.task for problem in problems],
    }
