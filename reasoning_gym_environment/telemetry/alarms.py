"""Alarms: signs that a run wastes its time, each with numbers, an example and a remedy.

    a scored group ─────────> Window ─┐
    how an attempt ended ──────┘      ├──> Rule ──> a sentence, or "" ──> a warning when it begins, a line when it ends
    what a loop waits for ────────────┘                                   and a metric while it lasts

Each rule is one small function that looks at the same window of numbers. An alarm begins when its rule has found the
sign at every look for `after_s` seconds, and ends when the rule finds it no more. A sign is a reason to look at the
rollouts, and no proof. The alarms change nothing else. A restart forgets the window.

The rules here are about completions and groups. The rules about requests and items are in atropos/run_watch.py, those
about run-api and the loop of `serve` in atropos/serve_loop.py.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, pstdev

from ..records import Completion, Outcome, Problem, Rollout, Score, has_signal
from ..utils.clock import now
from ..utils.terminal import printable

logger = logging.getLogger(__name__)

RECENT = 128
"""The rules look at this many groups, and compare them with as many groups before."""

OF_A_TASK = 64
"""The rules for a single task look at this many of its groups."""

LEAST_COMPLETIONS = 64
"""A share of fewer completions is no sign."""

FINISHED_ATTEMPTS = 32
"""The last attempts of a task that count when the rules ask whether the task fails."""

ANSWERS_PER_GROUP = 16
"""Further answers of a large group are ignored, to save memory."""

EXAMPLE_CHARS = 200

QUIET_S = 600.0
"""An alarm that ended less than this long ago begins again without another warning."""

BETWEEN_WARNINGS_S = 60.0
"""An alarm that further tasks join warns of them together, this long after its last warning: once a status block."""


# --- the window of numbers


@dataclass(frozen=True)
class Answer:
    """One answer. `key` is equal for answers that differ only in blanks and case. `paid` is the base reward."""

    key: int
    text: str
    paid: float
    is_right: bool


@dataclass(frozen=True)
class ScoredGroup:
    """The numbers of one scored group. `item` is equal for groups of the same question."""

    task: str
    level: int | None
    item: int
    completions: int
    exact: int
    unreadable: int
    cut_off: int
    base_reward: float
    reward: float
    """The means over the completions that have a score."""
    has_signal: bool
    answers: Sequence[Answer]
    unreadable_example: str

    @property
    def exact_rate(self) -> float:
        return self.exact / self.completions


def numbers_of(problem: Problem, rollouts: Sequence[Rollout]) -> ScoredGroup | None:
    """The numbers of a group; None if no completion has a score."""
    scored = [rollout for rollout in rollouts if rollout.score.outcome.is_scored]
    if not scored:
        return None
    unreadable = [rollout for rollout in scored if rollout.score.failure is not None]
    return ScoredGroup(
        task=problem.task,
        level=problem.level,
        item=hash(problem.question),
        completions=len(scored),
        exact=sum(rollout.score.outcome is Outcome.CORRECT for rollout in scored),
        unreadable=len(unreadable),
        cut_off=sum(rollout.completion.finish_reason == "length" for rollout in scored),
        base_reward=fmean(rollout.base_reward for rollout in scored),
        reward=fmean(rollout.reward for rollout in scored),
        has_signal=has_signal(
            [rollout.reward for rollout in rollouts],
            [rollout.mask_reason is not None for rollout in rollouts],
        ),
        answers=_answers_of(scored[:ANSWERS_PER_GROUP]),
        unreadable_example=unreadable[0].completion.text[: 2 * EXAMPLE_CHARS] if unreadable else "",
    )


def _answers_of(rollouts: Sequence[Rollout]) -> list[Answer]:
    answers = []
    for rollout in rollouts:
        text = rollout.score.answer
        if text is not None:
            key = hash(" ".join(text.casefold().split()))
            is_right = rollout.score.outcome is Outcome.CORRECT
            answers.append(Answer(key, " ".join(text[:60].split()), rollout.base_reward, is_right))
    return answers


@dataclass(frozen=True)
class Accuracy:
    """The results of RECENT groups together."""

    exact_rate: float
    level: float
    """The mean level of the groups. A group without a level counts as level 0."""


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
        self.best: Accuracy | None = None
        self._added = 0

    def add(self, group: ScoredGroup | None) -> None:
        """Add a scored group."""
        if group is None:
            return
        self.groups.append(group)
        self.by_task[group.task].append(group)
        self._added += 1
        if self._added % RECENT == 0:
            accuracy = accuracy_of(self.newest)
            if self.best is None or accuracy.exact_rate > self.best.exact_rate:
                self.best = accuracy

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

    @property
    def before(self) -> list[ScoredGroup]:
        """The RECENT groups before the newest, or fewer."""
        return list(self.groups)[:-RECENT]


def accuracy_of(groups: Sequence[ScoredGroup]) -> Accuracy:
    """The means over at least one group."""
    return Accuracy(
        exact_rate=fmean(group.exact_rate for group in groups),
        level=fmean(group.level or 0 for group in groups),
    )


# --- rules about the completions, which also hold for an evaluation


def unreadable(window: Window) -> str:
    """More than half of the completions have no readable answer."""
    groups = window.newest
    count = sum(group.unreadable for group in groups)
    share, is_enough = _share(count, groups)
    if not is_enough or share <= 0.5:
        return ""
    example = next(group.unreadable_example for group in reversed(groups) if group.unreadable)
    return (
        f"{share:.0%} of the last {_completions(groups)} completions have no readable answer. Newest: "
        f"{printable(example, EXAMPLE_CHARS)!r}. If the model writes answers in another form than answer_format, see "
        "docs/prompts.md, otherwise docs/cold_start.md."
    )


def cut_off(window: Window) -> str:
    """More than half of the completions reach their limit of tokens."""
    groups = window.newest
    share, is_enough = _share(sum(group.cut_off for group in groups), groups)
    if not is_enough or share <= 0.5:
        return ""
    return (
        f"{share:.0%} of the last {_completions(groups)} completions were cut off at their limit of tokens. Raise "
        "max_token_length, and the context length of the server, or see docs/cold_start.md."
    )


def one_answer(window: Window) -> str:
    """One answer is more than half of the answers to many different questions, and it is mostly wrong."""
    sign = most_common_answer(window.newest)
    if sign is None or sign.share <= 0.5 or sign.items < LEAST_ITEMS or sign.right > MOST_RIGHT:
        return ""
    return (
        f"{sign.share:.0%} of the last answers, to {sign.items} different questions of {sign.tasks} tasks, are "
        f"{sign.text!r}, and {sign.right:.0%} of them are right. See docs/cold_start.md."
    )


# --- rules about training


LEAST_ITEMS = 32
"""An answer must be given to this many different questions. With fewer, an honest guess looks like a sign too often."""

MOST_RIGHT = 0.25
"""An answer that is right more often is an honest guess, such as True for a yes-or-no question."""

REPEATED_SHARE = 0.4
"""A repeated answer must be at least this share of the answers of its task."""

LEAST_PAID = 0.1
"""A repeated answer must earn at least this base reward on average: a hack pays."""


def repeated_answer(window: Window) -> str:
    """In some task, many answers to different questions are the same paid answer, which is mostly wrong."""
    found = []
    for task, groups in window.by_task.items():
        sign = most_common_answer(groups)
        if sign is None or sign.share < REPEATED_SHARE or sign.items < LEAST_ITEMS:
            continue
        if sign.right <= MOST_RIGHT and sign.paid >= LEAST_PAID:
            found.append(
                f"{task}, where {sign.text!r} is {sign.share:.0%} of all answers, to {sign.items} different items, is "
                f"right in {sign.right:.0%} and earns {sign.paid:.2f} on average"
            )
    if not found:
        return ""
    return f"Rewards may be hacked in {'; '.join(found)}. Look at its rollouts: docs/scoring.md."


def accuracy_fell(window: Window) -> str:
    """The share of right answers is less than half of the best so far, at levels that are no harder."""
    if window.best is None or len(window.groups) < RECENT:
        return ""
    best = window.best
    current = accuracy_of(window.newest)
    noise = 4 * math.sqrt(best.exact_rate * (1 - best.exact_rate) * 2 / RECENT)
    is_harder = current.level > best.level + 0.25
    if current.exact_rate > best.exact_rate / 2 or best.exact_rate - current.exact_rate < noise or is_harder:
        return ""
    return (
        f"{current.exact_rate:.1%} of the answers in the last {RECENT} groups are right. At best, "
        f"{best.exact_rate:.1%} were right, at levels that were as hard. Compare with an earlier checkpoint of the "
        "model, and look at the trainer's losses."
    )


LEAST_CHANGE = 0.02


def reward_without_accuracy(window: Window) -> str:
    """Rewards rise while the share of right answers falls."""
    before, newest = window.before, window.newest
    if len(before) < RECENT:
        return ""
    reward = _change([group.base_reward for group in before], [group.base_reward for group in newest])
    exact = _change([group.exact_rate for group in before], [group.exact_rate for group in newest])
    is_higher = reward.size > max(4 * reward.error, LEAST_CHANGE)
    is_lower = -exact.size > max(4 * exact.error, LEAST_CHANGE)
    if not (is_higher and is_lower):
        return ""
    return (
        f"From the {RECENT} groups before to the last {RECENT}, the mean reward rose by {reward.size:.2f}, while the "
        f"share of right answers fell by {-exact.size:.1%}. Partial credit may pay for something else than the task: "
        "set partial_credit to exact, or look at the rollouts (docs/scoring.md)."
    )


NOT_SENT_S = 60.0
"""How long no group may be sent, although groups are scored."""

LEAST_NOT_SENT = 8


def nothing_sent(window: Window) -> str:
    """The trainer got no group for a while, although many attempts ended."""
    seconds = now() - window.sent_at
    count = window.not_sent.total()
    if seconds < NOT_SENT_S or count < LEAST_NOT_SENT:
        return ""
    endings = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in window.not_sent.most_common())
    return (
        f"The trainer got no group for {seconds / 60:.0f} min, although {count} groups ended: {endings}. It can learn "
        "only from groups whose rewards differ: see docs/cold_start.md."
    )


LEAST_STUCK_GROUPS = 16


def stuck_tasks(window: Window) -> str:
    """Tasks without any right answer at their lowest level, while other tasks have some."""
    stuck = tasks_at_zero(window)
    if not stuck or len(stuck) == len(window.by_task):
        return ""
    return (
        f"No answer was right in the last {LEAST_STUCK_GROUPS} groups or more of {', '.join(stuck)}, at the "
        "lowest level. Such groups teach nothing: give the task a weight of 0 in task_weights, or see "
        "docs/cold_start.md."
    )


def tasks_at_zero(window: Window) -> list[str]:
    """The tasks that `stuck_tasks` names, sorted."""
    return sorted(task for task, groups in window.by_task.items() if is_stuck_at_zero(groups))


def is_stuck_at_zero(groups: Sequence[ScoredGroup]) -> bool:
    """Whether enough groups of a task at its lowest level have no right answer."""
    at_lowest = [group for group in groups if not group.level]
    return len(at_lowest) >= LEAST_STUCK_GROUPS and not any(group.exact for group in groups)


LEAST_ENDINGS = 8

FAILED_ENDINGS = frozenset({"timed_out", "fault"})


def failing_tasks(window: Window) -> str:
    """Tasks for which half of the attempts end with a failure of ours: no completion could be scored, or an error."""
    failing = []
    for task, endings in window.endings.items():
        failed = sum(ending in FAILED_ENDINGS for ending in endings)
        if len(endings) >= LEAST_ENDINGS and failed >= len(endings) / 2:
            failing.append(f"{task} ({failed} of {len(endings)})")
    if not failing:
        return ""
    return (
        f"Groups of {', '.join(sorted(failing))} could not be scored. Earlier lines say why. exclude_tasks leaves a "
        "task out; docs/troubleshooting.md has the reasons."
    )


# --- what the rules share


@dataclass(frozen=True)
class MostCommonAnswer:
    """The most common answer: its share of all answers, its items and tasks, and what it earns."""

    text: str
    share: float
    items: int
    tasks: int
    right: float
    paid: float


def most_common_answer(groups: Iterable[ScoredGroup]) -> MostCommonAnswer | None:
    """The most common answer; None without any answer."""
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
    return MostCommonAnswer(
        text=given[-1].text,
        share=count / counts.total(),
        items=len(items),
        tasks=len(tasks),
        right=fmean(answer.is_right for answer in given),
        paid=fmean(answer.paid for answer in given),
    )


@dataclass(frozen=True)
class Change:
    """The difference of two means, and its standard error."""

    size: float
    error: float


def _change(before: Sequence[float], after: Sequence[float]) -> Change:
    error = math.sqrt(pstdev(before) ** 2 / len(before) + pstdev(after) ** 2 / len(after))
    return Change(fmean(after) - fmean(before), error)


def _completions(groups: Iterable[ScoredGroup]) -> int:
    return sum(group.completions for group in groups)


def _share(count: int, groups: Iterable[ScoredGroup]) -> tuple[float, bool]:
    """The share of the completions, and whether there are enough of them."""
    total = _completions(groups)
    return count / max(1, total), total >= LEAST_COMPLETIONS


# --- alarms that begin and end


@dataclass(frozen=True)
class Rule:
    """An alarm: `sign` returns a sentence while there is a reason for it, else "".

    The reason must be there at every look for `after_s` seconds. `tasks` returns the tasks that the sentence is about.
    While the alarm lasts, it warns again when other tasks join them.
    """

    name: str
    sign: Callable[[], str]
    after_s: float = 0.0
    tasks: Callable[[], Iterable[str]] = tuple


def completion_rules(window: Window) -> list[Rule]:
    """The rules about completions, which also hold for an evaluation."""
    return [
        Rule("unreadable", partial(unreadable, window)),
        Rule("cut_off", partial(cut_off, window)),
        Rule("one_answer", partial(one_answer, window)),
    ]


def training_rules(window: Window) -> list[Rule]:
    """The rules about the groups of a training run."""
    return [
        *completion_rules(window),
        Rule("repeated_answer", partial(repeated_answer, window)),
        Rule("accuracy_fell", partial(accuracy_fell, window)),
        Rule("reward_without_accuracy", partial(reward_without_accuracy, window)),
        Rule("nothing_sent", partial(nothing_sent, window)),
        Rule("stuck_tasks", partial(stuck_tasks, window), tasks=partial(tasks_at_zero, window)),
        Rule("failing_tasks", partial(failing_tasks, window)),
    ]


class Alarms:
    """Looks at the rules now and then, and says when an alarm begins, when other tasks join it, and when it ends."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = list(rules)
        self._since: dict[str, float] = {}
        """Since when each rule has found its sign."""
        self._on: set[str] = set()
        self._ended_at: dict[str, float] = {}
        self._warned_at: dict[str, float] = {}
        self._named: dict[str, set[str]] = {}
        """The tasks that the warnings of each alarm have named."""

    @property
    def on(self) -> list[str]:
        """The names of the alarms that last now, sorted."""
        return sorted(self._on)

    def look(self) -> None:
        """Look at each rule once."""
        at = now()
        for rule in self.rules:
            text = rule.sign()
            if not text:
                self._end(rule.name)
            elif at - self._since.setdefault(rule.name, at) >= rule.after_s:
                self._begin(rule, text)

    def _begin(self, rule: Rule, text: str) -> None:
        """Warn of an alarm that begins, or of the tasks that have joined it."""
        name = rule.name
        tasks = set(rule.tasks())
        is_on = name in self._on
        self._on.add(name)
        if not is_on and now() - self._ended_at.get(name, -math.inf) >= QUIET_S:
            self._warn(name, text, tasks)
            return
        joined = tasks - self._named[name]
        if joined and now() - self._warned_at[name] >= BETWEEN_WARNINGS_S:
            self._warn(name, f"Now also {', '.join(sorted(joined))}. {text}", tasks | self._named[name])

    def _warn(self, name: str, text: str, tasks: set[str]) -> None:
        logger.warning("ALARM %s: %s", name, text)
        self._warned_at[name] = now()
        self._named[name] = tasks

    def _end(self, name: str) -> None:
        self._since.pop(name, None)
        if name in self._on:
            self._on.remove(name)
            self._ended_at[name] = now()
            logger.info("The alarm %s is over.", name)

    def metrics(self) -> dict[str, float]:
        """1.0 for each alarm that lasts, and 0.0 for each that is over."""
        return {f"alarms/{name}": float(name in self._on) for name in self._on | self._ended_at.keys()}


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
        rollouts = [Rollout(completion, score, score.value, base_reward=score.value) for completion, score in pairs]
        self._window.add(numbers_of(problem, rollouts))
        self._observed += 1
        if self._observed % LOOK_EVERY == 0:
            self._alarms.look()
