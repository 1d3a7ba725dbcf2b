"""A trajectory API in this process, for tests of what talks to it."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer


class FakeApi:
    """A trajectory API whose every answer can be changed.

    `names` are the desired names of the environments that it has registered, marks included, in the order of their
    numbers.
    """

    def __init__(self) -> None:
        self.has_trainer = True
        self.step = self.failures = self.errors = self.posts = self.lookups = 0
        self.names: list[str] = []
        self.num_steps, self.failure, self.status = 9, 503, 200
        self.text = '{"detail": "weight: Field required"}'
        self.info: dict[str, Any] = {"batch_size": 16, "max_token_len": 500}
        self.checkpoints: tuple[str, int] = ("unused", -1)
        self.groups: list[dict[str, Any]] = []
        self.signed_off: list[int] = []
        self.changed_status: dict[str, Any] = {}
        """Values that are replaced in or added to the status."""
        self.refused: dict[str, int] = {}
        """The status code of the replies to requests for a path, by path."""
        self.takes: int | None = None
        """The number of groups that are accepted. The requests with further groups wait. None: all are accepted."""
        self.held = 0
        """The number of groups that wait."""
        self._is_stopping = asyncio.Event()
        self.address, self._port = "", 0

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path}", self._answer)
        self._server = TestServer(app, port=self._port)
        await self._server.start_server()
        self._port = self._server.port or 0
        self.address = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        self._is_stopping.set()
        await self._server.close()

    def forget(self, *names: str) -> None:
        """Become another process, at which environments of these names have registered already."""
        self.names = list(names)

    @property
    def environments(self) -> list[str]:
        """The names of the environments, without marks."""
        return [name for name in self.names if not name.startswith("mark-")]

    async def _answer(self, request: web.Request) -> web.Response:
        path, body = request.match_info["path"], await request.json() if request.can_read_body else {}
        if path in self.refused:
            return web.Response(status=self.refused[path], text="{}")
        if path == "scored_data":
            self.posts += 1
            if len(self.groups) == self.takes:
                self.held += 1
                await self._is_stopping.wait()
                return web.Response(status=500)
            if self.status == 200:
                self.groups.append(body)
            return web.Response(status=self.status, text="{}")
        if path == "disconnect-env":
            self.signed_off.append(body["env_id"])
        if path == "wandb_info":
            self.lookups += 1
            return web.json_response({"group": None, "project": "p" if self.has_trainer else None})
        if self.failures > 0:
            self.failures -= 1
            return web.Response(status=self.failure, text=self.text)
        if path == "register-env":
            return web.json_response(self._registered(body["desired_name"]))
        if path == "status-env":
            self.errors -= 1
            if body["env_id"] >= len(self.names) or self.errors >= 0:
                return web.Response(status=500, text="Internal Server Error")
            queue = {"queue_size": 0, "self_queue_size": 0, "max_group_size": 4}
            status = {"current_step": self.step, "env_weight": 1.0, **queue, **self.changed_status}
            return web.json_response(status)
        return web.json_response(self.info)

    def _registered(self, name: str) -> dict[str, Any]:
        if not self.has_trainer:
            return {"status": "wait for trainer to start"}
        real_name = f"{name}_{self.names.count(name)}"
        self.names.append(name)
        names = {"wandb_name": real_name, "checkpoint_dir": self.checkpoints[0]}
        steps = {"checkpoint_interval": self.checkpoints[1], "starting_step": self.step, "num_steps": self.num_steps}
        return {"status": "success", "env_id": len(self.names) - 1, **names, **steps}
