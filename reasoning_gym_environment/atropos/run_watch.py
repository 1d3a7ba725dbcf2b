"""Watches a run of `serve` or `process`: its alarms, and its status block."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial

from ..run import Run
from ..telemetry.alarms import Rule
from ..utils.clock import now
from .status import Status, StatusDisplay

LOOK_S = 5.0
"""Seconds between two looks at the alarms."""

STATUS_S = 60.0
"""Seconds between two status blocks in the log."""

LEAST_BETWEEN_S = 20.0
"""At a log step, the log has no further block if the last one is newer than this."""

LOOKED_BACK_S = 120.0
"""The rules about totals compare them with the totals this long ago."""

LEAST_TIMEOUTS = 3
LEAST_FAILED_ITEMS = 8


class RunWatch:
    """Looks at a run every few seconds. Its loop adds `rules`, and `waits_for` says what the loop waits for."""

    def __init__(self, run: Run, rules: Iterable[Rule] = (), waits_for: Callable[[], str] = str) -> None:
        self._run = run
        self._waits_for = waits_for
        self._status = Status(run)
        self._timeouts = Total(lambda: run.inference.events.counts["requests_timed_out"])
        self._answers = Total(lambda: run.inference.spending.requests)
        self._alarms = run.telemetry.alarms
        self._alarms.rules += [
            Rule("slow_requests", self._slow_requests),
            Rule("items_not_made", partial(items_not_made, run)),
            *rules,
        ]
        self._reported_at = now()
        self._display = StatusDisplay()

    async def follow(self) -> None:
        """Look at the run until this is cancelled."""
        with self._display:
            while True:
                await asyncio.sleep(LOOK_S)
                self._timeouts.note()
                self._answers.note()
                self._alarms.look()
                is_due = now() - self._reported_at >= STATUS_S
                if self._display.is_live or is_due:
                    self._show()
                if is_due:
                    self._begin_period()

    def at_log_step(self) -> None:
        """Show the status at a log step of the trainer, unless there was a block a moment ago."""
        if now() - self._reported_at >= LEAST_BETWEEN_S:
            self._show()
            self._begin_period()

    def _show(self) -> None:
        self._display.show(self._status.lines(self._waits_for(), self._alarms.on))

    def _begin_period(self) -> None:
        self._reported_at = now()
        self._status.begin_period()

    def _slow_requests(self) -> str:
        """More than a fifth of the requests get no answer in time."""
        timeouts = self._timeouts.increase()
        if timeouts < LEAST_TIMEOUTS or timeouts <= 0.2 * (timeouts + self._answers.increase()):
            return ""
        return (
            f"{timeouts:.0f} requests got no answer within env.worker_timeout, "
            f"{self._run.config.worker_timeout:g} s, in the last {LOOKED_BACK_S / 60:.0f} min, and "
            f"{self._answers.increase():.0f} were answered. Raise env.worker_timeout, lower env.max_token_length, or "
            "lower openai.num_max_requests_at_once."
        )


class Total:
    """How much a total has grown lately."""

    def __init__(self, total: Callable[[], float]) -> None:
        self._total = total
        self._seen: deque[tuple[float, float]] = deque([(now(), total())])

    def note(self) -> None:
        """Remember the total of this moment, and forget older ones."""
        self._seen.append((now(), self._total()))
        while len(self._seen) > 2 and now() - self._seen[1][0] >= LOOKED_BACK_S:
            self._seen.popleft()

    def increase(self) -> float:
        """The growth in the last LOOKED_BACK_S seconds."""
        return self._total() - self._seen[0][1]


def items_not_made(run: Run) -> str:
    """Tasks whose items cannot be made more often than not."""
    skipped: Counter[str] = Counter()
    for key, count in run.stream.skipped.items():
        _, _, task = key.partition("/")
        skipped[task] += count
    failing = []
    for task, count in skipped.items():
        groups = run.telemetry.outcomes.of_task(task)
        if count >= LEAST_FAILED_ITEMS and count > groups:
            failing.append(f"{task} ({count} items skipped, {groups} groups)")
    if not failing:
        return ""
    return (
        f"Most items of {', '.join(sorted(failing))} cannot be used. Earlier lines say why. exclude_tasks leaves a "
        "task out, and a larger max_token_length lets longer questions in."
    )
