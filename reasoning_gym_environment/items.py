"""Convert an Episode to the types that Atropos' hooks exchange, and back: items, rollout dicts, and ScoredDataGroup.

An item is a tuple `(prompt_messages, rg_item, dataset)`:

    prompt_messages    two hashable messages; `dict()` turns each into `{"role", "content"}`
    rg_item            the item as reasoning-gym made it
    dataset            an object with `score_answer(answer, entry)`

In our own items, the dataset object carries the Episode. So the pipeline finds the Episode again when a hook returns
the item.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from atroposlib.envs.base import ScoredDataGroup

from .records import Completion, Episode, Problem
from .tasks import reasoning_gym_source as library

Item: TypeAlias = tuple[Any, dict[str, Any], Any]
"""`(prompt_messages, rg_item, dataset)`"""


class ProblemDataset:
    """The dataset of an item, with the method `score_answer` that hooks of Atropos environments call.

    It carries the item's episode. The first call of `score_answer` builds the dataset of reasoning-gym.
    """

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.name = episode.problem.task
        self.config = episode.problem.config
        self._dataset: Any = None

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """The score of reasoning-gym's own verifier. It runs in this process, outside the sandbox.

        Raises what the verifier raises.
        """
        if self._dataset is None:
            self._dataset = library.create_dataset(self.name, seed=self.episode.problem.seed, size=1, **self.config)
        return float(self._dataset.score_answer(answer=answer, entry=entry))


def item_of(episode: Episode) -> Item:
    """The item of an episode."""
    messages = tuple(tuple(message.items()) for message in episode.messages)
    return messages, episode.problem.entry, ProblemDataset(episode)


def episode_of(item: Any) -> Episode:
    """The episode of an item. An item that this package has not made gets a new episode."""
    messages, entry, dataset = item
    if isinstance(dataset, ProblemDataset):
        return dataset.episode
    return Episode(problem_of(entry, dataset), [dict(message) for message in messages])


def episode_of_dicts(
    rollouts: Sequence[Mapping[str, Any]],
) -> tuple[Episode, list[Completion]]:
    """The episode and the completions of rollout dicts of one item. The last message of each dict is the completion."""
    first = rollouts[0]
    messages = [dict(message) for message in first["messages"][:-1]]
    problem = problem_of(first["rg_item"], first["dataset_obj"])
    completions = [_completion_of(rollout) for rollout in rollouts]
    return Episode(problem, messages), completions


def _completion_of(rollout: Mapping[str, Any]) -> Completion:
    return Completion(
        text=str(rollout["messages"][-1]["content"]),
        tokens=list(rollout["tokens"]),
        masks=list(rollout["masks"]),
        logprobs=rollout.get("logprobs"),
        finish_reason=str(rollout.get("finish_reason") or "stop"),
    )


def problem_of(entry: dict[str, Any], dataset: Any) -> Problem:
    """The problem of an item. `dataset` is a ProblemDataset or a dataset of reasoning-gym.

    Raises TypeError for another object.
    """
    if isinstance(dataset, ProblemDataset):
        return dataset.episode.problem
    dataset = getattr(dataset, "dataset", dataset)
    config = getattr(dataset, "config", None)
    names = [name for name, (cls, _) in library.registry().items() if cls is type(dataset)]
    if not names or not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"dataset_obj must be a dataset registered with reasoning-gym, got {type(dataset).__name__}.")
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.init}
    seed = fields.pop("seed", 0)
    fields.pop("size", None)
    return Problem(
        task=names[0],
        category=str(dataset.category),
        split="train",
        index=-1,
        seed=int(seed or 0),
        config=fields,
        entry=entry,
    )


def to_scored_data(episode: Episode, *, include_messages: bool) -> ScoredDataGroup:
    """The group in the format of the trajectory API. Each list has one element for each rollout.

    `inference_logprobs` is absent if the server reported no log probabilities for some completion.
    """
    completions = [rollout.completion for rollout in episode.rollouts]
    data: dict[str, Any] = {
        "tokens": [completion.tokens for completion in completions],
        "masks": [completion.masks for completion in completions],
        "scores": episode.rewards,
        "overrides": [{"set_advantage_to_zero": True} if rollout.mask_reason else {} for rollout in episode.rollouts],
    }
    if all(completion.logprobs is not None for completion in completions):
        data["inference_logprobs"] = [completion.logprobs for completion in completions]
    if include_messages:
        data["messages"] = [
            [*episode.messages, {"role": "assistant", "content": completion.text}] for completion in completions
        ]
    return cast(ScoredDataGroup, data)


OPTIONAL_KEYS = (
    "ref_logprobs",
    "overrides",
    "group_overrides",
    "distill_token_ids",
    "distill_logprobs",
)
"""Keys that a group may lack. The environment sends them as None."""


def complete_keys(group: Any) -> None:
    """Set the optional keys that a group lacks to None."""
    for key in OPTIONAL_KEYS:
        if key not in group:
            group[key] = None
