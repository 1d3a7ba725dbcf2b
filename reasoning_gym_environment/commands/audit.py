"""The command `audit --tasks TASKS`: measure how reliable the verifier of a task is.

    items of the default config and of each level
      ├── their own answers ─────────────────────┐             ┌──> is it paid in full?
      ├── constants, frequent answers, garbage ──┼── sandbox ──┼──> does one answer without work pay on most items?
      └── copies of the question ────────────────┘             └──> does the verifier raise an exception?

Use it for a dataset of your own, or for another release of reasoning-gym.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text

from ..api import PromptedProblem, Tasks
from ..errors import GenerationError
from ..evaluation.statistics import wilson
from ..records import Outcome
from ..sampling.seeds import derive_seed
from ..storage.files import write_atomically
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import config_of
from ..tasks.difficulty_ladder import build_ladder
from ..utils.terminal import Output, Progress, check_file, positive, print_table, printable, whole
from ..verification import eval_guards
from ..verification.entries import right_answer
from ..verification.questions import is_sound
from .options import SEED, add_settings, task_settings

FULL = 0.99
"""An answer with this score is paid in full."""
MOST = 0.5
"""An answer without work is a fault if its mean score on a level is above this, by the 95 % interval's lower end."""
FREQUENT = 3
"""The audit tries this many of the most frequent answers of a level on all items of the level."""

CONSTANTS = ("0", "1", "-1", "2", "10", "100", "yes", "no", "True", "False", "None", "A", "a", "[]", "{}", "nan", "inf")
GARBAGE = (
    "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20",
    "A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P, Q, R, S, T, U, V, W, X, Y, Z",
    "yes no True False",
    "I do not know.",
    "x",
    "?",
    "-",
    "The answer is left to the reader.",
    "((((",
    "lorem ipsum\ndolor",
)


def last_lines(question: str) -> str:
    """The last block of lines, without the text before a colon. It is often the object of the question."""
    return question.rstrip().split("\n\n")[-1].split(":")[-1].strip()


VERDICTS = ("broken", "pays-without-work", "raises", "missing-items")
"""The verdicts other than "sound", the worst first."""


def main(arguments: Sequence[str]) -> int:
    """Audit the tasks that the arguments name; returns the exit code: 1 if a task is not sound.

    Raises EnvironmentSetupError for a mistake in the arguments, and OSError if the result cannot be written.
    """
    options = _parser().parse_args(arguments)
    if options.json is not None:
        # The audit takes minutes, so an unwritable file is reported before it starts.
        check_file("--json", options.json)
    # Some verifiers and constructors print, and standard output is for the result.
    with library.stdout_to_stderr():
        document = _audit(options)
    # The reader of the table may have gone, which ends the command.
    if options.json:
        write_atomically(Path(options.json), json.dumps(document, indent=1).encode() + b"\n")
    print_table(Output(), _table(document["tasks"]))
    return 0 if all(result["verdict"] == "sound" for result in document["tasks"]) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env audit",
        description="Measure whether each task's verifier pays the items' own answers, whether it pays a constant or a "
        "copy of the question, and whether it raises an exception. Answers are graded in the sandbox, as in training. "
        "The exit code is 1 if a task is not sound.",
    )
    add = parser.add_argument
    add_settings(parser, ["include_tasks", "exclude_tasks", "task_modules"], verb="audit")
    add(
        "--per-level",
        type=positive,
        default=30,
        metavar="N",
        help="items of the default config, and of each level (default: %(default)s)",
    )
    add("--seed", type=whole, default=SEED, help="another seed gives other items (default: %(default)s)")
    add("--json", metavar="FILE", help="also write all measurements as JSON")
    return parser


def _audit(options: argparse.Namespace) -> dict[str, Any]:
    workers = max(1, (os.cpu_count() or 2) // 2)
    with Tasks(
        **task_settings(options),
        allow_unguarded_tasks=list(eval_guards.unguarded_tasks()),
        num_generation_workers=workers,
        num_scoring_workers=workers,
    ) as tasks:
        results = []
        for task in Progress(tasks.names, "audit", unit="task"):
            results.append(audit(tasks, task, items=options.per_level, seed=options.seed))
        return {"reasoning_gym_version": tasks.version, "tasks": results}


# --- one task


@dataclass
class Measures:
    """What was measured on the items of one level, or of the default config. Scores are means, in [0, 1]."""

    level: str
    items: int
    made: int = 0
    why_missing: str = ""
    """Why the first of the missing items could not be made."""
    key: float | None = None
    """The score of the items' own answers, or None if they have none."""
    without_work: float = 0.0
    answer: str = ""
    """The answer without work with the highest score, and its score."""
    failures: int = 0
    failure: str = ""
    """The answers to which the verifier gives no score, and for the first of them the exception or another reason."""

    def faults(self) -> Iterator[tuple[str, str]]:
        """The verdicts that apply to this level, each with a sentence for a person."""
        if self.key is not None and self.key < FULL:
            yield "broken", f"the items' own answers earn {self.key:.2f} on average"
        if self.made and wilson(self.without_work, self.made)[0] > MOST:
            yield "pays-without-work", f"{self.answer!r:.40} earns {self.without_work:.2f} on average"
        if self.failures:
            yield "raises", f"{self.failure} ({self.failures} answers in all)"
        if self.made < self.items:
            yield "missing-items", f"{self.items - self.made} of {self.items} were not made: {self.why_missing}"


def audit(tasks: Tasks, task: str, *, items: int, seed: int) -> dict[str, Any]:
    """The measures of one task as plain data, and its faults: for each verdict that applies, a sentence a level."""
    overrides = tasks.catalog[task].overrides
    configs: dict[str, Mapping[str, Any]] = {"default": config_of(task, overrides)}
    for level in build_ladder(task, overrides=overrides).levels:
        configs[f"level {level.index}"] = level.config
    with ThreadPoolExecutor() as pool:
        levels = list(pool.map(lambda name: measure(tasks, task, configs[name], seed, Measures(name, items)), configs))
    faults: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    for measures in levels:
        for verdict, text in measures.faults():
            faults[verdict].append(f"{measures.level}: {text}")
    found = {verdict: texts for verdict, texts in faults.items() if texts}
    return {
        "task": task,
        "verdict": next(iter(found), "sound"),
        "faults": found,
        "levels": [asdict(measures) for measures in levels],
    }


def measure(tasks: Tasks, task: str, config: Mapping[str, Any], seed: int, measures: Measures) -> Measures:
    """Make items with this config, and grade their own answers and the answers without work.

    Items whose own answer is known to be wrong are skipped.
    """
    problems = []
    for index in range(measures.items):
        try:
            problem = tasks.make(task, derive_seed(seed, "audit", task, index), config)
        except GenerationError as error:
            measures.why_missing = measures.why_missing or printable(str(error), 200)
            continue
        measures.made += 1
        if is_sound(task, problem.entry):
            problems.append(problem)
    keys = [right_answer(task, problem.entry) for problem in problems]
    frequent = [key for key, _ in Counter(key for key in keys if key).most_common(FREQUENT)]
    scores: dict[str, list[float]] = defaultdict(list)
    key_scores = []
    for problem, key in zip(problems, keys, strict=True):
        answers = {answer: answer for answer in (*CONSTANTS, *GARBAGE, *frequent)}
        answers["a copy of the question"] = problem.question
        answers["a copy of the question's last lines"] = last_lines(problem.question)
        for name, score in zip(answers, grade(tasks, problem, [*answers.values()], measures), strict=True):
            scores[name].append(score)
        if key:
            key_scores += grade(tasks, problem, [key], measures)
    if scores:
        measures.answer = max(scores, key=lambda name: fmean(scores[name]))
        measures.without_work = round(fmean(scores[measures.answer]), 4)
    if key_scores:
        measures.key = round(fmean(key_scores), 4)
    return measures


def grade(tasks: Tasks, problem: PromptedProblem, answers: Sequence[str], measures: Measures) -> list[float]:
    """The scores of these answers, in order. An answer to which the verifier gives no score is counted, and earns 0."""
    grades = tasks.grade(problem, [f"<answer>{answer}</answer>" for answer in answers])
    for answer, made in zip(answers, grades, strict=True):
        outcome = made.score.outcome
        if outcome is Outcome.VERIFIER_ERROR or not outcome.is_scored:
            measures.failures += 1
            failure = f"{printable(made.score.explanation, 200)}, for the answer {printable(answer, 40)!r}"
            measures.failure = measures.failure or failure
    return [made.score.value for made in grades]


def _table(results: Sequence[dict[str, Any]]) -> Table:
    """A row for each task. Of the levels with the same fault, it has the first."""
    table = Table("task", "verdict", "no work earns at most")
    table.add_column("what was found", max_width=80)
    for result in results:
        most = max(level["without_work"] for level in result["levels"])
        notes = []
        for texts in result["faults"].values():
            others = f" (and at {len(texts) - 1} other levels)" if len(texts) > 1 else ""
            notes.append(f"{texts[0]}{others}")
        table.add_row(result["task"], result["verdict"], f"{most:.2f}", Text("\n".join(notes)))
    return table
