"""Atropos' trajectory API: the few requests that an environment makes of it."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

TIMEOUT_S = 10.0
GROUP_TIMEOUT_S = 60.0
COMPRESS_FROM = 1024
"""Bytes from which a body is worth compressing."""

GZIP_LEVEL = 1
"""Token ids shrink nearly as well at the lowest level, several times faster."""

COME_BACK_LATER = (408, 429)
"""Answers below 500 that say nothing of what was asked."""

_TROUBLE = (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError)


class ApiUnavailableError(Exception):
    """No usable answer. `was_gone`: nobody listened, so the process had ended. `failed`: it failed at the request."""

    def __init__(self, message: str, *, was_gone: bool = False, failed: bool = False) -> None:
        super().__init__(message)
        self.was_gone = was_gone
        self.failed = failed


class RefusedError(Exception):
    """The API will have none of it, however often it is asked; the message is what it said."""


class UnknownEnvironmentError(Exception):
    """The API does not know the environment's number: it was restarted or reset."""


class TrajectoryApi:
    """A client of one trajectory API. Each request has a connection of its own, so none outlives a restart."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    async def status(self, env_id: int) -> dict[str, Any]:
        """Steps and queue as this environment sees them. Raises UnknownEnvironmentError, ApiUnavailableError."""
        code, text = await self._ask("GET", "/status-env", {"env_id": env_id})
        # It looks the number up without asking whether it has it.
        if code == 500:
            raise UnknownEnvironmentError(f"the API does not know environment {env_id}")
        status: dict[str, Any] = self._json(code, text)
        return status

    async def register(self, registration: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the API says of a new environment; None while no trainer has started.

        Raises ApiUnavailableError, and RefusedError for a registration that is not taken.
        """
        code, text = await self._ask("POST", "/register-env", registration)
        if 400 <= code < 500 and code not in COME_BACK_LATER:
            raise RefusedError(f"{code}: {text[:300]}")
        answer = self._json(code, text)
        return answer if answer.get("status") == "success" else None

    async def info(self) -> dict[str, Any]:
        """The trainer's `batch_size` and `max_token_len`, each -1 if it set none. Raises ApiUnavailableError."""
        info: dict[str, Any] = self._json(*await self._ask("GET", "/info", None))
        return info

    async def has_trainer(self) -> bool:
        """Whether a trainer is registered. Raises ApiUnavailableError."""
        return (await self.trainer()).get("project") is not None

    async def trainer(self) -> dict[str, Any]:
        """The wandb `group` and `project` of the trainer, each None without one. Raises ApiUnavailableError."""
        trainer: dict[str, Any] = self._json(*await self._ask("GET", "/wandb_info", None))
        return trainer

    async def sign_off(self, env_id: int) -> None:
        """Tell it that an environment is gone. Raises ApiUnavailableError."""
        self._json(*await self._ask("POST", "/disconnect-env", {"env_id": env_id}))

    async def post_group(self, group: Mapping[str, Any]) -> str | None:
        """Send one scored group; None if it was taken, else why it was refused. Raises ApiUnavailableError.

        What run-api would take and could not hand on is not sent: it fails after it has taken a batch out of its queue,
        and the other groups of that batch are lost with it.
        """
        try:
            body, headers = await asyncio.to_thread(_encoded, group)
        except (TypeError, ValueError) as error:
            return f"not sent, for no batch with it could be used: {error}"
        code, text = await self._request("POST", "/scored_data", GROUP_TIMEOUT_S, data=body, headers=headers)
        if code >= 500:
            raise ApiUnavailableError(f"it answers {code}: {text[:200]}", failed=code == 500)
        return None if code < 400 else f"{code}: {text[:200]}"

    async def _ask(self, method: str, path: str, data: Mapping[str, Any] | None) -> tuple[int, str]:
        return await self._request(method, path, TIMEOUT_S, json=data)

    async def _request(self, method: str, path: str, timeout_s: float, **request: Any) -> tuple[int, str]:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, self.url + path, **request) as response,
            ):
                return response.status, await response.text()
        except _TROUBLE as error:
            # Only a machine that answers "nobody listens here" is sure to have no such process.
            was_gone = isinstance(getattr(error, "os_error", error), ConnectionRefusedError)
            raise ApiUnavailableError(str(error) or type(error).__name__, was_gone=was_gone) from error

    def _json(self, code: int, text: str) -> Any:
        if code >= 400:
            raise ApiUnavailableError(f"it answers {code}: {text[:200]}")
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise ApiUnavailableError(f"{self.url} does not answer like run-api: {text[:80]!r}") from error
        if not isinstance(answer, dict):
            raise ApiUnavailableError(f"{self.url} does not answer like run-api: {text[:80]!r}")
        return answer


def _encoded(group: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Raises TypeError or ValueError for what run-api cannot encode in its turn (NaN, half a surrogate pair), and for
    sequences that no trainer can read.
    """
    for name in ("masks", "inference_logprobs"):
        if group.get(name) is not None and [*map(len, group[name])] != [*map(len, group["tokens"])]:
            raise ValueError(f"its {name} are not as many as its tokens")
    body = json.dumps(group, allow_nan=False, ensure_ascii=False).encode("utf-8")
    headers = {"Content-Type": "application/json"}
    if len(body) >= COMPRESS_FROM:
        headers["Content-Encoding"] = "gzip"
        body = gzip.compress(body, compresslevel=GZIP_LEVEL)
    return body, headers
