"""How real answers are graded: python benchmarks/transcripts.py FOLDER --to FILE [--before FILE] [--tasks NAME ...]

FOLDER holds evaluation results as open-thought/reasoning-gym-eval has them (zero-shot/easy/MODEL/CATEGORY/TASK.json): a
config, and for each item the question and the answer of a model. This script makes each item again from the config. If
its question is the same, the script grades every different answer once, in the sandbox.

FILE gets a line of JSON for each: task, config, item, answer, which models gave it and how often, what reasoning-gym's
verifier pays, what we pay, why they differ. Printed are sums by task, and with --before, a FILE of another version,
every answer that is paid otherwise than there. `questions/against_the_key.py` lists answers on which models agree.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import decimal
import io
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tqdm import tqdm

from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.workers.grader import SandboxGrader

AT_ONCE = 64
Line = dict[str, Any]
Answers = dict[str, Counter[str]]
"""How often each model gave each answer to an item."""


def documents(folder: Path, tasks: list[str]) -> dict[str, list[dict[str, Any]]]:
    """The results of all models on the same items, by what makes those items."""
    found = defaultdict(list)
    for file in sorted(folder.rglob("*.json")):
        if tasks and file.stem not in tasks:
            continue
        document = json.loads(file.read_text(encoding="utf-8"))
        if document.get("name") in library.registry():
            made_by = json.dumps([document["name"], document["config"]], sort_keys=True)
            # A model's folder ends with date and time.
            found[made_by].append({**document, "model": file.parts[-3].rsplit("_", 2)[0]})
    return found


def answered(same: list[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any], Answers]]:
    """Each item, made again, with its answers. Skips items that cannot be made, or whose question differs."""
    task, config = same[0]["name"], same[0]["config"]
    with contextlib.redirect_stdout(io.StringIO()):
        dataset = library.create_dataset(task, **config)
    for index in range(config["size"]):
        # decimal_arithmetic sets the precision of the whole process.
        decimal.setcontext(decimal.DefaultContext.copy())
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                entry = dataset[index]
        except ValueError as error:
            # The items of knight_swap depend on the hash seed of the process, and some have no solution.
            print(f"Item {index} of {task} cannot be made: {error}", file=sys.stderr)
            continue
        answers: Answers = defaultdict(Counter)
        for document in same:
            for result in document["results"][index : index + 1]:
                if result["question"] != str(entry["question"]):
                    continue
                for completion in result["completions"]:
                    if completion.get("model_answer"):
                        answers[str(completion["model_answer"]).strip()][document["model"]] += 1
        if answers:
            yield index, entry, answers


async def grade_all(grader: SandboxGrader, same: list[dict[str, Any]]) -> list[Line]:
    """The lines of one task at one config."""
    task, made = same[0]["name"], same[0]["config"]
    config = {name: value for name, value in made.items() if name not in ("seed", "size")}
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(index: int, entry: dict[str, Any], answers: Answers) -> list[Line]:
        async with slots:
            verdicts = await grader.grade(task, config, entry, list(answers))
        return [
            {
                **{"task": task, "config": made, "item": index, "answer": answer, "models": models},
                **{"native": verdict.native, "value": verdict.value, "status": verdict.status.value},
                "detail": verdict.detail,
            }
            for (answer, models), verdict in zip(answers.items(), verdicts, strict=True)
        ]

    items = await asyncio.to_thread(list, answered(same))
    return [line for lines in await asyncio.gather(*(one(*item) for item in items)) for line in lines]


def summary(lines: list[Line]) -> dict[str, dict[str, int]]:
    """Counts of answers by task: how many have a full score from reasoning-gym and from us, and where we differ."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        ours, native = line["value"] >= 1.0, line["native"] >= 1.0
        found = {
            "answers": 1,
            "right": ours,
            "native": native,
            "only_right": ours > native,
            "only_native": native > ours,
        }
        times = sum(line["models"].values())
        for task in (line["task"], "all"):
            counts[task].update({name: times * value for name, value in found.items()})
    return {task: dict(counts[task]) for task in sorted(counts)}


def key_of(line: Line) -> str:
    return json.dumps([line["task"], line["config"], line["item"], line["answer"]], sort_keys=True)


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--tasks", nargs="+", default=[], help="all without")
    options = parser.parse_args()
    grader = SandboxGrader(num_workers=1, strict=True, timeout_s=10.0)
    await grader.start()
    lines: list[Line] = []
    try:
        with options.to.open("w", encoding="utf-8") as file:
            for same in tqdm(documents(options.folder, options.tasks).values()):
                lines += (found := await grade_all(grader, same))
                file.writelines(json.dumps(line) + "\n" for line in found)
    finally:
        await grader.close()
    report: dict[str, Any] = {"reasoning_gym": library.load().version, "tasks": summary(lines)}
    if options.before:
        before = {key_of(line): line for line in read(options.before)}
        report["otherwise"] = [
            {**line, "value_before": before[key_of(line)]["value"]}
            for line in lines
            if key_of(line) in before and (before[key_of(line)]["value"] >= 1.0) != (line["value"] >= 1.0)
        ]
    print(json.dumps(report, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    asyncio.run(main())
