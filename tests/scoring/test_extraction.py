"""An answer, or the named reason why there is none."""

from __future__ import annotations

import re

from reasoning_gym_environment.records import FormatFailure
from reasoning_gym_environment.scoring import scorer as extraction
from reasoning_gym_environment.scoring.scorer import Extraction, extract_answer

NO_ANSWER, MULTIPLE, UNFINISHED, EMPTY = FormatFailure


FOUND = {
    "5": [
        *("<think>a</think><answer>5</answer>", "<answer>5</answer>", "a</think><answer> \n 5\t\n</answer> trailing"),
        *("<THINK>a</Think><ANSWER>5</Answer>", "<think>a</think>b<think>c</think><answer>5</answer>"),
        *("<think><think>a</think>b</think><answer>5</answer>", "<answer>4</answer></think><answer>5</answer>"),
        *("<think>see <answer> here</think><answer>5</answer>", "< answer >4</ answer ><answer>5</answer>"),
        *("<answers>4</answers><answer>5</answer>", "<an\u017fwer>4</an\u017fwer><answer>5</answer>"),
    ],
    "two\nlines": ["<think>a</think><answer>two\nlines</answer>"],
    "x < y and <b>z</b>": ["<answer>x < y and <b>z</b></answer>"],
    "é\U0001f600\ud800": ["<answer>é\U0001f600\ud800</answer>"],
}
FAILED = {
    NO_ANSWER: [
        *("", "5", "<think>a</think>5", "<answer>5", "5</answer>", "</answer>5<answer>"),
        *("<think><answer>5</answer></think>", "<answer>5</answer></think>", "<answer>4</think>5</answer>"),
    ],
    MULTIPLE: [
        *("<answer>4</answer><answer>5</answer>", "<answer>5</answer><answer>5</answer>"),
        *("<answer>4<answer>5</answer></answer>", "<answer>4<answer>5</answer>", "<answer>4</answer>5</answer>"),
        *("</answer><answer>5</answer>", "<answer>5</answer><answer>"),
    ],
    EMPTY: ["<answer></answer>", "<answer> \n\t\u00a0 </answer>"],
    UNFINISHED: [
        *("<think>never closed", "<think>a<answer>5</answer>", "<answer>4<think></answer>"),
        *("<think>a</think><answer>5</answer><think>", "<think>a</think><think>b <answer>5</answer>"),
        "<think>a</thin\u212a><answer>5</answer>",
    ],
}


def test_the_one_answer_after_the_thinking_is_found_and_else_there_is_a_named_reason() -> None:
    for answer, texts in FOUND.items():
        assert [extract_answer(text) for text in texts] == [Extraction(answer=answer)] * len(texts)
    for failure, texts in FAILED.items():
        assert [extract_answer(text) for text in texts] == [Extraction(failure=failure)] * len(texts)


def test_thinking_opened_by_the_prompt_must_be_closed_first() -> None:
    for text, expected in (
        ("a</think><answer>5</answer>", Extraction(answer="5")),
        ("<think>a</think><answer>5</answer>", Extraction(answer="5")),
        ("<answer>5</answer>", Extraction(failure=UNFINISHED)),
        ("", Extraction(failure=UNFINISHED)),
        ("<answer>5</answer></think>", Extraction(failure=NO_ANSWER)),
    ):
        assert extract_answer(text, thinking_opened=True) == expected


def test_huge_hostile_texts_are_read_to_the_end() -> None:
    for piece in ("<answer>", "<think>", "<answer", "<", "</", "<think></think><answer>x</answer>"):
        text = piece * (1_000_000 // len(piece))
        assert extract_answer(text + "</think><answer>5</answer>") == Extraction(answer="5")
    for pattern in (extraction._THINK_TAG, extraction._ANSWER_TAG):
        assert not re.search(r"[*+{]|\.\.", pattern.pattern), "a quantifier could make the time more than linear"
