"""Convert an Group to the types that Atropos' hooks exchange, and back: items, rollout dicts, and ScoredDataGroup.

    Group <──> item                     get_next_item, collect_trajectories
    Group, completions <──> rollouts    score: one dict for each completion
    Group ──> ScoredDataGroup           what score returns
    ScoredDataGroup ──> Group           the scores that a subclass has changed

An item is a tuple `(prompt_messages, rg_item, dataset)`:

    prompt_messages    two hashable messages; `dict()` turns each into `{"role", "content"}`
    rg_item            the item as reasoning-gym made it
    dataset            an object with `score_answer(answer, entry)`

In our own items, the dataset object carries the Group. So the pipeline finds the Group again when a hook returns
the item.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias, cast

from atroposlib.envs.base import ScoredDataGroup

from .errors import EnvironmentSetupError
from .records import Completion, Group, Outcome, Problem, Rollout, Score, outcome_of
from .tasks import reasoning_gym_source as library

Item: TypeAlias = tuple[Any, dict[str, Any], Any]
"""`(prompt_messages, rg_item, dataset)`"""

TestItem: TypeAlias = tuple[dict[str, Any], Any]
"""A question of an evaluation: `(rg_item, dataset)`"""


class ProblemDataset:
    """The dataset of an item, with the method `score_answer` that hooks of Atropos environments call.

    It carries the group of the item. The first call of `score_answer` builds the dataset of reasoning-gym.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.name = group.problem.task
        self.config = group.problem.config
        self._dataset: Any = None

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """The score of reasoning-gym's own verifier. It runs in this process, outside the sandbox.

        Raises what the verifier raises.
        """
        if self._dataset is None:
            self._dataset = library.create_dataset(self.name, seed=self.group.problem.seed, size=1, **self.config)
        return float(self._dataset.score_answer(answer=answer, entry=entry))


def item_of(group: Group) -> Item:
    """The item of a group."""
    messages = tuple(tuple(message.items()) for message in group.messages)
    return messages, group.problem.entry, ProblemDataset(group)


def group_of(item: Any) -> Group:
    """The group of an item. An item that this package has not made gets a new group.

    `get_next_item` of a subclass may have changed the prompt or the entry of our item. Then the group has them.
    """
    given_messages, entry, dataset = item
    messages = [dict(message) for message in given_messages]
    problem = problem_of(entry, dataset)
    if not isinstance(dataset, ProblemDataset):
        return Group(problem, messages)
    group = dataset.group
    group.problem = problem
    group.messages = messages or group.messages
    return group


def rollout_dicts(item: Item, group: Group, completions: Sequence[Completion]) -> list[dict[str, Any]]:
    """The completions of an item as `score` takes them, one dict for each.

    Each dict has the keys of the original environment: `messages` (prompt and completion), `rg_item`, `dataset_obj`,
    `finish_reason`, `tokens`, `masks` and `logprobs`. It also has the `group`, and `invalid_reason` and `sampled_at`
    of the completion.
    """
    _, entry, dataset = item
    rollouts = []
    for completion in completions:
        reply = {"role": "assistant", "content": completion.text}
        rollout = {
            "messages": (*group.messages, reply),
            "rg_item": entry,
            "dataset_obj": dataset,
            "finish_reason": completion.finish_reason,
            "tokens": completion.tokens,
            "masks": completion.masks,
            "logprobs": completion.logprobs,
            "invalid_reason": completion.invalid_reason,
            "sampled_at": completion.sampled_at,
            "group": group,
        }
        rollouts.append(rollout)
    return rollouts


def group_of_dicts(
    rollouts: Sequence[Mapping[str, Any]],
) -> tuple[Group, list[Completion]]:
    """The group and the completions of rollout dicts of one item. The last message of each dict is the completion."""
    first = rollouts[0]
    group = first.get("group")
    if group is None:
        group = group_of((first["messages"][:-1], first["rg_item"], first["dataset_obj"]))
    return group, [completion_of(rollout) for rollout in rollouts]


def completion_of(rollout: Mapping[str, Any]) -> Completion:
    """The completion of a rollout dict."""
    return Completion(
        text=str(rollout["messages"][-1]["content"]),
        tokens=_as_list(rollout["tokens"]),
        masks=_as_list(rollout["masks"]),
        logprobs=rollout.get("logprobs"),
        finish_reason=str(rollout.get("finish_reason") or "stop"),
        invalid_reason=rollout.get("invalid_reason"),
        sampled_at=rollout.get("sampled_at"),
    )


def _as_list(values: Sequence[int]) -> list[int]:
    # Sequences are long, so a list is not copied.
    return values if isinstance(values, list) else list(values)


def problem_of(entry: dict[str, Any], dataset: Any) -> Problem:
    """The problem of an item. `dataset` is a ProblemDataset or a dataset of reasoning-gym.

    Raises EnvironmentSetupError for another object.
    """
    if isinstance(dataset, ProblemDataset):
        problem = dataset.group.problem
        return problem if entry is problem.entry else dataclasses.replace(problem, entry=entry)
    dataset = getattr(dataset, "dataset", dataset)
    config = getattr(dataset, "config", None)
    names = [name for name, (cls, _) in library.registry().items() if cls is type(dataset)]
    if not names or not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise EnvironmentSetupError(
            f"dataset_obj: expected a dataset that is registered with reasoning-gym, got {type(dataset).__name__}. "
            "Register its class with reasoning_gym.factory.register_dataset, in a module that task_modules names."
        )
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


def to_scored_data(group: Group, *, include_messages: bool) -> ScoredDataGroup:
    """The group in the format of the trajectory API. Each list has one element for each rollout.

    `inference_logprobs` is absent if the server reported no log probabilities for some completion.
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
    return cast(ScoredDataGroup, data)


def why_malformed(payload: Any) -> str | None:
    """Why this is no scored group, in words; None if it is one. `score` of a subclass may return anything."""
    if not isinstance(payload, Mapping):
        return f"expected a ScoredDataGroup or None, got {type(payload).__name__}"
    missing = [key for key in REQUIRED_KEYS if not isinstance(payload.get(key), Sequence)]
    if missing:
        return f"expected lists of tokens, masks and scores, found no {' and no '.join(missing)}"
    lengths = {len(payload[key]) for key in REQUIRED_KEYS}
    if len(lengths) != 1:
        return "its tokens, masks and scores have different lengths"
    if not all(isinstance(score, Real) and math.isfinite(score) for score in payload["scores"]):
        return f"expected finite numbers as scores, got {payload['scores']!r:.200}"
    return None


def take_scores(rollouts: Sequence[Rollout], payload: Mapping[str, Any]) -> list[Rollout]:
    """The rollouts of a group in its order, with its scores as rewards. A subclass may have changed both.

    A sequence that is not among the rollouts is skipped.
    """
    by_identity = {id(rollout.completion.tokens): rollout for rollout in rollouts}
    found = []
    for tokens, score in zip(payload["tokens"], payload["scores"], strict=True):
        rollout = by_identity.get(id(tokens)) or _with_tokens(rollouts, tokens)
        if rollout is not None:
            found.append(rollout if rollout.reward == score else dataclasses.replace(rollout, reward=float(score)))
    return found


def _with_tokens(rollouts: Sequence[Rollout], tokens: Any) -> Rollout | None:
    for rollout in rollouts:
        if rollout.completion.tokens == tokens:
            return rollout
    return None


def rollouts_scored_elsewhere(completions: Sequence[Completion], payload: Mapping[str, Any]) -> list[Rollout]:
    """The rollouts of a group that `score` of a subclass has made without ours.

    Its scores, clipped to [0, 1], count as base rewards, so that the curriculum and the metrics follow them.
    """
    unscored = [Rollout(completion, Score(0.0, Outcome.WRONG), 0.0) for completion in completions]
    overrides = payload.get("overrides") or [{}] * len(payload["scores"])
    without_advantage = []
    for tokens, override in zip(payload["tokens"], overrides, strict=False):
        if override.get("set_advantage_to_zero"):
            without_advantage.append(tokens)
    rollouts = []
    for rollout in take_scores(unscored, payload):
        value = min(1.0, max(0.0, rollout.reward))
        score = Score(value, outcome_of(value), explanation="scored by a subclass")
        reason = SET_BY_SUBCLASS if rollout.completion.tokens in without_advantage else None
        rollouts.append(dataclasses.replace(rollout, score=score, base_reward=value, mask_reason=reason))
    return rollouts


REQUIRED_KEYS = ("tokens", "masks", "scores")
"""Keys of a scored group without which it cannot be sent."""

SET_BY_SUBCLASS = "set_by_subclass"
"""The mask reason of a sequence to which `score` of a subclass gives no advantage."""

OPTIONAL_KEYS = (
    "ref_logprobs",
    "overrides",
    "group_overrides",
    "distill_token_ids",
    "distill_logprobs",
)
"""Keys that a group may lack. The environment sends them as None."""


def complete_keys(payload: Any) -> None:
    """Set the optional keys that a group lacks to None."""
    for key in OPTIONAL_KEYS:
        if key not in payload:
            payload[key] = None
