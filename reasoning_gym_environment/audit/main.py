"""The command: choose tasks, start the workers, audit or search them, print, and exit by `--fail-on`.

Findings as a table for people, as JSON for programs, as Markdown for the docs. The JSON of a search is written anew
after each task.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from ..errors import EnvironmentSetupError
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import Catalog, Task, discover
from ..tasks.selectors import parse_names
from ..utils.terminal import Output, check_file, positive
from ..verification import eval_guards
from ..workers.generator import ProcessGenerator
from ..workers.grader import SandboxGrader
from .measure import AnswerKind, Auditor, Findings, Trust
from .search import FARMABLE, ITEMS, LEVEL_NAMES, Searched, Searcher, check_levels, levels_of

logger = logging.getLogger(__name__)

FAIL_ON = {verdict.name.lower().replace("_", "-"): verdict for verdict in Trust if verdict is not Trust.SOUND}
FAIL_ON_SEARCHED: Mapping[str, Callable[[Searched], bool]] = {
    "farmable": lambda one: one.is_farmable,
    "solved-by-constant": lambda one: one.is_solved_by_constant,
}
SIDE_BY_SIDE = 4
_Found = TypeVar("_Found")


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, 1 if a task has a verdict named in --fail-on, 2 for a mistake in the arguments."""
    options = _parser().parse_args(arguments)
    try:
        fail_on = _chosen(options)
        _check_outputs(options)
        # Some verifiers and constructors print; standard output is for the result.
        with library.stdout_to_stderr():
            catalog = discover(include=options.tasks, modules=options.task_modules)
            result = asyncio.run((_search if options.search else _audit)(catalog, options))
        _print(result, options)
    except EnvironmentSetupError as error:
        print(f"reasoning-gym-env audit: {error}", file=sys.stderr)
        return 2
    failed = [line for verdict, line in result.verdicts if verdict in fail_on]
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


@dataclasses.dataclass(frozen=True)
class Result:
    """What is printed and written. `verdicts` are (name for --fail-on, line about a task); `styles` are of column 1."""

    title: str
    legend: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, ...]]
    styles: Sequence[str]
    records: Mapping[str, Any]
    verdicts: Sequence[tuple[str, str]]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env audit",
        description="Measure what each task's verifier pays to right, wrong and worthless answers, and whether items "
        "can be made again. Answers are graded in the sandbox, with the strict checks and without. With --search: look "
        "for strategies that are paid without work on the problem, for wrong answers, and for constants that are right "
        "on most items of a level.",
    )
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="names, globs or category:NAME (default: all)")
    parser.add_argument("--items", type=positive, default=5, help="items per task to probe (default: 5)")
    parser.add_argument("--draws", type=positive, default=30, help="items per task to draw for entropy (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="other items with another seed (default: 0)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured as JSON; - for standard output")
    parser.add_argument("--markdown", metavar="FILE", help="write the table as Markdown; - for standard output")
    parser.add_argument(
        "--fail-on",
        type=parse_names,
        default=[],
        metavar="VERDICTS",
        help=f"exit with 1 if a task has one of these, comma-separated: {', '.join(FAIL_ON)}; of a search: "
        f"{', '.join(FAIL_ON_SEARCHED)}",
    )
    parser.add_argument(
        "--task-modules", type=parse_names, default=[], metavar="MODULES", help="register your own datasets first"
    )
    search = parser.add_argument_group("to search")
    search.add_argument(
        "--search",
        action="store_true",
        help=f"look for what a learner could find: strategies whose wrong answers earn over {FARMABLE:g} on average, "
        f"chosen on {ITEMS} items of a level and confirmed on {ITEMS} held-out ones, paid as in training with strict "
        "checks and partial_credit: baseline",
    )
    search.add_argument(
        "--levels",
        type=parse_names,
        default=["easiest", "middle", "hardest", "default"],
        metavar="LEVELS",
        help=f"{', '.join(LEVEL_NAMES)} or numbers, comma-separated (default: the first four)",
    )
    search.add_argument("--seconds", type=positive, default=20, help="how long at each level of a task (default: 20)")
    search.add_argument(
        "--write-data",
        metavar="FILE",
        help="write what ships as data/farming.json: what was found, in short",
    )
    return parser


def _chosen(options: argparse.Namespace) -> Collection[str]:
    """The verdicts to fail on, by the names of the option."""
    names = FAIL_ON_SEARCHED if options.search else FAIL_ON
    for name in options.fail_on:
        if name not in names:
            other = " (with --search)" if name in FAIL_ON_SEARCHED else " (without --search)" if name in FAIL_ON else ""
            raise EnvironmentSetupError(f"--fail-on expects some of {', '.join(names)}, got {name!r}{other}.")
    if options.search:
        check_levels(options.levels)
    elif options.write_data is not None:
        raise EnvironmentSetupError("--write-data is of a search: add --search.")
    return options.fail_on


def _check_outputs(options: argparse.Namespace) -> None:
    """Before the audit, which takes minutes, and not when it is to be written."""
    taken = list(options.task_modules)
    for option in ("json", "markdown", "write_data"):
        name = getattr(options, option)
        if name is not None and not (name == "-" and option != "write_data"):
            check_file(f"--{option.replace('_', '-')}", name, inputs=taken)
            taken.append(name)


async def _audit(catalog: Catalog, options: argparse.Namespace) -> Result:
    runs_text = {task: f"evaluates answers (guarded: {found.name})" for task, found in eval_guards.GUARDS.items()}
    runs_text |= {task: f"NOT GUARDED: {reason}" for task, reason in eval_guards.unguarded_tasks().items()}
    async with _workers(options) as (generator, grader, _):
        auditor = Auditor(
            generator, grader, items=options.items, draws=options.draws, seed=options.seed, runs_text=runs_text
        )
        return audited(
            await _each(catalog, lambda task: auditor.audit(task.name, task.category), "audit", SIDE_BY_SIDE)
        )


def audited(found: Sequence[Findings]) -> Result:
    return Result(
        title="What the verifiers pay",
        legend=LEGEND,
        columns=COLUMNS,
        rows=[row(one) for one in found],
        styles=[_STYLES.get(one.verdict, "red") for one in found],
        records=as_records(found),
        verdicts=[
            (name, f"{one.task}: {one.verdict.value}")
            for one in found
            for name, verdict in FAIL_ON.items()
            if one.verdict is verdict
        ],
    )


async def _search(catalog: Catalog, options: argparse.Namespace) -> Result:
    found: list[Searched] = []
    # The strict checks refuse answers by the thousand here, which is what they are for. Each task is searched by one
    # lane, so that the seconds are those of a worker of its own.
    with _errors_only(SandboxGrader.__module__):
        async with _workers(options) as (generator, grader, lanes):
            searcher = Searcher(generator, grader, seconds=options.seconds, seed=options.seed)

            async def one(task: Task) -> None:
                try:
                    for level, config in levels_of(task, options.levels).items():
                        found.append(await searcher.search(task, level, config))
                except EnvironmentSetupError as error:
                    logger.warning("%s is left out of the search: %s", task.name, error)
                # What is found so far is kept if the search is stopped.
                if options.json not in (None, "-"):
                    _write(Path(options.json), _as_json(searched(found).records))

            await _each(catalog, one, "search", lanes)
    if options.write_data is not None:
        _write(Path(options.write_data), _as_json(farming(found)))
    return searched(found)


@contextmanager
def _errors_only(name: str) -> Iterator[None]:
    told = logging.getLogger(name)
    before = told.level
    told.setLevel(logging.ERROR)
    try:
        yield
    finally:
        told.setLevel(before)


@asynccontextmanager
async def _workers(options: argparse.Namespace) -> AsyncIterator[tuple[ProcessGenerator, SandboxGrader, int]]:
    """Running, one of each for every other core; how many there are of each comes with them."""
    modules = options.task_modules
    path, count = str(library.load().location), max(1, (os.cpu_count() or 2) // 2)
    # A search has its answers graded by the thousand, and none that takes long is worth the time.
    limit_s, deadline_s = (5.0, 0.5) if options.search else (30.0, 2.0)
    generator = ProcessGenerator(num_workers=count, timeout_s=limit_s, library_path=path, task_modules=modules)
    grader = SandboxGrader(
        num_workers=count,
        timeout_s=deadline_s,
        library_path=path,
        task_modules=modules,
        allow_unguarded=list(eval_guards.unguarded_tasks()),
        strict=True,
    )
    async with AsyncExitStack() as stack:
        for part in (generator, grader):
            stack.push_async_callback(part.close)
            await part.start()
        yield generator, grader, count


async def _each(catalog: Catalog, do: Callable[[Task], Awaitable[_Found]], title: str, lanes: int) -> list[_Found]:
    """What `do` returns for each task, `lanes` of them side by side."""
    slots = asyncio.Semaphore(lanes)
    with tqdm(total=len(catalog), desc=title, unit="task", disable=None) as bar:

        async def one(task: Task) -> _Found:
            async with slots:
                found = await do(task)
            bar.update()
            return found

        return list(await asyncio.gather(*map(one, catalog)))


def _print(result: Result, options: argparse.Namespace) -> None:
    if "-" not in (options.json, options.markdown):
        Output().print(rich_table(result))
    for target, text in ((options.json, _as_json(result.records)), (options.markdown, markdown(result))):
        if target == "-":
            print(text)
        elif target is not None:
            _write(Path(target), text)


def _as_json(document: Mapping[str, Any]) -> str:
    # A config may hold anything.
    return json.dumps(document, indent=1, default=str)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise EnvironmentSetupError(f"Cannot write {path}: {error.strerror}.") from error


_STYLES = {Trust.SOUND: "green", Trust.NO_ORACLE: "yellow"}
COLUMNS = (
    *("task", "verdict", "without strict checks"),
    *("decorated oracle", "other oracles", "worthless answers", "notes"),
)


def as_records(found: Sequence[Findings]) -> dict[str, Any]:
    """The whole audit as plain data, with the version it holds for."""
    tasks = [
        {**dataclasses.asdict(one), "verdict": one.verdict.value, "native_verdict": one.native_verdict.value}
        for one in found
    ]
    return {"reasoning_gym_version": library.load().version, "tasks": tasks}


def row(one: Findings) -> tuple[str, ...]:
    """One line of the table, in the order of COLUMNS."""
    decorated = [_share(one.pays.get(kind.value)) for kind in (AnswerKind.PERIOD, AnswerKind.BOXED)]
    worthless = f"{one.best_pay:.2f} for {_shortened(one.best_paid)}" if one.best_pay > 0 else "0"
    return (
        one.task,
        one.verdict.value,
        one.native_verdict.value if one.native_verdict is not one.verdict else "",
        " / ".join(decorated),
        _share(one.pays.get(AnswerKind.OTHER.value)),
        worthless,
        "; ".join(notes(one)),
    )


def notes(one: Findings) -> list[str]:
    """What else a user should know of this task."""
    found = []
    if one.runs_text:
        found.append(one.runs_text)
    if one.raised:
        found.append(f"raises on {one.raised} of {one.answers} answers")
    if one.unscored:
        found.append(f"{one.unscored} of {one.answers} answers could not be scored")
    if one.is_low_entropy:
        found.append(f"{one.distinct_questions} questions in {one.draws} draws")
    if not one.regenerates:
        found.append("an item made again differs")
    if one.unmade:
        found.append(f"{one.unmade} items could not be made")
    return found


def rich_table(result: Result) -> Table:
    table = Table(title=result.title, caption=result.legend, caption_justify="left")
    for column in result.columns:
        table.add_column(column, overflow="fold")
    for texts, style in zip(result.rows, result.styles, strict=True):
        cells = [Text(cell) for cell in texts]
        cells[1].stylize(style)
        table.add_row(*cells)
    return table


LEGEND = (
    "decorated oracle: mean score of the oracle answer with a final period / in \\boxed{}; other oracles: mean score "
    "of right answers to other items; worthless answers: the best paid of all constants, enumerations and garbage."
)


def markdown(result: Result) -> str:
    """The same table for a page of the docs."""
    lines = [f"| {' | '.join(result.columns)} |", "|" + "---|" * len(result.columns)]
    lines += ["| " + " | ".join(_escaped(cell) for cell in texts) + " |" for texts in result.rows]
    return "\n".join([*lines, "", result.legend])


# --- what a search found ---

SEARCH_COLUMNS = ("task", "wrong answers earn", "full credit", "strategy", "answer", "right by a constant")


def searched(found: Sequence[Searched]) -> Result:
    """One row per task, for the level at which wrong answers earn most."""
    by_task: dict[str, list[Searched]] = {}
    for one in _in_order(found):
        by_task.setdefault(one.task, []).append(one)
    seconds = sum(one.grading_s for one in found)
    rate = round(sum(one.gradings for one in found) / seconds) if seconds else 0
    records = {
        "reasoning_gym_version": library.load().version,
        "gradings_per_second": rate,
        "searched": [
            {**dataclasses.asdict(one), **{name: test(one) for name, test in FAIL_ON_SEARCHED.items()}}
            for levels in by_task.values()
            for one in levels
        ],
    }
    return Result(
        title="What wrong answers earn without work",
        legend=f"{SEARCH_LEGEND} {rate} gradings per second.",
        columns=SEARCH_COLUMNS,
        rows=[_searched_row(levels) for levels in by_task.values()],
        styles=["red" if any(one.is_farmable for one in levels) else "green" for levels in by_task.values()],
        records=records,
        verdicts=[
            (name, f"{one.task}, {one.level_name}: {_SAID[name](one)}")
            for levels in by_task.values()
            for one in levels
            for name, test in FAIL_ON_SEARCHED.items()
            if test(one)
        ],
    )


_SAID: Mapping[str, Callable[[Searched], str]] = {
    "farmable": lambda one: f"farmable, wrong answers such as {_shortened(one.example)} earn {one.pay:.2f}",
    "solved-by-constant": lambda one: (
        f"solved by a constant, {_shortened(one.constant)} is right on {one.constant_share:.0%} of "
        f"{one.constant_items} items"
    ),
}
SEARCH_LEGEND = (
    f"wrong answers earn: mean pay on held-out items of the best strategy found, at the level where that is highest; "
    f"over {FARMABLE:g} is farmable. full credit: share of those answers that got it (where an item has several "
    "solutions, it may be another right one). right by a constant: share of items on which one text is right, where "
    "over a third; ! where it is surely over half."
)


def _searched_row(levels: Sequence[Searched]) -> tuple[str, ...]:
    worst = max(levels, key=lambda one: (one.is_farmable, one.pay))
    constants = [
        f"{one.level_name}: {_shortened(one.constant)} {one.constant_share:.2f}" + "!" * one.is_solved_by_constant
        for one in levels
        if one.constant_share >= 1 / 3
    ]
    unmade = [f"{one.level_name}: too few items" for one in levels if not one.items]
    earns = f"{worst.pay:.2f} ({worst.level_name})" if worst.pay else "0"
    return (
        worst.task,
        "FARMABLE, " * worst.is_farmable + earns,
        f"{worst.in_full:.2f}" if worst.pay else "",
        _shortened(worst.strategy, 60, quote=False) if worst.pay else "",
        _shortened(worst.example, 40) if worst.pay else "",
        "; ".join([*constants, *unmade]),
    )


def farming(found: Sequence[Searched]) -> dict[str, Any]:
    """What `tasks.measured_data.load_farming` reads: the best strategy of each farmable task, and the configs of which
    one constant solves more than half of the items."""
    farmable: dict[str, dict[str, Any]] = {}
    constants: dict[str, list[dict[str, Any]]] = {}
    for one in _in_order(found):
        if one.is_farmable and one.pay > farmable.get(one.task, {}).get("pay", 0.0):
            shown = {"strategy": one.strategy[:_MAX_SHIPPED], "example": one.example[:_MAX_SHIPPED]}
            farmable[one.task] = {"level": one.level, "pay": one.pay, "in_full": one.in_full, **shown}
        if one.is_solved_by_constant:
            config = json.loads(json.dumps(dict(one.config), default=str))
            entry = {
                "level": one.level,
                "config": config,
                "answer": one.constant[:_MAX_SHIPPED],
                "share": one.constant_share,
            }
            constants.setdefault(one.task, []).append(entry)
    return {"reasoning_gym_version": library.load().version, "farmable": farmable, "constants": constants}


_MAX_SHIPPED = 120


def _in_order(found: Sequence[Searched]) -> list[Searched]:
    return sorted(found, key=lambda one: (one.task, -1 if one.level is None else one.level))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _shortened(text: str, limit: int = 28, *, quote: bool = True) -> str:
    shown = " ".join(text.split())
    kept = shown if len(shown) <= limit else shown[: limit - 3]
    return (repr(kept) if quote else kept) + "..." * (len(shown) > limit)


def _escaped(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
