"""The demo's student and what the demo counts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.demo.main import EVENTS_FD
from reasoning_gym_environment.demo.simulated_students import load_students
from reasoning_gym_environment.demo.student import MODEL, Note, Student
from reasoning_gym_environment.demo.view import STAGES, Tally

PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


async def share_right(student: Student, complexity: float, items: int = 60) -> float:
    right = 0
    for number in range(items):
        question = f"Question {complexity} {number}?"
        await student.learn_about(question, Note("products", "17", complexity))
        right += "<answer>17</answer>" in await student.respond(PROMPT.format(question))
    return right / items


async def test_the_student_is_as_good_as_the_model_it_is_fitted_to() -> None:
    fitted = load_students()[MODEL]
    assert await share_right(Student(1), 0.0) == pytest.approx(fitted.accuracy("products", 0), abs=0.12)
    assert await share_right(Student(1), 1.0) < 0.1


async def test_training_makes_the_student_better() -> None:
    student = Student(1)
    before = student.probability("Q", Note("products", "17", 0.3))
    for _ in range(20):
        student.train("products")
    assert student.probability("Q", Note("products", "17", 0.3)) > before
    student.train("a task without data")
    assert student.probability("Q", Note("a task without data", "17", 0.3)) == 0.0


def group(task: str, scores: list[float], complexity: float) -> dict[str, Any]:
    return {
        "task": task,
        "category": "logic",
        "level": 1,
        "complexity": complexity,
        "scores": scores,
        "signal": len(set(scores)) > 1,
        "sent": True,
    }


def test_the_tally_compares_the_parts_of_a_run() -> None:
    tally = Tally(total_steps=1)
    assert tally.parts() == [] and tally.effective_tasks == 0.0
    for number in range(2 * STAGES):
        tally.add_group(group(f"task_{number % 2}", [1.0, float(number % 2)], complexity=number / 8))
    parts = tally.parts()
    assert [part.groups for part in parts] == [2] * STAGES
    assert [part.complexity for part in parts] == sorted(part.complexity for part in parts)
    assert (parts[0].accuracy, parts[0].signal_share) == (0.75, 0.5)
    assert parts[0].effective_tasks == pytest.approx(2.0)
    assert tally.effective_tasks == pytest.approx(2.0)
    assert tally.signal_share == 0.5


async def test_the_demo_environment_tells_of_every_item_and_lives_without_one(
    make_env: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not at the top: the other tests here do not need Atropos, nor the time that its import takes.
    from reasoning_gym_environment.demo.environment import DemoEnv

    events = tmp_path / "events.jsonl"
    monkeypatch.setenv(EVENTS_FD, str(os.open(events, os.O_WRONLY | os.O_CREAT)))
    env = make_env(kind=DemoEnv)
    await env.setup()
    before = events.read_text().count('"item"')
    item = await env.get_next_item()
    env._filling_until = 0.0
    assert await env.get_next_item() is None, "the time to start groups is over"
    told = [json.loads(line) for line in events.read_text().splitlines()]
    items = [event for event in told if event["event"] == "item"]
    assert len(items) == before + 1 and items[-1]["question"] == item[1]["question"]
