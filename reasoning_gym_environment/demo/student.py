"""A simulated student: it looks the answer up, then decides whether to give it.

The environment under demonstration tells the demo which item it drew (see environment.py); the student waits for that
note, and is right with a probability that depends on the task and falls with the level. No model is involved.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from ..seeding import derive_random

FORGETS_FORMAT = 0.03
ANSWERS_TWICE = 0.01
RUNS_ON = 0.01
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
        self._notes: dict[str, Note] = {}
        self._arrived = asyncio.Condition()

    async def learn_about(self, question: str, note: Note) -> None:
        """Take the note for one question."""
        async with self._arrived:
            self._notes[question.strip()] = note
            self._arrived.notify_all()

    async def respond(self, prompt: str) -> str:
        """One completion for a ChatML prompt."""
        note = await self._note_for(_question_in(prompt))
        thoughts = _thoughts(note, self._random)
        if self._random.random() < RUNS_ON:
            return f"<think>{thoughts} Wait, let me start over."
        if self._random.random() < FORGETS_FORMAT:
            return f"<think>{thoughts}</think>\nI believe it is {note.answer}."
        right = self._random.random() < self.probability(note) and note.answer is not None
        answer = note.answer if right else _wrong_answer(note, self._random)
        reply = f"<think>{thoughts}</think>\n<answer>{answer}</answer>"
        if self._random.random() < ANSWERS_TWICE:
            reply += f"\nOr perhaps <answer>{_wrong_answer(note, self._random)}</answer>"
        return reply

    def probability(self, note: Note) -> float:
        """How likely the student solves an item: a fixed aptitude for each task, less for harder levels."""
        aptitude = derive_random(self._seed, "aptitude", note.task).betavariate(1.2, 1.0)
        return aptitude * (1.0 - 0.8 * note.complexity)

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
