"""atroposlib's run-api over HTTP in this process, for tests of its clients. Its answers can be changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from atroposlib.api import server as run_api

from reasoning_gym_environment.trainer.transport import ApiError

from .simulated_api import MARK, SimulatedApi

OF_TRAINER = ("/scored_data", "/wandb_info")
"""The paths of requests that `failures` does not concern."""


class FakeApi(SimulatedApi):
    """run-api, whose trainer takes no batch."""

    def __init__(self, **registration: Any) -> None:
        values = {"batch_size": 16, "max_token_len": 500, "num_steps": 9, **registration}
        super().__init__(latency=lambda: 0.0, trainer_step_s=1.0, **values)
        self.failures: Iterator[int] = iter(())
        """The codes of the next replies, except to groups and to the question for the trainer."""
        self.text = '{"detail": "weight: Field required"}'
        """The text of a reply with one of these codes."""
        self.refused: dict[str, int] = {}
        """The status code of the replies to requests for a path, by path."""
        self.changed_status: dict[str, Any] = {}
        """Values that are replaced in or added to the status."""
        self.groups: list[dict[str, Any]] = []
        self.disconnected: list[int] = []
        """The numbers of environments that were signed off."""
        self.posts = 0
        self.address = ""

    async def listen(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path}", self._handle)
        self._server = TestServer(app)
        await self._server.start_server()
        self.address = f"http://127.0.0.1:{self._server.port}"

    async def close(self) -> None:
        await self._server.close()

    def change(self, **values: Any) -> None:
        """Change what the trainer has registered with."""
        for name, value in values.items():
            setattr(run_api.app.state, name, value)

    @property
    def num_steps(self) -> int:
        return int(run_api.app.state.num_steps)

    @property
    def names(self) -> list[str]:
        """The names of the environments, without marks."""
        names = [environment["desired_name"] for environment in self.environments]
        return [name for name in names if not name.startswith(MARK)]

    async def _handle(self, request: web.Request) -> web.Response:
        path, body = f"/{request.match_info['path']}", await request.json() if request.can_read_body else {}
        self.posts += path == "/scored_data"
        if path in self.refused:
            return web.Response(status=self.refused[path], text="{}")
        failure = None if path in OF_TRAINER else next(self.failures, None)
        if failure is not None:
            return web.Response(status=failure, text=self.text)
        if path == "/scored_data":
            self.groups.append(body)
        if path == "/disconnect-env":
            self.disconnected.append(body["env_id"])
        try:
            answer = self._answer(path, body, None)
        except ApiError as error:
            return web.Response(status=error.code or 500, text=str(error))
        return web.json_response({**answer, **self.changed_status} if path == "/status-env" else answer)
