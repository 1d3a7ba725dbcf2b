"""The only conversions between our records and the types that Atropos' hooks exchange.

    Problem, prompt ──> item ──> Group        get_next_item, collect_trajectories
    Group <──> rollouts                       score: one dict for each completion, with the keys of the original
    Group ──> ScoredDataGroup                 what score returns
    ScoredDataGroup ──> rollouts of a Group   the scores that a subclass has changed

An item is a tuple `(prompt_messages, rg_item, dataset)`:

    prompt_messages    two hashable messages; `dict()` turns each into `{"role", "content"}`
    rg_item            the item as reasoning-gym made it
    dataset            an object with `score_answer(answer, entry)`

The hooks exchange no records of ours. A group is found again by its sequences, so a subclass may make new dicts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias, cast

from atroposlib.envs.base import ScoredDataGroup

from .errors import EnvironmentSetupError
from .records import AnswerFormat, Completion, Group, MaskReason, Problem, Rollout, Score, outcome_of
from .tasks import reasoning_gym_source as library

Item: TypeAlias = tuple[Any, dict[str, Any], Any]
"""`(prompt_messages, rg_item, dataset)`"""

TestItem: TypeAlias = tuple[dict[str, Any], Any]
"""A question of an evaluation: `(rg_item, dataset)`"""


class ProblemDataset:
    """The dataset of an item, with the method `score_answer` that hooks of Atropos environments call.

    It carries the problem of the item. The first call of `score_answer` builds the dataset of reasoning-gym.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.name = problem.task
        self.config = problem.config
        self._dataset: Any = None

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """The score of reasoning-gym's own verifier. It runs in this process, outside the sandbox.

        Raises what the verifier raises.
        """
        if self._dataset is None:
            self._dataset = library.create_dataset(self.name, seed=self.problem.seed, size=1, **self.config)
        return float(self._dataset.score_answer(answer=answer, entry=entry))


def item_of(problem: Problem, messages: Sequence[Mapping[str, str]]) -> Item:
    """The item of a problem, with these messages as its prompt."""
    return tuple(tuple(message.items()) for message in messages), problem.entry, ProblemDataset(problem)


def drawn_problem(item: Any) -> Problem | None:
    """The problem of an item that the item stream has made; None for any other item."""
    dataset = item[-1] if isinstance(item, Sequence) and item else None
    return dataset.problem if isinstance(dataset, ProblemDataset) else None


def group_of(item: Any, answer_format: AnswerFormat) -> Group:
    """A new group for an item. If this package has not made the item, its answers are in `answer_format`.

    `get_next_item` of a subclass may have changed the prompt or the entry of our item. Then the group has them.
    """
    messages, entry, dataset = item
    return Group(problem_of(entry, dataset, answer_format), [dict(message) for message in messages])


def rollout_dicts(item: Item, group: Group) -> list[dict[str, Any]]:
    """The completions of a group as `score` takes them: one dict for each, with the keys of the original environment.

    The last of the `messages` is the completion.
    """
    _, entry, dataset = item
    rollouts = []
    for completion in group.completions:
        reply = {"role": "assistant", "content": completion.text}
        rollout = {
            "messages": (*group.messages, reply),
            "rg_item": entry,
            "dataset_obj": dataset,
            "finish_reason": completion.finish_reason,
            "tokens": completion.tokens,
            "masks": completion.masks,
            "logprobs": completion.logprobs,
        }
        rollouts.append(rollout)
    return rollouts


def group_of_dicts(
    rollouts: Sequence[Mapping[str, Any]],
    groups: Sequence[Group],
    answer_format: AnswerFormat,
) -> Group:
    """The group of rollout dicts of one item, with their completions: one of `groups`, or a new group.

    A subclass may have made the dicts, or changed the texts and the entry in ours. What the server said of a sequence
    besides, the group still knows.
    """
    first = rollouts[0]
    problem = problem_of(first["rg_item"], first["dataset_obj"], answer_format)
    found = group_with([rollout["tokens"] for rollout in rollouts], groups)
    sampled = [] if found is None else found.completions
    if found is None or found.rollouts:
        group = Group(problem, [dict(message) for message in first["messages"][:-1]])
    else:
        group = found
        group.problem = problem
    group.completions = [_completion_of(rollout, sampled) for rollout in rollouts]
    return group


def _completion_of(rollout: Mapping[str, Any], sampled: Sequence[Completion]) -> Completion:
    """The completion of a rollout dict. Among those that were `sampled`, it is the one with the same tokens."""
    completion = _with_tokens(sampled, rollout["tokens"])
    text = str(rollout["messages"][-1]["content"])
    finish_reason = str(rollout.get("finish_reason") or "stop")
    logprobs = rollout.get("logprobs")
    if completion is not None:
        return dataclasses.replace(completion, text=text, logprobs=logprobs, finish_reason=finish_reason)
    return Completion(text, _as_list(rollout["tokens"]), _as_list(rollout["masks"]), logprobs, finish_reason)


def group_with(sequences: Sequence[Any], groups: Sequence[Group]) -> Group | None:
    """The group that has most of these sequences. If no group has any, the only group; None if there are several."""
    if len(groups) == 1:
        return groups[0]
    counts = [sum(_with_tokens(group.completions, tokens) is not None for tokens in sequences) for group in groups]
    most = max(counts, default=0)
    return groups[counts.index(most)] if most else None


def _with_tokens(completions: Sequence[Completion], tokens: Any) -> Completion | None:
    """The completion with these tokens. The same list is found without a look at its tokens."""
    for completion in completions:
        if completion.tokens is tokens:
            return completion
    for completion in completions:
        if completion.tokens == tokens:
            return completion
    return None


def _as_list(values: Sequence[int]) -> list[int]:
    # Sequences are long, so a list is not copied.
    return values if isinstance(values, list) else list(values)


def problem_of(entry: dict[str, Any], dataset: Any, answer_format: AnswerFormat = AnswerFormat.TAGS) -> Problem:
    """The problem of an item. `dataset` is a ProblemDataset, or a dataset of reasoning-gym, whose prompts ask for
    answers in `answer_format`.

    Raises EnvironmentSetupError for another object.
    """
    if isinstance(dataset, ProblemDataset):
        problem = dataset.problem
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
        answer_format=answer_format,
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
    completions = [rollout.completion for rollout in rollouts]
    found = []
    for tokens, score in zip(payload["tokens"], payload["scores"], strict=True):
        completion = _with_tokens(completions, tokens)
        if completion is not None:
            rollout = next(rollout for rollout in rollouts if rollout.completion is completion)
            found.append(rollout if rollout.reward == score else dataclasses.replace(rollout, reward=float(score)))
    return found


def rollouts_scored_elsewhere(completions: Sequence[Completion], payload: Mapping[str, Any]) -> list[Rollout]:
    """The rollouts of a group that `score` of a subclass has made without ours.

    Its scores, clipped to [0, 1], count as base rewards, so that the curriculum and the metrics follow them.
    """
    overrides = [*(payload.get("overrides") or ()), *[{} for _ in payload["scores"]]]
    rollouts = []
    for tokens, value, override in zip(payload["tokens"], payload["scores"], overrides, strict=False):
        completion = _with_tokens(completions, tokens)
        if completion is not None:
            base_reward = min(1.0, max(0.0, float(value)))
            score = Score(base_reward, outcome_of(base_reward), explanation="scored by a subclass")
            reason = MaskReason.SET_BY_SUBCLASS if override.get("set_advantage_to_zero") else None
            rollouts.append(Rollout(completion, score, float(value), reason, base_reward))
    return rollouts


REQUIRED_KEYS = ("tokens", "masks", "scores")
"""Keys of a scored group without which it cannot be sent."""

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
