"""What the demo has seen so far, and how it is shown: a table on a terminal, lines elsewhere, and a summary."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..records import CORRECT_THRESHOLD
from ..sampling.choosers import effective_number

STAGES = 4
"""Parts of the run that the summary compares."""

RATE_WINDOW_S = 5.0


@dataclass(frozen=True)
class Seen:
    """One scored group, as the `group` event of the demo environment tells of it."""

    task: str
    category: str
    complexity: float
    scores: list[float]
    signal: bool
    at: float


@dataclass(frozen=True)
class Averages:
    """Over some of the groups; `accuracy` is the share of completions that count as correct."""

    groups: int
    mean_score: float
    accuracy: float
    complexity: float
    signal_share: float
    effective_tasks: float
    """How many equally frequent tasks would be as diverse."""


def averages(seen: Sequence[Seen]) -> Averages:
    scores = [score for group in seen for score in group.scores]
    count, completions = max(1, len(seen)), max(1, len(scores))
    return Averages(
        groups=len(seen),
        mean_score=sum(scores) / completions,
        accuracy=sum(score >= CORRECT_THRESHOLD for score in scores) / completions,
        complexity=sum(group.complexity for group in seen) / count,
        signal_share=sum(group.signal for group in seen) / count,
        effective_tasks=effective_number(list(Counter(group.task for group in seen).values())),
    )


@dataclass
class Progress:
    """One demo run. `total_steps` is where it ends."""

    total_steps: int
    stage: str = "starting"
    step: int = 0
    sequences_trained: int = 0
    ready: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, float] = field(default_factory=dict)
    dumps: list[str] = field(default_factory=list)
    outcomes: str = ""
    seen: list[Seen] = field(default_factory=list)
    levels: dict[str, int] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    training_started: float | None = None

    def add_group(self, event: dict[str, Any]) -> None:
        """Count one scored group."""
        complexity, now = event["complexity"] or 0.0, time.monotonic()
        self.seen.append(Seen(event["task"], event["category"], complexity, event["scores"], event["signal"], at=now))
        if event["level"] is not None:
            self.levels[event["task"]] = event["level"]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def recent_rate(self) -> float:
        """Groups per second over the last seconds."""
        recent = [group.at for group in self.seen if time.monotonic() - group.at <= RATE_WINDOW_S]
        return (len(recent) - 1) / max(1e-6, recent[-1] - recent[0]) if len(recent) > 1 else 0.0

    def parts(self) -> list[Averages]:
        """The run in a few parts of as many groups each, first to last; none before there are enough groups."""
        size = len(self.seen) // STAGES
        return [averages(self.seen[number * size : (number + 1) * size]) for number in range(STAGES if size else 0)]

    def by_category(self) -> dict[str, Averages]:
        names = sorted({group.category for group in self.seen})
        return {name: averages([group for group in self.seen if group.category == name]) for name in names}


# --- the display


def live_view(progress: Progress) -> RenderableType:
    """The display of a running demo."""
    head = Text.assemble(
        ("reasoning-gym environment demo  ", "bold"),
        (f"{progress.stage}", "cyan"),
        f"  {progress.seconds:4.0f} s",
    )
    bar = ProgressBar(total=progress.total_steps, completed=min(progress.step, progress.total_steps), width=40)
    # A bar ends without a line break of its own; the grid gives it a line.
    line = Table.grid()
    line.add_row(bar)
    return Group(head, line, Text(f"{progress_line(progress)}\n"), category_table(progress))


def progress_line(progress: Progress) -> str:
    """The state of the run in one line."""
    so_far = averages(progress.seen)
    return (
        f"step {progress.step}/{progress.total_steps}  {so_far.groups} groups scored  "
        f"{progress.recent_rate:.1f} groups/s  signal {so_far.signal_share:.0%}  accuracy {so_far.mean_score:.0%}  "
        f"{len({group.task for group in progress.seen})} tasks seen, effective number {so_far.effective_tasks:.0f}"
    )


def category_table(progress: Progress) -> Table:
    """Accuracy and signal by category."""
    table = _table("category", "groups", "with signal", "mean score")
    for name, part in progress.by_category().items():
        table.add_row(name, str(part.groups), f"{part.signal_share:.0%}", f"{part.mean_score:.2f}")
    return table


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def parts_table(progress: Progress) -> Table:
    """How the run went on: difficulty and accuracy, part by part."""
    table = _table("groups", "mean difficulty", "accuracy", "with signal", "effective tasks")
    first = 1
    for part in progress.parts():
        table.add_row(
            f"{first} to {first + part.groups - 1}",
            f"{part.complexity:.2f}",
            f"{part.accuracy:.2f}",
            f"{part.signal_share:.0%}",
            f"{part.effective_tasks:.0f}",
        )
        first += part.groups
    return table


def print_summary(console: Console, progress: Progress, logs: str) -> None:
    """What happened, and where to look next."""
    so_far = averages(progress.seen)
    console.print()
    console.print(f"[bold]Done in {progress.seconds:.0f} s.[/bold] What you saw, all of it real but the model:")
    console.print(
        f"  {progress.ready.get('tasks', 0)} tasks of {progress.ready.get('library', 'reasoning-gym')}\n"
        f"  {so_far.groups} groups generated and scored, {so_far.signal_share:.0%} with a learning signal "
        f"(a group with equal scores teaches nothing and is not sent)\n"
        f"  {progress.step} training steps, {progress.sequences_trained} sequences taken from run-api by the demo's "
        "trainer",
        soft_wrap=True,
    )
    if progress.levels:
        raised = sum(level > 0 for level in progress.levels.values())
        console.print(
            f"  difficulty: {raised} of {len(progress.levels)} tasks seen have moved up from their easiest level "
            f"(0 is a task's first level, 1 its last; the curriculum aims at an accuracy of 0.7)",
            soft_wrap=True,
        )
    if progress.evaluation:
        console.print(
            f"  held-out set: mean score {progress.evaluation['eval/percent_correct']:.2f} "
            f"on {progress.ready.get('eval_items', 0)} items never used in training"
        )
    if progress.outcomes:
        console.print(f"  {progress.outcomes}", soft_wrap=True)
    for table in (parts_table(progress), category_table(progress)):
        console.print()
        console.print(table)
    console.print()
    for path in progress.dumps:
        console.print(f"rollouts: {path}", soft_wrap=True)
    console.print(f"logs:     {logs}", soft_wrap=True)
    console.print("next:     README.md, “Train a real model”")
