"""The environment of the demo: ReasoningGymEnv itself, which also tells the demo what it does.

Run as `python -m reasoning_gym_environment.demo.environment serve ...`, like the real one. The events (item drawn,
group scored, evaluation done) go as JSON lines to the file descriptor named in the environment variable below.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ..env import ReasoningGymEnv
from ..records import Problem, RolloutGroup
from .main import EVENTS_FD


class DemoEnv(ReasoningGymEnv):
    """Reports each step; changes nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._events = os.fdopen(int(os.environ[EVENTS_FD]), "w", buffering=1, encoding="utf-8")

    async def setup(self) -> None:
        await super().setup()
        made = self._made
        self._tell(
            "ready",
            library=f"reasoning-gym {made.library.version} ({made.library.source})",
            tasks=len(made.catalog),
            eval_items=len(made.eval_set),
        )
        for problem in made.eval_set:
            self._tell_item(problem)

    async def get_next_item(self) -> Any:
        item = await super().get_next_item()
        self._tell_item(item[2].problem)
        return item

    async def _accept(self, group: RolloutGroup) -> Any:
        sent = await super()._accept(group)
        problem = group.problem
        scores = [rollout.score.value for rollout in group.rollouts]
        self._tell(
            "group",
            task=problem.task,
            category=problem.category,
            level=problem.level,
            complexity=problem.complexity,
            scores=scores,
            signal=group.has_signal,
            sent=bool(sent),
        )
        return sent

    async def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = await super().evaluate(*args, **kwargs)
        self._tell("evaluation", **metrics)
        return metrics

    async def close(self) -> None:
        await super().close()
        self._tell("closed", dumps=[str(path) for path in self.log.dumps.files], outcomes=self.log.outcomes.summary())

    def _tell_item(self, problem: Problem) -> None:
        self._tell(
            "item",
            question=problem.question,
            task=problem.task,
            answer=_known_answer(problem),
            complexity=problem.complexity,
        )

    def _tell(self, event: str, **details: Any) -> None:
        self._events.write(json.dumps({"event": event, **details}, default=str) + "\n")


def _known_answer(problem: Problem) -> str | None:
    """The oracle answer; five tasks have none, for some of them the metadata holds an example."""
    answer = problem.entry.get("answer")
    if answer is None:
        metadata = problem.entry.get("metadata", {})
        answer = metadata.get("example_correct_answer") or metadata.get("possible_answer")
    return None if answer is None else str(answer)


if __name__ == "__main__":
    DemoEnv.cli()
