"""The environment of the demo: ReasoningGymEnv itself, which also tells the demo what it does.

Run as `python -m reasoning_gym_environment.demo.environment serve ...`, like the real one. The events (set-up, group
scored, evaluation done) go as JSON lines to the file descriptor named in the environment variable EVENTS_FD. SIGUSR1
ends it as SIGTERM does, only that the held-out questions are asked once more, when nothing else is under way any more.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

from ..env import ReasoningGymEnv
from ..errors import EnvironmentSetupError
from ..records import RolloutGroup
from ..training_log.training_log import accuracy_counts
from .main import EVENTS_FD


class DemoEnv(ReasoningGymEnv):
    """Reports each step, and evaluates before the first group and after the last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._events = os.fdopen(int(os.environ[EVENTS_FD]), "w", buffering=1, encoding="utf-8")
        self._is_finished = self._is_last = False

    async def setup(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._end_with_evaluation)
        self._tell("setup")
        # They are asked before the first group.
        self._asks_later = False
        await super().setup()
        made = self._made
        library = f"reasoning-gym {made.library.version} ({made.library.source})"
        self._tell(
            "ready",
            library=library,
            tasks=list(made.catalog.names),
            questions=len(self.test_items_with_scorers),
        )
        if not await self.evaluate():
            raise EnvironmentSetupError("The evaluation before training scored nothing; the log above says why.")

    async def _accept(self, group: RolloutGroup) -> Any:
        sent = await super()._accept(group)
        counts = accuracy_counts(group)
        self._tell(
            "group",
            task=group.problem.task,
            level=self._made.sampler.curriculum.level(group.problem.task),
            rewards=group.rewards,
            signal=group.has_signal,
            scored=counts["scored"],
            exact=counts["exact"],
        )
        return sent

    async def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self._tell("evaluating")
        return await super().evaluate(*args, **kwargs)

    async def evaluate_log(self, metrics: dict[str, float], *args: Any, **kwargs: Any) -> None:
        await super().evaluate_log(metrics, *args, **kwargs)
        self._tell("evaluation", metrics=metrics, last=self._is_last)

    async def close(self) -> None:
        if self._is_finished and not self._is_last:
            # The loop has stopped, and an evaluation that it had begun with it.
            self._is_last = True
            try:
                await self.evaluate()
            finally:
                await super().close()
        else:
            await super().close()
        files = f"{len(self.log.dumps.files)} files, {self.datadumps_dir}/*{self.run_uuid}*.jsonl"
        self._tell("closed", rollouts=files, outcomes=self.log.outcomes.summary())

    def _end_with_evaluation(self) -> None:
        self._is_finished = True
        os.kill(os.getpid(), signal.SIGTERM)

    def _tell(self, event: str, **details: Any) -> None:
        self._events.write(json.dumps({"event": event, **details}) + "\n")


if __name__ == "__main__":
    DemoEnv.cli()
