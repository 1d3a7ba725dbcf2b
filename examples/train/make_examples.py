"""Write examples for a cold start: training items, each with a short thought and its expected answer.

    python examples/train/make_examples.py FILE --tasks NAMES [--count 1024] [--seed 7]

The model as it is never uses <think> and <answer>, so every reward would be 0. A few hundred examples teach it the
form. They are items that training draws, so no held-out question is among them. Most have their task's easiest level.
The examples of the eight tasks of tasks.py show steps that lead to the answer, so they also teach a part of the task.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reasoning_gym.arithmetic.leg_counting import ANIMALS
from tqdm import tqdm

from reasoning_gym_environment import ItemStream, Tasks
from reasoning_gym_environment.verification.entries import right_answer

LONGEST_QUESTION = 600
LONGEST_REPLY = 240
"""Characters. Longer items take most of the time, and are beyond this model."""

EASY_SHARE = 0.6


def is_short(problem: Any) -> bool:
    if len(problem.question) >= LONGEST_QUESTION or right_answer(problem.task, problem.entry) is None:
        return False
    return len(reply(problem)) < LONGEST_REPLY


def reply(problem: Any) -> str:
    """The completion that the model should have written."""
    answer = right_answer(problem.task, problem.entry)
    return f"<think>{thought(problem.task, problem.entry)}</think>\n<answer>{answer}</answer>"


def thought(task: str, entry: dict[str, Any]) -> str:
    """A few words that lead to the answer, as short as the task allows."""
    facts, answer = entry["metadata"], entry["answer"]
    if task == "spell_backward":
        return f"The letters are {', '.join(facts['word'])}. Backward they are {', '.join(answer)}."
    if task == "leg_counting":
        parts = [f"{count} {animal}: {count * ANIMALS[animal]}." for animal, count in facts["animals"].items()]
        return f"{' '.join(parts)} The sum is {answer}."
    if task == "letter_counting":
        letter = facts["target_letter"].lower()
        counts = ", ".join(f"{word} {word.lower().count(letter)}" for word in facts["span"])
        return f"{counts}. The sum is {answer}."
    if task == "chain_sum":
        return running_sum(facts["expression"])
    if task == "gcd":
        return f"The largest number that divides {' and '.join(map(str, facts['numbers']))} is {answer}."
    if task == "base_conversion":
        return f"In base 10 it is {facts['decimal_value']}. In base {facts['target_base']} that is {answer}."
    if task in ("basic_arithmetic", "products"):
        return f"{facts['expression']} is {answer}."
    return "I look for the answer."


def running_sum(expression: str) -> str:
    """`4 - 1 - 7` as `4 - 1 = 3. 3 - 7 = -4.`"""
    first, *rest = re.findall(r"[+-]|\d+", expression)
    total, steps = int(first), []
    for sign, number in zip(rest[::2], rest[1::2], strict=True):
        after = total + int(number) if sign == "+" else total - int(number)
        steps.append(f"{total} {sign} {number} = {after}.")
        total = after
    return " ".join(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write examples for a cold start as JSON lines.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--tasks", required=True, help="names, separated by commas")
    parser.add_argument("--count", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    problems: list[Any] = []
    with tqdm(total=options.count, desc="drawing items", unit=" items") as bar:
        for mode, wanted in (("curriculum", int(EASY_SHARE * options.count)), ("random", options.count)):
            with Tasks(options.tasks, complexity_mode=mode) as tasks:
                stream = ItemStream(tasks, seed=options.seed)
                while len(problems) < wanted:
                    problem = stream.next()
                    stream.observe(problem, [])
                    if is_short(problem):
                        problems.append(problem)
                        bar.update()
    random.Random(options.seed).shuffle(problems)
    options.file.parent.mkdir(parents=True, exist_ok=True)
    with options.file.open("w", encoding="utf-8") as file:
        for problem in problems:
            messages = [*map(dict, problem.messages), {"role": "assistant", "content": reply(problem)}]
            file.write(json.dumps({"task": problem.task, "messages": messages}) + "\n")


if __name__ == "__main__":
    main()
