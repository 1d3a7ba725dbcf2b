"""The command: choose tasks, start the workers, audit them side by side, print, and exit by `--fail-on`.

Findings as a table for people, as JSON for programs, as Markdown for the docs.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from ..errors import EnvironmentSetupError
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import Catalog, discover
from ..utils.terminal import Output, check_file, positive
from ..verification import eval_guards
from ..workers.generator import ProcessGenerator
from ..workers.grader import SandboxGrader
from .measure import AnswerKind, Auditor, Findings, Trust

FAIL_ON = {verdict.name.lower().replace("_", "-"): verdict for verdict in Trust if verdict is not Trust.SOUND}
SIDE_BY_SIDE = 4


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, 1 if a task has a verdict named in --fail-on, 2 for a mistake in the arguments."""
    options = _parser().parse_args(arguments)
    try:
        fail_on = _verdicts(options.fail_on)
        _check_outputs(options)
        # Some verifiers and constructors print; standard output is for the result.
        with library.stdout_to_stderr():
            catalog = discover(include=options.tasks, modules=options.task_modules)
            found = asyncio.run(_audit(catalog, options))
        _print(found, options)
    except EnvironmentSetupError as error:
        print(f"reasoning-gym-env audit: {error}", file=sys.stderr)
        return 2
    failed = [one for one in found if one.verdict in fail_on]
    for one in failed:
        print(f"{one.task}: {one.verdict.value}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env audit",
        description="Measure what each task's verifier pays to right, wrong and worthless answers, and whether items "
        "can be made again. Answers are graded in the sandbox, with the strict checks and without.",
    )
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="names, globs or category:NAME (default: all)")
    parser.add_argument("--items", type=positive, default=5, help="items per task to probe (default: 5)")
    parser.add_argument("--draws", type=positive, default=30, help="items per task to draw for entropy (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="other items with another seed (default: 0)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured as JSON; - for standard output")
    parser.add_argument("--markdown", metavar="FILE", help="write the table as Markdown; - for standard output")
    parser.add_argument(
        "--fail-on",
        type=_names,
        default=[],
        metavar="VERDICTS",
        help=f"exit with 1 if a task has one of these, comma-separated: {', '.join(FAIL_ON)}",
    )
    parser.add_argument(
        "--task-modules", type=_names, default=[], metavar="MODULES", help="register your own datasets first"
    )
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _verdicts(names: Sequence[str]) -> list[Trust]:
    for name in names:
        if name not in FAIL_ON:
            raise EnvironmentSetupError(f"--fail-on expects some of {', '.join(FAIL_ON)}, got {name!r}.")
    return [FAIL_ON[name] for name in names]


def _check_outputs(options: argparse.Namespace) -> None:
    """Before the audit, which takes minutes, and not when it is to be written."""
    modules = options.task_modules
    if options.json not in (None, "-"):
        check_file("--json", options.json, inputs=modules)
    if options.markdown not in (None, "-"):
        check_file("--markdown", options.markdown, inputs=[*modules, *([options.json] if options.json else [])])


async def _audit(catalog: Catalog, options: argparse.Namespace) -> list[Findings]:
    unguarded = eval_guards.unguarded_tasks()
    runs_text = {task: f"evaluates answers (guarded: {found.name})" for task, found in eval_guards.GUARDS.items()}
    runs_text |= {task: f"NOT GUARDED: {reason}" for task, reason in unguarded.items()}
    modules = options.task_modules
    path, workers = str(library.load().location), max(1, (os.cpu_count() or 2) // 2)
    generator = ProcessGenerator(num_workers=workers, timeout_s=30.0, library_path=path, task_modules=modules)
    grader = SandboxGrader(
        num_workers=workers, library_path=path, task_modules=modules, allow_unguarded=list(unguarded), strict=True
    )
    auditor = Auditor(
        generator, grader, items=options.items, draws=options.draws, seed=options.seed, runs_text=runs_text
    )
    slots = asyncio.Semaphore(SIDE_BY_SIDE)
    async with AsyncExitStack() as stack:
        for part in (generator, grader):
            stack.push_async_callback(part.close)
            await part.start()
        with tqdm(total=len(catalog), desc="audit", unit="task", disable=None) as bar:

            async def one(task: str, category: str) -> Findings:
                async with slots:
                    found = await auditor.audit(task, category)
                bar.update()
                return found

            return list(await asyncio.gather(*(one(task.name, task.category) for task in catalog)))


def _print(found: Sequence[Findings], options: argparse.Namespace) -> None:
    if "-" not in (options.json, options.markdown):
        Output().print(rich_table(found))
    for target, text in ((options.json, json.dumps(as_records(found), indent=1)), (options.markdown, markdown(found))):
        if target == "-":
            print(text)
        elif target is not None:
            _write(Path(target), text)


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


def rich_table(found: Sequence[Findings]) -> Table:
    table = Table(title="What the verifiers pay", caption=LEGEND, caption_justify="left")
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for one in found:
        cells = [Text(cell) for cell in row(one)]
        cells[1].stylize(_STYLES.get(one.verdict, "red"))
        table.add_row(*cells)
    return table


LEGEND = (
    "decorated oracle: mean score of the oracle answer with a final period / in \\boxed{}; other oracles: mean score "
    "of right answers to other items; worthless answers: the best paid of all constants, enumerations and garbage."
)


def markdown(found: Sequence[Findings]) -> str:
    """The same table for a page of the docs."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(_escaped(cell) for cell in row(one)) + " |" for one in found]
    return "\n".join([*lines, "", LEGEND])


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _shortened(text: str, limit: int = 28) -> str:
    shown = " ".join(text.split())
    return repr(shown) if len(shown) <= limit else f"{shown[: limit - 3]!r}..."


def _escaped(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
