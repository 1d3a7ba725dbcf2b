"""The status of a run: three lines a minute that say how far it is, what it achieves, and what it waits for.

Run ── totals now, less the totals of the last status ──> lines ──> one record of the log
"""

from __future__ import annotations

from collections.abc import Sequence

from ..run import Mode, Run
from ..telemetry.telemetry import outcome_words
from ..utils.clock import now

STANDS_STILL_S = 60.0
"""A run stands still if its last step is longer ago than this, and than three times the mean time between steps."""


class Status:
    """Describes the progress of a run. Each call of `lines` also describes the time since the call before."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._began = now()
        self._first = self._done = self._steps()
        self._stepped_at = now()
        self._begin_period()

    def _begin_period(self) -> None:
        self._period_began = now()
        self._outcomes_before = self._run.telemetry.outcomes.totals()
        self._tokens_before = self._run.inference.spending.completion_tokens

    def _steps(self) -> int:
        """The trainer's step, or the groups in the file of `process`."""
        state = self._run.state
        return state.groups_written if self._run.mode is Mode.PROCESS else state.step

    def look(self) -> None:
        """Note when the run makes a step. Call this every few seconds."""
        steps = self._steps()
        if steps != self._done:
            self._done = steps
            self._stepped_at = now()

    def lines(self, waits_for: str, alarms: Sequence[str]) -> list[str]:
        """At most three lines. `waits_for` says what the run waits for, or is empty. `alarms` last now."""
        ended = self._ended()
        window = self._run.telemetry.window
        achieved = [window.in_words()] if window.groups else []
        found = [self._progress(ended), *achieved, self._present(ended, waits_for, alarms)]
        self._begin_period()
        return found

    def _ended(self) -> dict[str, int]:
        """How many attempts ended with each outcome since the last status."""
        totals = self._run.telemetry.outcomes.totals()
        ended = {name: count - self._outcomes_before.get(name, 0) for name, count in totals.items()}
        return {name: count for name, count in ended.items() if count > 0}

    def _progress(self, ended: dict[str, int]) -> str:
        """`Step 3 of 250, about 2 h 10 min left; 4.2 groups and 8,300 tokens a second; exact 31.2% at step 0`."""
        run = self._run
        unit = "Group" if run.mode is Mode.PROCESS else "Step"
        seconds = max(now() - self._period_began, 1e-9)
        groups = sum(ended.values()) / seconds
        tokens = (run.inference.spending.completion_tokens - self._tokens_before) / seconds
        parts = [
            f"{unit} {self._done:,} of {run.state.total_steps:,}{self._time_left(unit.lower())}",
            f"{groups:,.1f} groups and {tokens:,.0f} tokens a second",
        ]
        if run.evaluator.newest:
            parts.append(run.evaluator.newest)
        return "; ".join(parts)

    def _time_left(self, unit: str) -> str:
        """When the last step is expected, or since when no step came."""
        made = self._done - self._first
        pace = (self._stepped_at - self._began) / made if made > 0 else 0.0
        since = now() - self._stepped_at
        if since > max(STANDS_STILL_S, 3 * pace):
            return f", no {unit} for {duration(since)}"
        if not made:
            return ""
        left = pace * (self._run.state.total_steps - self._done) - since
        return f", about {duration(max(left, 0.0))} left"

    def _present(self, ended: dict[str, int], waits_for: str, alarms: Sequence[str]) -> str:
        """`Waits for ...; 31 sent, 12 all wrong in the last 60 s; dumps: 37/100 rollouts; ALARM stuck_tasks`."""
        outcomes = ", ".join(f"{count} {outcome_words(name)}" for name, count in ended.items())
        parts = [f"waits for {waits_for}"] if waits_for else []
        parts.append(f"{outcomes or 'no group ended'} in the last {now() - self._period_began:.0f} s")
        dumps = self._run.telemetry.dumps.progress()
        if dumps:
            parts.append(f"dumps: {dumps}")
        if alarms:
            parts.append(f"ALARM {', '.join(alarms)}")
        text = "; ".join(parts)
        return text[:1].upper() + text[1:]


def duration(seconds: float) -> str:
    """Such as `45 s`, `12 min` or `2 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
