"""How often a right answer, written a little differently, is not paid: per task and variation, as JSON.

    python benchmarks/false_negatives.py [--quick] [--tasks a,b] [--answer-normalization lossless] [--markdown]

Right answers are the items' own (or made from their metadata), the variations those an honest model writes.
Scores are what the environment would give: the verifier's, in both formats, then the strict check, and with
--answer-normalization those of the answer without its decoration. "Lost" is an answer that scores lower than the
same answer without the variation. A verifier that takes over two seconds counts as one that pays nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reasoning_gym_environment.audit.known_answers import reference_answer
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification import eval_guards
from reasoning_gym_environment.verification.grade import grade, standards_for

SEPARATORS = "thousands separators"
VARIATIONS: Mapping[str, Callable[[str], str]] = {
    "leading blank": lambda answer: f" {answer}",
    "trailing blank": lambda answer: f"{answer} ",
    "trailing newline": lambda answer: f"{answer}\n",
    "trailing period": lambda answer: f"{answer}.",
    r"\boxed{}": lambda answer: rf"\boxed{{{answer}}}",
    r"\text{}": lambda answer: rf"\text{{{answer}}}",
    "$...$": lambda answer: f"${answer}$",
    '"..."': lambda answer: f'"{answer}"',
    "'...'": lambda answer: f"'{answer}'",
    "`...`": lambda answer: f"`{answer}`",
    "**...**": lambda answer: f"**{answer}**",
    SEPARATORS: lambda answer: re.sub(r"\d(?=(\d{3})+$)", r"\g<0>,", answer),
}
_PLAIN_INTEGER = re.compile(r"-?\d{4,}", re.ASCII)
GENERATION_S = 20.0
"""Per task; slow generators give fewer items."""
VERIFIER_S = 2.0


def applies(variation: str, answer: str) -> bool:
    return variation != SEPARATORS or _PLAIN_INTEGER.fullmatch(answer) is not None


class _TooLong(BaseException):
    """Not an Exception, so that no verifier takes it for one of its own."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def score(task: str, dataset: Any, entry: dict[str, Any], answer: str, lossless: bool) -> float:
    standards = standards_for(task, strict=True, lossless=lossless)
    with contextlib.suppress(_TooLong), at_most(VERIFIER_S), contextlib.redirect_stdout(io.StringIO()):
        return grade(dataset.score_answer, copy.deepcopy(entry), answer, standards).value
    return 0.0


def right_answers(task: str, dataset: Any, count: int) -> list[tuple[dict[str, Any], str]]:
    found = []
    deadline = time.monotonic() + GENERATION_S
    for index in range(count):
        remaining = deadline - time.monotonic()
        if remaining <= 0.0:
            break
        # A generator fails on some seeds; such an item is none.
        with contextlib.suppress(Exception, _TooLong), at_most(remaining), contextlib.redirect_stdout(io.StringIO()):
            entry = dataset[index]
            answer = reference_answer(task, entry)
            if answer and answer.strip():
                found.append((entry, answer))
    return found


def measure(task: str, count: int, lossless: bool = False, seed: int = 2024) -> dict[str, Any]:
    """Of one task: items, how many of their answers are paid in full, and per variation how many are tried and lost."""
    dataset = library.create_dataset(task, seed=seed, size=count)
    tried: dict[str, int] = defaultdict(int)
    lost: dict[str, int] = defaultdict(int)
    paid = 0
    answers = right_answers(task, dataset, count)
    for entry, answer in answers:
        own = score(task, dataset, entry, answer, lossless)
        paid += own >= 1.0 - 1e-9
        for name, vary in VARIATIONS.items():
            if applies(name, answer):
                tried[name] += 1
                lost[name] += score(task, dataset, entry, vary(answer), lossless) < own - 1e-9
    variations = {name: {"tried": tried[name], "lost": lost[name]} for name in tried}
    return {"items": len(answers), "paid_in_full": paid, "variations": variations}


def summary(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Per variation: answers tried and lost, and the tasks that lose at least one."""
    found: dict[str, dict[str, Any]] = {}
    for name in VARIATIONS:
        results = {task: result["variations"][name] for task, result in tasks.items() if name in result["variations"]}
        found[name] = {
            "tried": sum(result["tried"] for result in results.values()),
            "lost": sum(result["lost"] for result in results.values()),
            "tasks_tried": len(results),
            "tasks_losing": sorted(task for task, result in results.items() if result["lost"]),
        }
    return found


def markdown(tasks: Mapping[str, Mapping[str, Any]], lossless: Mapping[str, Mapping[str, Any]]) -> str:
    """One row per variation, then tasks grouped by the variations that cost them half of the answers or more."""
    rows = ["| variation | answers lost | tasks that lose any | the same with `lossless` | |", "|---|---|---|---|---|"]
    recovered = summary(lossless)
    for name, total in summary(tasks).items():
        rows.append(f"| {name} | {_share(total)} | {_share(recovered[name])} |")
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for task, result in tasks.items():
        results = {name: of for name, of in result["variations"].items() if name != SEPARATORS}
        losing = tuple(name for name, of in results.items() if of["lost"] * 2 >= of["tried"])
        if results:
            groups[losing].append(task)
    rows += ["", "| tasks | lose most answers to |", "|---|---|"]
    for losing, members in sorted(groups.items(), key=lambda group: (len(group[0]), group[1])):
        rows.append(f"| {', '.join(members)} | {_listed(losing)} |")
    return "\n".join(rows)


def _share(total: Mapping[str, Any]) -> str:
    share = f"{total['lost']} of {total['tried']} ({total['lost'] / max(total['tried'], 1):.0%})"
    return f"{share} | {len(total['tasks_losing'])} of {total['tasks_tried']}"


def _listed(losing: tuple[str, ...]) -> str:
    missing = [name for name in VARIATIONS if name not in (*losing, SEPARATORS)]
    if losing and len(missing) <= 3:
        return "all" + (f" but {', '.join(missing)}" if missing else "")
    return ", ".join(losing) or "none"


def measure_all(names: list[str], count: int, lossless: bool) -> dict[str, Any]:
    tasks = {}
    # The programs behind some items of codeio write files where they are run.
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for task in names:
            tasks[task] = measure(task, count, lossless)
            print(f"{task}: {tasks[task]['items']} items", file=sys.stderr)
        os.chdir("/")
    return tasks


def main() -> None:
    parser = argparse.ArgumentParser(description="How often harmless variations of right answers are not paid.")
    parser.add_argument("--quick", action="store_true", help="4 items per task instead of 20")
    parser.add_argument("--tasks", default="", help="comma-separated; default: all but composite")
    parser.add_argument("--answer-normalization", choices=("none", "lossless"), default="none")
    parser.add_argument("--markdown", action="store_true", help="tables of both normalizations instead of JSON")
    options = parser.parse_args()
    eval_guards.install()
    names = options.tasks.split(",") if options.tasks else sorted(set(library.registry()) - {"composite"})
    count = 4 if options.quick else 20
    if options.markdown:
        print(markdown(measure_all(names, count, False), measure_all(names, count, True)))
        return
    tasks = measure_all(names, count, options.answer_normalization == "lossless")
    report = {
        "reasoning_gym": library.load().version,
        "answer_normalization": options.answer_normalization,
        "summary": summary(tasks),
        "tasks": tasks,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
