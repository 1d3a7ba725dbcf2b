"""What became of the groups that were offered to the trajectory API, for the funnel.

Atropos logs a group that it drops, or that the API refuses, and returns as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from atroposlib.envs.base import BaseEnv

from .funnel import Fate, Funnel
from .groups import problem_of


class NotedDelivery(BaseEnv):
    """A BaseEnv that notes in `self.funnel` what it does with each group; changes nothing."""

    funnel: Funnel

    async def handle_send_to_api(
        self,
        scored_data: Any,
        item: Any = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> None:
        """Let Atropos send or drop a group. A list of groups, which this environment never makes, is not noted."""
        if isinstance(scored_data, dict):
            task = "unknown" if item is None else problem_of(*item[1:]).task
            self._on_the_way[id(scored_data)] = task
            if abort_on_any_max_length_exceeded and _is_too_long(scored_data, self.max_token_len):
                self._arrived(scored_data, Fate.TOO_LONG)
            elif not do_send_to_api:
                self._arrived(scored_data, Fate.WRITTEN)
        try:
            await super().handle_send_to_api(scored_data, item, do_send_to_api, abort_on_any_max_length_exceeded)
        finally:
            self._arrived(scored_data, Fate.DROPPED)

    async def _send_scored_data_to_api(self, scored_data: Any) -> None:
        try:
            await super()._send_scored_data_to_api(scored_data)
        except BaseException:
            self._arrived(scored_data, Fate.SEND_FAILED)
            raise
        refused = id(scored_data) in self._refused
        self._refused.discard(id(scored_data))
        self._arrived(scored_data, Fate.SEND_FAILED if refused else Fate.SENT)

    def _arrived(self, scored_data: Any, fate: Fate) -> None:
        """Note the fate of a group on its way; the first one counts."""
        task = self._on_the_way.pop(id(scored_data), None)
        if task is not None:
            self.funnel.note(fate, task)

    @asynccontextmanager
    async def _post_json_with_compression(
        self, session: Any, url: str, payload: Any, **options: Any
    ) -> AsyncIterator[Any]:
        async with super()._post_json_with_compression(session, url, payload, **options) as response:
            if 400 <= response.status < 500:
                self._refused.add(id(payload))
            yield response

    @property
    def _on_the_way(self) -> dict[int, str]:
        """The tasks of groups being sent, by the identity of what is sent."""
        return self.__dict__.setdefault("_tasks_on_the_way", {})

    @property
    def _refused(self) -> set[int]:
        """Groups that the API answered with an error of ours (4xx), which Atropos does not raise."""
        return self.__dict__.setdefault("_refused_groups", set())


def _is_too_long(scored_data: Any, max_token_len: int) -> bool:
    """Whether Atropos drops the group because a sequence reaches the trainer's limit; 0 or less: there is none."""
    return max_token_len > 0 and any(len(tokens) >= max_token_len for tokens in scored_data["tokens"])
