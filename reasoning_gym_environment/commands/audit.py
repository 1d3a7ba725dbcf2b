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
from ..verification.item_checks import has_right_answer
from .tasks import right_answer

SEARCH = (
    "--search was removed. The search for answers that are paid without work is the script benchmarks/audit/search.py "
    "of a checkout; --fail-on solved-by-constant is part of every audit now."
)
GENERATION_S = 30.0
LEVEL_S = 60.0
"""No further item of a level is begun after so many seconds."""
FULL = 0.99
MAX_WORTHLESS = 0.5
"""A worthless answer that earns this much on average counts as correct in training."""
MAX_OTHERS = 0.1
"""Share of answers to other items that may be paid in full: an item may have several solutions."""
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
    "solved-by-constant": "one answer is right on most items of a level",
    "accepts-others": "pays right answers to other items",
    "no-oracle": "its items have no answer of their own",
    "sound": "",
}
"""The words for a task, the worst first, and what they mean."""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 1 if a task has a verdict named in --fail-on. Raises EnvironmentSetupError, OSError."""
    options = _parser().parse_args(arguments)
    if options.search:
        raise EnvironmentSetupError(SEARCH)
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
        description="Measure what each task's verifier pays to right, wrong and worthless answers, whether items can "
        "be made again, and whether one constant is right on most items of a level. Answers are graded in the sandbox, "
        "as in training, and by reasoning-gym alone.",
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
    """What was found of one task, as plain data: means and shares in [0, 1], counts of items and answers.

    `pays` has the mean score by kind of answer; that of "worthless" is of the best paid one, `best_worthless`. `solved`
    has (level, constant, share of the level's items on which it is right). Items with a wrong answer are left out.
    """
    served = tasks.catalog[task]
    configs: dict[str, Mapping[str, Any]] = {"default": config_of(task, served.overrides)}
    ladder = build_ladder(task, overrides=served.overrides, keep_guessable=True)
    configs |= {f"level {one.index}": one.config for one in ladder.levels}
    made, again = [await _draw(tasks, task, configs["default"], draws, seed) for _ in range(2)]
    usable = [one for one in made if has_right_answer(task, one.entry)]
    tried = await asyncio.gather(*(_try(tasks, problem, usable) for problem in usable[:items]))
    graded = [one for several in tried for one in several]
    # An answer without a score says nothing about what the verifier pays.
    scored = [(kind, text, score) for kind, text, score in graded if score.outcome.is_scored]
    pays, best = _means([(kind, text, score.value) for kind, text, score in scored])
    others = [float(score.value >= FULL) for kind, _, score in scored if kind == "other"]
    others_in_full = round(fmean(others), 4) if others else 0.0
    solved = []
    for name, config in configs.items():
        drawn = made if name == "default" else await _draw(tasks, task, config, draws, seed)
        if found := await _constant(tasks, [one for one in drawn if has_right_answer(task, one.entry)]):
            solved.append((name, *found))
    return {
        "task": task,
        "category": served.category,
        "verdict": judge(pays, others_in_full, bool(solved)),
        "items": len(made),
        "unmade": draws - len(made),
        "distinct_questions": len({one.question for one in made}),
        # By repr, as an entry may hold arrays, of which == makes another array.
        "regenerates": repr([one.entry for one in made]) == repr([one.entry for one in again]),
        "evaluates_answers": task in eval_guards.GUARDS or task in eval_guards.unguarded_tasks(),
        "pays": pays,
        "native_pays": _means([(kind, text, score.native) for kind, text, score in scored])[0],
        "others_in_full": others_in_full,
        "best_worthless": best,
        "solved": solved,
        "answers": len(graded),
        "raised": sum(score.outcome is Outcome.VERIFIER_ERROR for _, _, score in graded),
        "unscored": len(graded) - len(scored),
    }


def judge(pays: Mapping[str, float], others_in_full: float, is_solved: bool) -> str:
    """The verdict that follows from the mean pay by kind of answer."""
    applies = {
        "broken": pays.get("oracle", 1.0) < FULL,
        "pays-garbage": pays.get("worthless", 0.0) >= MAX_WORTHLESS,
        "solved-by-constant": is_solved,
        "accepts-others": others_in_full > MAX_OTHERS,
        "no-oracle": "oracle" not in pays,
        "sound": True,
    }
    return next(verdict for verdict in VERDICTS if applies[verdict])


async def _draw(tasks: Tasks, task: str, config: Mapping[str, Any], draws: int, seed: int) -> list[PromptedProblem]:
    until = time.monotonic() + LEVEL_S

    async def one(index: int) -> PromptedProblem | None:
        if time.monotonic() > until:
            return None
        try:
            return await tasks.make_async(task, derive_seed(seed, "audit", task, index), config)
        except GenerationError:
            return None

    made = [await asyncio.gather(*map(one, range(start, min(start + 4, draws)))) for start in range(0, draws, 4)]
    return [problem for several in made for problem in several if problem is not None]


async def _try(
    tasks: Tasks, problem: PromptedProblem, others: Sequence[PromptedProblem]
) -> list[tuple[str, str, Score]]:
    """(kind, answer, score) of every answer that is tried on this item; nothing that says the same as the right one."""
    right = right_answer(problem.task, problem.entry)
    theirs = dict.fromkeys(text for one in others if (text := right_answer(one.task, one.entry)))
    tried = [("oracle", right)] if right else []
    tried += [("other", text) for text in list(theirs)[:8] if not same(text, right)]
    tried += [("worthless", text) for text in (*CONSTANTS, *GARBAGE) if not same(text, right)]
    scores = await _scores(tasks, problem, [text for _, text in tried])
    return [(*pair, score) for pair, score in zip(tried, scores, strict=True)]


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
    text, count = max(right.items(), key=lambda pair: pair[1], default=("", 0))
    share = count / len(problems) if problems else 0.0
    return (text, round(share, 4)) if problems and wilson(share, len(problems))[0] > SOLVED else None


def same(text: str, right: str | None) -> bool:
    """Whether both say the same: equal but for case and blanks, or equal as numbers."""
    if right is None or "".join(text.lower().split()) == "".join(right.lower().split()):
        return right is not None
    try:
        return float(text) == float(right)
    except ValueError:
        return False


def _means(paid: Sequence[tuple[str, str, float]]) -> tuple[dict[str, float], str]:
    """The mean by kind of answer, and the worthless answer that is paid best, whose mean is that of its kind."""
    values: dict[tuple[str, str], list[float]] = {}
    for kind, text, value in paid:
        values.setdefault((kind, text if kind == "worthless" else ""), []).append(value)
    # The best one of a kind comes last, and stays.
    means = sorted((round(fmean(several), 4), *one) for one, several in values.items())
    best = [text for _, kind, text in means if kind == "worthless"]
    return {kind: mean for mean, kind, _ in means}, best[-1] if best else ""


def _table(found: Sequence[dict[str, Any]]) -> Table:
    caption = (
        "others: share of right answers to other items that is paid in full. worthless: the constant or garbage that "
        "earns most."
    )
    table = Table("task", "verdict", "others", "worthless", caption=caption, caption_justify="left")
    table.add_column("notes", max_width=60)
    styles = {"sound": "green", "no-oracle": "yellow"}
    for one in found:
        worthless = one["pays"].get("worthless", 0.0)
        cells = (
            Text(one["verdict"], style=styles.get(one["verdict"], "red")),
            f"{one['others_in_full']:.2f}",
            Text(f"{worthless:.2f} for {one['best_worthless']!r:.30}" if worthless else "0"),
            Text("; ".join(notes(one))),
        )
        table.add_row(one["task"], *cells)
    return table


def notes(one: dict[str, Any]) -> list[str]:
    """What else a user should know of this task."""
    said = [f"{place}: {text!r:.30} is right on {share:.0%} of its items" for place, text, share in one["solved"]]
    counted = {
        "its verifier evaluates answers": one["evaluates_answers"],
        f"raises on {one['raised']} of {one['answers']} answers": one["raised"],
        f"{one['unscored']} of {one['answers']} answers could not be scored": one["unscored"],
        f"{one['distinct_questions']} questions in {one['items']} draws": 2 * one["distinct_questions"] < one["items"],
        "an item made again differs": not one["regenerates"],
        f"{one['unmade']} items could not be made": one["unmade"],
    }
    return said + [text for text, applies in counted.items() if applies]
