"""The command `benchmark`: write held-out questions as a dataset, or check that this machine makes the same questions.

    --to FOLDER: settings ── the questions of `evaluate` ──> FOLDER/data/test.jsonl         a question a line
                                                        └──> FOLDER/manifest.json           its recipe and digest
                 published results of nine models ─────────> FOLDER/published_results.json
                                                             FOLDER/README.md               the card
    --check FOLDER: manifest.json ── recipes ──> the items again ──> equal digests, or exit code 1

The published results do not belong to the questions of the folder. They belong to two sets of configs, `easy` and
`hard`. The card says how the set in the folder is related to them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from tqdm import tqdm

from .. import __version__
from ..api import PromptedProblem, Tasks
from ..errors import EnvironmentSetupError, GenerationError, UnknownNameError
from ..evaluation.questions import (
    PRESETS,
    EvalSet,
    published_presets,
    published_scores,
)
from ..inference.prompts import system_prompt
from ..integrations.recipe import Recipe
from ..records import Problem
from ..runtime import Runtime
from ..sampling.item_maker import question_digest
from ..settings import EvaluationSettings, TasksSettings, checked
from ..storage.json_lines import BrokenLineError, read_object
from ..tasks import reasoning_gym_source as library
from ..tasks.measured_data import packaged
from ..utils.terminal import folder_name, positive, printable, whole
from .dataset_folder import new_folder, write_card
from .items import right_answer
from .options import refuse_unused

QUESTIONS = Path("data", "test.jsonl")
MANIFEST = Path("manifest.json")
PUBLISHED = Path("published_results.json")
CARD_TEMPLATE = "benchmark_card.md.j2"
LICENCE = "Apache-2.0, the licence of reasoning-gym, whose generators wrote the questions and the answers"
DEFAULTS: Mapping[str, Any] = {
    "tasks": "all",
    "per_task": 5,
    "seed": 123,
    "complexity": "none",
}
"""The options that choose the questions. A check takes the questions from the manifest."""
ITEM_S = 30.0
"""Processor time to make an item again, in seconds. A slow machine must not count as a difference."""
AT_ONCE = 32
"""Number of items that a check makes at the same time."""
SHOWN = 5
"""Number of differences that a check prints."""


def main(arguments: Sequence[str]) -> int:
    """Write or check a folder; returns the exit code: 1 if the check finds a difference.

    Raises EnvironmentSetupError or OSError if there are no questions, or if files cannot be read or written.
    """
    options = _parser().parse_args(arguments)
    if options.check is not None:
        refuse_unused("--check", options, DEFAULTS)
    differences: list[str] = []
    with library.stdout_to_stderr():
        if options.check is None:
            with new_folder(options.to, QUESTIONS, MANIFEST, PUBLISHED) as folder:
                summary = asyncio.run(_write(folder, {**DEFAULTS, **vars(options)}))
        else:
            summary, differences = _check(options.check)
    print(summary)
    for difference in differences[:SHOWN]:
        print(printable(difference, 400), file=sys.stderr)
    return 1 if differences else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env benchmark",
        description="Write the held-out questions of `evaluate` as a dataset with a manifest, and the published "
        "results of nine models beside it; or check such a folder on another machine.",
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--to", type=folder_name, metavar="FOLDER", help="write the dataset to this new folder")
    action.add_argument(
        "--check",
        type=folder_name,
        metavar="FOLDER",
        help="make the questions of this folder again, and exit with 1 if one of them differs",
    )

    questions = parser.add_argument_group("questions, for --to")
    add = questions.add_argument
    add(
        "--tasks",
        default=argparse.SUPPRESS,
        help="names, globs or category:NAME, comma-separated, or a number of tasks (default: all)",
    )
    add(
        "--per-task",
        type=positive,
        default=argparse.SUPPRESS,
        metavar="N",
        help="questions of each task (default: 5)",
    )
    add(
        "--seed",
        type=whole,
        default=argparse.SUPPRESS,
        help="another seed gives other questions (default: 123)",
    )
    add(
        "--complexity",
        default=argparse.SUPPRESS,
        help="none (reasoning-gym's default configs), a number from 0 (easiest level) to 1 (hardest), or easy or hard, "
        "the configs of the published results, whose questions are not held out (default: none)",
    )
    return parser


# --- write


async def _write(folder: Path, options: Mapping[str, Any]) -> str:
    """Write the files of the dataset; returns a sentence about it."""
    settings = checked(
        EvaluationSettings,
        eval_tasks=options["tasks"],
        num_eval_samples_per_task=options["per_task"],
        eval_seed=options["seed"],
        eval_complexity=options["complexity"],
    )
    async with Runtime(checked(TasksSettings)) as runtime:
        questions = await runtime.held_out(settings, show_progress=True)
    document = _manifest(questions, settings)
    _write_rows(folder / QUESTIONS, questions)
    _write_json(folder / MANIFEST, document)
    _write_json(folder / PUBLISHED, _published_results())
    write_card(
        folder,
        CARD_TEMPLATE,
        document=document,
        presets=PRESETS,
        results=_published_means(),
    )
    return f"{len(questions)} questions of {len(document['set']['tasks'])} tasks in {options['to']}."


def _manifest(questions: EvalSet, settings: EvaluationSettings) -> dict[str, Any]:
    """Everything that is needed to make the same questions again, and to recognise them."""
    return {
        "set": questions.describe(),
        "questions_per_task": settings.num_eval_samples_per_task,
        "versions": {
            "reasoning-gym-environment": __version__,
            "reasoning-gym": questions.version,
            "python": platform.python_version(),
        },
        "licence": LICENCE,
        "system_prompt": system_prompt,
        "questions": [Recipe.of(problem).as_row() for problem in questions],
    }


def _write_rows(path: Path, questions: EvalSet) -> None:
    path.parent.mkdir()
    with path.open("w", encoding="utf-8") as file:
        for problem in questions:
            row = {
                "question": problem.question,
                "answer": right_answer(problem.task, problem.entry),
                "category": problem.category,
                **Recipe.of(problem).as_row(),
            }
            file.write(json.dumps(row) + "\n")


def _published_results() -> dict[str, Any]:
    """The results of each published set: its configs, and the scores of each model in each task."""
    source = packaged("published_students.json")
    presets = published_presets()
    sets = {}
    for preset in PRESETS:
        models = {}
        for model, scores in published_scores(preset).items():
            models[model] = {task: score._asdict() for task, score in scores.items()}
        sets[preset] = {"configs": presets[preset], "models": models}
    return {
        "source": source["source"],
        "licence": source["license"],
        "counts": "number of items with 0, 1, 2, ... right completions (score of at least 0.5)",
        "verifier_changed_since": presets["verifier_changed_since"],
        "sets": sets,
    }


def _write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _published_means() -> list[tuple[str, list[str]]]:
    """Each published model, with its mean score at each preset."""
    results = []
    for model in published_scores("easy"):
        results.append((model, [_mean_score(preset, model) for preset in PRESETS]))
    return results


def _mean_score(preset: Any, model: str) -> str:
    scores = published_scores(preset).get(model)
    if scores is None:
        return "not published"
    mean = fmean(score.mean_score for score in scores.values())
    return f"{mean:.3f} ({len(scores)} tasks)"


# --- check


def _check(folder: Path) -> tuple[str, list[str]]:
    """A sentence about the result, and the differences.

    Raises EnvironmentSetupError or OSError if the folder holds no benchmark.
    """
    try:
        document = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        versions = dict(document["versions"])
        manifest = document["set"]["manifest"]
        recipes = [Recipe.from_row(row) for row in document["questions"]]
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise EnvironmentSetupError(
            f"{folder / MANIFEST}: expected a manifest of `benchmark --to`, but it cannot be read ({error!r})."
        ) from error
    digests = [recipe.question_digest for recipe in recipes]
    differences = []
    if _digests_of_rows(folder / QUESTIONS) != digests:
        differences.append(f"{QUESTIONS} holds other questions than {MANIFEST}.")
    with Tasks(item_timeout_s=ITEM_S, num_generation_workers=None) as tasks:
        problems, failures = asyncio.run(_make_again(recipes, tasks))
        differences += failures
        made = EvalSet(problems, version=tasks.version).manifest
    if made != manifest and not differences:
        differences.append(f"The set has the manifest {made} here, and {manifest} in {MANIFEST}.")
    if differences:
        here = f"reasoning-gym {tasks.version}, Python {platform.python_version()}"
        there = f"reasoning-gym {versions.get('reasoning-gym')}, Python {versions.get('python')}"
        return (
            f"{len(differences)} differences. This machine has {here}; the folder was made with {there}.",
            differences,
        )
    return f"All {len(recipes)} questions are the same here: manifest {made}.", []


def _digests_of_rows(path: Path) -> list[str]:
    digests = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                digests.append(question_digest(read_object(line)["question"]))
            except (BrokenLineError, KeyError, TypeError, AttributeError) as error:
                raise EnvironmentSetupError(f"{path}, line {number}: expected an object with a question.") from error
    return digests


async def _make_again(recipes: Sequence[Recipe], tasks: Tasks) -> tuple[list[Problem], list[str]]:
    """The items of the recipes, and a sentence for each recipe that gives no item or another question."""
    problems: list[Problem] = []
    failures: list[str] = []
    remaining: Iterator[Recipe] = iter(recipes)
    with tqdm(total=len(recipes), desc="check", unit="item", disable=None) as bar:
        while batch := list(islice(remaining, AT_ONCE)):
            work = [_outcome(recipe, tasks) for recipe in batch]
            for outcome in await asyncio.gather(*work):
                if isinstance(outcome, str):
                    failures.append(outcome)
                else:
                    problems.append(outcome)
            bar.update(len(batch))
    return problems, failures


async def _outcome(recipe: Recipe, tasks: Tasks) -> PromptedProblem | str:
    """The item, or the reason why there is none."""
    try:
        return await recipe.make_async(tasks)
    except (GenerationError, UnknownNameError) as error:
        return str(error)
