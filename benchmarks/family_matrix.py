"""Is a right answer paid in the own form of every family of models, and a wrong answer not?

    python benchmarks/family_matrix.py [--items 2] [--families "gpt-oss,Gemma 2"] > matrix.json

For each family of models (testing/model_families.py), answer format and task, three completions pass through the
tokenizer of the family, as a server would return them: a right answer whose thinking holds a wrong one, a wrong answer
whose thinking holds the right one, and a completion that was cut off in its thinking. The right answer is the key of
the item, and the wrong answer is the key of another item of the task. The JSON has, for each family and format, the
counts of

    right_refused    right answers that earn less than 1
    wrong_paid       wrong answers that earn anything
    not_unfinished   completions that were cut off and are not `unfinished_thinking`

and for each of them the task and the answer. docs/prompts.md has the table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reasoning_gym_environment import PromptedProblem, Tasks
from reasoning_gym_environment.inference.chat_tokenizer import ChatTokenizer
from reasoning_gym_environment.records import AnswerFormat, FormatFailure
from reasoning_gym_environment.scoring.extraction import write_answer
from reasoning_gym_environment.verification.entries import right_answer
from testing.model_families import FAMILIES, Family

TASKS = (
    "ab",
    "base_conversion",
    "basic_arithmetic",
    "binary_matrix",
    "bitwise_arithmetic",
    "caesar_cipher",
    "calendar_arithmetic",
    "chain_sum",
    "complex_arithmetic",
    "count_bits",
    "count_primes",
    "countdown",
    "cryptarithm",
    "decimal_arithmetic",
    "dice",
    "emoji_mystery",
    "family_relationships",
    "fraction_simplification",
    "game_of_life",
    "gcd",
    "group_anagrams",
    "gsm_symbolic",
    "intermediate_integration",
    "isomorphic_strings",
    "knights_knaves",
    "lcm",
    "letter_counting",
    "mini_sudoku",
    "n_queens",
    "number_sorting",
    "palindrome_generation",
    "polynomial_equations",
    "prime_factorization",
    "rotate_matrix",
    "simple_equations",
    "spell_backward",
    "spiral_matrix",
    "syllogism",
    "time_intervals",
    "word_sorting",
)
"""Tasks with numbers, fractions, formulas, words, brackets, lists, tables, times and moves as answers."""


@dataclass(frozen=True)
class Case:
    """An item, its right answer, and a wrong answer."""

    problem: PromptedProblem
    right: str
    wrong: str


def cases_of(tasks: Tasks, task: str, items: int) -> Iterator[Case]:
    """The first items of a task that have a key. The wrong answer is the next key that differs."""
    keyed: list[tuple[PromptedProblem, str]] = []
    seed = 0
    while len(keyed) < items + 1:
        problem = tasks.draw(task, seed)
        seed += 1
        answer = right_answer(task, problem.entry)
        if answer and answer not in [known for _, known in keyed]:
            keyed.append((problem, answer))
    for (problem, right), (_, wrong) in pairwise(keyed):
        yield Case(problem, right, wrong)


@dataclass
class Reader:
    """Reads what a model of a family writes, as the inference client does."""

    family: Family
    tokenizer: Any
    chat: ChatTokenizer

    def read(self, thinking: str, reply: str | None) -> str:
        """The text of a completion after it is encoded and decoded."""
        text = self.family.completion(thinking, reply)
        return self.chat.decode(self.tokenizer.encode(text, add_special_tokens=False))


def reader_of(name: str) -> Reader:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    return Reader(family, tokenizer, ChatTokenizer(tokenizer, name))


def failures_of(tasks: Tasks, reader: Reader, case: Case, answer_format: AnswerFormat) -> dict[str, bool]:
    """Which of the three completions of a case earn something else than they should."""
    problem = replace(case.problem, answer_format=answer_format)
    right = write_answer(case.right, answer_format)
    wrong = write_answer(case.wrong, answer_format)
    has_thinking = bool(reader.family.opening)
    completions = [
        reader.read(f"Is it {wrong}?" if has_thinking else "", right),
        reader.read(f"It could be {right}." if has_thinking else "", wrong),
    ]
    if has_thinking:
        completions.append(reader.read(f"It must be {right}", None))
    grades = tasks.grade(problem, completions, thinking_opened=reader.family.prompt_opens)
    unfinished = [grade.score.failure is FormatFailure.UNFINISHED_THINKING for grade in grades[2:]]
    return {
        "right_refused": grades[0].reward != 1.0,
        "wrong_paid": grades[1].reward != 0.0,
        "not_unfinished": not all(unfinished),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=2, help="items of each task (default: 2)")
    parser.add_argument("--families", default=",".join(FAMILIES), help="names, comma-separated (default: all)")
    options = parser.parse_args()
    names = [name for name in FAMILIES if name in options.families]
    if not names:
        sys.exit(f"--families: expected names of {', '.join(FAMILIES)}, got {options.families!r}.")
    table: dict[str, dict[str, Any]] = {}
    with Tasks(TASKS) as tasks:
        drawn = tqdm(TASKS, "items", unit="task", disable=None)
        cases = [case for task in drawn for case in cases_of(tasks, task, options.items)]
        for name in tqdm(names, "families", unit="family", disable=None):
            reader = reader_of(name)
            for answer_format in AnswerFormat:
                found: dict[str, Any] = {"cases": len(cases), "failures": []}
                for case in cases:
                    failures = failures_of(tasks, reader, case, answer_format)
                    for kind, is_failure in failures.items():
                        found[kind] = found.get(kind, 0) + is_failure
                        if is_failure:
                            found["failures"].append([kind, case.problem.task, case.right, case.wrong])
                table.setdefault(name, {})[answer_format.value] = found
    print(json.dumps(table, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
