"""What the demo shows: a live table on a terminal, a line now and then elsewhere, and the closing summary.

What the demo has seen so far, as numbers for the display and the summary.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..records import CORRECT_THRESHOLD
from ..sampling.task_bandit import effective_number


def live_view(tally: Tally) -> RenderableType:
    """The display of a running demo."""
    head = Text.assemble(
        ("reasoning-gym environment demo  ", "bold"),
        (f"{tally.stage}", "cyan"),
        f"  {tally.seconds:4.0f} s",
    )
    bar = ProgressBar(total=tally.total_steps, completed=min(tally.step, tally.total_steps), width=40)
    # A bar ends without a line break of its own; the grid gives it a line.
    line = Table.grid()
    line.add_row(bar)
    return Group(head, line, Text(f"{progress_line(tally)}\n"), category_table(tally))


def progress_line(tally: Tally) -> str:
    """The state of the run in one line."""
    return (
        f"step {tally.step}/{tally.total_steps}  {tally.groups} groups scored  {tally.recent_rate:.1f} groups/s  "
        f"signal {tally.signal_share:.0%}  accuracy {tally.accuracy:.0%}  "
        f"{len(tally.tasks_seen)} tasks seen, effective number {tally.effective_tasks:.0f}"
    )


def category_table(tally: Tally) -> Table:
    """Accuracy and signal by category."""
    table = Table(box=None, pad_edge=False)
    table.add_column("category")
    for name in ("groups", "with signal", "mean score"):
        table.add_column(name, justify="right")
    for name, category in sorted(tally.categories.items()):
        signal = category.with_signal / category.groups
        table.add_row(name, str(category.groups), f"{signal:.0%}", f"{category.accuracy:.2f}")
    return table


def parts_table(tally: Tally) -> Table:
    """How the run went on: difficulty and accuracy, part by part."""
    table = Table(box=None, pad_edge=False)
    table.add_column("groups")
    for name in ("mean difficulty", "accuracy", "with signal", "effective tasks"):
        table.add_column(name, justify="right")
    first = 1
    for part in tally.parts():
        table.add_row(
            f"{first} to {first + part.groups - 1}",
            f"{part.complexity:.2f}",
            f"{part.accuracy:.2f}",
            f"{part.signal_share:.0%}",
            f"{part.effective_tasks:.0f}",
        )
        first += part.groups
    return table


def print_summary(console: Console, tally: Tally, logs: str) -> None:
    """What happened, and where to look next."""
    console.print()
    console.print(f"[bold]Done in {tally.seconds:.0f} s.[/bold] What you saw, all of it real but the model:")
    console.print(
        f"  {tally.ready.get('tasks', 0)} tasks of {tally.ready.get('library', 'reasoning-gym')}\n"
        f"  {tally.groups} groups generated and scored, {tally.signal_share:.0%} with a learning signal "
        f"(a group with equal scores teaches nothing and is not sent)\n"
        f"  {tally.step} training steps, {tally.sequences_trained} sequences taken from run-api by the demo's trainer",
        soft_wrap=True,
    )
    if tally.levels:
        raised = sum(level > 0 for level in tally.levels.values())
        console.print(
            f"  difficulty: {raised} of {len(tally.levels)} tasks seen have moved up from their easiest level "
            f"(0 is a task's first level, 1 its last; the curriculum aims at an accuracy of 0.7)",
            soft_wrap=True,
        )
    if tally.evaluation:
        console.print(
            f"  held-out set: mean score {tally.evaluation['eval/percent_correct']:.2f} "
            f"on {tally.ready.get('eval_items', 0)} items never used in training"
        )
    if tally.funnel:
        console.print(f"  {tally.funnel}", soft_wrap=True)
    for table in (parts_table(tally), category_table(tally)):
        console.print()
        console.print(table)
    console.print()
    for path in tally.dumps:
        console.print(f"rollouts: {path}", soft_wrap=True)
    console.print(f"logs:     {logs}", soft_wrap=True)
    console.print("next:     README.md, “Train a real model”")


STAGES = 4
"""Parts of the run that the summary compares."""

RATE_WINDOW_S = 5.0


@dataclass
class CategoryTally:
    """Scored completions of one category."""

    groups: int = 0
    with_signal: int = 0
    completions: int = 0
    total_score: float = 0.0

    @property
    def accuracy(self) -> float:
        return self.total_score / self.completions if self.completions else 0.0


@dataclass(frozen=True)
class Seen:
    """One scored group, as the summary needs it."""

    task: str
    complexity: float
    accuracy: float
    signal: bool


@dataclass(frozen=True)
class Part:
    """One part of the run: its groups, and averages over them."""

    groups: int
    accuracy: float
    complexity: float
    signal_share: float
    effective_tasks: float


@dataclass
class Tally:
    """Counts of one demo run. `total_steps` is where it ends."""

    total_steps: int
    stage: str = "starting"
    step: int = 0
    sequences_trained: int = 0
    ready: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, float] = field(default_factory=dict)
    dumps: list[str] = field(default_factory=list)
    funnel: str = ""
    seen: list[Seen] = field(default_factory=list)
    categories: dict[str, CategoryTally] = field(default_factory=lambda: defaultdict(CategoryTally))
    tasks_seen: set[str] = field(default_factory=set)
    levels: dict[str, int] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    training_started: float | None = None
    _recent: deque[float] = field(default_factory=deque)

    def add_group(self, event: dict[str, Any]) -> None:
        """Count one scored group."""
        scores = event["scores"]
        category = self.categories[event["category"]]
        category.groups += 1
        category.with_signal += event["signal"]
        category.completions += len(scores)
        category.total_score += sum(scores)
        self.tasks_seen.add(event["task"])
        correct = sum(score >= CORRECT_THRESHOLD for score in scores) / len(scores)
        self.seen.append(Seen(event["task"], event["complexity"] or 0.0, correct, event["signal"]))
        if event["level"] is not None:
            self.levels[event["task"]] = event["level"]
        now = time.monotonic()
        self._recent.append(now)
        while self._recent and now - self._recent[0] > RATE_WINDOW_S:
            self._recent.popleft()

    @property
    def effective_tasks(self) -> float:
        """How many equally frequent tasks would be as diverse as the groups so far."""
        return effective_number(list(Counter(seen.task for seen in self.seen).values()))

    def parts(self) -> list[Part]:
        """The run in a few parts of as many groups each, first to last; none before there are enough groups."""
        size = len(self.seen) // STAGES
        return [_part(self.seen[number * size : (number + 1) * size]) for number in range(STAGES if size else 0)]

    @property
    def groups(self) -> int:
        return sum(category.groups for category in self.categories.values())

    @property
    def signal_share(self) -> float:
        return sum(category.with_signal for category in self.categories.values()) / max(1, self.groups)

    @property
    def accuracy(self) -> float:
        completions = sum(category.completions for category in self.categories.values())
        return sum(category.total_score for category in self.categories.values()) / max(1, completions)

    @property
    def recent_rate(self) -> float:
        """Groups per second over the last seconds."""
        if len(self._recent) < 2:
            return 0.0
        return (len(self._recent) - 1) / max(1e-6, self._recent[-1] - self._recent[0])

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def _part(seen: list[Seen]) -> Part:
    return Part(
        groups=len(seen),
        accuracy=sum(group.accuracy for group in seen) / len(seen),
        complexity=sum(group.complexity for group in seen) / len(seen),
        signal_share=sum(group.signal for group in seen) / len(seen),
        effective_tasks=effective_number(list(Counter(group.task for group in seen).values())),
    )
