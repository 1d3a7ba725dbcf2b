"""Between an Episode and what Atropos' hooks take and give: items, rollout dicts, ScoredDataGroup."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.envs.base import ScoredDataGroup

from ..records import Completion, Episode, Problem
from ..tasks import reasoning_gym_source as library


def to_scored_data(group: Episode, *, include_messages: bool) -> ScoredDataGroup:
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


def episode_of_dicts(rollouts: Sequence[Mapping[str, Any]]) -> tuple[Episode, list[Completion]]:
    """The episode and the completions of rollout dicts of one item; the last message of each is the model's."""
    first = rollouts[0]
    messages = [dict(message) for message in first["messages"][:-1]]
    problem = problem_of(first["rg_item"], first["dataset_obj"])
    completions = [
        Completion(
            text=str(rollout["messages"][-1]["content"]),
            tokens=list(rollout["tokens"]),
            masks=list(rollout["masks"]),
            logprobs=rollout.get("logprobs"),
            finish_reason=str(rollout.get("finish_reason") or "stop"),
        )
        for rollout in rollouts
    ]
    return Episode(problem, messages), completions


def episode_of(item: Any) -> Episode:
    """The episode that goes with an item `(prompt_messages, rg_item, dataset)`; a new one for an item not of ours."""
    messages, entry, dataset = item
    if isinstance(dataset, ProblemDataset):
        return dataset.episode
    return Episode(problem_of(entry, dataset), [dict(message) for message in messages])


def problem_of(entry: dict[str, Any], dataset: Any) -> Problem:
    """The problem behind an item, from our own dataset handle or from any reasoning-gym dataset.

    Raises TypeError for an object that is neither.
    """
    if isinstance(dataset, ProblemDataset):
        return dataset.episode.problem
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
    """The dataset of an item, as Atropos-style code expects it: something with `score_answer`.

    It carries the item's episode. The reasoning-gym dataset itself is built only if `score_answer` is called here.
    """

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.name = episode.problem.task
        self.config = episode.problem.config
        self._dataset: Any = None

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """reasoning-gym's own verdict, unguarded: it runs in this process and raises what the verifier raises."""
        if self._dataset is None:
            self._dataset = library.create_dataset(self.name, seed=self.episode.problem.seed, size=1, **self.config)
        return float(self._dataset.score_answer(answer=answer, entry=entry))
