"""Generators of reasoning-core as tasks: a task module for any library that makes items and scores answers.

pip install reasoning-core                     the license is MIT; the verifiers run in the sandbox, like all others
reasoning-gym-env tasks core_planning --task-modules examples/reasoning_core_tasks.py --complexity 1
reasoning-gym-env audit --tasks core_planning --task-modules examples/reasoning_core_tasks.py
reasoning-gym-env serve --env.task_modules examples/reasoning_core_tasks.py --env.include_tasks 'core_*,countdown'

Three verifiers reach code that can evaluate text. The package serves their tasks only if `allow_unguarded_tasks` names
them: core_controlled_code_execution, core_function_manipulation, core_planar_geometry_relations.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import rapidfuzz.distance  # noqa: F401  # A verifier imports it when it runs, and the sandbox reads no files.
from easydict import EasyDict
from faker import Faker
from reasoning_core import DATASETS, get_task, list_tasks
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

TIMED = {"coreference", "inverse_math"}
"""Generators that stop a solver by the clock, so a busy machine makes other items of the same seed."""

READ_THE_MACHINE = {"table_qa"}
"""Its items need DuckDB, which reads /proc/self/cgroup. The workers may read the folders of Python's libraries only."""

NOT_SCORED = {"sequential_induction"}
"""Its verifier parses `U[n - 1]` with sympy, which the guard of the workers refuses: right answers would earn 0."""

GENERATORS = tuple(sorted(set(list_tasks()) - NOT_REPRODUCIBLE - NEED_MORE - TIMED - READ_THE_MACHINE - NOT_SCORED))


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
        # The limit of tokens would depend on a tokenizer that only some machines have, and the library's limit of time
        # would repeat a slow item with other random numbers. The worker has a limit of its own.
        made = get_task(self.generator).generate_example(level=self.config.level, max_tokens=None, timeout=3600)
        # The verifiers accept metadata that has been JSON. Its notes on the generation differ between machines.
        metadata = json.loads(json.dumps(dict(made.metadata)))
        kept = {name: value for name, value in metadata.items() if not name.startswith("_")}
        return {"question": made.prompt, "answer": str(made.answer), "metadata": kept}

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        # A verifier of reasoning-core never uses its object.
        return float(self.verifier(None, answer or "", EasyDict(entry)))


for name in GENERATORS:
    verifier = DATASETS[name].score_answer
    # Because of the module, the scan for verifiers that evaluate text follows the functions of reasoning-core.
    members = {"generator": name, "verifier": staticmethod(verifier), "__module__": verifier.__module__}
    register_dataset(f"core_{name}", type(f"Core_{name}", (CoreDataset,), members), CoreConfig, CoreCurriculum)
