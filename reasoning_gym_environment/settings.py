"""Settings of the parts that need no Atropos, in groups; each owner takes its own whole.

    TasksSettings        which tasks at which difficulty, how their items are made and their answers graded
    SamplingSettings     the same, and which item comes next
    EvaluationSettings   the same, and which questions are held out

The settings of the environment for Atropos (config.py) are all of these, so one object is handed to every owner. What
is a list or a mapping is also accepted as text, as flags give it.
"""

from __future__ import annotations

import json
import os
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from .errors import EnvironmentSetupError
from .tasks.difficulty_ladder import Ranges
from .tasks.selectors import parse_names, parse_weights

# --- what a setting may look like as text


def _overrides(given: Any) -> Any:
    try:
        return json.loads(given) if isinstance(given, str) and given else given or {}
    except json.JSONDecodeError as error:
        raise ValueError(f'expected a mapping, or JSON such as {{"chain_sum": {{"max_terms": 4}}}}: {error}') from error


def _tasks_to_evaluate(given: Any) -> list[str]:
    names = [str(given)] if isinstance(given, int) and not isinstance(given, bool) else parse_names(given)
    if not names or (len(names) > 1 and any(name.isdecimal() or name == "all" for name in names)):
        raise ValueError(f"expected a number of tasks, all, or names and globs, got {given!r}")
    if names[0] == "0":
        raise ValueError("expected at least 1 task; num_eval_samples_per_task 0 evaluates nothing")
    return names


def _difficulty(*names: str) -> BeforeValidator:
    """Reads none, one of these names, or a number from 0 (the easiest level) to 1 (the hardest)."""

    def read(given: Any) -> float | str | None:
        text = str(given).strip().lower()
        if given is None or text in ("none", "null", "", "default"):
            return None
        if text in names:
            return text
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if isinstance(given, bool) or not 0.0 <= number <= 1.0:
            raise ValueError(f"expected none, a number from 0 to 1, {' or '.join(names)}, got {given!r}")
        return number

    return BeforeValidator(read)


Names = Annotated[list[str], BeforeValidator(parse_names)]
Complexity = Annotated[Literal["curriculum", "random"] | float | None, _difficulty("curriculum", "random")]
EvalComplexity = Annotated[Literal["easy", "hard"] | float | None, _difficulty("easy", "hard")]

Group = TypeVar("Group", bound=BaseModel)


class TasksSettings(BaseModel):
    """Which tasks are served at which difficulty, how items are made and answers graded."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    # Which tasks are served.
    include_tasks: Names = []
    """Tasks to serve: names, globs (*_arithmetic) or category:logic, comma-separated or a list. Empty: all."""
    exclude_tasks: Names = []
    """Tasks to leave out, written like include_tasks."""
    task_weights: Annotated[dict[str, float], BeforeValidator(lambda given: parse_weights(given or {}))] = {}
    """How often tasks are drawn, relative to 1: 'countdown=2.0,category:logic=0.5' or a mapping."""
    task_overrides: Annotated[dict[str, dict[str, Any]], BeforeValidator(_overrides)] = {}
    """Per-task reasoning-gym config: a YAML mapping {task: {field: value}}, or the same as JSON."""
    task_modules: Names = []
    """Modules (dotted names or .py files) to import first; they register your own datasets."""
    allow_unguarded_tasks: Names = []
    """Tasks to serve although their verifier evaluates answers as code and no guard covers it."""

    # How difficult they are.
    complexity_mode: Complexity = None
    """Difficulty: none (reasoning-gym's defaults), random (uniform over each task's levels), curriculum (each task's
    level follows the model towards curriculum_target_accuracy), or a number from 0 (the easiest level) to 1 (the
    hardest).
    """
    difficulty_range: Ranges = "level"
    """Whether a level draws from its own range only, or from all ranges up to it."""

    # How items are made.
    num_generation_workers: int | None = Field(None, ge=1)
    """Generating processes. Default: one for every two cores, at least one, at most four. An idle process takes no
    processor time, and about 130 MB of memory, with levels 230 MB.
    """
    generation_timeout_s: float = Field(5.0, gt=0.0)
    """Seconds of processor time that making one item may take; beyond, a lower level is tried."""

    # How answers are scored.
    verification: Literal["strict", "native"] = "strict"
    """strict (an answer is right or wrong by its value, whatever its decoration) or native (reasoning-gym's own
    scores). The native score is dumped either way, and an evaluation with eval_complexity easy or hard is graded
    natively, as published results are.
    """
    partial_credit: Literal["exact", "native"] = "native"
    """What a wrong answer is paid: exact (nothing) or native (the partial credit of reasoning-gym's verifier). A right
    answer is always paid 1.
    """
    sandbox: Literal["auto", "require", "off"] = "auto"
    """Kernel protection of the scoring workers: auto (what the machine offers), require (refuse to start without
    filtered system calls) or off (trusted debugging only).
    """
    num_scoring_workers: int | None = Field(None, ge=1)
    """Scoring processes. Default: one for every four cores, at least one, at most eight."""
    scoring_timeout_s: float = Field(2.0, gt=0.0)
    """Seconds of processor time that a verifier may take for one answer."""

    @field_validator("sandbox", mode="before")
    @classmethod
    def _off_is_a_boolean_in_yaml(cls, value: Any) -> Any:
        return "off" if value is False else value


class SamplingSettings(TasksSettings):
    """Which item comes next."""

    # What is drawn.
    seed: int = 42
    """Seed of the training stream: the same seed gives the same items."""
    instance_id: str | None = Field(None, coerce_numbers_to_str=True)
    """Names this instance's item stream. Default: SLURM_PROCID, else the number that the API gives."""
    task_sampling: Literal["uniform", "weighted", "learnability"] = "weighted"
    """How tasks are chosen: uniform (all alike), weighted (by task_weights) or learnability (by task_weights, and less
    often those at which the model stands still).
    """
    curriculum_target_accuracy: float = Field(0.7, gt=0.0, lt=1.0)
    """Accuracy the curriculum holds each task at (between 0 and 1)."""
    prefetch_items: int = Field(4, ge=0)
    """Items that are made ahead of the one asked for."""


class EvaluationSettings(TasksSettings):
    """Which questions are held out, and how they are asked."""

    # What is evaluated, and how.
    eval_tasks: Annotated[list[str], BeforeValidator(_tasks_to_evaluate)] = ["20"]
    """Tasks to evaluate, of those served: a number (so many, chosen by eval_seed), all, or names, globs and
    category:logic, comma-separated or a list.
    """
    num_eval_samples_per_task: int = Field(5, ge=0)
    """Questions of each task in the evaluation set; 0: none."""
    eval_seed: int = 123
    """Seed of the fixed evaluation set."""
    eval_complexity: EvalComplexity = None
    """Difficulty of the evaluation set: none (reasoning-gym's defaults), a number from 0 (easiest level) to 1
    (hardest), or the configs of published results, easy or hard.
    """
    eval_completions: int = Field(1, ge=1)
    """Completions of each evaluation item; with several, pass@k is reported too."""
    eval_temperature: float = Field(0.1, ge=0.0)
    """Sampling temperature of evaluation."""
    hold_out: Literal["content", "published"] = "content"
    """What training leaves to evaluation: content (one question in ten, by a hash of its text) or published (also what
    eval_complexity easy and hard ask with these settings, as the published results did).
    """

    @property
    def eval_verification(self) -> str:
        """How its answers are graded: beside published results natively, as those were."""
        return "native" if isinstance(self.eval_complexity, str) else self.verification


def checked(kind: type[Group], **given: Any) -> Group:
    """These settings. Raises EnvironmentSetupError, one sentence for each that is invalid."""
    try:
        return kind(**given)
    except ValidationError as error:
        problems = {
            one["loc"][0]: f"{one['loc'][0]}: {one['msg']}, got {one['input']!r:.100}." for one in error.errors()
        }
        raise EnvironmentSetupError(" ".join(problems.values())) from error


def workers_for_cores(cores_for_each: int, at_most: int) -> int:
    """How many workers to start where no setting says it: one for every so many cores, at least one."""
    cores = os.cpu_count() or 1
    return min(at_most, max(1, cores // cores_for_each))
