"""A simulated student in place of a model: it looks the answer up, then decides whether to give it.

The environment under demonstration tells the demo which item it drew (see environment.py); the student waits for that
note. It is right as often as a published model was on such a task and level (see students.py), every item a little
harder or easier, and it gets better with each group that it is trained on. No model is involved.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from ..utils.seeding import derive_random
from .simulated_students import Learning, load_students

MODEL = "qwen_qwq-32b"
LEARNING = Learning(gain=0.1, transfer=0.1, ceiling=4.0)
"""Much faster than a real model learns, so that its curriculum is seen to follow within a minute."""

FORGETS_FORMAT = 0.02
ANSWERS_TWICE = 0.005
RUNS_ON = 0.005
PATIENCE_S = 10.0


@dataclass(frozen=True)
class Note:
    """What the student needs to know about one item."""

    task: str
    answer: str | None
    complexity: float


class Student:
    """Replies to prompts. `respond` is what a MockServer calls, once for each completion."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._fitted = load_students(learning=LEARNING)[MODEL]
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
        if task in self._fitted.tasks:
            self._fitted.learn(task, has_signal=True)

    async def respond(self, prompt: str) -> str:
        """One completion for a ChatML prompt."""
        question = _question_in(prompt)
        note = await self._note_for(question)
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
        fitted = self._fitted.tasks.get(note.task)
        if fitted is None:
            return 0.0
        level = note.complexity * (fitted.levels - 1)
        return self._fitted.item_probability(note.task, level, derive_random(self._seed, "item", question))

    async def _note_for(self, question: str) -> Note:
        async with self._arrived:
            await asyncio.wait_for(self._arrived.wait_for(lambda: question in self._notes), timeout=PATIENCE_S)
            return self._notes[question]


def note_from(event: dict[str, Any]) -> Note:
    """The note in an `item` event of the demo environment."""
    return Note(task=event["task"], answer=event["answer"], complexity=event["complexity"] or 0.0)


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
