"""Watches a run of `serve` or `process`: its alarms every few seconds, and its status once a minute.

Run ── totals now, less the totals of the last status ──> three lines ──> one record of the log
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ..run import Mode, Run
from ..telemetry.alarms import Rule, Sign, nothing_sent, task_rules
from ..telemetry.telemetry import outcome_words
from ..utils.clock import now

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""Seconds between two looks at the alarms."""

LOOKS_PER_STATUS = 12
"""The log has the status once a minute."""

STUCK_S = 60.0
"""After a minute without a group for the trainer, an answer of run-api, or a step, the log says so."""


class RunWatch:
    """Looks at a run every few seconds. Its loop adds `rules`.

    `waits_for` says what the loop waits for, and `is_stalled` whether it starts no group although there is room.
    """

    def __init__(
        self,
        run: Run,
        waits_for: Callable[[], str],
        rules: Iterable[Rule] = (),
        is_stalled: Callable[[], bool] = bool,
    ) -> None:
        self._window = run.telemetry.window
        self._alarms = run.telemetry.alarms
        self._may_send = run.api.may_send
        self._waits_for = waits_for
        self._is_stalled = is_stalled
        self._status = Status(run)
        self._alarms.add(
            [
                Rule("nothing_sent", self._nothing_sent, STUCK_S),
                *task_rules(self._window, run.config.exclude_tasks),
                *rules,
            ]
        )

    async def follow(self) -> None:
        """Look at the run until this is cancelled, and then once more at its alarms."""
        try:
            while True:
                for _ in range(LOOKS_PER_STATUS):
                    await asyncio.sleep(LOOK_S)
                    self._alarms.look()
                    self._status.look()
                lines = self._status.lines(self._waits_for(), self._alarms.on)
                logger.info("Status: %s", "\n  ".join(lines))
        finally:
            self._alarms.look()

    def _nothing_sent(self) -> Sign | None:
        if not self._may_send.is_set():
            # The untrained model is being evaluated.
            return None
        return nothing_sent(self._window, self._waits_for(), is_stalled=self._is_stalled())


# --- the status: how far the run is, what it achieves, and what it waits for


class Status:
    """Describes the progress of a run. Each call of `lines` also describes the time since the call before."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._state = run.state
        self._telemetry = run.telemetry
        self._outcomes = run.telemetry.outcomes
        self._spending = run.inference.spending
        self._began = now()
        self._first = self._done = self._steps()
        self._stepped_at = now()
        self._begin_period()

    def _begin_period(self) -> None:
        self._period_began = now()
        self._outcomes_before = Counter(self._outcomes.totals())
        self._tokens_before = self._spending.completion_tokens

    def _steps(self) -> int:
        """The trainer's step, or the groups in the file of `process`."""
        return self._state.groups_written if self._run.mode is Mode.PROCESS else self._state.step

    def look(self) -> None:
        """Note when the run makes a step. Call this every few seconds."""
        steps = self._steps()
        if steps != self._done:
            self._done = steps
            self._stepped_at = now()

    def lines(self, waits_for: str, alarms: Sequence[str]) -> list[str]:
        """At most three lines. `waits_for` says what the run waits for, or is empty. `alarms` last now."""
        ended = self._ended()
        window = self._telemetry.window
        achieved = [window.in_words()] if window.groups else []
        found = [self._progress(ended), *achieved, self._present(ended, waits_for, alarms)]
        self._begin_period()
        return found

    def _ended(self) -> Counter[str]:
        """How many attempts ended with each outcome since the last status."""
        return Counter(self._outcomes.totals()) - self._outcomes_before

    def _progress(self, ended: Counter[str]) -> str:
        """`Step 3 of 250, about 2 h 10 min left; 4.2 groups and 8,300 tokens a second; exact 31.2% at step 0`."""
        run = self._run
        unit = "Group" if run.mode is Mode.PROCESS else "Step"
        seconds = max(now() - self._period_began, 1e-9)
        groups = ended.total() / seconds
        tokens = (self._spending.completion_tokens - self._tokens_before) / seconds
        parts = [
            f"{unit} {self._done:,} of {self._state.total_steps:,}{self._time_left(unit.lower())}",
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
        missing = self._state.total_steps - self._done
        left = pace * missing - since
        # A step may be late, but not three times as late as the mean, and not later than the expected end.
        is_late = since > max(STUCK_S, 3 * pace) or (made > 0 and missing > 0 and left < -LOOK_S)
        if is_late:
            return f", no {unit} for {duration(since)}"
        return f", about {duration(max(left, 0.0))} left" if made else ""

    def _present(self, ended: Counter[str], waits_for: str, alarms: Sequence[str]) -> str:
        """`Waits for ...; 31 sent, 12 all wrong in the last 60 s; dumps: 37/100 rollouts; ALARM stuck_tasks`."""
        outcomes = ", ".join(f"{count} {outcome_words(name)}" for name, count in ended.items())
        parts = [f"waits for {waits_for}"] if waits_for else []
        parts.append(f"{outcomes or 'no group ended'} in the last {now() - self._period_began:.0f} s")
        dumps = self._telemetry.dumps.progress()
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
