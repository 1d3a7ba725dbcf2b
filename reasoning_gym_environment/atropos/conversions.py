"""Between our records and Atropos' dictionaries: an item's problem and rollout dicts in, ScoredDataGroup out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.envs.base import ScoredDataGroup

from ..records import Completion, Problem, RolloutGroup
from ..tasks import reasoning_gym_source as library
from .session import RunState


def to_scored_data(group: RolloutGroup, *, include_messages: bool) -> ScoredDataGroup:
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


def _completion_from_dict(rollout: Mapping[str, Any]) -> Completion:
    """A completion from a rollout dict: `messages` (the last one is the model's), `tokens`, `masks`, ..."""
    return Completion(
        text=str(rollout["messages"][-1]["content"]),
        tokens=list(rollout["tokens"]),
        masks=list(rollout["masks"]),
        logprobs=rollout.get("logprobs"),
        finish_reason=str(rollout.get("finish_reason") or "stop"),
    )


def group_of_dicts(rollouts: Sequence[Mapping[str, Any]]) -> tuple[Problem, list[dict[str, str]], list[Completion]]:
    """The problem, the prompt's messages and the completions of rollout dicts that are of one item."""
    first = rollouts[0]
    problem = problem_of(first["rg_item"], first["dataset_obj"])
    messages = [dict(message) for message in first["messages"][:-1]]
    return problem, messages, [_completion_from_dict(rollout) for rollout in rollouts]


def problem_of(entry: dict[str, Any], dataset: Any) -> Problem:
    """The problem behind an item, from our own dataset handle or from any reasoning-gym dataset.

    Raises TypeError for an object that is neither.
    """
    if isinstance(dataset, ProblemDataset):
        return dataset.problem
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
    """The dataset an item came from, as Atropos-style code expects it: something with `score_answer`.

    Holds the problem's recipe; the reasoning-gym dataset itself is built only if `score_answer` is called here.
    `sampled_at` is the trainer's step when the last request for the item's completions went out; None before.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.name = problem.task
        self.config = problem.config
        self.sampled_at: int | None = None
        self._dataset: Any = None

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """reasoning-gym's own verdict, unguarded: it runs in this process and raises what the verifier raises."""
        if self._dataset is None:
            self._dataset = library.create_dataset(self.name, seed=self.problem.seed, size=1, **self.config)
        return float(self._dataset.score_answer(answer=answer, entry=entry))


def note_sampling(item: Any, run: RunState) -> None:
    """A request for the completions of this item goes out now, at the step where the trainer is."""
    # A caller's own dataset may be that of many items.
    if isinstance(item[2], ProblemDataset):
        item[2].sampled_at = run.step


def steps_of(item: Any, run: RunState) -> tuple[int, int] | None:
    """The trainer's steps at which sampling for this item began, and now; None without item or trainer."""
    began = None if item is None or run.is_offline else getattr(item[2], "sampled_at", None)
    # A trainer that was restarted counts from its last checkpoint.
    return None if began is None else (min(began, run.step), run.step)
