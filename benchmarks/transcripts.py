"""What the checks and baselines do to real answers: python benchmarks/transcripts.py FOLDER [--models NAME ...] > FILE

FOLDER holds evaluation results as open-thought/reasoning-gym-eval has them (zero-shot/easy/MODEL/CATEGORY/TASK.json):
a config, and for each item the question and what a model answered. Each item is made again from the config; where its
question is the same, the answers are graded in the sandbox with the strict checks and the item's baseline.

Printed, in all and for the tasks where anything differs: answers, how many keep the score of the verifier under
`partial_credit: native`, how many wrong ones were paid by it and by `partial_credit: baseline` and how much, and pairs
of answers to one item of which the verifier pays one more than the other: whether the baseline pays it more too, pays
both nothing, or turns them round. Answers that get full credit and are paid less than 1 would be faults.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import itertools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tqdm import tqdm

from reasoning_gym_environment.records import Problem
from reasoning_gym_environment.scoring.rewards import paid
from reasoning_gym_environment.scoring.scorer import Scorer
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification.grade import FULL_CREDIT
from reasoning_gym_environment.workers.grader import SandboxGrader


def problems(document: dict[str, Any]) -> list[Problem | str]:
    """Each result's item made again, or why it cannot be compared: `other_questions`, or `not_made`."""
    task, config = document["name"], {name: value for name, value in document["config"].items() if name != "size"}
    kept = {name: value for name, value in config.items() if name != "seed"}
    made: list[Problem | str] = []
    dataset: Any = None
    for index, result in enumerate(document["results"]):
        # A config of another release, or any of a hundred generators: it is counted and said.
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                dataset = dataset or library.create_dataset(task, **document["config"])
                entry = dataset[index]
        except Exception as error:  # noqa: BLE001
            print(f"{task}, item {index} is not made: {library.explain(error)}", file=sys.stderr)
            made.append("not_made")
            continue
        is_same = str(entry["question"]) == str(result["question"])
        made.append(
            Problem(task, document["category"], "eval", index, 0, kept, entry) if is_same else "other_questions"
        )
    return made


async def grade(scorer: Scorer, document: dict[str, Any], made: list[Problem | str]) -> Counter[str]:
    """Counts and sums over the answers of one file."""
    found: Counter[str] = Counter()

    async def one(problem: Problem, result: dict[str, Any]) -> None:
        answers = [str(one["model_answer"]).strip() for one in result["completions"] if one.get("model_answer")]
        if not answers:
            return
        verdicts, base = await scorer.verdicts(problem, answers)
        for answer, verdict in zip(answers, verdicts, strict=True):
            pay = paid(problem.task, verdict.value, base)
            found["answers"] += 1
            found["unchanged"] += verdict.value == verdict.native
            if verdict.value != verdict.native and found["refused"] < 3:
                print(f"{problem.task}: {answer!r:.100}, {verdict.detail}", file=sys.stderr)
            found["refused"] += verdict.value != verdict.native
            found["right"] += verdict.native >= FULL_CREDIT
            found["right_refused"] += verdict.native >= FULL_CREDIT > verdict.value
            found["right_paid_less"] += verdict.value >= FULL_CREDIT and pay < 1.0
            if 0.0 < verdict.native < FULL_CREDIT:
                found["partial"] += 1
                found["partial_native_sum"] += verdict.native  # type: ignore[assignment]
                found["partial_paid"] += pay > 0.0
                found["partial_paid_sum"] += pay  # type: ignore[assignment]
        for (_, first), (_, second) in itertools.combinations(zip(answers, verdicts, strict=True), 2):
            native = first.native - second.native
            pay = paid(problem.task, first.value, base) - paid(problem.task, second.value, base)
            if native:
                found["pairs"] += 1
                found["pairs_kept" if native * pay > 0 else "pairs_turned" if native * pay < 0 else "pairs_tied"] += 1

    pairs = zip(made, document["results"], strict=True)
    await asyncio.gather(*(one(problem, result) for problem, result in pairs if isinstance(problem, Problem)))
    found.update(reason for reason in made if isinstance(reason, str))
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="+", default=[""], help="parts of folder names; all without")
    parser.add_argument("--tasks", nargs="+", help="all without")
    options = parser.parse_args()
    files = [file for file in sorted(options.folder.rglob("*.json")) if any(m in str(file) for m in options.models)]
    files = [file for file in files if not options.tasks or file.stem in options.tasks]
    if not files:
        parser.error(f"No results under {options.folder}: expected zero-shot/easy/MODEL/CATEGORY/TASK.json.")
    grader = SandboxGrader(num_workers=2, strict=True, library_path=str(library.load().location))
    await grader.start()
    by_task: dict[str, Counter[str]] = {}
    same: dict[str, list[Problem | str]] = {}
    try:
        # The same items of all models one after the other, so that they are made once.
        for file in tqdm(sorted(files, key=lambda file: (file.stem, str(file)))):
            document = json.loads(file.read_text(encoding="utf-8"))
            if document.get("name") not in library.registry():
                continue
            key = json.dumps([document["name"], document["config"], len(document["results"])])
            if key not in same:
                same = {key: await asyncio.to_thread(problems, document)}
            counts = by_task.setdefault(document["name"], Counter())
            counts.update(await grade(Scorer(grader, with_baselines=True), document, same[key]))
    finally:
        await grader.close()
    total: Counter[str] = sum(by_task.values(), Counter())
    shown = {task: dict(counts) for task, counts in by_task.items() if counts["refused"] or counts["partial"]}
    print(
        json.dumps(
            {"reasoning_gym": library.load().version, "files": len(files), "all": total, "tasks": shown}, indent=1
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
