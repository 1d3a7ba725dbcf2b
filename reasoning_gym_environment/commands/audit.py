"""`reasoning-gym-env audit TASK ...`: how far the verifier and the items of a task can be trusted, found by trying.

    items of the default config, made twice ──> are they the same again, how many are different?
    answers of known worth ── sandbox ──> is the right one paid in full, and what do worthless ones earn?
    items of every level ── constants, the most frequent answers ──> is one text right on most of them?

It is for another release of reasoning-gym, or for a dataset of your own. It tries a few answers that ignore the
problem. What a learner could find beyond them is looked for by `benchmarks/audit/search.py`, in a checkout.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from ..api import PromptedProblem, Tasks
from ..errors import EnvironmentSetupError, GenerationError
from ..evaluation.statistics import wilson
from ..records import Outcome, Score
from ..sampling.item_maker import derive_seed
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import config_of
from ..tasks.difficulty_ladder import build_ladder
from ..tasks.selectors import parse_names
from ..utils.terminal import Output, check_file, positive, print_table
from ..verification import eval_guards
from ..verification.grade import has_right_answer
from .tasks import right_answer

GENERATION_S = 30.0
LEVEL_S = 60.0
"""No further item of a level is begun after so many seconds."""
FULL = 0.99
MAX_WORTHLESS = 0.5
"""A worthless answer that earns this much on average counts as correct in training."""
RIGHT = "the right answer"
SOLVED = 0.5
"""A level is solved by a constant that is right on more of its items, at the lower end of the 95 % interval."""

CONSTANTS = ("0", "1", "-1", "2", "10", "100", "yes", "no", "True", "False", "None", "A", "a", "[]", "{}", "nan", "inf")
GARBAGE = (
    *(" ".join(map(str, range(21))), ", ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), "yes no True False"),
    *("I do not know.", "x", "?", "-", "The answer is left to the reader.", "((((", "lorem ipsum\ndolor"),
)


VERDICTS = {
    "broken": "does not pay the right answer in full",
    "pays-garbage": "pays a worthless answer",
    "solved-by-constant": "has a level on which one answer is right on most items",
    "no-oracle": "has items without a right answer of their own",
}
"""What a task can be instead of "sound", the worst first."""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 1 if a task has a verdict named in --fail-on. Raises EnvironmentSetupError, OSError."""
    options = _parser().parse_args(arguments)
    if options.search:
        raise EnvironmentSetupError("--search was removed: the script benchmarks/audit/search.py of a checkout has it.")
    if unknown := [name for name in options.fail_on if name not in VERDICTS]:
        raise EnvironmentSetupError(f"--fail-on expects some of {', '.join(VERDICTS)}, got {unknown[0]!r}.")
    if options.json:
        # Before the audit, which takes minutes.
        check_file("--json", options.json, inputs=options.task_modules)
    # Some verifiers and constructors print; standard output is for the result.
    with library.stdout_to_stderr():
        document = _audit(options)
    print_table(Output(), _table(document["tasks"]))
    if options.json:
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    failed = [one for one in document["tasks"] if one["verdict"] in options.fail_on]
    for one in failed:
        print(f"{one['task']}: {one['verdict']}, it {VERDICTS[one['verdict']]}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env audit",
        description="Measure what each task's verifier pays to right and to worthless answers, whether items can "
        "be made again, and whether one constant is right on most items of a level. Answers are graded in the sandbox, "
        "as in training.",
    )
    add = parser.add_argument
    add("tasks", nargs="*", metavar="TASK", help="names, globs or category:NAME (default: all)")
    add("--items", type=positive, default=5, help="items per task to try answers on (default: 5)")
    add("--draws", type=positive, default=30, help="items per level to draw (default: 30)")
    add("--seed", type=int, default=0, help="other items with another seed (default: 0)")
    add("--json", metavar="FILE", help="also write everything measured as JSON")
    some = f"exit with 1 if a task has one of these, comma-separated: {', '.join(VERDICTS)}"
    add("--fail-on", type=parse_names, default=[], metavar="VERDICTS", help=some)
    add("--task-modules", type=parse_names, default=[], metavar="MODULES", help="register your own datasets first")
    add("--search", action="store_true", help=argparse.SUPPRESS)
    return parser


def _audit(options: argparse.Namespace) -> dict[str, Any]:
    workers = max(1, (os.cpu_count() or 2) // 2)
    with Tasks(
        options.tasks,
        modules=options.task_modules,
        allow_unguarded=list(eval_guards.unguarded_tasks()),
        num_generation_workers=workers,
        num_scoring_workers=workers,
        generation_timeout_s=GENERATION_S,
    ) as tasks:
        return {"reasoning_gym_version": tasks.version, "tasks": asyncio.run(_each(tasks, options))}


async def _each(tasks: Tasks, options: argparse.Namespace) -> list[dict[str, Any]]:
    numbers = {"items": options.items, "draws": options.draws, "seed": options.seed}
    return [await audit(tasks, task, **numbers) for task in tqdm(tasks.names, "audit", unit="task", disable=None)]


async def audit(tasks: Tasks, task: str, *, items: int, draws: int, seed: int) -> dict[str, Any]:
    """What was found of one task, as plain data: means and shares in [0, 1], and notes for a person.

    `right` is what the right answer is paid on average, `worthless` what the best paid worthless one is, and which.
    `solved` has (level, constant, share of the level's items on which it is right). Items with a wrong answer are left
    out. An answer without a score says nothing about what the verifier pays.
    """
    served = tasks.catalog[task]
    default = config_of(task, served.overrides)
    levels = build_ladder(task, overrides=served.overrides, keep_constant_answer_levels=True).levels
    configs = [default, default, *(level.config for level in levels)]
    made, again, *others = await asyncio.gather(*(_draw(tasks, task, config, draws, seed) for config in configs))
    usable = [one for one in made if has_right_answer(task, one.entry)]
    tried = [pair for pairs in await asyncio.gather(*(_try(tasks, one) for one in usable[:items])) for pair in pairs]
    paid: dict[str, list[float]] = {}
    for kind, score in tried:
        if score.outcome.is_scored:
            paid.setdefault(kind, []).append(score.value)
    means = {kind: round(fmean(values), 4) for kind, values in paid.items()}
    right = means.pop(RIGHT, None)
    best = max(means, key=means.__getitem__, default="")
    solved = []
    names = ["default", *(f"level {level.index}" for level in levels)]
    for name, drawn in zip(names, [made, *others], strict=True):
        if found := await _constant(tasks, [one for one in drawn if has_right_answer(task, one.entry)]):
            solved.append((name, *found))
    raised = sum(score.outcome is Outcome.VERIFIER_ERROR for _, score in tried)
    unscored = sum(not score.outcome.is_scored for _, score in tried)
    distinct = len({one.question for one in made})
    notes = {f"{name}: {text!r:.30} is right on {share:.0%} of its items": True for name, text, share in solved} | {
        "its verifier evaluates answers": task in eval_guards.GUARDS or task in eval_guards.unguarded_tasks(),
        f"raises on {raised} of {len(tried)} answers": raised,
        f"{unscored} of {len(tried)} answers could not be scored": unscored,
        f"{distinct} questions in {len(made)} draws": 2 * distinct < len(made),
        # By repr, as an entry may hold arrays, of which == makes another array.
        "an item made again differs": repr([one.entry for one in made]) != repr([one.entry for one in again]),
        f"{draws - len(made)} items could not be made": draws - len(made),
    }
    return {
        "task": task,
        "verdict": judge(right, means.get(best, 0.0), bool(solved)),
        "right": right,
        "worthless": (means.get(best, 0.0), best),
        "solved": solved,
        "notes": [note for note, applies in notes.items() if applies],
    }


def judge(right: float | None, worthless: float, is_solved: bool) -> str:
    """The verdict that follows from what is paid on average; `right` is None where no right answer is known."""
    if right is not None and right < FULL:
        return "broken"
    if worthless >= MAX_WORTHLESS:
        return "pays-garbage"
    if is_solved:
        return "solved-by-constant"
    return "no-oracle" if right is None else "sound"


async def _draw(tasks: Tasks, task: str, config: Mapping[str, Any], draws: int, seed: int) -> list[PromptedProblem]:
    made, until = [], time.monotonic() + LEVEL_S
    for index in range(draws):
        if time.monotonic() < until:
            with contextlib.suppress(GenerationError):
                made.append(await tasks.make_async(task, derive_seed(seed, "audit", task, index), config))
    return made


async def _try(tasks: Tasks, problem: PromptedProblem) -> list[tuple[str, Score]]:
    """What the right answer gets, under the name RIGHT, and every worthless one that does not say the same."""
    right = right_answer(problem.task, problem.entry)
    answers = {text: text for text in (*CONSTANTS, *GARBAGE) if not same(text, right)}
    if right:
        answers[RIGHT] = right
    return list(zip(answers, await _scores(tasks, problem, list(answers.values())), strict=True))


async def _scores(tasks: Tasks, problem: PromptedProblem, answers: Sequence[str]) -> list[Score]:
    grades = await tasks.grade_async(problem, [f"<answer>{answer}</answer>" for answer in answers])
    return [grade.score for grade in grades]


async def _constant(tasks: Tasks, problems: Sequence[PromptedProblem]) -> tuple[str, float] | None:
    """The one text that is right on most of these items, and on what share; None if there is none."""
    answers = [text for one in problems if (text := right_answer(one.task, one.entry))]
    candidates = list(dict.fromkeys([*(text for text, _ in Counter(answers).most_common(3)), *CONSTANTS]))
    right: Counter[str] = Counter()
    for number, problem in enumerate(problems):
        scores = await _scores(tasks, problem, candidates)
        right.update(text for text, score in zip(candidates, scores, strict=True) if score.value >= FULL)
        # What was never right on the first items is not right on most.
        candidates = [text for text in candidates if right[text] > number // 3]
        if not candidates:
            return None
    for text, count in right.most_common(1):
        if wilson(count / len(problems), len(problems))[0] > SOLVED:
            return text, round(count / len(problems), 4)
    return None


def same(text: str, right: str | None) -> bool:
    """Whether both say the same: equal but for case and blanks, or equal as numbers."""
    if right is None or "".join(text.lower().split()) == "".join(right.lower().split()):
        return right is not None
    try:
        return float(text) == float(right)
    except ValueError:
        return False


def _table(found: Sequence[dict[str, Any]]) -> Table:
    table = Table("task", "verdict", "paid for no work")
    table.add_column("notes", max_width=60)
    for one in found:
        paid, text = one["worthless"]
        worthless = Text(f"{paid:.2f} for {text!r:.30}" if paid else "0")
        table.add_row(one["task"], one["verdict"], worthless, Text("; ".join(one["notes"])))
    return table
