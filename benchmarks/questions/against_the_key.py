"""Where do several models agree against the key? python benchmarks/questions/against_the_key.py FOLDER [TASK ...]

FOLDER holds the published answers of several models to the same items, as benchmarks/transcripts.py reads them. An
agreement is an answer that at least three models give and that strict verification refuses. Either the models make the
same mistake, or the key is wrong, or the question has two meanings. Each agreement counts as one of these:

    replaced    strict training does not ask the item
    clarified   strict training adds a sentence to the question, which the models have not seen
    corrected   the library's own key refuses the answer, and the corrected key pays it
    mistaken    a solver (see check.py) that has read only the question accepts the key and refuses the answer
    left        somebody has to look at it

The command prints each agreement, with the number of models that give the key, and the counts of each task.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.questions.check import is_paid, solved, solvers, unread
from benchmarks.questions.solution import Solver
from benchmarks.transcripts import Answers, answered, documents
from reasoning_gym_environment.verification.forms import FORMS
from reasoning_gym_environment.verification.questions import is_sound, mended

FEWEST_MODELS = 3
Entry = dict[str, Any]


def agreements(task: str, solver: Solver, entry: Entry, answers: Answers) -> Iterator[tuple[str, str, set[str]]]:
    """The kind of each agreement, the answer, and the models that give it."""
    asked = mended(task, entry) if is_sound(task, entry) else None
    is_clarified = asked is not None and asked["question"] != entry["question"]
    refused: dict[str, Answers] = {"replaced": {}, "clarified": {}, "corrected": {}, "left": {}}
    for answer, models in answers.items():
        is_paid_by_library = is_paid(task, entry, answer)
        if asked is None and not is_paid_by_library:
            refused["replaced"][answer] = models
        elif asked is not None and not is_paid(task, asked, answer):
            refused["clarified" if is_clarified else "left"][answer] = models
        elif asked is not None and not is_paid_by_library:
            refused["corrected"][answer] = models
    for kind, found in refused.items():
        for answer, models in alike(task, entry, found).items():
            if len(models) < FEWEST_MODELS:
                continue
            if kind == "left" and is_mistaken(solver, entry, answer):
                yield "mistaken", answer, models
            else:
                yield kind, answer, models


def is_mistaken(solver: Solver, entry: Entry, answer: str) -> bool:
    solution = solved(solver, str(entry["question"]))
    if solution.is_undecided or solution.accepts(answer):
        return False
    return entry["answer"] is None or solution.accepts(str(entry["answer"]))


def alike(task: str, entry: Entry, answers: Answers) -> dict[str, set[str]]:
    """The models by their answers. Two answers count as equal if an answer is right when the other is the key."""
    found: dict[str, set[str]] = {}
    for answer, models in sorted(answers.items(), key=lambda pair: -len(pair[1])):
        same = (known for known in found if task in FORMS and is_paid(task, {**entry, "answer": known}, answer))
        found.setdefault(next(same, answer), set()).update(models)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="all without")
    options = parser.parse_args()
    known = solvers()
    for same in documents(options.folder, options.tasks).values():
        task = same[0]["name"]
        counts: Counter[str] = Counter(items=0)
        for index, entry, answers in answered(same):
            found = list(agreements(task, known.get(task, unread), entry, answers))
            counts["items"] += 1
            counts["agreements"] += bool(found)
            counts.update({kind for kind, _, _ in found})
            for kind, answer, models in found:
                right = {model for answer in answers for model in answers[answer] if is_paid(task, entry, answer)}
                print(f"=== {task} {same[0]['config']} item {index}: {kind}\n{entry['question']}")
                print(f"--- key, of {len(right)} models: {entry['answer']}\n--- of {len(models)} models: {answer}")
                print(f"--- {', '.join(sorted(models))}")
        print(f"+++ {task} {same[0]['config']}: {dict(counts)}", flush=True)


if __name__ == "__main__":
    main()
