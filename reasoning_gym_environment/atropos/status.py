"""The status block of a run: at most six lines that say how far it is, what it achieves, and what it waits for.

Run ── totals now, less the totals of the last block ──> lines ──> a terminal: one block, redrawn in place
                                                            └────> a log: one record a minute, and at log steps
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from statistics import fmean
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..run import Mode, Run
from ..tasks.selectors import shortened
from ..telemetry.alarms import RECENT, ScoredGroup, tasks_at_zero
from ..telemetry.telemetry import GroupOutcome
from ..utils.clock import now

logger = logging.getLogger(__name__)

STUCK_GROUPS = 8
"""A line names a task if all answers in this many of its last groups are right."""


class Status:
    """Describes the progress of a run. Each call of `lines` also describes the period since `begin_period`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._began = now()
        self._first_done = self._done
        self.begin_period()

    def begin_period(self) -> None:
        """Begin a new period."""
        self._period_began = now()
        self._outcomes_before = self._run.telemetry.outcomes.totals()
        self._tokens_before = self._run.inference.spending.completion_tokens
        self._levels_before = self._levels()

    @property
    def _done(self) -> int:
        """The trainer's step, or the groups in the file of `process`."""
        state = self._run.state
        return state.groups_written if self._run.mode is Mode.PROCESS else state.step

    def _levels(self) -> dict[str, int]:
        tasks = self._run.item_source.curriculum.stats()["tasks"]
        return {task: details["level"] for task, details in tasks.items()}

    def lines(self, waits_for: str, alarms: Sequence[str]) -> list[str]:
        """At most six lines. `waits_for` says what the run waits for, or is empty. `alarms` last now."""
        found = [
            self._progress(),
            self._achieved(),
            self._groups(),
            self._tasks(),
            self._dumps(),
            _last_line(waits_for, alarms),
        ]
        return [line for line in found if line]

    def _progress(self) -> str:
        """`Step 3 of 250, about 2 h 10 min left; 4.2 groups and 8,300 tokens a second`."""
        run = self._run
        unit = "Group" if run.mode is Mode.PROCESS else "Step"
        text = f"{unit} {self._done:,} of {run.state.total_steps:,}"
        made = self._done - self._first_done
        if made > 0:
            left = (run.state.total_steps - self._done) * (now() - self._began) / made
            text += f", about {duration(left)} left"
        seconds = max(now() - self._period_began, 1e-9)
        groups = sum(self._ended().values()) / seconds
        tokens = (run.inference.spending.completion_tokens - self._tokens_before) / seconds
        return f"{text}; {groups:,.1f} groups and {tokens:,.0f} tokens a second"

    def _achieved(self) -> str:
        """`The last 128 groups: reward 0.41 (+0.05), exact 38.2% (+3.1), 31% with a signal`."""
        window = self._run.telemetry.window
        newest = window.newest
        if not newest:
            return ""
        before = window.before if len(window.before) == RECENT else []
        reward = _with_change([group.reward for group in newest], [group.reward for group in before], "{:.2f}", 1)
        exact = _with_change(
            [group.exact_rate for group in newest], [group.exact_rate for group in before], "{:.1f}%", 100
        )
        signal = fmean(group.has_signal for group in newest)
        return f"The last {len(newest)} groups: reward {reward}, exact {exact}, {signal:.0%} with a signal"

    def _ended(self) -> dict[str, int]:
        totals = self._run.telemetry.outcomes.totals()
        ended = {name: count - self._outcomes_before.get(name, 0) for name, count in totals.items()}
        return {name: count for name, count in ended.items() if count > 0}

    def _groups(self) -> str:
        """`Groups in the last 60 s: 31 sent, 12 all wrong, 5 cut off; 3 wait at run-api`."""
        ended = self._ended()
        parts = [f"{count} {outcome_words(name)}" for name, count in ended.items()]
        text = ", ".join(parts) or "none has ended"
        waiting = self._run.api.in_delivery
        if waiting:
            text += f"; {waiting} wait for run-api to take them"
        return f"Groups in the last {now() - self._period_began:.0f} s: {text}"

    def _tasks(self) -> str:
        """`Tasks: no right answer in a, b; only right answers in c; levels 5 up, 1 down, mean 2.3`."""
        window = self._run.telemetry.window
        at_zero = tasks_at_zero(window)
        at_one = sorted(task for task, groups in window.by_task.items() if _is_always_right(list(groups)))
        parts = []
        if at_zero:
            parts.append(f"no right answer in {shortened(at_zero)}")
        if at_one:
            parts.append(f"only right answers in {shortened(at_one)}")
        levels = self._levels()
        changes = [level - self._levels_before.get(task, 0) for task, level in levels.items()]
        if levels:
            up, down = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
            parts.append(f"levels {up} up, {down} down, mean {fmean(levels.values()):.1f}")
        return f"Tasks: {'; '.join(parts)}" if parts else ""

    def _dumps(self) -> str:
        progress = self._run.telemetry.dumps.progress()
        return f"Groups in the open dumps: {progress}" if progress else ""


def _last_line(waits_for: str, alarms: Sequence[str]) -> str:
    parts = []
    if waits_for:
        parts.append(f"waits for {waits_for}")
    if alarms:
        parts.append(f"ALARM {', '.join(alarms)}")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:]


def _with_change(newest: Sequence[float], before: Sequence[float], form: str, factor: float) -> str:
    text = form.format(factor * fmean(newest))
    if before:
        change = form.format(factor * (fmean(newest) - fmean(before))).rstrip("%")
        text += f" ({change if change.startswith('-') else f'+{change}'})"
    return text


def _is_always_right(groups: Sequence[ScoredGroup]) -> bool:
    newest = groups[-STUCK_GROUPS:]
    return len(newest) == STUCK_GROUPS and all(group.exact == group.completions for group in newest)


def outcome_words(name: str) -> str:
    """An outcome as the log names it, such as `all wrong`."""
    words: Mapping[str, str] = {GroupOutcome.TOO_LONG: "cut off or too long", GroupOutcome.TIMED_OUT: "not scored"}
    return words.get(name, name.replace("_", " "))


def duration(seconds: float) -> str:
    """Such as `45 s`, `12 min` or `2 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class StatusDisplay(AbstractContextManager["StatusDisplay"]):
    """Shows status blocks: on a terminal in place, below the lines of the log; otherwise in the log."""

    def __init__(self) -> None:
        self._live: Live | None = None
        if sys.stderr.isatty():
            # Log lines go through the display while it is on: handlers write to the sys.stderr of the moment.
            self._live = Live(console=Console(stderr=True), auto_refresh=False)

    @property
    def is_live(self) -> bool:
        return self._live is not None

    def __enter__(self) -> StatusDisplay:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, lines: Sequence[str]) -> None:
        """Replace the block on the terminal, or write it to the log."""
        if self._live is not None:
            self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            logger.info("Status: %s", "\n  ".join(lines))
