"""An OpenEnv session as an environment of TRL. The model answers by calling the tool `answer`.

    reasoning-gym-env openenv --group-size 8

    prompts = [[{"role": "user", "content": ""}]] * 1000
    rows = {"prompt": prompts, "row": [*range(1000)], "group_size": [args.num_generations] * 1000}
    GRPOTrainer("some/model", args=args, train_dataset=Dataset.from_dict(rows), environment_factory=ReasoningGym)

The other columns of a row are the arguments of `reset`. All completions of a row get the same question. The server
chooses the question, and its level follows the rewards.
"""

from __future__ import annotations

from typing import Any

from openenv.core.generic_client import GenericEnvClient


class ReasoningGym:
    def __init__(self, address: str = "ws://localhost:8200") -> None:
        self._session = GenericEnvClient(base_url=address).sync()
        self._session.connect()
        self._reward: float | None = 0.0

    def reset(self, prompt: Any, **question: Any) -> str:
        self._reward = 0.0
        return str(self._session.reset(**question).observation["messages"][1]["content"])

    def answer(self, answer: str) -> str:
        """Give the final answer to the question. It is graded once.

        Args:
            answer: The answer alone.
        """
        self._reward = self._session.step({"completion": f"<answer>{answer}</answer>"}).reward
        return "Taken."

    def get_reward(self) -> float | None:
        """None for an answer that could not be scored: TRL leaves it out."""
        return self._reward
