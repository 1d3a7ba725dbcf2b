"""run-api in simulated time: the functions of atroposlib itself, with a trainer, behind a network or a gateway.

atroposlib keeps the state of run-api in a global variable, so a process can simulate only one run-api at a time.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from atroposlib.api import server as run_api
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.datastructures import State

from reasoning_gym_environment.records import MASKED
from reasoning_gym_environment.trainer.transport import FINAL_CODES, ApiError, ApiRefusedError, Transport
from reasoning_gym_environment.utils.clock import now

Delay = Callable[[], float]

TIMEOUT_S = 300.0
"""aiohttp waits so long for an answer."""

MARK = "mark-"


class SimulatedApi:
    """run-api, with a trainer that takes every full batch immediately."""

    def __init__(
        self,
        *,
        latency: Delay,
        batch_size: int,
        trainer_step_s: float,
        checkpoint_dir: str = "",
        checkpoint_interval: int = -1,
        max_token_len: int = -1,
        num_steps: int = 10**9,
    ) -> None:
        self.latency = latency
        self.batch_size = batch_size
        self.trainer_step_s = trainer_step_s
        self.checkpoint_dir = checkpoint_dir
        self.checkpoint_interval = checkpoint_interval
        self.max_token_len = max_token_len
        self._num_steps = num_steps
        self.is_up = True
        self.has_trainer = False
        self.gateway_code: int | None = None
        """The status that a gateway returns while run-api is down. None: without a gateway, connections are refused."""
        self.gateway_failures = 0
        """The number of next requests that the gateway does not pass on, although run-api is up."""
        self.accepted: list[tuple[int, ...]] = []
        """The prompt of every group that was accepted, in order."""
        self.owners: dict[int, Any] = {}
        """Who has registered as which environment of the present process. Marks are missing."""
        self.signed_off: list[tuple[Any, Any]] = []
        """Who was signed off, and by whom."""
        self.loses_answers = 0
        self.blocked_until = 0.0
        """Until then run-api encodes a batch, and answers nothing. The requests that arrive meanwhile wait for it."""
        self.accepted_without_trainer = 0
        self._process = 0
        self._last_step = 0
        self.start()
        self.register_trainer()

    def connect(self, owner: Any = None) -> Link:
        """The connection of one environment."""
        return Link(self, owner)

    # --- the process and its trainer

    def stop(self) -> None:
        self._last_step = self.step
        self.is_up = False

    def start(self) -> None:
        """Start a new process, which knows neither trainer nor environments."""
        run_api.app.state = State()
        self.is_up = True
        self.has_trainer = False
        self._process += 1
        self.owners.clear()

    def block(self, seconds: float) -> None:
        self.blocked_until = now() + seconds

    def register_trainer(self, *, steps_back: int = 0) -> None:
        """Let the trainer register, and request its first batch. It may continue from an earlier step."""
        registration = run_api.Registration(
            wandb_group="group",
            wandb_project="project",
            batch_size=self.batch_size,
            max_token_len=self.max_token_len,
            checkpoint_dir=self.checkpoint_dir,
            save_checkpoint_interval=self.checkpoint_interval,
            starting_step=max(0, self._last_step - steps_back),
            num_steps=self._num_steps,
        )
        called(run_api.register(registration))
        called(run_api.get_batch())
        self.has_trainer = True

    async def take_batches(self) -> None:
        """The trainer: takes a batch whenever there is one, at most every `trainer_step_s` seconds."""
        while True:
            if self.is_up and self.has_trainer:
                called(run_api.get_batch())
            await asyncio.sleep(self.trainer_step_s)

    @property
    def step(self) -> int:
        """The trainer's step, or its last step before run-api has restarted."""
        status = getattr(run_api.app.state, "status_dict", None)
        return self._last_step if status is None else int(status["step"])

    @step.setter
    def step(self, step: int) -> None:
        """Before the trainer registers, this is the step at which it will register."""
        self._last_step = step
        if hasattr(run_api.app.state, "status_dict"):
            run_api.app.state.status_dict["step"] = step

    @property
    def queue(self) -> list[dict[str, Any]]:
        """The groups that wait for the trainer."""
        return getattr(run_api.app.state, "queue", [])

    @property
    def environments(self) -> list[dict[str, Any]]:
        """What run-api knows of each environment, in the order of their numbers, marks included."""
        return getattr(run_api.app.state, "envs", [])

    # --- requests

    async def request(self, path: str, body: Mapping[str, Any], owner: Any = None) -> dict[str, Any]:
        return await self._answered(lambda: self._answer(path, body, owner))

    async def offer(self, group: Mapping[str, Any], owner: Any = None) -> bool:
        # The second connection is made as soon as the first answer arrives, so to the process that has answered.
        process = -1

        def look() -> dict[str, Any]:
            nonlocal process
            process = self._process
            return self._answer("/wandb_info", {}, owner)

        def accept() -> dict[str, Any]:
            if self._process != process:
                raise ApiError("server disconnected")
            self.accepted_without_trainer += not self.has_trainer
            answer = self._answer("/scored_data", group, owner)
            self.accepted.append(prompt_of(group))
            return answer

        try:
            info = await self._answered(look)
        except ApiRefusedError as error:
            raise ApiError(str(error), code=error.code) from error
        if info["project"] is None:
            return False
        try:
            await self._answered(accept)
        except ApiError as error:
            if error.code in FINAL_CODES:
                raise
            unknown = ApiError(str(error), code=error.code, is_gone=error.is_gone)
            unknown.may_have_arrived = not error.is_without_effect
            raise unknown from error
        return True

    async def _answered(self, answer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        await asyncio.sleep(self.latency() / 2)
        self._check_reachable()
        process = self._process
        blocked_s = max(0.0, self.blocked_until - now())
        if blocked_s > TIMEOUT_S:
            # The client does not wait any longer, but run-api has its request.
            asyncio.get_running_loop().call_later(blocked_s, answer)
            await asyncio.sleep(TIMEOUT_S)
            raise ApiError("timeout")
        await asyncio.sleep(blocked_s)
        self._check_same(process)
        made = answer()
        await asyncio.sleep(self.latency() / 2)
        self._check_same(process)
        if self.loses_answers:
            self.loses_answers -= 1
            raise ApiError("timeout")
        return made

    def _check_reachable(self) -> None:
        if self.gateway_failures and self.gateway_code is not None:
            self.gateway_failures -= 1
            raise refusal(self.gateway_code)
        if self.is_up:
            return
        if self.gateway_code is not None:
            raise refusal(self.gateway_code)
        raise ApiError("connection refused", is_gone=True)

    def _check_same(self, process: int) -> None:
        if not self.is_up or self._process != process:
            raise ApiError("server disconnected")

    def _answer(self, path: str, body: Mapping[str, Any], owner: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = called(endpoint(path, body))
        except ValidationError as error:
            raise ApiRefusedError(str(error), code=422) from error
        except (AttributeError, IndexError, ZeroDivisionError) as error:
            raise ApiError("Internal Server Error", code=500) from error
        if path == "/register-env" and "env_id" in answer and not body["desired_name"].startswith(MARK):
            self.owners[answer["env_id"]] = owner
        if path == "/disconnect-env":
            self.signed_off.append((self.owners.get(body["env_id"]), owner))
        return answer


ENDPOINTS: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    route.path: route.endpoint for route in run_api.app.routes if isinstance(route, APIRoute)
}
"""The functions of atroposlib by their path. Each takes nothing, or the body of the request."""


def endpoint(path: str, body: Mapping[str, Any]) -> Coroutine[Any, Any, Any]:
    """The answer of run-api. Raises ValidationError for another body."""
    function = ENDPOINTS[path]
    models = [parameter.annotation for parameter in inspect.signature(function).parameters.values()]
    return function(*(model(**body) for model in models))


class Link(Transport):
    """The connection of one environment to run-api."""

    def __init__(self, api: SimulatedApi, owner: Any) -> None:
        super().__init__("http://simulated")
        self._api = api
        self._owner = owner
        self.is_cut = False
        """Whether the environment is dead, so that nothing that it does reaches run-api."""

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self._check()
        return await self._api.request(path, body or {}, self._owner)

    async def offer(self, group: Mapping[str, Any]) -> bool:
        self._check()
        return await self._api.offer(group, self._owner)

    def _check(self) -> None:
        if self.is_cut:
            raise asyncio.CancelledError


def prompt_of(group: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens of the prompt of a group, which tell its item."""
    return tuple(token for token, mask in zip(group["tokens"][0], group["masks"][0], strict=True) if mask == MASKED)


def refusal(code: int) -> ApiError:
    """The error of a request that is answered with this code."""
    is_final = 400 <= code < 500 and code not in (408, 429)
    kind = ApiRefusedError if is_final else ApiError
    return kind(f"it answers {code}", code=code)


def called(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")
