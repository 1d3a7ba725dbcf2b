"""The option `--solver MODULE:FUNCTION` of the audit: compare a task's own answers with a solver's answers.

    question ── solver ──> right answers ── graded as answers to the item ──> refused answers
                                └───────── as the item's own answer, grade the item's answer ──> refused keys

The function reads the text of the question and returns a right answer, all right answers that it knows, or None if it
cannot tell:

    def clock_sum(question: str) -> str | list[str] | None: ...

It runs in the process of the audit, and not in the sandbox, because it is the user's own code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..api import PromptedProblem, Tasks
from ..errors import EnvironmentSetupError
from ..records import Score
from ..tasks import reasoning_gym_source as library
from ..utils.terminal import printable
from ..verification.entries import right_answer

FULL = 0.99
"""An answer with this score is paid in full."""
EXAMPLES = 3
"""The result has this many examples of each kind."""

Solved: TypeAlias = str | Sequence[str] | None


@dataclass(frozen=True)
class Solver:
    """A user's function, with the name that the user gave it."""

    name: str
    function: Callable[[str], Solved]

    def answers(self, problem: PromptedProblem) -> list[str]:
        """The right answers to a question; empty if the solver cannot tell.

        Raises EnvironmentSetupError, with the item, if the function raises or returns something else.
        """
        item = f"the item of {problem.task} with seed {problem.seed} and config {dict(problem.config)!r:.200}"
        try:
            found = self.function(problem.question)
        # The function is the user's own code, which may raise anything.
        except Exception as error:
            raise EnvironmentSetupError(
                f"--solver {self.name} raised an exception for {item}: {library.explain(error)}. Return None for a "
                "question that it cannot answer."
            ) from error
        if found is None:
            return []
        texts = [found] if isinstance(found, str) else found
        if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
            raise EnvironmentSetupError(
                f"--solver {self.name}: expected a text, a list of texts or None, got {found!r:.100} for {item}."
            )
        return list(dict.fromkeys(texts))


def load_solver(name: str) -> Solver:
    """The solver that `MODULE:FUNCTION` names. Raises EnvironmentSetupError if there is no such function."""
    module_name, _, function_name = name.rpartition(":")
    if not module_name or not function_name:
        raise EnvironmentSetupError(f"--solver expects MODULE:FUNCTION, such as my_tasks.py:solve, got {name!r}.")
    module = library.import_module(module_name, kind="solver module")
    function = getattr(module, function_name, None)
    if not callable(function):
        found = "nothing of this name" if function is None else repr(function)[:100]
        raise EnvironmentSetupError(f"--solver expects a function {function_name} in {module_name}, found {found}.")
    return Solver(name, function)


async def compare(tasks: Tasks, solver: Solver, levels: Mapping[str, Sequence[PromptedProblem]]) -> dict[str, Any]:
    """What the solver says about the items of each level, as plain data: counts, and examples of each disagreement.

    `refused_answers` counts items that do not pay an answer of the solver. `refused_keys` counts items whose own answer
    would not be paid if an answer of the solver were the right answer. Answers that could not be scored count as
    `unscored` only.
    """
    counts = dict.fromkeys(("items", "undecided", "several_answers", "refused_answers", "refused_keys", "unscored"), 0)
    examples: list[dict[str, Any]] = []
    kinds: Counter[str] = Counter()
    questions: set[str] = set()
    keys: set[str | None] = set()
    for level, problems in levels.items():
        for problem in problems:
            counts["items"] += 1
            questions.add(problem.question)
            key = right_answer(problem.task, problem.entry)
            keys.add(key)
            answers = solver.answers(problem)
            if not answers:
                counts["undecided"] += 1
                continue
            counts["several_answers"] += len(answers) > 1
            for kind in await _disagreements(tasks, problem, key, answers):
                counts[kind] += 1
                kinds[kind] += 1
                if kinds[kind] <= EXAMPLES:
                    about = {"kind": kind, "level": level, "seed": problem.seed, "question": problem.question}
                    examples.append({**about, "key": key, "solver": answers[:EXAMPLES]})
    repeated = {
        "repeated_questions": counts["items"] - len(questions),
        "repeated_answers": counts["items"] - len(keys),
    }
    return {**counts, **repeated, "examples": examples}


async def _disagreements(tasks: Tasks, problem: PromptedProblem, key: str | None, answers: Sequence[str]) -> list[str]:
    """The counts that this item increases: `refused_answers`, `refused_keys` and `unscored`."""
    kinds = []
    scores = await scores_of(tasks, problem, answers)
    if any(score.outcome.is_scored and score.value < FULL for score in scores):
        kinds.append("refused_answers")
    of_key: list[Score] = []
    if key is not None:
        for answer in answers:
            turned = replace(problem, entry={**problem.entry, "answer": answer})
            of_key += await scores_of(tasks, turned, [key])
        are_scored = all(score.outcome.is_scored for score in of_key)
        if are_scored and all(score.value < FULL for score in of_key):
            kinds.append("refused_keys")
    if not all(score.outcome.is_scored for score in [*scores, *of_key]):
        kinds.append("unscored")
    return kinds


async def scores_of(tasks: Tasks, problem: PromptedProblem, answers: Sequence[str]) -> list[Score]:
    """The scores of these answers to a problem, in order."""
    grades = await tasks.grade_async(problem, [f"<answer>{answer}</answer>" for answer in answers])
    return [grade.score for grade in grades]


def is_disputed(comparison: Mapping[str, Any]) -> bool:
    """Whether the solver and the task disagree about an item."""
    return bool(comparison["refused_answers"] or comparison["refused_keys"])


def notes(comparison: Mapping[str, Any]) -> list[str]:
    """Sentences for a person."""
    items = comparison["items"]
    decided = items - comparison["undecided"]
    found = [f"the solver answers {decided} of {items} questions"]
    sentences = {
        "refused_answers": "{} items do not pay its answer",
        "refused_keys": "{} items have an own answer that its answer refuses",
        "several_answers": "{} items have several right answers",
        "repeated_questions": "{} questions are repeated",
        "unscored": "{} items had answers that could not be scored",
    }
    for kind, sentence in sentences.items():
        if comparison[kind]:
            found.append(sentence.format(comparison[kind]))
    for example in comparison["examples"][:1]:
        key, answer = example["key"], example["solver"][0]
        place = f"{example['level']}, seed {example['seed']}"
        found.append(f"for example {place}: own answer {printable(str(key), 40)!r}, solver {printable(answer, 40)!r}")
    return found
