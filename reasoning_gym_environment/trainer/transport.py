"""HTTP requests to one trajectory API, its answers, and the different kinds of failures.

Marks show whether run-api is still the process that has registered this environment.

A restarted run-api numbers the environments from 0 again, in the order in which they register. So the number of an
earlier registration may now belong to another environment. Signing it off could take away that environment's share.

But run-api counts the environments of each name, and appends this count to the name. A mark is a unique name,
registered without weight and without a share of the batches. A process of run-api that has seen the mark answers
its next registration with `<mark>_1` or more, and any other process with `<mark>_0`. Marks are planted before the
environment registers. So if run-api knows a mark, no restart lies between this moment and the registration.

A look at a mark registers it once more, which has two consequences. After a look whose answer was lost, the mark proves
nothing. And a process that looks at its own mark needs another mark for the process that may succeed it.
"""

from __future__ import annotations

import asyncio
import gzip
import math
import secrets
from collections.abc import Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, PositiveInt, ValidationError

from ..utils.http import NoAnswerError, exchange, is_local

FINAL_CODES = (413, 422)
"""Answers to a group that are final. Any other refusal, such as 404, may come from a gateway whose API restarts."""


class ApiError(Exception):
    """The API gave no usable answer.

    `code` is the HTTP status of its answer, if there was one. `is_gone` means that the connection was refused, so that
    the process which listened there has ended. `may_have_arrived` means that a group may have been accepted all the
    same, because its answer was lost.
    """

    def __init__(self, message: str, *, code: int | None = None, is_gone: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.is_gone = is_gone
        self.may_have_arrived = False

    @property
    def is_without_effect(self) -> bool:
        """Whether run-api has certainly not acted on the request: no process listened, or the request was refused."""
        is_refused = self.code is not None and (self.code < 500 or self.code == 503)
        return self.is_gone or is_refused


class ApiRefusedError(ApiError):
    """The API refuses the request and will refuse it again. The message is what the API said."""


class Transport:
    """Sends requests to one trajectory API. Each request has a separate connection."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._compresses = not is_local(url)
        """Whether groups are compressed. On this machine and in its network, that would take longer than it saves."""

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The API's answer. Raises ApiError, or ApiRefusedError for a 4xx answer other than 408 and 429."""
        return await _request(method, self.url + path, json=body)

    async def offer(self, group: Mapping[str, Any]) -> bool:
        """Send one scored group, if the API has its trainer. Returns whether it was sent.

        Raises ApiRefusedError, or ApiError if the group should be sent again; then `may_have_arrived` says whether the
        API may have accepted it.

        A group that run-api would accept but could not hand on to the trainer is refused here. Otherwise run-api would
        fail after it has taken a batch out of its queue, and would lose the whole batch.
        """
        try:
            body = _body_of(group)
        except (TypeError, ValueError) as error:
            raise ApiRefusedError(f"not sent, because no batch with it could be used: {error}") from error
        if self._compresses:
            # Token ids shrink nearly as well at the lowest level, several times faster.
            body = await asyncio.to_thread(gzip.compress, body, compresslevel=1)
        if not await self._has_trainer():
            return False
        await self._post(body)
        return True

    async def _has_trainer(self) -> bool:
        try:
            info = await self.request("GET", "/wandb_info")
        except ApiRefusedError as error:
            raise ApiError(str(error), code=error.code) from error
        return info.get("project") is not None

    async def _post(self, body: bytes) -> None:
        """Send a group. Raises ApiError, or ApiRefusedError for an answer of FINAL_CODES."""
        headers = {"Content-Type": "application/json"}
        if self._compresses:
            headers["Content-Encoding"] = "gzip"
        try:
            await _request("POST", f"{self.url}/scored_data", data=body, headers=headers)
        except ApiRefusedError as error:
            if error.code in FINAL_CODES:
                raise
            raise ApiError(str(error), code=error.code) from error
        except ApiError as error:
            error.may_have_arrived = not error.is_without_effect
            raise


async def _request(method: str, url: str, **options: Any) -> dict[str, Any]:
    # aiohttp waits five minutes. run-api answers nothing while it encodes a batch for its trainer: about 40 s for 1,024
    # sequences of 4,096 tokens. A group whose request fails meanwhile is accepted all the same, and sent again.
    try:
        async with aiohttp.ClientSession() as session:
            answer = await exchange(session, method, url, **options)
    except NoAnswerError as error:
        # Only a refused connection proves that no process listens there.
        raise ApiError(str(error), is_gone=error.is_refused) from error
    if answer.status >= 400:
        # 408 and 429 ask to be tried again later.
        is_final = answer.status < 500 and answer.status not in (408, 429)
        kind = ApiRefusedError if is_final else ApiError
        raise kind(f"it answers {answer.status}: {answer.text[:300]}", code=answer.status)
    try:
        content = answer.parsed()
    except (ValueError, TypeError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ApiError(f"{url} does not answer like run-api: {answer.text[:80]!r}")
    return content


def _body_of(group: Mapping[str, Any]) -> bytes:
    """The body of a request that carries this group.

    Raises TypeError or ValueError for a group that run-api could not encode in its turn (half a surrogate pair), or
    whose sequences, scores or log probabilities no trainer can read. A NaN in another field is sent as null, which
    run-api refuses where it expects a number.
    """
    lengths = [len(tokens) for tokens in group["tokens"]]
    for name in ("masks", "inference_logprobs"):
        rows = group.get(name)
        if rows is not None and [len(row) for row in rows] != lengths:
            raise ValueError(f"its {name} do not have the lengths of its tokens")
    logprobs = group.get("inference_logprobs")
    for numbers in (group.get("scores", ()), *(() if logprobs is None else logprobs)):
        if not math.isfinite(sum(numbers)):
            raise ValueError("a score or a log probability is not finite")
    return msgspec.json.encode(group, enc_hook=_to_plain)


def _to_plain(value: Any) -> Any:
    """The plain numbers or lists of numpy and torch, with which `score` of a subclass may compute."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")


# --- answers. An answer of another form counts as an outage of the API.


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class Planted(_Answer):
    """The answer to the registration of a mark."""

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


# --- marks

NO_TRAINER = "wait for trainer to start"
"""The status in run-api's answer to a registration before a trainer has requested a batch."""

MARKS = 2
"""Marks that run-api sees before each registration: for this process and for its successor."""


def new_mark() -> str:
    """A name that no other environment has."""
    return f"mark-{secrets.token_hex(8)}"


def registration_of(mark: str) -> dict[str, Any]:
    """The body of a request that registers a mark."""
    return {
        "max_token_length": 1,
        "desired_name": mark,
        "weight": 0.0,
        "min_batch_allocation": None,
        "group_size": 1,
    }


async def is_known(transport: Transport, mark: str) -> bool:
    """Whether the process of run-api that answers has seen this mark before. Raises ApiError."""
    answer = await transport.request("POST", "/register-env", registration_of(mark))
    if answer.get("status") == NO_TRAINER:
        # Without a trainer, run-api has registered nothing.
        return False
    return not str(answer.get("wandb_name")).endswith("_0")
