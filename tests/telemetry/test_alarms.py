"""Each alarm names its disaster once, with numbers, and no honest run sets one off."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from reasoning_gym_environment.records import (
    Completion,
    Group,
    GroupOutcome,
    Outcome,
    Problem,
    Rollout,
    Score,
    outcome_without_signal,
)
from reasoning_gym_environment.telemetry import alarms
from reasoning_gym_environment.telemetry.alarms import (
    ENDS_AFTER_S,
    RECENT,
    Alarms,
    CompletionWatch,
    Rule,
    ScoredGroup,
    Sign,
    Window,
    completion_rules,
    nothing_sent,
    numbers_of,
    stuck_tasks,
    task_rules,
)

GROUPS = 2 * RECENT
GROUP_S = 0.4
"""Seconds between two groups."""


@dataclass
class Reply:
    """One completion: its answer, or None, and what it earns."""

    answer: str | None
    paid: float = 0.0
    is_cut_off: bool = False


Student = Callable[[int], Iterable[Reply]]
"""The completions of the group of this index."""


class Run:
    """A run that sees groups and looks at its alarms every few groups, in simulated time."""

    def __init__(self, make_problem: Any, make_completion: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._make_problem = make_problem
        self._make_completion = make_completion
        self.time = 0.0
        monkeypatch.setattr(alarms, "now", lambda: self.time)
        self.window = Window()
        self.alarms = Alarms(completion_rules(self.window))
        self.alarms.add(task_rules(self.window))
        waits = lambda: nothing_sent(self.window, "the next item", is_stalled=False)  # noqa: E731
        self.alarms.add([Rule("nothing_sent", waits, after_s=60.0)])
        self.begun: dict[str, float] = {}
        """When each alarm was first on."""

    def group(self, index: int, replies: Iterable[Reply], task: str = "gcd", level: int | None = 0) -> Group:
        entry = {"question": f"Question {index}?", "answer": str(index), "metadata": {}}
        problem: Problem = self._make_problem(task=task, index=index, level=level, entry=entry)
        return Group(problem, [], [self._rollout(reply) for reply in replies])

    def _rollout(self, reply: Reply) -> Rollout:
        text = "I like numbers" if reply.answer is None else f"<answer>{reply.answer}</answer>"
        reason = "length" if reply.is_cut_off else "stop"
        completion: Completion = self._make_completion(text, finish_reason=reason)
        if reply.answer == "broken":
            score = Score(0.0, Outcome.VERIFIER_ERROR, answer="broken", explanation="NameError: total (own.py, line 3)")
        elif reply.answer is None:
            score = Score(0.0, Outcome.NO_ANSWER)
        else:
            outcome = Outcome.CORRECT if reply.paid == 1.0 else Outcome.WRONG
            score = Score(reply.paid, outcome, answer=reply.answer)
        return Rollout(completion, score, score.value, base_reward=score.value)

    def see(self, group: Group) -> None:
        """Take in a scored group, as telemetry does."""
        self.time += GROUP_S
        self.window.add(numbers_of(group.problem, group.rollouts))
        outcome = GroupOutcome.SENT if group.has_signal else outcome_without_signal(group)
        self.window.note_ending(group.problem.task, outcome, is_sent=group.has_signal)
        self.alarms.look()
        for name in self.alarms.on:
            self.begun.setdefault(name, self.time)

    def see_all(self, student: Student, groups: int = GROUPS, tasks: int = 2) -> None:
        for index in range(groups):
            self.see(self.group(index, student(index), task=f"task_{index % tasks}"))


@pytest.fixture
def run(make_problem: Any, make_completion: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(make_problem, make_completion, monkeypatch)


def numbers_of_task(exact: int) -> ScoredGroup:
    return ScoredGroup("a_task", 0, 1, 8, exact, 0, 0, exact / 8, bool(exact % 8), [])


# --- disasters


def always_zero(index: int) -> list[Reply]:
    return [Reply("0", float(index % 9 == 0))] * 8


def silent(index: int) -> list[Reply]:
    return [Reply(None)] * 7 + [Reply(str(index), 1.0)]


def breaks_the_verifier(index: int) -> list[Reply]:
    return [Reply("broken")] * 7 + [Reply(str(index), 1.0)]


def cut_off(index: int) -> list[Reply]:
    return [Reply(None, is_cut_off=True)] * 7 + [Reply(str(index), 1.0)]


@pytest.mark.parametrize(
    ("student", "name", "words"),
    [
        (always_zero, "one_answer", "100% of the answers, to 32 different questions of 2 tasks, are '0'"),
        (
            always_zero,
            "nothing_sent",
            "The trainer got no group for 1 min. The run waits for the next item. 159 groups ended: 141 all wrong",
        ),
        (silent, "unreadable", "88% of 64 completions have no readable answer. Newest: 'I like numbers'"),
        (cut_off, "cut_off", "88% of 64 completions were cut off at their limit of tokens"),
    ],
)
def test_a_disaster_is_named_once_and_within_two_minutes(
    student: Student, name: str, words: str, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.see_all(student)
    [line] = [message for message in caplog.messages if message.startswith(f"ALARM {name}: ")]
    assert words in line
    assert run.alarms.metrics()[f"alarms/{name}"] == 1.0
    assert run.begun[name] <= 120.0


def test_a_verifier_that_raises_is_named_with_its_error(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.see_all(breaks_the_verifier, tasks=1)
    [line] = [message for message in caplog.messages if message.startswith("ALARM verifier_fails: ")]
    assert "The verifiers of task_0 raise an error for most answers, which then score 0" in line
    assert "In task_0: NameError: total (own.py, line 3)" in line


def test_a_stuck_task_is_named_while_others_learn(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.see_all(
        lambda index: [Reply(f"{index}, {number}", float(index % 3 == 0 and number % 2)) for number in range(8)],
        tasks=3,
    )
    assert "No answer was right in the last 16 groups or more of task_1, at the lowest level" in caplog.text
    assert run.alarms.on == ["stuck_tasks"]


def test_the_warning_of_stuck_tasks_names_ten_and_has_the_flag_that_excludes_all_of_them() -> None:
    wrong = numbers_of_task(exact=0)
    by_task = {f"task_{number:02}": [wrong] * 16 for number in range(12)}
    assert stuck_tasks(by_task) is None, "a model that gets nothing right is no matter of single tasks"
    by_task["solved"] = [numbers_of_task(exact=8)] * 16
    sign = stuck_tasks(by_task, ["maze"])
    assert sign is not None and len(sign.tasks) == 12
    assert (
        "groups or more of task_00, task_01, task_02, task_03, task_04, task_05, task_06, task_07, task_08, "
        in sign.text
    )
    assert "task_09 and 2 more, at the lowest level" in sign.text
    assert sign.remedy == f"--env.exclude_tasks maze,{','.join(sign.tasks)}"


def test_a_task_whose_groups_cannot_be_scored_is_named(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(16):
        run.window.note_ending("slow_task", GroupOutcome.TIMED_OUT, is_sent=False)
        run.window.note_ending("gcd", GroupOutcome.SENT, is_sent=number % 2 == 0)
    run.alarms.look()
    assert "Half of the last groups or more of slow_task failed or could not be scored." in caplog.text


# --- honest runs


def learned(index: int) -> list[Reply]:
    hits = min(7, 1 + 8 * index // GROUPS)
    return [Reply(str(1000 + index), 1.0)] * hits + [Reply(str(2000 + 8 * index + n), 0.3) for n in range(8 - hits)]


def always_true(index: int) -> list[Reply]:
    """An honest guess at a yes-or-no question."""
    return [Reply("True", float((index + number) % 2)) for number in range(8)]


def mostly_true(index: int) -> list[Reply]:
    """The right answers of a task in which nearly all items have the same answer."""
    return [Reply("True" if index % 10 else "False", 1.0)] * 7 + [Reply(str(index))]


def noisy(index: int) -> list[Reply]:
    """Items differ much, and the accuracy stays the same."""
    random = Random(index)
    chance = random.choice([0.0, 0.1, 0.4, 0.9])
    return [Reply(str(n), float(random.random() < chance)) for n in range(8)]


@pytest.mark.parametrize("honest", [learned, always_true, mostly_true, noisy])
def test_honest_runs_set_off_no_alarm(honest: Student, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.see_all(honest, groups=5 * RECENT)
    assert run.begun == {}
    assert caplog.messages == []


# --- alarms begin and end


class AlarmMachine(RuleBasedStateMachine):
    """An alarm over a virtual clock. A reader of its lines alone knows whether it lasts."""

    AFTER_S = 60.0
    LOOK_S = 5.0

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.sign: Sign | None = None
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(alarms, "now", lambda: self.time)
        self.patch.setattr(alarms.logger, "warning", lambda text, *values: self.read(text % values))
        self.patch.setattr(alarms.logger, "info", lambda text, *values: self.read(text % values))
        self.alarms = Alarms([Rule("a_rule", lambda: self.sign, self.AFTER_S)])
        self.seen_since: float | None = None
        self.seen_at = 0.0
        self.is_on = False

    def teardown(self) -> None:
        self.patch.undo()

    def read(self, line: str) -> None:
        """What a reader learns from a line."""
        if line == "The alarm a_rule is over.":
            assert self.is_on and self.time - self.seen_at >= ENDS_AFTER_S
            self.is_on = False
            return
        assert line == "ALARM a_rule: It burns. Extinguish it."
        assert not self.is_on
        assert self.seen_since is not None and self.time - self.seen_since >= self.AFTER_S
        self.is_on = True

    @rule(burns=st.booleans(), looks=st.sampled_from([1, 2, 13, 40, 70]))
    def look(self, burns: bool, looks: int) -> None:
        self.sign = Sign("It burns.", remedy="Extinguish it.") if burns else None
        for _ in range(looks):
            self.time += self.LOOK_S
            if self.sign is None:
                self.seen_since = None
            else:
                self.seen_at = self.time
                if self.seen_since is None:
                    self.seen_since = self.time
            self.alarms.look()
            assert self.is_on == (self.alarms.on == ["a_rule"])
            assert self.alarms.metrics().get("alarms/a_rule", 0.0) == self.is_on
            if self.seen_since is not None and self.time - self.seen_since >= self.AFTER_S:
                assert self.is_on
            if self.time - self.seen_at >= ENDS_AFTER_S:
                assert not self.is_on


AlarmMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestAlarm = AlarmMachine.TestCase


def test_code_that_only_scores_completions_has_the_alarms_about_completions(
    make_problem: Any, make_completion: Any, caplog: pytest.LogCaptureFixture
) -> None:
    watch = CompletionWatch()
    score = Score(0.0, Outcome.NO_ANSWER)
    for _ in range(100):
        watch.observe(make_problem(), [make_completion("\x1b[31mhello")], [score])
    watch.look()
    [line] = caplog.messages
    assert "100% of 64 completions have no readable answer. Newest: '?[31mhello'" in line
