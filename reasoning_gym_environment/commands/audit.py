"""The command `audit TASK ...`: measure how reliable the verifier and the items of a task are.

    items of the default config, made twice ──> are they equal, and how many are different?
    known answers ── sandbox ──> is the right answer paid in full, and what do worthless answers earn?
    items of every level ── constants, the most frequent answers ──> is one text right on most of them?
                         └─ your solver (audit_solver.py) ──> do its answers and the items' own answers agree?

Use it for another release of reasoning-gym, or for a dataset of your own. It tries a few answers that ignore the
problem. `benchmarks/audit/search.py`, in a checkout, searches for more answers that a learner could find.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text

from ..api import PromptedProblem, Tasks
from ..errors import EnvironmentSetupError, GenerationError
from ..evaluation.statistics import wilson
from ..records import Outcome, Score
from ..sampling.seeds import derive_seed
from ..storage.files import write_atomically
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import config_of
from ..tasks.difficulty_ladder import build_ladder
from ..tasks.selectors import parse_names
from ..utils.terminal import Output, Progress, check_file, positive, print_table, printable, whole
from ..verification import eval_guards
from ..verification.entries import right_answer
from ..verification.questions import OPEN_FAULTS, is_sound
from . import audit_solver
from .audit_solver import FULL, Solver, load_solver, scores_of
from .options import add_settings, check_tasks, task_settings

LEVEL_S = 60.0
"""The audit makes no further item of a level after this many seconds."""
MAX_WORTHLESS = 0.5
"""A worthless answer that earns this much on average counts as correct in training."""
RIGHT = "the right answer"
SOLVED = 0.5
"""A constant solves a level if it is right on more than this share of its items, by the 95 % interval's lower end."""

DEFAULT = "default"
AGAIN = "default, made again"

CONSTANTS = (
    "0",
    "1",
    "-1",
    "2",
    "10",
    "100",
    "yes",
    "no",
    "True",
    "False",
    "None",
    "A",
    "a",
    "[]",
    "{}",
    "nan",
    "inf",
)
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
WORTHLESS = CONSTANTS + GARBAGE

VERDICTS = {
    "broken": "does not pay the right answer in full",
    "disputed": "has items whose own answer the solver disputes",
    "pays-garbage": "pays a worthless answer",
    "solved-by-constant": "has a level on which an answer without work is right on most items",
    "no-expected-answer": "has items that come without an expected answer",
    "not-graded": "has right answers that could not be scored",
    "no-items": "makes no items",
    "open-fault": "has a fault that is known and not mended",
}
"""The verdicts other than "sound", the worst first."""


def main(arguments: Sequence[str]) -> int:
    """Audit the tasks that the arguments name; returns the exit code: 1 if a task has a verdict named in --fail-on.

    Raises EnvironmentSetupError for a mistake in the arguments, and OSError if the result cannot be written.
    """
    options = _parser().parse_args(arguments)
    for verdict in options.fail_on:
        if verdict not in VERDICTS:
            raise EnvironmentSetupError(f"--fail-on expects some of {', '.join(VERDICTS)}, got {verdict!r}.")
    solver = None if options.solver is None else load_solver(options.solver)
    if options.json is not None:
        # The audit takes minutes, so an unwritable file is reported before it starts.
        check_file("--json", options.json)
    check_tasks(options)
    # Some verifiers and constructors print, and standard output is for the result.
    with library.stdout_to_stderr():
        document = _audit(options, solver)
    # The reader of the table may have gone, which ends the command.
    if options.json:
        write_atomically(Path(options.json), json.dumps(document, indent=1).encode() + b"\n")
    print_table(Output(), _table(document["tasks"]))
    failed = [result for result in document["tasks"] if result["verdict"] in options.fail_on]
    for result in failed:
        verdict = result["verdict"]
        print(f"{result['task']}: {verdict}, it {VERDICTS[verdict]}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env audit",
        description="Measure what each task's verifier pays for right and for worthless answers, whether the same seed "
        "makes the same item again, and whether one constant is right on most items of a level. Answers are graded in "
        "the sandbox, as in training.",
    )
    verdicts = ", ".join(VERDICTS)
    add = parser.add_argument
    add(
        "include_tasks",
        nargs="*",
        type=_task,
        metavar="TASK",
        help="names, globs or category:NAME (default: all tasks)",
    )
    add_settings(parser, ["exclude_tasks", "task_modules"])
    add(
        "--items",
        type=positive,
        default=5,
        help="items of each task to try answers on (default: 5)",
    )
    add(
        "--draws",
        type=positive,
        default=30,
        help="items to make of each level (default: 30)",
    )
    add(
        "--seed",
        type=whole,
        default=0,
        help="another seed gives other items (default: 0)",
    )
    add(
        "--solver",
        metavar="MODULE:FUNCTION",
        help="a function of the question's text that returns a right answer, a list of right answers, or None if it "
        "cannot tell; the audit compares its answers with the keys of the items",
    )
    add("--json", metavar="FILE", help="also write all measurements as JSON")
    add(
        "--fail-on",
        type=parse_names,
        default=[],
        metavar="VERDICTS",
        help=f"exit with 1 if a task has one of these verdicts, comma-separated: {verdicts}",
    )
    return parser


def _task(text: str) -> str:
    """The name of a task. The empty text of a variable that is not set would be all tasks."""
    if parse_names(text):
        return text
    raise argparse.ArgumentTypeError(f"expected the name of a task, got {text!r:.100}")


def _audit(options: argparse.Namespace, solver: Solver | None) -> dict[str, Any]:
    workers = max(1, (os.cpu_count() or 2) // 2)
    with Tasks(
        **task_settings(options),
        allow_unguarded_tasks=list(eval_guards.unguarded_tasks()),
        num_generation_workers=workers,
        num_scoring_workers=workers,
    ) as tasks:
        limits = {"items": options.items, "draws": options.draws, "seed": options.seed}
        results = []
        for task in Progress(tasks.names, "audit", unit="task"):
            results.append(asyncio.run(audit(tasks, task, solver=solver, **limits)))
        return {"reasoning_gym_version": tasks.version, "tasks": results}


# --- one task


async def audit(
    tasks: Tasks, task: str, *, items: int, draws: int, seed: int, solver: Solver | None = None
) -> dict[str, Any]:
    """The measurements of one task as plain data: means and shares in [0, 1], and notes for a person.

    `right` is the mean score of the right answer, None if no right answer is known. `worthless` has the mean score of
    the best paid worthless answer, and this answer. `solved` has (level, constant, share of the level's items on which
    it is right). With a solver, `solver` is the result of `audit_solver.compare`. The audit skips items with a wrong
    answer, and answers that could not be scored.
    """
    failures: list[str] = []
    problems = await _draw_levels(tasks, task, draws, seed, failures)
    repeated = problems.pop(AGAIN)
    made = problems[DEFAULT]
    tried = await _try_answers(tasks, _answerable(made)[:items])

    paid: dict[str, list[float]] = defaultdict(list)
    for answer, score in tried:
        if score.outcome.is_scored:
            paid[answer].append(score.value)
    means = {answer: round(fmean(values), 4) for answer, values in paid.items()}
    right = means.pop(RIGHT, None)
    best = max(means, key=means.__getitem__, default="")
    worthless = means.get(best, 0.0)

    solved = []
    for level, level_problems in problems.items():
        constant = await _constant(tasks, _answerable(level_problems))
        if constant is not None:
            solved.append((level, *constant))

    answerable = {level: _answerable(found) for level, found in problems.items() if level != DEFAULT}
    comparison = None if solver is None else await audit_solver.compare(tasks, solver, answerable)

    notes = [] if comparison is None else audit_solver.notes(comparison)
    notes += [f"{level}: {text!r:.30} is right on {share:.0%} of its items" for level, text, share in solved]
    known = build_ladder(task, overrides=tasks.catalog[task].overrides).constant_answer
    if known:
        notes.append(known)
    if task in eval_guards.GUARDS or task in eval_guards.unguarded_tasks():
        notes.append("its verifier evaluates answers")
    notes += _notes_on_scores([score for _, score in tried])
    notes += _notes_on_items(made, repeated)
    missing = sum(draws - len(level_problems) for level_problems in problems.values())
    if missing:
        reason = printable(failures[0], 200) if failures else f"{LEVEL_S:g} s were over"
        notes.append(f"{missing} of {draws * len(problems)} items could not be made ({reason})")
    if task in OPEN_FAULTS:
        notes.append(OPEN_FAULTS[task])
    disputed = comparison is not None and audit_solver.is_disputed(comparison)
    verdict = judge(right, worthless, bool(solved or known), _why_unknown(made, tried), is_disputed=disputed)
    if verdict == "sound" and task in OPEN_FAULTS:
        verdict = "open-fault"
    result = {
        "task": task,
        "verdict": verdict,
        "right": right,
        "worthless": (worthless, best),
        "solved": solved,
        "notes": notes,
    }
    return result if comparison is None else {**result, "solver": comparison}


def judge(
    right: float | None, worthless: float, is_solved: bool, why_unknown: str, *, is_disputed: bool = False
) -> str:
    """The verdict that follows from the mean scores. It is `why_unknown` if `right` is None and nothing is worse."""
    if right is not None and right < FULL:
        return "broken"
    if is_disputed:
        return "disputed"
    if worthless >= MAX_WORTHLESS:
        return "pays-garbage"
    if is_solved:
        return "solved-by-constant"
    return why_unknown if right is None else "sound"


def _why_unknown(made: Sequence[PromptedProblem], tried: Sequence[tuple[str, Score]]) -> str:
    """The verdict if no right answer has a score."""
    if not made:
        return "no-items"
    is_tried = any(answer == RIGHT for answer, _ in tried)
    return "not-graded" if is_tried else "no-expected-answer"


def _notes_on_scores(scores: Sequence[Score]) -> list[str]:
    notes = []
    raised = sum(score.outcome is Outcome.VERIFIER_ERROR for score in scores)
    unscored = sum(not score.outcome.is_scored for score in scores)
    if raised:
        notes.append(f"raises on {raised} of {len(scores)} answers")
    if unscored:
        notes.append(f"{unscored} of {len(scores)} answers could not be scored")
    return notes


def _notes_on_items(made: Sequence[PromptedProblem], repeated: Sequence[PromptedProblem]) -> list[str]:
    notes = []
    distinct = len({problem.question for problem in made})
    if 2 * distinct < len(made):
        notes.append(f"{distinct} questions in {len(made)} draws")
    # Entries may hold arrays, whose comparison is an array, so their text is compared. Each list may lack other items.
    entries = {problem.seed: repr(problem.entry) for problem in made}
    if any(repr(problem.entry) != entries.get(problem.seed, repr(problem.entry)) for problem in repeated):
        notes.append("an item made again differs")
    return notes


# --- items and answers


async def _draw_levels(
    tasks: Tasks,
    task: str,
    draws: int,
    seed: int,
    failures: list[str],
) -> dict[str, list[PromptedProblem]]:
    """Items of the default config (under DEFAULT, and made again under AGAIN), and of each level.

    `failures` receives the reason for each item that could not be made.
    """
    overrides = tasks.catalog[task].overrides
    default = config_of(task, overrides)
    configs: dict[str, Mapping[str, Any]] = {DEFAULT: default, AGAIN: default}
    for level in build_ladder(task, overrides=overrides).levels:
        configs[f"level {level.index}"] = level.config
    work = [_draw(tasks, task, config, draws, seed, failures) for config in configs.values()]
    problems = await asyncio.gather(*work)
    return dict(zip(configs, problems, strict=True))


async def _draw(
    tasks: Tasks,
    task: str,
    config: Mapping[str, Any],
    draws: int,
    seed: int,
    failures: list[str],
) -> list[PromptedProblem]:
    """At most `draws` items: fewer if some cannot be made, or take too long."""
    made: list[PromptedProblem] = []
    deadline = time.monotonic() + LEVEL_S
    for index in range(draws):
        if time.monotonic() >= deadline:
            break
        try:
            problem = await tasks.make_async(task, derive_seed(seed, "audit", task, index), config)
        except GenerationError as error:
            failures.append(str(error))
        else:
            made.append(problem)
    return made


def _answerable(problems: Sequence[PromptedProblem]) -> list[PromptedProblem]:
    return [problem for problem in problems if is_sound(problem.task, problem.entry)]


async def _try_answers(tasks: Tasks, problems: Sequence[PromptedProblem]) -> list[tuple[str, Score]]:
    """The scores of the right answer, under the name RIGHT, and of all worthless answers to these problems."""
    work = [_try(tasks, problem) for problem in problems]
    return list(chain.from_iterable(await asyncio.gather(*work)))


async def _try(tasks: Tasks, problem: PromptedProblem) -> list[tuple[str, Score]]:
    right = right_answer(problem.task, problem.entry)
    answers = {text: text for text in WORTHLESS if not same(text, right)}
    if right:
        answers[RIGHT] = right
    scores = await scores_of(tasks, problem, list(answers.values()))
    return list(zip(answers, scores, strict=True))


async def _constant(tasks: Tasks, problems: Sequence[PromptedProblem]) -> tuple[str, float] | None:
    """The text that is right on most of these items, and the share of items; None if no text is."""
    answers = [right_answer(problem.task, problem.entry) for problem in problems]
    frequent = Counter(answer for answer in answers if answer).most_common(3)
    candidates = list(dict.fromkeys([text for text, _ in frequent] + list(CONSTANTS)))
    right: Counter[str] = Counter()
    for number, problem in enumerate(problems, start=1):
        scores = await scores_of(tasks, problem, candidates)
        right.update(text for text, score in zip(candidates, scores, strict=True) if score.value >= FULL)
        # A text that is right on less than a third of the items so far is not right on most.
        candidates = [text for text in candidates if right[text] >= number // 3]
        if not candidates:
            return None
    if not right:
        return None
    [(text, count)] = right.most_common(1)
    share = count / len(problems)
    low, _ = wilson(share, len(problems))
    return (text, round(share, 4)) if low > SOLVED else None


def same(text: str, right: str | None) -> bool:
    """Whether the texts are equal except for case and blanks, or are equal as numbers."""
    if right is None:
        return False
    if "".join(text.lower().split()) == "".join(right.lower().split()):
        return True
    try:
        return float(text) == float(right)
    except ValueError:
        return False


def _table(results: Sequence[dict[str, Any]]) -> Table:
    table = Table("task", "verdict", "paid for no work")
    table.add_column("notes", max_width=60)
    for result in results:
        paid, text = result["worthless"]
        worthless = f"{paid:.2f} for {text!r:.30}" if paid else "0"
        notes = "; ".join(result["notes"])
        table.add_row(result["task"], result["verdict"], Text(worthless), Text(notes))
    return table
