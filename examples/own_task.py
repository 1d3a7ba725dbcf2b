"""A task of your own: a dataset, a verifier, and a curriculum. Every command accepts this file as a task module.

python examples/own_task.py                                                       an item, and rewards of answers
reasoning-gym-env tasks clock_sum --task-modules examples/own_task.py --complexity 1
reasoning-gym-env audit --tasks clock_sum --task-modules examples/own_task.py     how reliable its verifier is
reasoning-gym-env serve --env.task_modules examples/own_task.py --env.include_tasks clock_sum,countdown
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

from reasoning_gym.coaching import BaseCurriculum, ScalarAttributeDefinition
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import register_dataset


@dataclass
class ClockSumConfig:
    """The fields `seed` and `size` are required. Levels and users change the other fields."""

    max_minutes: int = 600
    seed: int | None = None
    size: int = 500

    def validate(self) -> None:
        assert self.max_minutes >= 1, "max_minutes must be at least 1"


class ClockSumDataset(ProceduralDataset):
    """Questions for the time some minutes later."""

    def __init__(self, config: ClockSumConfig) -> None:
        super().__init__(config=config, seed=config.seed, size=config.size)

    def __getitem__(self, index: int) -> dict[str, Any]:
        # The item depends only on the seed and the index, so it is the same in every process.
        rng = random.Random(self.seed + index)
        start, minutes = rng.randrange(24 * 60), rng.randint(1, self.config.max_minutes)
        end = (start + minutes) % (24 * 60)
        return {
            "question": f"It is {start // 60:02}:{start % 60:02}. What time is it {minutes} minutes later? "
            "Give the time as HH:MM, with hours from 00 to 23.",
            "answer": f"{end // 60:02}:{end % 60:02}",
            "metadata": {"source_dataset": "clock_sum", "source_index": index, "minutes": minutes},
        }

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """1 for the right time, else 0. A model could earn partial credit without doing the work."""
        given = re.fullmatch(r"(\d{1,2}):(\d\d)", (answer or "").strip())
        return float(given is not None and f"{int(given[1]):02}:{given[2]}" == entry["answer"])


class ClockSumCurriculum(BaseCurriculum):
    """The levels of the task, the easiest first."""

    def __init__(self) -> None:
        super().__init__("ClockSumCurriculum", ClockSumConfig)
        self._define_attributes(
            ScalarAttributeDefinition(
                name="max_minutes", field_name="max_minutes", levels=[30, 120, 600, 3000], description="How much later"
            )
        )


register_dataset("clock_sum", ClockSumDataset, ClockSumConfig, ClockSumCurriculum)


if __name__ == "__main__":
    from reasoning_gym_environment import ItemStream, Tasks

    with Tasks("clock_sum", task_modules=[__file__], complexity_mode=1.0) as tasks:
        problem = ItemStream(tasks).next()
        answers = [problem.entry["answer"], "12:00", "noon"]
        print(problem.question)
        for grade in tasks.grade(problem, [f"<answer>{answer}</answer>" for answer in answers]):
            print(grade.reward, grade.score.answer)
