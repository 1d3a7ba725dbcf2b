"""The same items, sandbox and sampler for TRL's GRPOTrainer.

    Tasks, ItemStream, HeldOut ── GRPOTasks ──> train_dataset, eval_dataset, reward_funcs, callback ──> GRPOTrainer

    row n is requested ──> stream.next() ──> its prompt, num_generations times ──> completions
      ──> reasoning_gym (the reward function): grouped by row, graded ──> rewards
    a step ends ──> stream.observe(the rewards of the rows that it has trained on)

A row of the training set is drawn when the trainer first requests it; rows are numbered in the order of the draws. Of
several processes the first draws, grades and observes for all, with its own `Tasks`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object
from datasets import Dataset
from transformers.trainer_callback import ExportableState, TrainerCallback

from ..api import HeldOut, ItemStream, PromptedProblem, Tasks
from ..errors import EnvironmentSetupError
from ..evaluation.results import Sample, is_correct, summarise
from ..inference.prompts import Prompt, as_dicts, build_messages

if TYPE_CHECKING:
    from trl import GRPOConfig

__all__ = ["GRPOTasks"]

Rewards = list[float | None]

NEEDED = {
    "shuffle_dataset": (False, "rows are drawn in the order in which they are requested"),
    "remove_unused_columns": (False, "the item of a completion is found by its row"),
    "dataloader_num_workers": (0, "rows are drawn by the process that trains"),
    "dataloader_drop_last": (False, "the last held-out questions would not be asked"),
    "restore_callback_states_from_checkpoint": (False, "the callback restores itself"),
}
"""Settings of GRPOConfig that must have these values, and why."""

AT_ONCE = 32
"""Groups that are graded at the same time."""


class GRPOTasks(TrainerCallback, ExportableState):
    """What GRPOTrainer takes: `train_dataset`, `eval_dataset`, `reward_funcs`, and `callback` for its `callbacks`.

    All four go together, to one trainer with the arguments `args`. The training set has the rows that `args.max_steps`
    need. The held-out questions are asked before the first step, after the last, and as `args.eval_strategy` says;
    without `held_out` there is no `eval_dataset`.

    The stream's state is saved with every checkpoint, in its trainer_state.json, and loaded from the one that training
    resumes from: the same rows are drawn as without the interruption.

    Raises EnvironmentSetupError for arguments that this cannot work with, with what to change.
    """

    def __init__(self, tasks: Tasks, args: GRPOConfig, stream: ItemStream, held_out: HeldOut | None = None) -> None:
        _check(args, evaluates=held_out is not None)
        self._tasks, self._args, self._stream, self._held_out = tasks, args, stream, held_out
        self._drawn: dict[int, PromptedProblem] = {}
        """By row, as long as it may still be requested."""
        self._earned: dict[int, Rewards] = {}
        """By row, what the stream has not observed yet: a checkpoint shall not take for done what is asked again."""
        self._asked: dict[int, list[Sample]] = {}
        """By question, the graded completions of the evaluation in progress."""
        self._is_attached = self._thinking_opened = False
        rows = range(self._row_at(args.max_steps, rounded=math.ceil))
        # Datasets are copied with all that a bound method would hold; a function is not.
        self.train_dataset = Dataset.from_dict({"row": rows}).with_transform(lambda batch: self._rows(**batch))
        self.eval_dataset: Any = None
        if held_out is not None:
            questions = self._from_first(lambda: held_out.problems)
            self.eval_dataset = Dataset.from_dict(_columns("eval", [*range(len(questions))], questions))
        self.reward_funcs = [self.reasoning_gym]
        self.callback: TrainerCallback = self
        """Saves and loads the stream's state, and asks for the first and the last evaluation."""

    def __reduce__(self) -> tuple[Any, ...]:
        # datasets hashes everything that makes its rows; this object has threads, which cannot be pickled.
        return str, (repr(self),)

    # --- items

    def _row_at(self, step: int, *, rounded: Callable[[float], int] = math.floor) -> int:
        """The first row of the generation that step `step` trains on; its rows are requested again for each batch."""
        args = self._args
        batches = step * args.gradient_accumulation_steps / (args.steps_per_generation * args.num_iterations)
        return rounded(batches) * (args.generation_batch_size // args.num_generations)

    def _rows(self, row: list[int]) -> dict[str, list[Any]]:
        """The training set's columns."""
        if missing := sorted({*gather_object(row)} - self._drawn.keys()):
            self._drawn |= self._from_first(lambda: {number: self._stream.next() for number in missing})
        return _columns("train", row, [self._drawn[number] for number in row])

    # --- rewards

    def reasoning_gym(
        self, completions: Sequence[Any], row: list[int], split: list[str], log_metric: Any, **_: Any
    ) -> Rewards:
        """The reward function. None is what could not be scored: TRL leaves it out, and does not train on it."""
        if not self._is_attached:
            raise EnvironmentSetupError("GRPOTrainer: give it callbacks=[tasks.callback], of the same GRPOTasks.")
        # A group may be spread over processes.
        asked = gather_object([list(zip(row, map(_text, completions), strict=True))])
        groups: dict[int, list[str]] = {}
        for number, text in itertools.chain.from_iterable(asked):
            groups.setdefault(number, []).append(text)
        grade = self._trained if split[0] == "train" else self._evaluated
        paid, metrics = self._from_first(lambda: grade(groups))
        for name, value in metrics.items() if self._args.process_index == 0 else ():
            # The trainer puts train/ or eval/ before every name.
            log_metric(name.removeprefix(f"{split[0]}/"), value)
        rewards = {number: iter(found) for number, found in paid.items()}
        return [[next(rewards[number]) for number, _ in part] for part in asked][self._args.process_index]

    def _trained(self, groups: Mapping[int, list[str]]) -> tuple[dict[int, Rewards], dict[str, float]]:
        grade = partial(self._tasks.grade, thinking_opened=self._thinking_opened)
        with ThreadPoolExecutor(AT_ONCE) as waiting:
            grades = waiting.map(grade, (self._drawn[row] for row in groups), groups.values())
            graded = dict(zip(groups, grades, strict=True))
        rewards = {row: [one.reward for one in grades] for row, grades in sorted(graded.items())}
        self._earned |= rewards
        right = [is_correct(one.score.value) for grades in graded.values() for one in grades if one.reward is not None]
        share = {"train/percent_correct": sum(right) / len(right)} if right else {}
        return rewards, {**self._tasks.metrics(), **self._stream.metrics(), **share}

    def _evaluated(self, groups: Mapping[int, list[str]]) -> tuple[dict[int, Rewards], dict[str, float]]:
        """Metrics come with the last question. Several processes fill their last batch with questions asked before."""
        assert self._held_out is not None
        graded = self._held_out.samples(groups, thinking_opened=self._thinking_opened)
        wanted = self._args.num_generations_eval or self._args.num_generations
        for number, samples in graded.items():
            self._asked[number] = [*self._asked.get(number, []), *samples][-wanted:]
        rewards = {number: [sample["score"] for sample in samples] for number, samples in graded.items()}
        if len(self._asked) < len(self._held_out) or any(len(samples) < wanted for samples in self._asked.values()):
            return rewards, {}
        asked, self._asked = sorted(self._asked.items()), {}
        return rewards, summarise([sample for _, samples in asked for sample in samples]).metrics()

    def _from_first(self, work: Callable[[], Any]) -> Any:
        """The result of the first process, in all of them. If it fails, their launcher ends the others."""
        return gather_object([work() if self._args.process_index == 0 else None])[0]

    # --- the trainer's events

    def on_init_end(self, args: GRPOConfig, *_: Any, processing_class: Any, **__: Any) -> None:
        if args is not self._args:
            raise EnvironmentSetupError("GRPOTrainer: give it the same args as the GRPOTasks.")
        self._is_attached = True
        tokenizer = getattr(processing_class, "tokenizer", processing_class)
        if any(getattr(tokenizer, name, None) for name in ("response_template", "response_schema")):
            # TRL parses the completions, and leaves out the thinking.
            return
        prompt = processing_class.apply_chat_template(
            as_dicts(build_messages("")), tokenize=False, add_generation_prompt=True, **args.chat_template_kwargs or {}
        )
        self._thinking_opened = Prompt([], prompt, []).thinking_opened

    def on_train_begin(self, args: GRPOConfig, state: Any, *_: Any, **__: Any) -> None:
        # In a new run this is the stream's own state of a moment ago.
        saved = state.stateful_callbacks.get(type(self).__name__)
        if saved is None:
            raise EnvironmentSetupError("resume_from_checkpoint: it was saved without this callback, so without items.")
        self._stream.load_state_dict(saved["attributes"]["stream"])
        self._drawn, self._earned = {}, {}
        if self._held_out is not None and state.global_step == 0:
            args.eval_on_start = True

    def on_step_end(self, args: GRPOConfig, state: Any, control: Any, **_: Any) -> None:
        for row in [row for row in self._drawn if row < self._row_at(state.global_step)]:
            problem = self._drawn.pop(row)
            # Those of the other processes are the first one's.
            if args.process_index == 0:
                self._stream.observe(problem, self._earned.pop(row, []))
        if self._held_out is not None and control.should_training_stop:
            control.should_evaluate = True

    def state(self) -> dict[str, Any]:
        """For the checkpoint: the stream's state, in which the rows that may be requested again are not done."""
        return {"args": {}, "attributes": {"stream": self._stream.state_dict()}}


def _check(args: GRPOConfig, *, evaluates: bool) -> None:
    batch = args.per_device_eval_batch_size * args.world_size
    for name, (value, reason) in NEEDED.items():
        if getattr(args, name) != value:
            raise EnvironmentSetupError(f"{name}: set it to {value} in GRPOConfig, for {reason}.")
    if args.accelerator_config.dispatch_batches:
        raise EnvironmentSetupError("dispatch_batches: set it to False, for each process requests its own rows.")
    if args.max_steps < 1:
        raise EnvironmentSetupError("max_steps: set it in GRPOConfig, for the items have no end.")
    if evaluates and batch % (several := args.num_generations_eval or args.num_generations):
        wrong = f"{batch} completions at a time are no multiple of num_generations_eval ({several})"
        raise EnvironmentSetupError(f"per_device_eval_batch_size: {wrong}.")


def _columns(split: str, rows: list[int], problems: Sequence[PromptedProblem]) -> dict[str, list[Any]]:
    return {
        "prompt": [[dict(message) for message in problem.messages] for problem in problems],
        "row": rows,
        "split": [split] * len(rows),
        "task": [problem.task for problem in problems],
    }


def _text(completion: Any) -> str:
    """What the model said last, in a conversation or a plain text."""
    if isinstance(completion, str):
        return completion
    said = [message.get("content") for message in completion if message.get("role") == "assistant"]
    return said[-1] if said and isinstance(said[-1], str) else ""
