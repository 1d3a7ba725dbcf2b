"""Look for what a learner could find: programs from a question to an answer that are paid without solving it.

    python benchmarks/audit/search.py [TASK ...] [--seconds 20] [--levels easiest,hardest,default]

A program takes texts from the question, from answers to other items or from a list of constants, and changes, joins and
repeats them. Those that earn most on the items to search on are changed further; the best are tried again on held-out
items, and what they earn there for answers that are not the right one is reported. Over 0.1 is worth learning: exit
code 1. Where an item has several solutions, an answer that is paid in full may be one of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import re
import string
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reasoning_gym_environment.api import PromptedProblem, Tasks
from reasoning_gym_environment.commands.audit import CONSTANTS, GARBAGE
from reasoning_gym_environment.errors import GenerationError
from reasoning_gym_environment.sampling.seeds import derive_random, derive_seed
from reasoning_gym_environment.tasks.catalog import config_of
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder
from reasoning_gym_environment.verification.entries import right_answer
from reasoning_gym_environment.verification.questions import is_sound

Program = tuple[Any, ...]
Item = tuple[PromptedProblem, "View"]
FARMABLE, FULL, ITEMS, BATCH, POPULATION, MAX_OTHERS, MAX_CHARS = 0.1, 0.99, 24, 48, 24, 40, 3000

TEXTS = [*CONSTANTS, *GARBAGE, *map(str, range(3, 21)), "0 0", "1, 2", "P ∨ Q", "x + C", "1 × 1", "33 days, 12:00:00"]
TEXTS += ["0.5", "1/2", "0x0", "1j", "on", "[0]", "[[0]]", "TrueFalse", "YesNo", "()", "P", "¬P", "UDLR", "up", "A→B"]
_NUMBER, _WORD = re.compile(r"-?\d+(?:\.\d+)?"), re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class View:
    """The input of a program: the question of an item, and answers to other items of the same level."""

    question: str
    others: tuple[str, ...]


def _last_grid(view: View) -> list[list[str]]:
    """The last lines of equally many entries."""
    best: list[list[str]] = []
    run: list[list[str]] = []
    for line in [*view.question.splitlines(), ""]:
        cells = re.sub(r"[\[\],'\"]", " ", line).split()
        run = [*run, cells] if run and len(cells) == len(run[0]) else [cells]
        best = run if len(run) >= 2 and len(cells) >= 2 else best
    return best


def _grid(view: View, blank: str = "") -> str:
    text = "\n".join(" ".join(row) for row in _last_grid(view))
    return re.sub(r"[_.?0](?=\s|$)", blank, text) if blank else text


PIECES: Mapping[str, Callable[[View], list[str]]] = {
    "question": lambda view: [view.question],
    "lines": lambda view: [line.strip() for line in view.question.splitlines() if line.strip()],
    "paragraphs": lambda view: [part for part in re.split(r"\n\s*\n", view.question) if part.strip()],
    "words": lambda view: _WORD.findall(view.question),
    "numbers": lambda view: _NUMBER.findall(view.question),
    "quoted": lambda view: re.findall(r"[\"'`]([^\"'`\n]+)[\"'`]", view.question),
    "brackets": lambda view: re.findall(r"\[.*\]|\{.*\}|\(.*\)", view.question),
    "after colons": lambda view: [part.strip() for part in view.question.split(":")[1:]],
    "grid": lambda view: [_grid(view)],
    "filled grid": lambda view: [_grid(view, "1"), _grid(view, "2")],
    "answers": lambda view: list(view.others),
    "answer words": lambda view: [word for answer in view.others for word in _WORD.findall(answer)],
}
SPLITS = {"words": (r"\s+", " "), "lines": (r"\n", "\n"), "parts": (r",\s*", ", "), "characters": ("", "")}
ORDERS: Mapping[str, Callable[[list[str]], list[str]]] = {
    "reverse": lambda parts: parts[::-1],
    "sort": sorted,
    "once each of": lambda parts: list(dict.fromkeys(parts)),
    "first of": lambda parts: parts[:1],
    "last of": lambda parts: parts[-1:],
    "all but the last of": lambda parts: parts[:-1],
    "half of": lambda parts: parts[: (len(parts) + 1) // 2],
    "ten times": lambda parts: parts * 10,
}
AROUND = [(sign, "") for sign in string.punctuation] + [("", sign) for sign in string.punctuation]
AROUND += [("[", "]"), ("(", ")"), ("{", "}"), ('"', '"'), ("not ", ""), ("0x", ""), ("", "e0"), ("", " + C")]
AROUND += [("", "\n0"), ("x ", ""), ("", " x"), ("", " or not"), ("1 × ", ""), ("", " ∨ Z"), ("<answer>", "</answer>")]
REPLACED = [(" ", ""), (" ", ", "), ("\n", " "), ("_", "1"), ("0", "1"), ("1", "0"), ("-", ""), ("'", '"'), (":", "=")]


def _ordered(what: str, how: str) -> Callable[[str], str]:
    pattern, glue = SPLITS[what]
    return lambda text: glue.join(ORDERS[how]([part for part in re.split(pattern, text) if part]))


CHANGES: dict[str, Callable[[str], str]] = {
    "upper": str.upper,
    "lower": str.lower,
    "as JSON": json.dumps,
    "words as JSON": lambda text: json.dumps(text.split()),
    "numbers": lambda text: ", ".join(_NUMBER.findall(text)),
    "numbers 1": lambda text: _NUMBER.sub("1", text),
    "plus one": lambda text: _NUMBER.sub(lambda number: f"{float(number[0]) + 1:g}", text),
    "letters e": lambda text: re.sub(r"[^\W\d_]", "e", text),
}
CHANGES |= {f"{how} {what}": _ordered(what, how) for what in SPLITS for how in ORDERS}
CHANGES |= {f"{a}_{b}": lambda text, a=a, b=b: f"{a}{text}{b}" for a, b in AROUND}  # type: ignore[misc]
CHANGES |= {f"{a!r} -> {b!r}": lambda text, a=a, b=b: text.replace(a, b) for a, b in REPLACED}  # type: ignore[misc]
GLUES = ("", " ", ", ", ",", "\n", " or ", "/", " ∧ ", " = ", " + ", " × ")


def run(program: Program, view: View) -> str:
    """The program's answer to this item, with at most MAX_CHARS characters; "" if it has no answer."""
    head, first, *rest = program
    try:
        if head == "text":
            text = str(first)
        elif head == "piece":
            text = PIECES[first](view)[rest[0]]
        elif head == "all":
            text = rest[0].join(dict.fromkeys(PIECES[first](view)[:400]))
        elif head == "change":
            text = CHANGES[first](run(rest[0], view))
        else:
            text = first.join(run(part, view) for part in rest)
    except (LookupError, ValueError, OverflowError):
        return ""
    return text[:MAX_CHARS].strip()


def leaf(rng: random.Random) -> Program:
    kind = rng.choice(sorted(PIECES))
    leaves = (("text", rng.choice(TEXTS)), ("piece", kind, rng.randrange(-4, 5)), ("all", kind, rng.choice(GLUES)))
    return rng.choice(leaves)


def changed(program: Program, rng: random.Random) -> Program:
    dice, glue = rng.random(), rng.choice(GLUES)
    if dice < 0.6:
        return ("change", rng.choice(sorted(CHANGES)), program)
    if dice < 0.95:
        return ("join", glue, *rng.sample([program, leaf(rng)], 2)) if dice < 0.8 else ("join", glue, *[program] * 8)
    return leaf(rng)


def same(text: str, right: str | None) -> bool:
    """Whether the texts are equal except for case and blanks, or are equal as numbers."""
    if right is None:
        return False
    if "".join(text.lower().split()) == "".join(right.lower().split()):
        return True
    try:
        return float(text) == float(right)
    except ValueError:
        return False


async def earned(tasks: Tasks, programs: Sequence[Program], items: Sequence[Item]) -> list[tuple[float, float, str]]:
    """By program: the mean pay of its wrong answers, the share of them paid in full, the best paid one."""
    pays: list[list[tuple[float, str]]] = [[] for _ in programs]

    async def one(problem: PromptedProblem, view: View) -> None:
        answers, right = [run(program, view) for program in programs], right_answer(problem.task, problem.entry)
        wrong = list(dict.fromkeys(text for text in answers if text and not same(text, right)))
        grades = await asyncio.to_thread(tasks.grade, problem, [f"<answer>{text}</answer>" for text in wrong])
        values = {text: grade.reward or 0.0 for text, grade in zip(wrong, grades, strict=True)}
        for place, text in zip(pays, answers, strict=True):
            place.append((values.get(text, 0.0), text))

    await asyncio.gather(*(one(*pair) for pair in items))
    return [(fmean(v for v, _ in p), fmean(v >= FULL for v, _ in p), max(p)[1]) for p in pays]


async def search(
    tasks: Tasks, task: str, level: str, config: Mapping[str, Any], seconds: float, seed: int
) -> dict[str, Any]:
    """The best program found within `seconds`, as it does on the held-out half of the items."""

    async def make(number: int) -> PromptedProblem | None:
        try:
            return await asyncio.to_thread(tasks.make, task, derive_seed(seed, "search", task, level, number), config)
        except GenerationError:
            return None

    made = [problem for problem in await asyncio.gather(*map(make, range(2 * ITEMS))) if problem is not None]
    made = [problem for problem in made if is_sound(task, problem.entry)]
    answers = [right_answer(task, problem.entry) or "" for problem in made]
    items = [
        (problem, View(problem.question[-8000:], (*answers[:at], *answers[at + 1 :])[:MAX_OTHERS]))
        for at, problem in enumerate(made)
    ]
    here, held_out, rng = items[::2], items[1::2], derive_random(seed, "programs", task, level)
    result = {"task": task, "level": level, "items": len(held_out), "tried": 0, "pay": 0.0, "in_full": 0.0}
    if len(held_out) < 4:
        return result
    queue: list[Program] = [("text", text) for text in [*TEXTS, *set(answers)]]
    queue += [(how, kind, at) for kind in PIECES for how, at in (("piece", 0), ("piece", -1), ("all", ", "))]
    rng.shuffle(queue)
    best: dict[Program, float] = {}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        parents = sorted(best, key=best.__getitem__, reverse=True)[:POPULATION] or [leaf(rng)]
        new = [queue.pop() if queue else changed(rng.choice(parents), rng) for _ in range(BATCH)]
        # Few items first: most programs earn nothing anywhere.
        scouted = zip(new, await earned(tasks, new, here[:4]), strict=True)
        promising = [program for program, (pay, *_) in scouted if pay > 0]
        best |= {p: pay for p, (pay, *_) in zip(promising, await earned(tasks, promising, here), strict=True)}
        result["tried"] += len(new)
    top = sorted(best, key=best.__getitem__, reverse=True)[:3]
    confirmed = zip(await earned(tasks, top, held_out), map(str, top), strict=True)
    (pay, in_full, example), program = max(confirmed, default=((0.0, 0.0, ""), ""))
    return {**result, "pay": round(pay, 4), "in_full": round(in_full, 4), "program": program, "example": example[:200]}


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK")
    parser.add_argument("--seconds", type=float, default=20.0, help="at each level of a task")
    parser.add_argument("--levels", default="easiest,hardest,default", help="these names, or numbers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--task-modules", default="")
    parser.add_argument("--native", action="store_true", help="with what reasoning-gym alone pays")
    options = parser.parse_args()
    # Answers are refused by the thousand here.
    logging.getLogger("reasoning_gym_environment").setLevel(logging.ERROR)
    how: Any = {"verification": "native", "partial_credit": "native"} if options.native else {}
    found = []
    with Tasks(options.tasks, task_modules=options.task_modules, **how) as tasks:
        for task in tasks.names:
            overrides = tasks.catalog[task].overrides
            ladder = build_ladder(task, overrides=overrides).levels
            places = {"easiest": ladder[0].config, "hardest": ladder[-1].config, "default": config_of(task, overrides)}
            for level in options.levels.split(","):
                config = places[level] if level in places else ladder[int(level)].config
                result = await search(tasks, task, level, config, options.seconds, options.seed)
                found.append(result)
                pay = result["pay"]
                shown = f"{result.get('program', '')[:70]}: {result.get('example', '')[:40]!r}" if pay else ""
                line = f"{pay:6.3f} {result['in_full']:6.3f}  {task}, {level}, {result['tried']} tried  {shown}"
                print(line, file=sys.stderr)
    print(json.dumps(found, indent=1))
    return int(any(result["pay"] > FARMABLE for result in found))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
