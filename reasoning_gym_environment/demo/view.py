"""What the demo shows: a live table on a terminal, a line now and then elsewhere, and the closing summary."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .tally import Tally


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
