"""An answer, or the named reason why there is none."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reasoning_gym_environment.records import AnswerFormat, Outcome
from reasoning_gym_environment.scoring.extraction import Extraction, extract_answer, split_for_display, write_answer
from reasoning_gym_environment.thinking import MARKERS, Markers, opens_thinking

CASES = [json.loads(line) for line in Path(__file__).with_name("extraction_cases.jsonl").read_text().splitlines()]
"""Texts with the answer in them, or with what keeps them from having one."""


def test_the_one_answer_after_the_thinking_is_found_and_else_there_is_a_named_reason() -> None:
    assert {case["failure"] for case in CASES if "failure" in case} == {
        outcome for outcome in Outcome if outcome.is_unreadable
    }
    for case in CASES:
        expected = Extraction(case.get("answer"), Outcome(case["failure"]) if "failure" in case else None)
        assert [(text, extract_answer(text)) for text in case["texts"]] == [(text, expected) for text in case["texts"]]


def test_thinking_opened_by_the_prompt_must_be_closed_first() -> None:
    for text, expected in (
        ("a</think><answer>5</answer>", Extraction(answer="5")),
        ("<think>a</think><answer>5</answer>", Extraction(answer="5")),
        ("<answer>5</answer>", Extraction(failure=Outcome.UNFINISHED_THINKING)),
        ("", Extraction(failure=Outcome.UNFINISHED_THINKING)),
        ("<answer>5</answer></think>", Extraction(failure=Outcome.NO_ANSWER)),
    ):
        assert extract_answer(text, thinking_opened=True) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("So \\boxed{5}.", "5"),
        ("\\boxed {5}", "5"),
        ("$\\boxed{\\frac{1}{2}}$", "\\frac{1}{2}"),
        ("\\boxed{\\boxed{5}}", "\\boxed{5}"),
        ("\\boxed{5} and again \\boxed{ 5 }", "5"),
        ("put it in \\boxed{}: \\boxed{5}", "5"),
        ("the set {1, 2} is \\boxed{{1, 2}}", "{1, 2}"),
        ("\\boxed{\\}\\}}", "}}"),
        ("<think>\\boxed{4}</think>\\boxed{5}", "5"),
        ("<think>{ \\boxed{</think>\\boxed{5}", "5"),
        ("thoughts</think>\\boxed{5}", "5"),
        ("\\boxed{4}, no, \\boxed{5}", Outcome.MULTIPLE_ANSWERS),
        ("\\boxed{5} or \\boxed{6", Outcome.MULTIPLE_ANSWERS),
        ("\\boxed{5", Outcome.NO_ANSWER),
        ("<answer>5</answer>", Outcome.NO_ANSWER),
        ("\\boxed{ }", Outcome.EMPTY_ANSWER),
        ("<think>\\boxed{5}", Outcome.UNFINISHED_THINKING),
        ("<think>\\boxed{5}</think>", Outcome.NO_ANSWER),
    ],
)
def test_the_one_box_after_the_thinking_is_found(text: str, expected: str) -> None:
    found = extract_answer(text, answer_format=AnswerFormat.BOXED)
    assert (found.failure or found.answer) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" 5\n", "5"),
        ("<think>4</think>\n\n5", "5"),
        ("Let me think. <think>4</think>5", "5"),
        ("4</think>5", "5"),
        ("<think>4</think>5<think>6</think>7", "7"),
        ("<think>4</think> ", Outcome.EMPTY_ANSWER),
        ("<think>5", Outcome.UNFINISHED_THINKING),
        ("", Outcome.EMPTY_ANSWER),
    ],
)
def test_all_text_after_the_thinking_is_the_answer(text: str, expected: str) -> None:
    found = extract_answer(text, answer_format=AnswerFormat.TEXT)
    assert (found.failure or found.answer) == expected


@pytest.mark.parametrize("markers", MARKERS, ids=lambda markers: markers.opening)
@pytest.mark.parametrize("answer_format", AnswerFormat)
def test_the_markers_of_every_family_enclose_thinking(markers: Markers, answer_format: AnswerFormat) -> None:
    right, other = write_answer("5", answer_format), write_answer("4", answer_format)
    thinking = f"{markers.opening} {other} </no marker>"
    read = partial(extract_answer, answer_format=answer_format)
    assert read(f"{thinking}{markers.closing}{right}") == Extraction("5")
    assert read(f"{other}{markers.closing}{right}") == Extraction("5"), "the prompt has opened the thinking"
    assert read(thinking).failure is Outcome.UNFINISHED_THINKING
    stranger = "</reasoning>" if markers.closing != "</reasoning>" else "</think>"
    assert read(f"{thinking}{stranger}{right}").failure is Outcome.UNFINISHED_THINKING
    assert opens_thinking(f"assistant {markers.opening}\n") and not opens_thinking(f"{markers.opening}{right}")


@given(st.sampled_from(AnswerFormat), st.text(alphabet="a{}\\ \n<>5", min_size=1))
def test_a_written_answer_is_found(answer_format: AnswerFormat, answer: str) -> None:
    assume(answer.strip() == answer and "\\" not in answer)
    assert extract_answer(write_answer(answer, answer_format), answer_format=answer_format) == Extraction(answer)


@pytest.mark.parametrize("chars", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_huge_hostile_texts_are_read_to_the_end(chars: int) -> None:
    blanks = " " * (chars // 10)
    for piece in ("<answer>", "<think>", "<answer", "<answer" + blanks, "<", "</", "</answer>", "<answer></answer>"):
        text = piece * (chars // len(piece))
        assert extract_answer(text + "</think><answer>5</answer>") == Extraction(answer="5")
    for piece in ("\\boxed{", "{", "}", "\\boxed{x", "\\boxed{}", "\\", "[THINK]", "<|channel|>analysis", "◁think▷"):
        text = piece * (chars // len(piece))
        closed = f"<think>{text}</think>[/THINK]<|channel|>final<|message|>◁/think▷\\boxed{{5}}"
        assert extract_answer(closed, answer_format=AnswerFormat.BOXED) == Extraction(answer="5")
        extract_answer(text, answer_format=AnswerFormat.BOXED)
    text = "<think></think><answer>x</answer>" * (chars // 32)
    assert extract_answer(text) == Extraction(failure=Outcome.MULTIPLE_ANSWERS)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "a", " "]), max_size=12))
def test_the_thinking_never_holds_the_answer_and_every_other_text_may_follow_it(pieces: list[str]) -> None:
    text = "".join(pieces)
    # Thinking that is closed before the answer may hold anything but its own end.
    thinking = text.replace("</think>", "")
    assert extract_answer(f"<think>{thinking}</think><answer>5</answer>") == Extraction(answer="5")
    # The answer was given while no thinking was open. Only a second answer takes it back.
    after = extract_answer(f"<think>a</think><answer>5</answer>{text}")
    assert after in (Extraction(answer="5"), Extraction(failure=Outcome.MULTIPLE_ANSWERS))
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
        assert split_for_display(thinking + reply) == (thinking, reply)
