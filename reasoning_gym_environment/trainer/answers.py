"""The answers of run-api that this environment uses. An answer of another form counts as an outage of the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, PositiveInt, ValidationError

from .transport import ApiError


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class Planted(_Answer):
    """The answer to the registration of a mark (marks.py)."""

    wandb_name: str


class Registered(_Answer):
    """The answer to a registration. A number of steps, or a checkpoint interval, of -1 means that there is none."""

    env_id: NonNegativeInt
    wandb_name: str
    checkpoint_dir: str
    checkpoint_interval: int
    starting_step: NonNegativeInt
    num_steps: int


class Limits(_Answer):
    """The trainer's limits. A value of -1 means that there is none."""

    batch_size: int
    max_token_len: int


class Status(_Answer):
    """The trainer's step, the size of the queue, and the shares of this environment.

    Queue sizes are in groups of this environment. `env_weight` is its share of the inference servers.
    `unallocated_fraction` is the share of each batch that no environment has reserved.
    """

    current_step: int
    queue_size: NonNegativeInt
    self_queue_size: NonNegativeInt
    max_group_size: PositiveInt
    env_weight: FiniteFloat = Field(ge=0.0)
    unallocated_fraction: FiniteFloat = 1.0


AnswerT = TypeVar("AnswerT", bound=_Answer)


def parse(kind: type[AnswerT], answer: Mapping[str, Any], path: str) -> AnswerT:
    """The answer to a request for `path`. Raises ApiError for the answer of another program, or of another version."""
    try:
        return kind.model_validate(dict(answer))
    except ValidationError as error:
        problem = error.errors()[0]
        raise ApiError(
            f"its answer to {path} has no valid {problem['loc'][0]}: {problem['msg']}, got {problem['input']!r:.40}"
        ) from None
