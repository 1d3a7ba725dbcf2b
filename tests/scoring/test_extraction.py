"""An answer, or the named reason why there is none."""

from __future__ import annotations

import json
import re
from pathlib import Path

from reasoning_gym_environment.records import FormatFailure
from reasoning_gym_environment.scoring import scorer as extraction
from reasoning_gym_environment.scoring.scorer import Extraction, extract_answer

CASES = [json.loads(line) for line in Path(__file__).with_name("extraction_cases.jsonl").read_text().splitlines()]
"""Texts with the answer in them, or with what keeps them from having one."""


def test_the_one_answer_after_the_thinking_is_found_and_else_there_is_a_named_reason() -> None:
    assert {case["failure"] for case in CASES if "failure" in case} == set(FormatFailure)
    for case in CASES:
        expected = Extraction(case.get("answer"), FormatFailure(case["failure"]) if "failure" in case else None)
        assert [(text, extract_answer(text)) for text in case["texts"]] == [(text, expected) for text in case["texts"]]


def test_thinking_opened_by_the_prompt_must_be_closed_first() -> None:
    for text, expected in (
        ("a</think><answer>5</answer>", Extraction(answer="5")),
        ("<think>a</think><answer>5</answer>", Extraction(answer="5")),
        ("<answer>5</answer>", Extraction(failure=FormatFailure.UNFINISHED_THINKING)),
        ("", Extraction(failure=FormatFailure.UNFINISHED_THINKING)),
        ("<answer>5</answer></think>", Extraction(failure=FormatFailure.NO_ANSWER)),
    ):
        assert extract_answer(text, thinking_opened=True) == expected


def test_huge_hostile_texts_are_read_to_the_end() -> None:
    for piece in ("<answer>", "<think>", "<answer", "<", "</", "<think></think><answer>x</answer>"):
        text = piece * (1_000_000 // len(piece))
        assert extract_answer(text + "</think><answer>5</answer>") == Extraction(answer="5")
    for pattern in (extraction._THINK_TAG, extraction._ANSWER_TAG):
        assert not re.search(r"[*+{]|\.\.", pattern.pattern), "a quantifier could make the time more than linear"
