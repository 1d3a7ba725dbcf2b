"""Completions, and the reward of each through every integration, from Python to SkyRL.

Not a test. Each integration gets the same 200 completions of 20 held-out questions, and attacks on a task that executes
its answers, and some of them in each answer format. Its own test compares the rewards with this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import HeldOut, PromptedProblem, Tasks
from reasoning_gym_environment.records import AnswerFormat
from testing.hostile_answers import ATTACK_MODULE, ATTACK_TASK, HOSTILE_ANSWERS, RIGHT

TASKS = (
    "base_conversion",
    "basic_arithmetic",
    "caesar_cipher",
    "chain_sum",
    "complex_arithmetic",
    "countdown",
    "decimal_arithmetic",
    "intermediate_integration",
    "knights_knaves",
    "leg_counting",
    "letter_counting",
    "mini_sudoku",
    "number_sorting",
    "polynomial_equations",
    "puzzle24",
    "rotate_matrix",
    "simple_equations",
    "spell_backward",
    "time_intervals",
    "word_sorting",
)
"""Tasks with numbers, words, tables and formulas as answers. The verifiers of seven of them evaluate an answer."""

SETTINGS: dict[str, Any] = {"task_modules": [ATTACK_MODULE], "allow_unguarded_tasks": [ATTACK_TASK]}
"""The settings of `Tasks` that serve ATTACK_TASK too."""

in_each_format = pytest.mark.parametrize("answer_format", [answer_format.value for answer_format in AnswerFormat])

NUM_COMPLETIONS = 200


@dataclass(frozen=True)
class Forms:
    """Completions with an answer. `other` is the answer of another question."""

    answer: str
    """An answer, and nothing else."""
    right: tuple[str, ...]
    wrong: tuple[str, ...]


FORMS = {
    AnswerFormat.TAGS: Forms(
        answer="<answer>{answer}</answer>",
        right=(
            "<answer>{answer}</answer>",
            "<think>so</think> <answer>**{answer}**</answer>",
            "<think>so</think>\n<answer>\n{answer}\n</answer>",
            "<answer>$\\boxed{{{answer}}}$</answer>",
            "<answer>`{answer}`</answer>",
            "<answer>The answer is {answer}</answer>",
            "<answer>{answer}.</answer>",
            "<ANSWER>{answer}</ANSWER>",
        ),
        wrong=(
            "<answer>no idea</answer>",
            "<answer>{other}</answer>",
            "<answer>about {answer}, or 0</answer>",
            "",
            "{answer}",
            "<answer>0</answer> no, <answer>{answer}</answer>",
            "<think>{answer}</think>",
            "<think><answer>{answer}</answer>",
            "<answer>{answer}",
            "<answer></answer>",
            "<answer>{answer} {answer}</answer>",
            "<answer>not {answer}</answer>",
        ),
    ),
    AnswerFormat.BOXED: Forms(
        answer="\\boxed{{{answer}}}",
        right=(
            "\\boxed{{{answer}}}",
            "<think>so</think> The answer is $\\boxed{{{answer}}}$.",
            "[THINK]\\boxed{{1}}[/THINK]\n\\boxed{{\n{answer}\n}}",
            "\\boxed{{{answer}}}, so it is \\boxed{{{answer}}}",
            "Put it in \\boxed{{}}: \\boxed{{`{answer}`}}",
        ),
        wrong=(
            "\\boxed{{no idea}}",
            "\\boxed{{{other}}}",
            "\\boxed{{about {answer}, or 0}}",
            "",
            "{answer}",
            "<answer>{answer}</answer>",
            "\\boxed{{0}}, no, \\boxed{{{answer}}}",
            "<think>\\boxed{{{answer}}}</think>",
            "<think>\\boxed{{{answer}}}",
            "\\boxed{{{answer}",
            "\\boxed{{}}",
        ),
    ),
    AnswerFormat.TEXT: Forms(
        answer="{answer}",
        right=(
            "{answer}",
            "<think>so</think> **{answer}**",
            "[THINK]1[/THINK]\n{answer}\n",
            "<think>so</think>`{answer}`",
            "The answer is {answer}",
        ),
        wrong=(
            "no idea",
            "{other}",
            "about {answer}, or 0",
            "",
            "<think>{answer}</think>",
            "<think>{answer}",
            "{answer} {answer}",
            "not {answer}",
        ),
    ),
}

EACH_HONEST = 3
EACH_HOSTILE = 4


@dataclass(frozen=True)
class Group:
    """A question, its completions, and the reward of each. The reward of a completion without a score is None."""

    problem: PromptedProblem
    rewards: dict[str, float | None]

    @property
    def completions(self) -> list[str]:
        return list(self.rewards)


def all_groups(tasks: Tasks, marker: Path) -> list[Group]:
    """The groups of `shared_groups`, and the group of attacks. `tasks` serves TASKS and ATTACK_TASK.

    In boxes and in text, there are a quarter of the groups, and no attacks. Only the extraction differs there, so these
    groups show that the format reaches the integration.
    """
    groups = shared_groups(tasks, marker)
    if tasks.settings.answer_format is not AnswerFormat.TAGS:
        return groups[::4]
    return [*groups, attack_group(tasks, marker)]


def shared_groups(tasks: Tasks, marker: Path) -> list[Group]:
    """A held-out question of each of TASKS, each with ten completions. `marker` must never come to exist."""
    problems = HeldOut(tasks, eval_tasks=TASKS, num_eval_samples_per_task=1).problems
    forms = FORMS[tasks.settings.answer_format]
    hostile = [text.replace("<marker>", str(marker)).replace("<port>", "9") for text in HOSTILE_ANSWERS.values()]
    groups = []
    for number, problem in enumerate(problems):
        answers = {"answer": problem.entry["answer"], "other": problems[number - 1].entry["answer"]}
        rewards: dict[str, float | None] = {}
        for form in _turn(forms.right, number, EACH_HONEST):
            rewards[form.format(**answers)] = 1.0
        for form in _turn(forms.wrong, number, EACH_HONEST):
            rewards[form.format(**answers)] = 0.0
        for text in _turn(hostile, number, EACH_HOSTILE):
            rewards[forms.answer.format(answer=text)] = 0.0
        groups.append(Group(problem, rewards))
    assert sum(len(group.rewards) for group in groups) == NUM_COMPLETIONS
    return groups


def _turn(choices: tuple[str, ...] | list[str], turn: int, count: int) -> list[str]:
    """The next `count` choices, in a circle."""
    first = turn * count
    return [choices[index % len(choices)] for index in range(first, first + count)]


def attack_group(tasks: Tasks, marker: Path) -> Group:
    """The same for ATTACK_TASK, which executes its answers. A completion that could not be scored is not wrong."""
    answers = {
        RIGHT: 1.0,
        f"__import__('os').system('touch {marker}')": None,
        "while True: pass": None,
        "import os; os.kill(os.getppid(), 9)": None,
        "import os; os._exit(0)": None,
        "x" * 300_000: 0.0,
    }
    form = FORMS[tasks.settings.answer_format].answer
    rewards = {form.format(answer=answer): reward for answer, reward in answers.items()}
    return Group(tasks.draw(ATTACK_TASK, seed=3), rewards)
