"""What the curriculum, the metrics and the dumps learn of a group, once for each group."""

from __future__ import annotations

from typing import Any

from .group import group_with, rollouts_scored_elsewhere, take_scores, why_malformed
from .ledger import Attempt, Ledger
from .records import Group, GroupOutcome, outcome_without_signal
from .sampling.item_stream import ItemSource
from .telemetry.telemetry import Telemetry
from .trainer.run_state import RunState
from .utils.resilience import RepeatedEvents


class Recorder:
    """Observes groups when they are scored, and dumps them when `score` of the environment's class has returned."""

    def __init__(
        self,
        item_source: ItemSource,
        telemetry: Telemetry,
        failures: RepeatedEvents,
        state: RunState,
        ledger: Ledger,
        *,
        drops_equal_scores: bool,
    ) -> None:
        """`drops_equal_scores` says whether groups without a training signal are not sent."""
        self._item_source = item_source
        self._telemetry = telemetry
        self._failures = failures
        self._state = state
        self._ledger = ledger
        self._drops_equal_scores = drops_equal_scores

    async def observe(self, group: Group) -> None:
        """Let the curriculum, the metrics and the dump of failed groups see a scored group."""
        self._date(group)
        self._item_source.observe_group(group)
        self._telemetry.observe(group)
        await self._telemetry.dump_if_failed(group)

    def _date(self, group: Group) -> None:
        """Note the trainer's steps at which the oldest completion was requested and at which the group was scored."""
        steps = [rollout.completion.sampled_at for rollout in group.rollouts]
        known = [step for step in steps if step is not None]
        if known:
            step = self._state.step
            # A restarted trainer counts from its last checkpoint.
            group.sampled_at = min(*known, step)
            group.scored_at = step

    async def keep(self, attempt: Attempt, found: Any) -> Any:
        """Note and dump the groups that `collect_trajectories` has returned: a group, a list of groups, or None.

        Returns the groups that can be sent, in the same form. Without any, the attempt knows the reason.
        """
        is_list = isinstance(found, list)
        kept = [payload if await self._note(attempt, payload) else None for payload in (found if is_list else [found])]
        for group in attempt.groups:
            await self._telemetry.dump(group)
        if any(payload is not None for payload in kept):
            attempt.is_paid = True
        elif attempt.outcome is None and not attempt.is_given_back:
            self._conclude_without_group(attempt)
        return kept if is_list else kept[0]

    async def _note(self, attempt: Attempt, payload: Any) -> bool:
        """Take over the scores of a group, which a subclass may have changed. Returns whether the group can be sent."""
        if payload is None:
            return False
        problem = why_malformed(payload)
        if problem is not None:
            self._ledger.drop(attempt, GroupOutcome.DROPPED, f"score() of a subclass: {problem}")
            return False
        # A subclass may compute them with numpy, whose numbers JSON does not know.
        payload["scores"] = [float(score) for score in payload["scores"]]
        group = group_with(payload["tokens"], attempt.groups)
        if group is None:
            # A subclass has sampled it without our client, so its texts are unknown.
            return True
        if group.rollouts:
            group.rollouts = take_scores(group.rollouts, payload)
        else:
            group.rollouts = rollouts_scored_elsewhere(group.completions, payload)
            if group.rollouts:
                await self.observe(group)
        self._note_changed_sequences(group, payload)
        return True

    def _conclude_without_group(self, attempt: Attempt) -> None:
        """Say why an attempt has no group to send."""
        scored = [group for group in attempt.groups if group.rollouts]
        if scored and self._drops_equal_scores and not scored[-1].has_signal:
            attempt.conclude(outcome_without_signal(scored[-1]))
        else:
            reason = "collect_trajectories() or score() of a subclass returned no group"
            self._ledger.drop(attempt, GroupOutcome.DROPPED, reason)

    def _note_changed_sequences(self, group: Group, payload: Any) -> None:
        """Count the sequences that are no completion of the server. Without one, their text is unknown."""
        sent = len(payload["tokens"])
        changed = sent - len(group.rollouts)
        if changed:
            what = "sequences changed by score() of a subclass, they are sent but not in the dumps and metrics"
            detail = f"{changed} of {sent} in a group of {group.problem.task}"
            self._failures.note("sequences_changed_by_a_subclass", what, detail)
