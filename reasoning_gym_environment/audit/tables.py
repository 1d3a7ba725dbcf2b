"""Findings as a table for people, as JSON for programs, as Markdown for the docs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ..tasks import reasoning_gym_source as library
from .findings import Findings, Verdict
from .probes import Kind

_STYLES = {Verdict.SOUND: "green", Verdict.NO_ORACLE: "yellow"}
COLUMNS = (
    "task",
    "verdict",
    "without strict checks",
    "decorated oracle",
    "other oracles",
    "worthless answers",
    "notes",
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
    decorated = [_share(one.pays.get(kind.value)) for kind in (Kind.PERIOD, Kind.BOXED)]
    worthless = f"{one.best_pay:.2f} for {_shortened(one.best_paid)}" if one.best_pay > 0 else "0"
    return (
        one.task,
        one.verdict.value,
        one.native_verdict.value if one.native_verdict is not one.verdict else "",
        " / ".join(decorated),
        _share(one.pays.get(Kind.OTHER.value)),
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
