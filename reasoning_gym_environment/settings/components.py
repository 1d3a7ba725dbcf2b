"""Settings of the components that do not need Atropos.

    TasksSettings        which tasks at which difficulty, how items are generated and answers graded
    SamplingSettings     these, and how the next item is chosen
    EvaluationSettings   these, and which questions are held out

The settings of the environment for Atropos (environment.py) inherit from all three classes, so that every component can
take the same object. Flags are text, so each list and mapping can also be written as text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from ..errors import EnvironmentSetupError, unknown_name
from ..records import AnswerFormat
from ..tasks.selectors import ALL, parse_names

PartialCredit = Literal["exact", "native"]

# --- settings as text


def mapping_from_text(given: Any) -> Any:
    """The mapping that a text holds as JSON. Raises ValueError."""
    if not given:
        return {}
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError as error:
        raise ValueError(f'expected a mapping, or JSON such as {{"name": value}}: {error}') from error


def _tasks_to_evaluate(given: Any) -> list[str]:
    is_number = isinstance(given, int) and not isinstance(given, bool)
    names = [str(given)] if is_number else parse_names(given)
    mixes_kinds = len(names) > 1 and any(name.isdecimal() for name in names)
    if not names or mixes_kinds:
        raise ValueError(f"expected a number of tasks, or names, patterns, categories or {ALL}, got {given!r}")
    if names[0] == "0":
        raise ValueError("expected at least 1 task; num_eval_samples_per_task 0 evaluates nothing")
    return names


def _difficulty(*names: str) -> BeforeValidator:
    """Accept none, one of these names, or a number from 0 (the easiest level) to 1 (the hardest)."""

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
            expected = " or ".join(["none", "a number from 0 to 1", *names])
            raise ValueError(f"expected {expected}, got {given!r}")
        return number

    return BeforeValidator(read)


DEFAULT_PROMPT = "default"
"""Value of system_prompt: the prompt that belongs to answer_format."""

LONGEST_PATH = 1024
"""A longer text is no path."""


def text_or_file(given: Any) -> Any:
    """Read the file whose path is given. Another text stays as it is, and none, null or nothing is None."""
    if not isinstance(given, str):
        return given
    text = given.strip()
    if text.lower() in ("none", "null", ""):
        return None
    may_be_path = "\n" not in text and len(text) < LONGEST_PATH
    if may_be_path and Path(text).is_file():
        return Path(text).read_text(encoding="utf-8").strip()
    if may_be_path and " " not in text and ("/" in text or text.endswith((".txt", ".md", ".jinja"))):
        raise ValueError(f"expected a text or the path of a file, got {given!r}, and there is no such file")
    return given


def _none_or_given(given: Any) -> Any:
    is_none = isinstance(given, str) and given.strip().lower() in ("none", "null")
    return None if is_none else given


Parameter = Annotated[float | None, BeforeValidator(_none_or_given)]
"""A sampling parameter. Requests leave out a parameter that is none."""

Names = Annotated[list[str], BeforeValidator(parse_names)]
Weight = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
TextOrFile = Annotated[str | None, BeforeValidator(text_or_file)]
Complexity = Annotated[Literal["curriculum", "random"] | float | None, _difficulty("curriculum", "random")]

Settings = TypeVar("Settings", bound=BaseModel)


class TasksSettings(BaseModel):
    """Which tasks are served at which difficulty, how items are generated and answers graded."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    # Tasks.
    include_tasks: Names = []
    """Tasks to serve, or nothing for all tasks: names (countdown), patterns (*_arithmetic) and categories
    (category:math), separated by commas. `reasoning-gym-env tasks` lists the tasks and their categories.
    """
    exclude_tasks: Names = []
    """Tasks not to serve, in the same form."""
    task_weights: Annotated[dict[str, Weight], BeforeValidator(mapping_from_text)] = {}
    """How often training uses each task, relative to the other tasks, as a mapping, which is JSON on the command
    line: {"countdown": 2.0, "category:logic": 0.5}. The weight of all other tasks is 1.
    """
    task_overrides: Annotated[dict[str, dict[str, Any]], BeforeValidator(mapping_from_text)] = {}
    """Parameters for individual tasks that replace reasoning-gym's defaults, as a mapping, which is JSON on the command
    line: {"chain_sum": {"max_terms": 4}}. The command `reasoning-gym-env tasks chain_sum` shows the parameters of this
    task.
    """
    task_modules: Names = []
    """Python modules with tasks of your own, which they register with reasoning-gym: dotted names or .py files."""
    allow_unguarded_tasks: Names = []
    """Tasks of your own to serve although their verifiers run the model's answer as code. Without this permission
    they are not served, because this package cannot check these answers before they run.
    """

    # Difficulty.
    complexity_mode: Complexity = None
    """How difficult the items are: none (reasoning-gym's default parameters), random (all levels equally often),
    curriculum (follows the model), or a number from 0 (easiest level) to 1 (hardest). With curriculum, each task
    becomes harder while the model answers it well, and easier while it does not.
    """

    # Generating items.
    num_generation_workers: int | None = Field(None, ge=1)
    """Worker processes that generate items, which are questions with their right answers. Default: one for every
    two processor cores, at least one and at most four, and one more once all have been busy for a second, so that a
    slow item does not delay the others; for evaluate, one for each core, at most eight. An idle worker uses no
    processor time and 130 to 230 MB of memory.
    """

    # Prompts and the form of answers.
    answer_format: AnswerFormat = AnswerFormat.TAGS
    """Form of the answer: tags (inside <answer></answer>), boxed (inside \\boxed{}) or text (everything after the
    thinking). The prompt asks for this form, and an answer counts in no other form.
    """
    system_prompt: TextOrFile = DEFAULT_PROMPT
    """The system message of every prompt: a text, or the path of a file with the text. default: a prompt that asks
    for the answer in the form of answer_format. none: no system message. A text of your own must ask for this form.
    """

    # Grading answers.
    verification: Literal["strict", "native"] = "strict"
    """How an answer is judged. strict: by checks of this package, which accept the right value in any notation and
    refuse wrong answers that reasoning-gym accepts. native: by the verifiers of reasoning-gym.
    """
    partial_credit: PartialCredit = "native"
    """The reward of an answer that is not right. exact: 0. native: the partial score of reasoning-gym's verifier. A
    right answer always earns 1.
    """
    sandbox: Literal["auto", "require", "off"] = "auto"
    """Protection by the kernel for the processes that grade answers, because an answer can be hostile code. auto:
    all layers that this machine has. require: refuse to start unless system calls are filtered. off: no protection,
    for debugging with trusted answers.
    """
    num_scoring_workers: int | None = Field(None, ge=1)
    """Worker processes that grade answers. Default: one for every four processor cores, at least one and at most
    eight, and one more once all have been busy for a second.
    """

    @field_validator("sandbox", mode="before")
    @classmethod
    def _off_is_a_boolean_in_yaml(cls, value: Any) -> Any:
        return "off" if value is False else value


class SamplingSettings(TasksSettings):
    """How the next item is chosen."""

    # Choosing items.
    seed: int = 42
    """Seed of the training items. The same seed and settings give the same items."""
    instance_id: str | None = Field(None, coerce_numbers_to_str=True)
    """Name of this environment, if several environments serve the same trainer. Environments with different names
    use different items. Default for `serve`: SLURM_PROCID if it is set, otherwise a number.
    """
    curriculum_target_accuracy: float = Field(0.7, gt=0.0, lt=1.0)
    """With complexity_mode curriculum: the share of right answers, between 0 and 1, that each task should have.
    With more right answers the task becomes harder, and with fewer it becomes easier.
    """


class EvaluationSettings(TasksSettings):
    """Which questions are held out, and how an evaluation uses them."""

    # Evaluation.
    eval_tasks: Annotated[list[str], BeforeValidator(_tasks_to_evaluate)] = ["20"]
    """Tasks to evaluate: a number of tasks (eval_seed chooses which), or names, patterns and categories, or all. They
    are among the tasks that include_tasks and exclude_tasks leave.
    """
    num_eval_samples_per_task: int = Field(5, ge=0)
    """Held-out questions for each evaluated task, which training never uses. With 0 there is no evaluation."""
    eval_seed: int = 123
    """Seed of the held-out questions. The same seed and settings give the same questions."""
    eval_complexity: Annotated[float | None, _difficulty()] = None
    """Difficulty of the held-out questions. none: reasoning-gym's default parameters, changed by task_overrides. A
    number from 0 (easiest level) to 1 (hardest level).
    """
    eval_completions: int = Field(1, ge=1)
    """Completions for each held-out question. With more than one, the results include pass@k, the probability that
    at least one of k completions is right.
    """
    eval_temperature: Parameter = Field(0.1, ge=0.0)
    """Sampling temperature of evaluations. With 0, the model always chooses its most probable token. With none,
    requests have no temperature, for providers that refuse one.
    """


def checked(kind: type[Settings], **given: Any) -> Settings:
    """Return validated settings.

    Raises UnknownNameError for an unknown setting, and EnvironmentSetupError with a sentence for each invalid setting.
    """
    for name in given:
        if name not in kind.model_fields:
            raise unknown_name("setting", name, kind.model_fields)
    try:
        return kind(**given)
    except ValidationError as error:
        sentences = [f"{problem}." for problem in problems_of(error)]
        raise EnvironmentSetupError(" ".join(sentences)) from error


def problems_of(error: ValidationError) -> list[str]:
    """For each invalid setting: its name, what was expected, and the value unless it is or may hold an API key."""
    problems = []
    for problem in error.errors(include_url=False):
        path = [part for part in problem["loc"] if isinstance(part, str)]
        name = ".".join(path)
        message = problem["msg"].removeprefix("Value error, ")
        is_secret = name.endswith(("api_key", "base_url", "default_headers"))
        may_have_key = is_secret or isinstance(problem["input"], Mapping)
        if "got " not in message and not may_have_key:
            message += f", got {problem['input']!r:.100}"
        problems.append(f"{name}: {message}")
    return list(dict.fromkeys(problems))


def workers_for_cores(cores_for_each: int, at_most: int) -> int:
    """The default number of workers: one for every `cores_for_each` cores that this process may use, at least one."""
    # SLURM and containers often give a process a part of the cores.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(at_most, max(1, cores // cores_for_each))
