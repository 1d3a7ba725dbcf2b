"""The life of one group, from a training item to the trajectory API. Read this file from top to bottom.

    draw ──> complete ──> score: grade ──> reward ──> observe ──> dump ──> send
     │          │         │        │          │           │          │       └ check, deliver  (trainer/run_api.py)
     │          │         │        │          │           │          └ files of rollouts               (telemetry/)
     │          │         │        │          │           └ curriculum, metrics            (sampling/, telemetry/)
     │          │         │        │          └ base reward, length penalty, masks             (scoring/rewards.py)
     │          │         │        └ extract the answer, grade it in a worker                (scoring/, workers/)
     │          │         └ the environment's public method, which a subclass may replace
     │          └ prompt, token budget, requests                                                  (inference/)
     └ task, level, seed, item                                                                     (sampling/)

One `Group` travels the whole way. The pipeline dumps and sends the group that `score` returns. Every attempt to make
a group ends in exactly one call of `finish`, with the GroupOutcome that says how. An attempt that brought no
completions may have its item requeued for another attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from atroposlib.envs.base import ScoredDataGroup

from .errors import EnvironmentSetupError, InferenceError, RequestRefusedError
from .inference.prompts import RequestParameters, as_dicts
from .items import (
    Item,
    group_of,
    rollout_dicts,
    rollouts_scored_elsewhere,
    take_scores,
    to_scored_data,
    why_malformed,
)
from .records import Completion, Group
from .run import Mode, Run
from .sampling.item_maker import TOO_LONG
from .sampling.pending_items import MAX_FAILURES
from .scoring.rewards import rollouts_of
from .telemetry.telemetry import GroupOutcome, outcome_without_signal
from .utils.shutdown import uninterrupted

logger = logging.getLogger(__name__)

ScoreMethod: TypeAlias = Callable[[list[dict[str, Any]]], Awaitable[ScoredDataGroup | None]]
"""`ReasoningGymEnv.score`: from the rollout dicts of one item to a scored group, or None."""

FAULT = "error_in_the_environment"
"""The name of an unexpected failure, after which the group is lost."""

GIVEN_UP = "item_given_up"
"""The failure of an item whose requests may be the cause of the outages."""


class GroupPipeline:
    """Makes, scores and sends groups of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run

    # --- draw

    async def draw(self) -> Group:
        """The next problem of the stream, whose prompt leaves room for a completion."""
        problem = await self.run.stream.next()
        logger.debug("Drew item %d: %s (%s).", problem.index, problem.task, problem.category)
        return Group(problem, as_dicts(self.run.prompts.messages(problem.question)))

    # --- the whole way from a problem to a scored group

    async def make(self, item: Item, score: ScoreMethod) -> ScoredDataGroup | None:
        """Sample a group for an item, and let `score` score it.

        Returns what the trainer gets, or None if the attempt has ended without a group. If this is cancelled while it
        waits for completions, the item is requeued. Once the completions are there, the group is scored and recorded
        all the way. An unforeseen error costs this group and nothing else.
        """
        group = group_of(item, self.run.config.answer_format)
        # The item may have had a group before.
        group.rollouts = []
        group.is_sampled = False
        group.is_handed_on = False
        try:
            completions = await self._complete(group)
            if not completions:
                return None
            group.is_sampled = True
            self.run.stream.ledger.note_completions()
            rollouts = rollout_dicts(item, group, completions)
            payload: ScoredDataGroup | None = await uninterrupted(self._scored(group, completions, score(rollouts)))
            return payload
        except (asyncio.CancelledError, EnvironmentSetupError):
            self.abandon(group)
            raise
        except Exception as error:  # noqa: BLE001
            self.note_fault(group, error)
            return None

    async def _scored(
        self,
        group: Group,
        completions: list[Completion],
        scoring: Awaitable[ScoredDataGroup | None],
    ) -> ScoredDataGroup | None:
        """The group that `scoring` returns, which is dumped. Without a group to send, the attempt ends here."""
        payload = await scoring
        if payload is not None:
            problem = why_malformed(payload)
            if problem is not None:
                self.drop(group, GroupOutcome.DROPPED, f"score() of a subclass: {problem}")
                return None
            # A subclass may compute them with numpy, whose numbers JSON does not know.
            payload["scores"] = [float(score) for score in payload["scores"]]
            if group.rollouts:
                group.rollouts = take_scores(group.rollouts, payload)
            else:
                group.rollouts = rollouts_scored_elsewhere(completions, payload)
                if group.rollouts:
                    await self._observe(group)
            self._note_changed_sequences(group, payload)
        await self.run.telemetry.dump(group)
        if payload is None:
            self._end_without_group(group, "score() of a subclass returned no group")
        return payload

    def _note_changed_sequences(self, group: Group, payload: ScoredDataGroup) -> None:
        """Count the sequences that are no completion of the server. Without one, their text is unknown."""
        sent = len(payload["tokens"])
        changed = sent - len(group.rollouts)
        if changed:
            what = "sequences changed by score() of a subclass, they are sent but not in the dumps and metrics"
            detail = f"{changed} of {sent} in a group of {group.problem.task}"
            self.run.failures.note("sequences_changed_by_a_subclass", what, detail)

    # --- complete

    async def _complete(self, group: Group) -> list[Completion]:
        """The completions of a problem. None come back if the attempt has ended without any."""
        run = self.run
        config = run.config
        prompt = run.prompts.render(group.messages)
        max_tokens = run.prompts.room_for_training(len(prompt.tokens))
        if max_tokens is None:
            # The caller made this item, or the trainer has lowered its limit since the stream drew the item.
            if group.problem.is_of_stream:
                run.stream.skip(
                    TOO_LONG,
                    group.problem.task,
                    "the prompt leaves no room for a completion",
                )
            self.finish(group, GroupOutcome.TOO_LONG)
            return []
        parameters = RequestParameters(
            n=run.state.group_size,
            max_tokens=max_tokens,
            patience_s=run.mode.patience_s,
            timeout_s=config.worker_timeout if config.worker_timeout > 0 else None,
            **config.train_sampling,
        )
        try:
            return await run.inference.complete(prompt, parameters, step=run.sampling_step)
        except InferenceError as error:
            self._end_without_completions(group, error)
            return []

    def _end_without_completions(self, group: Group, error: InferenceError) -> None:
        """Requeue the item, a bounded number of times, or drop it.

        An attempt counts as a failure of the item if a server accepted its request, because the request may have
        crashed the server. After three failures the item is given up (sampling/pending_items.py). An item that a
        working server refuses is dropped immediately.
        `process` drops every such item, and makes the group of a later item instead.
        """
        run = self.run
        problem = group.problem
        unavailable_since = run.inference.servers.unavailable_since()
        name = "item_dropped"
        what = "item dropped, no completions"
        item = f"item {problem.index}, {problem.task}"
        is_refused = isinstance(error, RequestRefusedError) and unavailable_since is None
        if run.mode.has_trainer and problem.is_of_stream and not is_refused:
            in_outage = unavailable_since is not None
            name = "item_requeued"
            what = "item requeued, no completions"
            if not run.stream.ledger.requeue(problem, is_failure=error.was_sent, in_outage=in_outage):
                name = GIVEN_UP
                what = "item given up, no completions"
                item += f", after {MAX_FAILURES} failures"
        reason = error.advice if isinstance(error, RequestRefusedError) else str(error)
        run.failures.note(name, what, f"{item}: {reason}")
        self.finish(group, GroupOutcome.INFERENCE_FAILED)

    # --- grade, reward, record

    async def score(self, group: Group, completions: list[Completion]) -> ScoredDataGroup | None:
        """Grade completions, make rewards of them, and let the curriculum and the metrics see them.

        Returns what the trainer gets, or None for a group that teaches nothing, where such groups are not sent.
        """
        run = self.run
        config = run.config
        opened = run.prompts.thinking_opened
        scores = await run.runtime.scorer.score(group.problem, completions, thinking_opened=opened)
        group.rollouts = rollouts_of(
            completions,
            scores,
            config.partial_credit,
            max_token_length=run.prompts.longest_sequence,
            mask_too_long=config.mask_too_long_completions,
        )
        await self._observe(group)
        if run.drops_equal_scores and not group.has_signal:
            return None
        return to_scored_data(group, include_messages=config.include_messages)

    async def _observe(self, group: Group) -> None:
        """Let the curriculum, the metrics and the dump of failed groups see a scored group."""
        self._date(group)
        self.run.item_source.observe_group(group)
        self.run.telemetry.observe(group)
        await self.run.telemetry.dump_if_failed(group)

    def _date(self, group: Group) -> None:
        """Note the trainer's steps at which the oldest completion was requested and at which the group was scored."""
        steps = [rollout.completion.sampled_at for rollout in group.rollouts]
        known = [step for step in steps if step is not None]
        if known:
            step = self.run.state.step
            # A restarted trainer counts from its last checkpoint.
            group.sampled_at = min(*known, step)
            group.scored_at = step

    # --- send

    def send(
        self,
        payload: ScoredDataGroup,
        group: Group | None,
        *,
        to_api: bool = True,
        heeds_length: bool = True,
    ) -> bool:
        """Check a scored group, begin to write it to the file of groups if there is one, and to deliver it to the API.

        Returns whether the delivery of the group has begun.
        """
        run = self.run
        if group is not None:
            group.is_handed_on = True
        problem = self._why_unusable(payload, heeds_length=heeds_length)
        if problem is not None:
            outcome, reason = problem
            self.drop(group, outcome, reason)
            return False
        run.group_file.write(payload, group)
        if not to_api:
            if run.mode is not Mode.PROCESS:
                self.finish(group, GroupOutcome.WRITTEN)
            # `process` finishes the attempt when the disk has the group.
            return False
        sampled_at = None if group is None else group.sampled_at
        run.api.deliver(payload, sampled_at, partial(self.finish, group))
        return True

    def _why_unusable(self, payload: Any, *, heeds_length: bool) -> tuple[GroupOutcome, str] | None:
        """Why the trainer cannot use a scored group, as an outcome and in words; None if it can."""
        state = self.run.state
        size = len(payload["tokens"])
        if size != state.group_size:
            return (
                GroupOutcome.DROPPED,
                f"expected {state.group_size} rollouts, found {size}",
            )
        if self.run.drops_equal_scores and len(set(payload["scores"])) == 1:
            return GroupOutcome.EQUAL_SCORES, "its scores are equal"
        longest = max(len(tokens) for tokens in payload["tokens"])
        limit = state.max_token_len
        if heeds_length and 0 < limit <= longest:
            return (
                GroupOutcome.TOO_LONG,
                f"a sequence has {longest} tokens, the trainer's limit is {limit}",
            )
        return None

    # --- the end of every attempt

    def finish(self, group: Group | None, outcome: GroupOutcome) -> None:
        """Count how an attempt ended. Its item is finished, unless it was requeued just before."""
        task = "unknown" if group is None else group.problem.task
        self.run.telemetry.ended(outcome, task)
        if group is not None:
            self.run.stream.ledger.finish(group.problem)

    def drop(self, group: Group | None, outcome: GroupOutcome, reason: str) -> None:
        """Log that a scored group is not sent, and finish the attempt."""
        self.run.failures.note("group_dropped", "group dropped", reason)
        self.finish(group, outcome)

    def drop_if_unfinished(self, group: Group) -> None:
        """Drop an item for which a subclass returned no group, although the pipeline made one or was not used."""
        if self.run.stream.ledger.is_handed_out(group.problem):
            self._end_without_group(group, "collect_trajectories of a subclass returned no group")

    def drop_if_not_handed_on(self, group: Group) -> None:
        """Drop a scored group that `handle_send_to_api` of a subclass has not passed to ours."""
        if not group.is_handed_on and self.run.stream.ledger.is_handed_out(group.problem):
            self.drop(group, GroupOutcome.DROPPED, "handle_send_to_api of a subclass did not pass the group on")

    def _end_without_group(self, group: Group, reason: str) -> None:
        """End an attempt that has no group to send. The `reason` is for groups that have a signal."""
        if group.rollouts and self.run.drops_equal_scores and not group.has_signal:
            self.finish(group, outcome_without_signal(group))
        else:
            self.drop(group, GroupOutcome.DROPPED, reason)

    def abandon(self, group: Group) -> None:
        """Requeue the item of an attempt that was stopped. Harmless if that has been done."""
        if self.run.stream.ledger.requeue(group.problem):
            self.finish(group, GroupOutcome.CANCELLED)

    def note_fault(self, group: Group, error: Exception) -> None:
        """Log an unforeseen error, the first one with its traceback, and finish the attempt."""
        failures = self.run.failures
        detail = f"{group.problem.task}: {type(error).__name__}: {error}"
        failures.note(FAULT, "error in the environment, its group is lost", detail)
        if failures.counts[FAULT] == 1:
            logger.error("First occurrence, with traceback. Please report it.", exc_info=error)
        self.finish(group, GroupOutcome.FAULT)
