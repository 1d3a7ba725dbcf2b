"""Grade saved completions again, with other settings or another release, and print the old and the new mean score.

python examples/regrade.py results/some-model/samples.jsonl data_dumps/*.jsonl --set verification=native
"""

import argparse
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from reasoning_gym_environment import Tasks
from reasoning_gym_environment.errors import GenerationError
from reasoning_gym_environment.records import AnswerFormat


def saved_completions(line):
    """The conversation and the old score of each completion: of a sample, of a dump, or of a group of `process`."""
    if "question" in line:
        return [(line["messages"], line["score"])]
    rollouts = line.get("rollouts") or line["rollout_details"]
    conversations = line.get("messages") or [rollout["conversation"] for rollout in rollouts]
    return zip(conversations, [rollout["verifier_score"] for rollout in rollouts], strict=True)


def grade_again(line, pairs):
    """The old and the new score of each completion. There are none if the item now has another question."""
    question = pairs[0][0][-2]["content"]
    for maker in (tasks, others):  # Some questions depend on `verification`, which may have been different.
        problem = maker.make(line["task"], line["seed"], line["config"])
        if problem.question == question:
            problem = replace(problem, answer_format=AnswerFormat(line["answer_format"]))
            texts = [messages[-1]["content"] for messages, _ in pairs]
            grades = tasks.grade(problem, texts, thinking_opened=options.thinking_opened)
            graded = zip(pairs, grades, strict=True)
            return [(old, grade.score.value) for (_, old), grade in graded if grade.reward is not None]
    return []


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("files", nargs="+", type=Path, help="samples.jsonl of `evaluate`, dumps, or groups of `process`")
parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of `Tasks` (docs/python.md)")
parser.add_argument("--thinking-opened", action="store_true", help="the chat template opened <think> in the prompt")
options = parser.parse_args()

settings = dict(pair.split("=", 1) for pair in options.set)
other = "strict" if settings.get("verification") == "native" else "native"
scores = defaultdict(list)
skipped = 0
with Tasks(**settings) as tasks, Tasks(**{**settings, "verification": other}) as others:
    for text in (text for file in options.files for text in file.open(encoding="utf-8")):
        line = json.loads(text)
        saved = [(messages, old) for messages, old in saved_completions(line) if old is not None]
        try:
            found = grade_again(line, saved) if saved else []
        except GenerationError:
            found = []
        skipped += not found
        scores[line["task"]] += found
for task, pairs in sorted(scores.items()):
    if pairs:
        old, new = (fmean(column) for column in zip(*pairs, strict=True))
        changed = sum(before != after for before, after in pairs)
        print(f"{task}: {len(pairs)} completions, {changed} changed, mean {old:.3f} before, {new:.3f} now")
print(f"{skipped} lines were skipped, because they have no scores, or because their items cannot be made again.")
