"""What one run holds out, no other run draws, whatever the settings of either."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

from reasoning_gym_environment import HeldOut, PromptedProblem, Tasks
from reasoning_gym_environment.errors import EnvironmentSetupError, GenerationError
from reasoning_gym_environment.sampling.seeds import is_held_out
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import COMPOSITE
from reasoning_gym_environment.verification.questions import SENTENCES
from testing.in_process import InProcessGenerator, in_process_workers

SLOW = {"intermediate_integration", "puzzle24"}
"""Clarified tasks whose items take long. The slow test has all tasks."""

CLARIFIED = sorted({sentence.task for sentence in SENTENCES if sentence.where} - SLOW)
OWN_TASKS = str(Path(__file__).resolve().parents[2] / "examples" / "own_task.py")

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "strict": {"verification": "strict"},
    "native": {"verification": "native"},
    "another form of answers": {"answer_format": "boxed"},
    "another system message": {"system_prompt": "Answer in one word."},
    "tasks of one's own": {"task_modules": OWN_TASKS},
}
"""Settings that change what a model reads, by name."""

AllTasks = Mapping[str, Tasks]
"""All tasks of reasoning-gym under each of SETTINGS."""


SMALL: Mapping[str, Mapping[str, Any]] = {
    "zebra_puzzles": {"num_people": 3, "num_characteristics": 3},
    "futoshiki": {"max_board_size": 5},
}
"""Parameters for tasks whose items take up to ten seconds."""


@pytest.fixture(scope="module")
def in_workers() -> Iterator[AllTasks]:
    """The two settings that decide which items are drawn."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Tasks(task_overrides=SMALL, **SETTINGS[name])) for name in ("strict", "native")
        }


class RememberingGenerator(InProcessGenerator):
    """Makes each item of reasoning-gym once for all settings, because some take seconds."""

    items: ClassVar[dict[tuple[str, int], dict[str, Any]]] = {}

    def make(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]:
        if (task, seed) not in self.items:
            self.items[task, seed] = super().make(task, seed, config)
        return self.items[task, seed]


@pytest.fixture(scope="module")
def in_process() -> Iterator[AllTasks]:
    with in_process_workers(RememberingGenerator), ExitStack() as stack:
        yield {name: stack.enter_context(Tasks(**fields)) for name, fields in SETTINGS.items()}


def asked(tasks: Tasks, task: str) -> list[PromptedProblem]:
    """A held-out question. Tasks with few different questions have none."""
    try:
        return HeldOut(tasks, eval_tasks=task, num_eval_samples_per_task=1, eval_seed=5).problems
    except EnvironmentSetupError as error:
        assert "The evaluation has no questions" in str(error)
        return []


def drawn(tasks: Tasks, task: str, count: int) -> list[PromptedProblem]:
    problems = []
    for seed in range(count):
        try:
            problems.append(tasks.draw(task, seed))
        except GenerationError as error:
            assert "generation_timed_out" in str(error)
    return problems


def assert_no_leak(settings: AllTasks, task: str, *, draws: int) -> None:
    """Compare the questions as reasoning-gym writes them."""
    held_out = {name: {problem.library_question for problem in asked(tasks, task)} for name, tasks in settings.items()}
    trained = {
        name: {problem.library_question for problem in drawn(tasks, task, draws)} for name, tasks in settings.items()
    }
    for evaluation, training in itertools.product(settings, repeat=2):
        assert not held_out[evaluation] & trained[training], (evaluation, training)
    # Other draws are covered too, because the rule for the text of reasoning-gym decides.
    assert all(is_held_out(question) for question in set().union(*held_out.values()))
    assert not any(is_held_out(question) for question in set().union(*trained.values()))


@pytest.mark.parametrize("task", CLARIFIED)
def test_no_run_draws_a_clarified_question_that_another_holds_out(in_process: AllTasks, task: str) -> None:
    assert_no_leak(in_process, task, draws=3)
    # The text of reasoning-gym, which decides, is the text that it writes for the same seed and config.
    for problem in drawn(in_process["strict"], task, 3):
        made = in_process["native"].make(task, problem.seed, problem.config)
        assert made.entry["question"] == problem.library_question


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(set(library.registry()) - {COMPOSITE}))
def test_no_run_draws_a_question_that_another_holds_out(in_workers: AllTasks, task: str) -> None:
    # Few items, because those of some tasks take seconds.
    assert_no_leak(in_workers, task, draws=2)
