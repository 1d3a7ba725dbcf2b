"""Do the graders agree with the public test cases for reward functions?

    python -m venv /tmp/cases && /tmp/cases/bin/pip install reward-doctor falsepass
    python benchmarks/graders.py --python /tmp/cases/bin/python [--items 1] [--formats tags boxed text] > graders.json

The cases come from two packages, whose code runs in a separate Python environment (`--python`):

    reward-doctor   pairs of a right answer and a completion, with the verdict. Each pair becomes an item of the task
                    with the nearest form (FORMS). A pair with another form is counted as `without_form`.
    falsepass       completions that it makes from a right and a wrong answer, with the verdict. Here these are the keys
                    of items of TASKS.

Each completion is graded in the sandbox in each answer format. The JSON has, for each package, format and kind of case,
the number of cases, of false positives (wrong, but paid) and of false negatives (right, but refused), and a list of
them. Cases that reward-doctor calls contested are listed apart, because their verdict is a matter of opinion.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reasoning_gym_environment import PromptedProblem, Tasks
from reasoning_gym_environment.records import AnswerFormat
from reasoning_gym_environment.scoring.extraction import write_answer
from reasoning_gym_environment.verification.entries import right_answer

TASKS = (
    "base_conversion",
    "chain_sum",
    "complex_arithmetic",
    "countdown",
    "dice",
    "fraction_simplification",
    "game_of_life",
    "group_anagrams",
    "gsm_symbolic",
    "knights_knaves",
    "number_sorting",
    "polynomial_multiplication",
    "power_function",
    "prime_factorization",
    "spell_backward",
    "syllogism",
    "time_intervals",
    "word_sorting",
)
"""A task of each form, for the cases of falsepass."""
AT_ONCE = 32
"""Completions of a problem that are graded together."""
MAX_CHARS_LISTED = 200

READ_REWARD_DOCTOR = """
import json, sys
from reward_doctor import corpus
contested = {case.id for case in corpus.contested()}
print(json.dumps([dict(case.to_dict(), contested=case.id in contested) for case in corpus.ALL_CASES]))
"""
READ_FALSEPASS = """
import asyncio, json, sys
from falsepass import probes
from falsepass.adapter import Adapter
from falsepass.model import Example, Score

class Writer(Adapter):
    def render(self, answer, example):
        return example.raw["before"] + answer + example.raw["after"]
    def wrong_answer(self, example):
        return example.raw["wrong"]
    def shotgun_answers(self, example):
        return [example.answer, *example.raw["others"]]

class Recorder:
    def __init__(self):
        self.completions = []
    async def score(self, example, completion):
        self.completions.append(completion)
        return Score(1.0)

async def cases_of(row):
    example = Example(row["key"], row["question"], row["right"], row)
    cases = []
    for probe in [*probes.PER_EXAMPLE, probes.p10_exception_path]:
        recorder = Recorder()
        results = await probe(Writer(), recorder, example)
        # A probe may score the right answer first.
        completions = recorder.completions[len(recorder.completions) - len(results):]
        for result, completion in zip(results, completions):
            if isinstance(completion, str):
                cases.append({"id": f"{result.probe}/{result.variant}", "kind": result.name,
                              "completion": completion, "expected": result.expected.value})
    return cases

rows = json.load(sys.stdin)
print(json.dumps([asyncio.run(cases_of(row)) for row in rows]))
"""


@dataclass(frozen=True)
class Case:
    """A completion, and whether a right grader pays it."""

    package: str
    answer_format: AnswerFormat
    kind: str
    id: str
    problem: PromptedProblem
    completion: str
    is_right: bool
    is_contested: bool = False


def read_package(python: str, program: str, rows: Any = None) -> Any:
    """The JSON that a program prints in the environment of the packages. The program ends if it fails."""
    done = subprocess.run(
        [python, "-c", program],
        input=json.dumps(rows),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last_line = done.stderr.strip().rpartition("\n")[2]
        sys.exit(f"--python: expected an environment with reward-doctor and falsepass, got {python}: {last_line}")
    return json.loads(done.stdout)


# --- reward-doctor ---


def _probability(reference: str) -> dict[str, Any]:
    value = Fraction(reference.removesuffix("\\%"))
    if reference.endswith("%"):
        value /= 100
    return {"rational": {"numerator": value.numerator, "denominator": value.denominator}}


def _nothing(reference: str) -> dict[str, Any]:
    return {}


FORMS: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    r"0\.\d+|\d+/\d+|\d+\\%": ("coin_flip", _probability),
    r"-?[\d,]+(\.\d+)?|\\boxed\{\d+\}": ("chain_sum", _nothing),
    r"\([\d, ]+\)": ("spiral_matrix", _nothing),
    r"yes|no|[A-D]": ("syllogism", _nothing),
    r"[a-z ]+": ("family_relationships", _nothing),
}
"""The notation of a right answer -> the task with the nearest form, and what the metadata of its item needs."""


def item_of(reference: str) -> tuple[str, dict[str, Any]] | None:
    """The task with the nearest form and an item with this answer. None if no task has answers of this form."""
    for notation, (task, metadata_of) in FORMS.items():
        if not re.fullmatch(notation, reference):
            continue
        metadata = metadata_of(reference)
        probability = metadata.get("rational")
        if probability and probability["numerator"] >= probability["denominator"]:
            # A number above 1 is no probability.
            return "fraction_simplification", {"question": "", "answer": reference, "metadata": {}}
        return task, {"question": "", "answer": reference, "metadata": metadata}
    return None


def completions_of(row: dict[str, Any], answer_format: AnswerFormat) -> Iterator[tuple[str, str]]:
    """The variants of a completion in an answer format: the answer alone, written in this format, and a whole reply."""
    is_reply = row["category"] in ("format", "exploit")
    if not is_reply or not row["expect"]:
        yield "in_format", write_answer(row["completion"], answer_format)
    # A right reply in another format is refused because the prompt asks for this format.
    has_format = answer_format is AnswerFormat.BOXED and "\\boxed" in row["completion"]
    if is_reply and (not row["expect"] or has_format or answer_format is AnswerFormat.TEXT):
        yield "reply", row["completion"]


def cases_of_reward_doctor(
    tasks: Tasks,
    python: str,
    formats: Iterable[AnswerFormat],
    without_form: list[str],
) -> Iterator[Case]:
    """The cases. Adds the names of cases that fit the form of no task to `without_form`."""
    formats = list(formats)
    for row in read_package(python, READ_REWARD_DOCTOR):
        found = item_of(row["reference"])
        if found is None:
            without_form.append(row["id"])
            continue
        problem = tasks.problem(*found)
        for answer_format in formats:
            for variant, completion in completions_of(row, answer_format):
                yield Case(
                    "reward-doctor",
                    answer_format,
                    row["category"],
                    f"{row['id']}/{variant}",
                    replace(problem, answer_format=answer_format),
                    completion,
                    row["expect"],
                    row["contested"],
                )


# --- falsepass ---


def answered(tasks: Tasks, task: str, items: int) -> list[tuple[PromptedProblem, str]]:
    """Items of a task with different answers: as many as are graded, and two whose answers are wrong for them."""
    keyed: list[tuple[PromptedProblem, str]] = []
    seed = 0
    # A task may have two answers only.
    while len(keyed) < items + 2 and seed < 20 * (items + 2):
        problem = tasks.draw(task, seed)
        answer = right_answer(task, problem.entry)
        if answer and answer not in [known for _, known in keyed]:
            keyed.append((problem, answer))
        seed += 1
    return keyed


def cases_of_falsepass(
    tasks: Tasks,
    python: str,
    formats: Iterable[AnswerFormat],
    items: int,
) -> Iterator[Case]:
    formats = list(formats)
    problems = []
    rows = []
    for task in tqdm(TASKS, "items", unit="task", disable=None):
        keyed = answered(tasks, task, items)
        answers = [answer for _, answer in keyed]
        for place, (problem, right) in enumerate(keyed[:items]):
            others = answers[:place] + answers[place + 1 :]
            for answer_format in formats:
                before, after = write_answer("@", answer_format).split("@")
                problems.append(replace(problem, answer_format=answer_format))
                rows.append(
                    {
                        "key": f"{task}/{place}",
                        "question": problem.question,
                        "right": right,
                        "wrong": others[0],
                        "others": others,
                        "before": before,
                        "after": after,
                    }
                )
    for problem, found in zip(problems, read_package(python, READ_FALSEPASS, rows), strict=True):
        right = {case["completion"] for case in found if case["expected"] == "full"}
        for case in found:
            is_right = case["completion"] in right
            yield Case(
                "falsepass",
                problem.answer_format,
                case["kind"],
                case["id"],
                problem,
                case["completion"],
                is_right,
            )


# --- grading ---


def graded(tasks: Tasks, cases: list[Case]) -> Iterator[tuple[Case, float | None]]:
    """Each case and its reward. The cases of a problem are graded together."""
    by_problem: dict[tuple[int, AnswerFormat], list[Case]] = defaultdict(list)
    for case in cases:
        by_problem[id(case.problem.entry), case.answer_format].append(case)
    with tqdm(total=len(cases), desc="cases", unit="case", disable=None) as progress:
        for same in by_problem.values():
            for start in range(0, len(same), AT_ONCE):
                batch = same[start : start + AT_ONCE]
                grades = tasks.grade(batch[0].problem, [case.completion for case in batch])
                progress.update(len(batch))
                for case, grade in zip(batch, grades, strict=True):
                    yield case, grade.reward


def verdict_of(case: Case, reward: float | None) -> str:
    """`agree`, or the name of the difference."""
    if reward is None:
        return "unscored"
    if reward > 0 and not case.is_right:
        return "false_positives"
    if reward < 1 and case.is_right:
        return "false_negatives"
    return "agree"


def table_of(results: Iterable[tuple[Case, float | None]]) -> dict[str, Any]:
    """The counts by package, format and kind, and the cases where verdict and reward differ."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    differences = []
    for case, reward in results:
        kind = f"{case.kind}, contested" if case.is_contested else case.kind
        row = counts[f"{case.package}: {case.answer_format.value}: {kind}"]
        verdict = verdict_of(case, reward)
        row["cases"] += 1
        row[verdict] += 1
        if verdict != "agree":
            differences.append(
                {
                    "verdict": verdict,
                    "contested": case.is_contested,
                    "id": case.id,
                    "package": case.package,
                    "format": case.answer_format.value,
                    "task": case.problem.task,
                    "answer": str(case.problem.entry["answer"])[:MAX_CHARS_LISTED],
                    "completion": case.completion[:MAX_CHARS_LISTED],
                }
            )
    return {"counts": counts, "differences": differences}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="Python of an environment with reward-doctor and falsepass")
    parser.add_argument("--items", type=int, default=1, help="items of each task for falsepass (default: 1)")
    names = [answer_format.value for answer_format in AnswerFormat]
    parser.add_argument("--formats", nargs="+", choices=names, default=names, help="answer formats (default: all)")
    options = parser.parse_args()
    formats = [AnswerFormat(name) for name in options.formats]
    without_form: list[str] = []
    served = sorted({*TASKS, "fraction_simplification", *(task for task, _ in FORMS.values())})
    with Tasks(served) as tasks:
        cases = list(cases_of_reward_doctor(tasks, options.python, formats, without_form))
        cases += cases_of_falsepass(tasks, options.python, formats, options.items)
        table = table_of(graded(tasks, cases))
    print(json.dumps({**table, "without_form": without_form}, indent=1, ensure_ascii=True))


if __name__ == "__main__":
    main()
