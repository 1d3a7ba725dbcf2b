"""The prompt asks for what extraction looks for, and its messages can be hashed."""

from __future__ import annotations

import reasoning_gym_environment
from reasoning_gym_environment.inference.prompts import as_dicts, build_messages, system_prompt


def test_system_prompt_asks_for_thinking_and_one_answer_in_tags() -> None:
    assert "<think> </think>" in system_prompt
    assert "<answer></answer>" in system_prompt
    assert "exactly one" in system_prompt


def test_messages_are_two_hashable_items_that_dict_turns_into_chat_messages() -> None:
    messages = build_messages("What is 1 + 1?")
    assert len({messages}) == 1
    assert [dict(message) for message in messages] == [
        {"role": "system", "content": system_prompt},
        {"role": "user", "content": "What is 1 + 1?"},
    ]
    assert as_dicts(messages) == [dict(message) for message in messages]


def test_question_is_passed_on_unchanged() -> None:
    question = "  {{ x }} <|im_end|>\n<answer>\ud83d\ude00</answer>  "
    assert as_dicts(build_messages(question))[1]["content"] == question


def test_package_exports_the_same_system_prompt() -> None:
    assert reasoning_gym_environment.system_prompt is system_prompt
