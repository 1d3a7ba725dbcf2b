"""Alarms: signs that a run wastes its time, each with numbers, an example and a remedy.

    a scored group ─────────> Window ─┐
    how an attempt ended ──────┘      ├──> Rule ──> a Sign, or None ──> a warning when it begins, a line when it ends
    what a loop waits for ────────────┘                                 and a metric while it lasts

A rule is one small pure function. An alarm begins when its rule has found the sign at every look for `after_s` seconds,
and ends when the rule has not found it for ENDS_AFTER_S. A sign is a reason to look at the rollouts, and no proof. The
alarms change nothing else. A restart forgets the window.

    completions, also of an evaluation or a dump    unreadable, cut_off, one_answer, verifier_fails
    groups                                          nothing_sent, stuck_tasks, failing_tasks
    run-api (atropos/serve_loop.py)                 run_api_silent, queue_full
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..records import Completion, Outcome, Problem, Rollout, Score, has_signal
from ..tasks.selectors import shortened
from ..utils.clock import now
from ..utils.terminal import printable

logger = logging.getLogger(__name__)

RECENT = 128
"""During a run, the rules about completions look at this many groups. The status compares them with as many before."""

OF_A_TASK = 64
"""The rule about stuck tasks looks at this many groups of a task."""

LEAST_COMPLETIONS = 64
"""A share of fewer completions is no sign."""

FINISHED_ATTEMPTS = 32
"""The last attempts of a task that count when the rules ask whether the task fails."""

ANSWERS_PER_GROUP = 16
"""Further answers of a large group are ignored, to save memory."""

EXAMPLE_CHARS = 200

ENDS_AFTER_S = 300.0
"""An alarm is over when its sign has been absent for this long, so that a value near a limit gives few lines."""

MOST_NAMED = 10
"""A warning names at most this many tasks."""


# --- the window of numbers


@dataclass(frozen=True)
class Answer:
    """One answer. `key` is equal for answers that differ only in blanks and case."""

    key: int
    text: str
    is_right: bool

    @classmethod
    def of(cls, text: str, *, is_right: bool) -> Answer:
        return cls(hash(" ".join(text.casefold().split())), " ".join(text[:60].split()), is_right)


@dataclass(frozen=True)
class ScoredGroup:
    """The numbers of one scored group. `item` is equal for groups of the same question."""

    task: str
    level: float | None
    item: int
    completions: int
    """The completions that have a score. All other numbers are about them."""
    exact: int
    unreadable: int
    cut_off: int
    reward: float
    has_signal: bool
    answers: Sequence[Answer]
    unreadable_example: str = ""
    verifier_errors: int = 0
    """The answers for which the verifier of the task raised an error."""
    verifier_error: str = ""
    """One of these errors."""


def numbers_of(problem: Problem, rollouts: Sequence[Rollout]) -> ScoredGroup | None:
    """The numbers of a group; None if no completion has a score."""
    scored = [rollout for rollout in rollouts if rollout.outcome.is_scored]
    if not scored:
        return None
    unreadable = [rollout for rollout in scored if rollout.outcome.is_unreadable]
    errors = [rollout.score.explanation for rollout in scored if rollout.outcome is Outcome.VERIFIER_ERROR]
    return ScoredGroup(
        task=problem.task,
        level=problem.level,
        item=hash(problem.question),
        completions=len(scored),
        exact=sum(rollout.outcome is Outcome.CORRECT for rollout in scored),
        unreadable=len(unreadable),
        cut_off=sum(rollout.completion.finish_reason == "length" for rollout in scored),
        reward=fmean(rollout.reward for rollout in scored),
        has_signal=has_signal(
            [rollout.reward for rollout in rollouts],
            [rollout.mask_reason is not None for rollout in rollouts],
        ),
        answers=_answers_of(scored[:ANSWERS_PER_GROUP]),
        unreadable_example=unreadable[0].completion.text[: 2 * EXAMPLE_CHARS] if unreadable else "",
        verifier_errors=len(errors),
        verifier_error=errors[0] if errors else "",
    )


def _answers_of(rollouts: Sequence[Rollout]) -> list[Answer]:
    answers = []
    for rollout in rollouts:
        text = rollout.score.answer
        if text is not None:
            answers.append(Answer.of(text, is_right=rollout.outcome is Outcome.CORRECT))
    return answers


MEASURES: Mapping[str, Callable[[ScoredGroup], float]] = {
    "reward": lambda group: group.reward,
    "exact": lambda group: group.exact / group.completions,
    "signal": lambda group: group.has_signal,
    "unreadable": lambda group: group.unreadable / group.completions,
    "cut off": lambda group: group.cut_off / group.completions,
}
"""What the log shows of the newest groups."""


class Window:
    """The newest scored groups, and how the newest attempts ended."""

    def __init__(self) -> None:
        self.groups: deque[ScoredGroup] = deque(maxlen=2 * RECENT)
        self.by_task: defaultdict[str, deque[ScoredGroup]] = defaultdict(lambda: deque(maxlen=OF_A_TASK))
        self.endings: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=FINISHED_ATTEMPTS))
        """How the newest attempts of each task ended."""
        self.not_sent: Counter[str] = Counter()
        """How attempts ended since the last group that was sent or written."""
        self.sent_at = now()
        """When the last group was sent or written, or when the run began."""

    def add(self, group: ScoredGroup | None) -> None:
        """Add a scored group."""
        if group is not None:
            self.groups.append(group)
            self.by_task[group.task].append(group)

    def note_ending(self, task: str, outcome: str, *, is_sent: bool) -> None:
        """Note how an attempt to make a group of a task ended."""
        self.endings[task].append(outcome)
        if is_sent:
            self.not_sent.clear()
            self.sent_at = now()
        else:
            self.not_sent[outcome] += 1

    @property
    def newest(self) -> list[ScoredGroup]:
        """The newest RECENT groups."""
        return list(self.groups)[-RECENT:]

    def in_words(self) -> str:
        """Such as `The last 128 groups: reward 41.0% (+5.0), exact 38.2% (+3.1), ...`, with changes if they are known.

        A change is the difference from the RECENT groups before the newest.
        """
        newest = self.newest
        before = list(self.groups)[:-RECENT]
        parts = []
        for name, measure in MEASURES.items():
            mean = fmean(map(measure, newest))
            part = f"{name} {mean:.1%}"
            if len(before) == RECENT:
                # Adding 0.0 turns -0.0 into 0.0, so that no change is "+0.0".
                points = round(100 * (mean - fmean(map(measure, before))), 1) + 0.0
                part += f" ({points:+.1f})"
            parts.append(part)
        return f"The last {len(newest)} groups: {', '.join(parts)}"


# --- rules about the completions, which also hold for an evaluation and for a dump


@dataclass(frozen=True)
class Sign:
    """What a rule has found: sentences with numbers, the tasks that they are about, if any, and what to do."""

    text: str
    tasks: Sequence[str] = ()
    remedy: str = ""
    share: float = 0.0
    """How much of the run or evaluation it is about. A report names the largest share first."""


def unreadable(groups: Sequence[ScoredGroup]) -> Sign | None:
    """More than half of the completions have no readable answer."""
    share = _share(sum(group.unreadable for group in groups), groups)
    if share <= 0.5:
        return None
    examples = [group.unreadable_example for group in groups if group.unreadable_example]
    newest = f" Newest: {printable(examples[-1], EXAMPLE_CHARS)!r}." if examples else ""
    return Sign(
        f"{share:.0%} of {_completions(groups):,} completions have no readable answer.{newest} If the model writes "
        "answers in another form than answer_format, or has not learned this form, see docs/prompts.md.",
        share=share,
    )


def cut_off(groups: Sequence[ScoredGroup]) -> Sign | None:
    """More than half of the completions reach their limit of tokens."""
    share = _share(sum(group.cut_off for group in groups), groups)
    if share <= 0.5:
        return None
    return Sign(
        f"{share:.0%} of {_completions(groups):,} completions were cut off at their limit of tokens. Raise "
        "max_token_length, and the context length of the server, or see docs/troubleshooting.md.",
        share=share,
    )


LEAST_ITEMS = 32
"""An answer must be given to this many different questions. With fewer, an honest guess looks like a sign too often."""

MOST_RIGHT = 0.25
"""An answer that is right more often is an honest guess, such as True for a yes-or-no question."""


def one_answer(groups: Sequence[ScoredGroup]) -> Sign | None:
    """One answer is more than half of the answers to many different questions, and it is mostly wrong."""
    counts = Counter(answer.key for group in groups for answer in group.answers)
    if not counts:
        return None
    [(key, count)] = counts.most_common(1)
    given: list[Answer] = []
    items = set()
    tasks = set()
    for group in groups:
        same = [answer for answer in group.answers if answer.key == key]
        if same:
            given += same
            items.add(group.item)
            tasks.add(group.task)
    share = count / counts.total()
    right = fmean(answer.is_right for answer in given)
    if share <= 0.5 or len(items) < LEAST_ITEMS or right > MOST_RIGHT:
        return None
    return Sign(
        f"{share:.0%} of the answers, to {len(items)} different questions of {len(tasks)} tasks, are "
        f"{printable(given[-1].text, EXAMPLE_CHARS)!r}, and {right:.0%} of them are right. See "
        "docs/troubleshooting.md.",
        share=count / _completions(groups),
    )


LEAST_VERIFIED = 16
"""A verifier must have got this many answers. A few odd answers make a sound verifier fail."""


def verifier_fails(groups: Sequence[ScoredGroup]) -> Sign | None:
    """The verifiers of some tasks raise an error for more than half of the answers."""
    answers: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for group in groups:
        answers[group.task] += group.completions - group.unreadable
        errors[group.task] += group.verifier_errors
        if group.verifier_error:
            examples[group.task] = group.verifier_error
    failing = sorted(task for task in examples if answers[task] >= LEAST_VERIFIED and errors[task] > answers[task] / 2)
    if not failing:
        return None
    first = failing[0]
    return Sign(
        f"The verifiers of {shortened(failing, MOST_NAMED)} raise an error for most answers, which then score 0. In "
        f"{first}: {printable(examples[first], EXAMPLE_CHARS)}. Correct the verifier, or leave the task out with "
        "exclude_tasks.",
        failing,
        share=errors.total() / answers.total(),
    )


def _completions(groups: Iterable[ScoredGroup]) -> int:
    return sum(group.completions for group in groups)


def _share(count: int, groups: Iterable[ScoredGroup]) -> float:
    """The share of the completions, or 0 if there are too few of them."""
    total = _completions(groups)
    return count / total if total >= LEAST_COMPLETIONS else 0.0


# --- rules about the groups of a run


LEAST_NOT_SENT = 8


def nothing_sent(window: Window, waits_for: str, *, is_stalled: bool) -> Sign | None:
    """No group has been sent since many attempts ended otherwise, or since the run has stalled."""
    count = window.not_sent.total()
    if count < LEAST_NOT_SENT and not is_stalled:
        return None
    text = f"The trainer got no group for {(now() - window.sent_at) / 60:.0f} min."
    if waits_for:
        text += f" The run waits for {waits_for}."
    if count:
        endings = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in window.not_sent.most_common())
        text += (
            f" {count} groups ended: {endings}. The trainer can learn only from groups whose rewards differ: see "
            "docs/troubleshooting.md."
        )
    return Sign(text)


LEAST_STUCK_GROUPS = 16


def stuck_tasks(by_task: Mapping[str, Sequence[ScoredGroup]], excluded: Sequence[str] = ()) -> Sign | None:
    """Tasks without any right answer at their lowest level, while other tasks have some.

    The remedy is the flag that excludes these tasks too. `excluded` is what `exclude_tasks` has now.
    """
    stuck = sorted(task for task, groups in by_task.items() if _is_stuck(groups))
    if not stuck or len(stuck) == len(by_task):
        return None
    return Sign(
        f"No answer was right in the last {LEAST_STUCK_GROUPS} groups or more of {shortened(stuck, MOST_NAMED)}, at "
        "the lowest level. Such groups teach nothing: see docs/troubleshooting.md, or exclude these tasks.",
        stuck,
        f"--env.exclude_tasks {','.join([*excluded, *stuck])}",
        share=len(stuck) / len(by_task),
    )


def _is_stuck(groups: Sequence[ScoredGroup]) -> bool:
    at_lowest = [group for group in groups if not group.level]
    return len(at_lowest) >= LEAST_STUCK_GROUPS and not any(group.exact for group in groups)


LEAST_ENDINGS = 8

FAILED_ENDINGS = frozenset({"timed_out", "fault"})


def failing_tasks(endings: Mapping[str, Sequence[str]]) -> Sign | None:
    """Tasks for which half of the attempts end with a failure of ours: no completion could be scored, or an error."""
    failing = []
    for task, ended in sorted(endings.items()):
        failed = sum(ending in FAILED_ENDINGS for ending in ended)
        if len(ended) >= LEAST_ENDINGS and failed >= len(ended) / 2:
            failing.append(task)
    if not failing:
        return None
    return Sign(
        f"Half of the last groups or more of {shortened(failing, MOST_NAMED)} failed or could not be scored. "
        "The log says why. "
        "exclude_tasks leaves a task out; docs/troubleshooting.md has the reasons.",
        failing,
        share=len(failing) / len(endings),
    )


# --- alarms that begin and end


@dataclass(frozen=True)
class Rule:
    """What begins an alarm: the rule must find its sign at every look for `after_s` seconds."""

    name: str
    sign: Callable[[], Sign | None]
    after_s: float = 0.0


def completion_rules(window: Window) -> list[Rule]:
    """The rules about the newest completions, which also hold for an evaluation."""
    return [
        Rule("unreadable", lambda: unreadable(window.newest)),
        Rule("cut_off", lambda: cut_off(window.newest)),
        Rule("one_answer", lambda: one_answer(window.newest)),
        Rule("verifier_fails", lambda: verifier_fails(window.newest)),
    ]


def task_rules(window: Window, excluded: Sequence[str] = ()) -> list[Rule]:
    """The rules about single tasks of a run that excludes these tasks."""
    return [
        Rule("stuck_tasks", lambda: stuck_tasks(window.by_task, excluded)),
        Rule("failing_tasks", lambda: failing_tasks(window.endings)),
    ]


class Alarm:
    """One rule, and whether its alarm lasts: `is_on` is None before it has begun for the first time."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.is_on: bool | None = None
        self._since: float | None = None
        """Since when the rule has found its sign at every look, or None."""
        self._found_at = 0.0

    def look(self) -> None:
        """Look at the rule once."""
        sign = self.rule.sign()
        if sign is None:
            self._since = None
            if self.is_on and now() - self._found_at >= ENDS_AFTER_S:
                self.is_on = False
                logger.info("The alarm %s is over.", self.rule.name)
            return
        self._found_at = now()
        if self._since is None:
            self._since = now()
        if not self.is_on and now() - self._since >= self.rule.after_s:
            self.is_on = True
            logger.warning("ALARM %s: %s", self.rule.name, f"{sign.text} {sign.remedy}".strip())


class Alarms:
    """The alarms of a run. The code that runs looks at them every few seconds."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._alarms = [Alarm(rule) for rule in rules]

    def add(self, rules: Iterable[Rule]) -> None:
        """Add the rules of a loop."""
        self._alarms += [Alarm(rule) for rule in rules]

    @property
    def on(self) -> list[str]:
        """The names of the alarms that last now, sorted."""
        return sorted(alarm.rule.name for alarm in self._alarms if alarm.is_on)

    def look(self) -> None:
        """Look at each rule once."""
        for alarm in self._alarms:
            alarm.look()

    def metrics(self) -> dict[str, float]:
        """1.0 for each alarm that lasts, and 0.0 for each that is over."""
        begun = [alarm for alarm in self._alarms if alarm.is_on is not None]
        return {f"alarms/{alarm.rule.name}": float(alarm.is_on or False) for alarm in begun}


LOOK_EVERY = 16
"""Code that only scores completions checks the rules once in this many problems. A check costs half a millisecond."""


class CompletionWatch:
    """The alarms of code that only scores completions: an evaluation, or a trainer that calls the Python interface."""

    def __init__(self) -> None:
        self._window = Window()
        self._alarms = Alarms(completion_rules(self._window))
        self._observed = 0

    def observe(self, problem: Problem, completions: Sequence[Completion], scores: Sequence[Score]) -> None:
        """Add the completions of a problem, and look at the rules now and then."""
        pairs = zip(completions, scores, strict=True)
        rollouts = [Rollout(completion, score, score.value) for completion, score in pairs]
        self._window.add(numbers_of(problem, rollouts))
        self._observed += 1
        if self._observed % LOOK_EVERY == 0:
            self.look()

    def look(self) -> None:
        """Look at the rules now, because the last completions have been observed."""
        self._alarms.look()
