"""An answer, or the named reason why there is none."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from reasoning_gym_environment.records import FormatFailure
from reasoning_gym_environment.scoring.extraction import Extraction, extract_answer, split_thinking

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
    blanks = " " * 100_000
    for piece in ("<answer>", "<think>", "<answer", "<answer" + blanks, "<", "</", "</answer>", "<answer></answer>"):
        text = piece * (1_000_000 // len(piece))
        assert extract_answer(text + "</think><answer>5</answer>") == Extraction(answer="5")
    text = "<think></think><answer>x</answer>" * 30_000
    assert extract_answer(text) == Extraction(failure=FormatFailure.MULTIPLE_ANSWERS)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "a", " "]), max_size=12))
def test_the_thinking_never_holds_the_answer_and_every_other_text_may_follow_it(pieces: list[str]) -> None:
    text = "".join(pieces)
    # Thinking that is closed before the answer may hold anything but its own end.
    thinking = text.replace("</think>", "")
    assert extract_answer(f"<think>{thinking}</think><answer>5</answer>") == Extraction(answer="5")
    # The answer was given while no thinking was open. Only a second answer takes it back.
    after = extract_answer(f"<think>a</think><answer>5</answer>{text}")
    assert after in (Extraction(answer="5"), Extraction(failure=FormatFailure.MULTIPLE_ANSWERS))
    if "<answer>" not in text:
        assert after == Extraction(answer="5")


def test_a_reader_sees_the_thinking_before_the_answer_apart_from_the_reply() -> None:
    for thinking, reply in (
        ("<think>a</think>", "<answer>5</answer>"),
        ("a</think>", "b<answer>5</answer>"),
        ("<think>a</think>b<think>c</think>", "<answer>5</answer>"),
        ("<think>a</think>", "<answer>5</answer><think>b</think>"),
        ("<think>a</think>", "no answer"),
        ("<think>never closed <answer>5</answer>", ""),
        ("", "<answer>5</answer><think>never closed"),
        ("", "nothing"),
    ):
        assert split_thinking(thinking + reply) == (thinking, reply)
