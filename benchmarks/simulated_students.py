"""A simulated student in place of a model: it looks the answer up, then decides whether to give it.

The environment under demonstration tells the demo which item it drew (see environment.py); the student waits for that
note. It is right as often as a published model was on such a task and level, every item a little harder or easier, and
it gets better with each group that it is trained on. No model is involved.

    data/simulated_students.json   per model and task: logit of the accuracy at one place of the ladder, its slope per
                                   level, the spread between items
    SimulatedModel                 the accuracy at any level, the chance of one item, learning
    Student                        replies to prompts

The numbers are fitted by benchmarks/fit_students.py, which says how, and what they are not.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ..errors import unknown_name
from ..utils.aio import within
from ..utils.seeding import derive_random

DATA = Path(__file__).resolve().parent.parent / "data" / "simulated_students.json"

MODEL = "qwen_qwq-32b"
FORGETS_FORMAT = 0.02
ANSWERS_TWICE = 0.005
RUNS_ON = 0.005
PATIENCE_S = 10.0


@dataclass(frozen=True)
class FittedTask:
    """One model on one task. `easy` is the place of the fitted logit on the ladder, in levels; `slope` is per level."""

    category: str
    levels: int
    easy: float
    logit: float
    slope: float
    rho: float
    wrong_score: float

    def accuracy(self, level: float, gained: float = 0.0) -> float:
        """Mean success probability at a level, after `gained` logits of learning."""
        return sigmoid(self.logit + gained + self.slope * (level - self.easy))


@dataclass(frozen=True)
class Learning:
    """A group that carries a signal raises the logit of its task by `gain`, that of others of its category by a share.

    Growth ends at `ceiling`. A rule of thumb to see a curriculum follow a model, fitted to nothing.
    """

    gain: float = 0.01
    transfer: float = 0.1
    ceiling: float = 4.0


DEMO_LEARNING = Learning(gain=0.1)
"""Much faster than a real model learns, so that its curriculum is seen to follow within a minute."""


class SimulatedModel:
    """One published model. Deterministic but for the random generators it is given."""

    def __init__(self, name: str, tasks: Mapping[str, FittedTask], learning: Learning | None = None) -> None:
        self.name = name
        self.tasks = dict(tasks)
        self._learning = learning
        self._gained = dict.fromkeys(self.tasks, 0.0)

    def accuracy(self, task: str, level: float) -> float:
        """Mean success probability at a (fractional) level. Raises UnknownNameError for a task without data."""
        return self.fitted(task).accuracy(level, self._gained[task])

    def item_probability(self, task: str, level: float, rng: Random) -> float:
        """The success probability of one item, drawn around the accuracy of its level."""
        a, b = beta_parameters(self.accuracy(task, level), self.fitted(task).rho)
        return rng.betavariate(a, b)

    def learn(self, task: str, has_signal: bool) -> None:
        """Be trained on one group; without `learning` nothing changes."""
        if self._learning is None or not has_signal:
            return
        category = self.fitted(task).category
        for other, fitted in self.tasks.items():
            if fitted.category == category:
                gain = self._learning.gain * (1.0 if other == task else self._learning.transfer)
                self._gained[other] = min(self._learning.ceiling, self._gained[other] + gain)

    def fitted(self, task: str) -> FittedTask:
        if task not in self.tasks:
            raise unknown_name(f"task of {self.name}", task, self.tasks)
        return self.tasks[task]


def beta_parameters(mean: float, rho: float) -> tuple[float, float]:
    """Of the Beta distribution with this mean whose draws correlate two completions of an item by `rho`."""
    size = 1.0 / rho - 1.0
    mean = min(max(mean, 1e-6), 1.0 - 1e-6)
    return mean * size, (1.0 - mean) * size


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def fitted_tasks() -> dict[str, dict[str, FittedTask]]:
    """The fitted numbers by model and task."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    places = data["tasks"]
    return {
        name.removeprefix("models/"): {task: FittedTask(*places[task], *numbers) for task, numbers in table.items()}
        for name, table in data.items()
        if name.startswith("models/")
    }


@dataclass(frozen=True)
class Note:
    """What the student needs to know about one item."""

    task: str
    answer: str | None
    complexity: float


class Student:
    """Replies to prompts. `respond` is what the inference server calls, once for each completion."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._model = SimulatedModel(MODEL, fitted_tasks()[MODEL], DEMO_LEARNING)
        self._probabilities: dict[str, float] = {}
        self._notes: dict[str, Note] = {}
        self._arrived = asyncio.Condition()

    async def learn_about(self, question: str, note: Note) -> None:
        """Take the note for one question."""
        async with self._arrived:
            self._notes[question.strip()] = note
            self._probabilities[question.strip()] = self.probability(question, note)
            self._arrived.notify_all()

    def train(self, task: str) -> None:
        """Get better: a group of this task was sent to the trainer."""
        if task in self._model.tasks:
            self._model.learn(task, has_signal=True)

    async def respond(self, prompt: str) -> str:
        """One completion for a ChatML prompt."""
        question = _question_in(prompt)
        async with self._arrived:
            await within(PATIENCE_S, self._arrived.wait_for(lambda: question in self._notes))
        note = self._notes[question]
        thoughts = _thoughts(note, self._random)
        if self._random.random() < RUNS_ON:
            return f"<think>{thoughts} Wait, let me start over."
        if self._random.random() < FORGETS_FORMAT:
            return f"<think>{thoughts}</think>\nI believe it is {note.answer}."
        right = self._random.random() < self._probabilities[question] and note.answer is not None
        answer = note.answer if right else _wrong_answer(note, self._random)
        reply = f"<think>{thoughts}</think>\n<answer>{answer}</answer>"
        if self._random.random() < ANSWERS_TWICE:
            reply += f"\nOr perhaps <answer>{_wrong_answer(note, self._random)}</answer>"
        return reply

    def probability(self, question: str, note: Note) -> float:
        """How likely the student solves this item now; a task on which the model was never seen is not solved."""
        fitted = self._model.tasks.get(note.task)
        if fitted is None:
            return 0.0
        level = note.complexity * (fitted.levels - 1)
        return self._model.item_probability(note.task, level, derive_random(self._seed, "item", question))


def _question_in(prompt: str) -> str:
    return prompt.split("<|im_start|>user\n", 1)[1].rsplit("<|im_end|>\n<|im_start|>assistant", 1)[0].strip()


def _thoughts(note: Note, rng: random.Random) -> str:
    steps = ["Let me read the problem again.", "I try a small case first.", "That gives a candidate.", "I check it."]
    return " ".join(steps[: rng.randint(2, len(steps))]) + f" This is {note.task}, which I have seen before."


def _wrong_answer(note: Note, rng: random.Random) -> str:
    answer = note.answer or "unknown"
    if answer.lstrip("-").isdigit():
        return str(int(answer) + rng.choice((-2, -1, 1, 10)))
    return rng.choice(("I cannot tell", answer[::-1] if answer[::-1] != answer else "none of these"))
