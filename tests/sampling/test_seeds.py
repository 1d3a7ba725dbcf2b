"""Which part of a question decides whether it is held out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from reasoning_gym_environment.sampling.seeds import held_out_by, is_held_out
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder
from reasoning_gym_environment.verification.questions import is_sound, mended
from testing.in_process import InProcessGenerator

SEEDS = range(150)


def items(task: str, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    generator = InProcessGenerator()
    made = [generator.make(task, seed, config) for seed in SEEDS]
    return [mended(task, entry) for entry in made if is_sound(task, entry)]


@pytest.mark.parametrize("task", ["sentence_reordering", "emoji_mystery"])
def test_all_questions_for_a_sentence_are_held_out_or_none_is(task: str) -> None:
    by_sentence: dict[str, set[str]] = {}
    top = build_ladder(task).levels[-1]
    for item in items(task, top.config):
        by_sentence.setdefault(item["answer"], set()).add(item["question"])
    assert any(len(questions) > 1 for questions in by_sentence.values())
    for questions in by_sentence.values():
        assert len({held_out_by(question) for question in questions}) == 1
        assert len({is_held_out(question) for question in questions}) == 1


def test_the_question_itself_decides_in_all_other_tasks() -> None:
    for question in ("What is 2 + 3?", "Sort these words: b a", "The following emoji are pretty."):
        assert held_out_by(question) == question
