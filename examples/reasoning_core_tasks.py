"""Generators of reasoning-core as tasks: a task module for any library that makes items and scores answers.

pip install reasoning-core                     the license is MIT; the verifiers run in the sandbox, like all others
reasoning-gym-env tasks core_planning --task-modules examples/reasoning_core_tasks.py --complexity 1
reasoning-gym-env audit core_planning --task-modules examples/reasoning_core_tasks.py
reasoning-gym-env serve --env.task_modules examples/reasoning_core_tasks.py --env.include_tasks 'core_*,countdown'
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
from easydict import EasyDict
from faker import Faker
from reasoning_core import get_task, list_tasks
from reasoning_gym.coaching import BaseCurriculum, ScalarAttributeDefinition
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import register_dataset

NOT_REPRODUCIBLE = {
    "arithmetics",
    "code_analysis",
    "code_runnability",
    "constrained_continuation",
    "lambda_reduction",
    "most_probable_evidence",
    "most_probable_outcome",
    "parsing_derivation",
    "qualitative_causal_reasoning",
    "regex_following",
    "regex_reasoning",
    "rewrite_system",
    "syntax_error_detection",
    "unification_entailment",
}
"""Generators of release 0.5.0 whose items depend on more than the seed. A grader could not make them again."""

NEED_MORE = {"game_best_move", "game_forced_win", "metamath_core_select", "metamath_entailment"}
"""Generators that need another package, or download data."""

GENERATORS = tuple(sorted(set(list_tasks()) - NOT_REPRODUCIBLE - NEED_MORE))


@dataclass
class CoreConfig:
    """Every generator has levels, and needs no upper limit for them."""

    level: int = 0
    seed: int | None = None
    size: int = 500

    def validate(self) -> None:
        assert self.level >= 0, "level must be at least 0"


class CoreCurriculum(BaseCurriculum):
    """The levels of a task, the easiest first."""

    def __init__(self) -> None:
        super().__init__("CoreCurriculum", CoreConfig)
        self._define_attributes(
            ScalarAttributeDefinition(
                name="level",
                field_name="level",
                levels=[0, 1, 2, 3, 4, 5],
                description="The level of the generator",
            )
        )


class CoreDataset(ProceduralDataset):
    """The items of a generator. A subclass for each generator names it."""

    generator: str
    verifier: Callable[[Any, str, Any], Any]

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(config=config, seed=config.seed, size=config.size)

    def __getitem__(self, index: int) -> dict[str, Any]:
        # The generators draw from the random generators that all code of a process shares.
        seed = self.seed + index
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        Faker.seed(seed)
        # The limit of tokens would depend on a tokenizer that only some machines have.
        made = get_task(self.generator).generate_example(level=self.config.level, max_tokens=None)
        # The verifiers accept metadata that has been JSON. Its notes on the generation differ between machines.
        metadata = json.loads(json.dumps(dict(made.metadata)))
        kept = {name: value for name, value in metadata.items() if not name.startswith("_")}
        return {"question": made.prompt, "answer": str(made.answer), "metadata": kept}

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        # A verifier of reasoning-core never uses its object.
        return float(self.verifier(None, answer or "", EasyDict(entry)))


for name in GENERATORS:
    members = {"generator": name, "verifier": staticmethod(type(get_task(name)).score_answer)}
    register_dataset(f"core_{name}", type(f"Core_{name}", (CoreDataset,), members), CoreConfig, CoreCurriculum)
