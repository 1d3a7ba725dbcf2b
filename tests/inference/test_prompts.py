"""The prompt asks for what extraction looks for, and its messages can be hashed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import reasoning_gym_environment
from reasoning_gym_environment.inference import prompts as prompts_module
from reasoning_gym_environment.inference.prompts import (
    Message,
    Prompt,
    RenderedPrompts,
    TokenBudget,
    as_dicts,
    build_messages,
    render,
    system_prompt,
)


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


class CountingPrompts(RenderedPrompts):
    """Notes the questions that are rendered."""

    def __init__(self, tokenizer: Any, budget: TokenBudget) -> None:
        self.rendered: list[str] = []

        def note_and_render(messages: Sequence[Message]) -> Prompt:
            self.rendered.append(dict(messages[-1])["content"])
            return render(tokenizer, messages)

        super().__init__(note_and_render, budget)


@pytest.fixture
def prompts(byte_tokenizer: Any) -> CountingPrompts:
    return CountingPrompts(byte_tokenizer, TokenBudget(2000, 1000, lambda: -1))


def test_a_prompt_that_was_checked_is_not_rendered_again(prompts: CountingPrompts, byte_tokenizer: Any) -> None:
    assert prompts.too_long("What is 1 + 1?") == prompts.too_long("What is 2 + 2?") == ""
    for question in ("What is 2 + 2?", "What is 1 + 1?"):
        assert prompts.take(build_messages(question)) == render(byte_tokenizer, build_messages(question))
    assert len(prompts.rendered) == 2
    prompts.take(build_messages("What is 1 + 1?"))
    assert len(prompts.rendered) == 3, "what was taken is not kept"


def test_the_same_question_in_other_words_is_another_prompt(prompts: CountingPrompts) -> None:
    prompts.too_long("Why?")
    short: Any = [{"role": "user", "content": "Why?"}]
    assert prompts.take(short).messages == short


def test_a_prompt_that_is_too_long_is_named_and_not_kept(byte_tokenizer: Any) -> None:
    limits = {"trainer": -1}
    prompts = CountingPrompts(byte_tokenizer, TokenBudget(900, 800, lambda: limits["trainer"]))
    size = len(render(byte_tokenizer, build_messages("")).tokens)
    assert prompts.too_long("x" * (801 - size)) == "a prompt has 801 tokens, at most 800 fit the prompt budget"
    assert prompts.too_long("x" * (800 - size)) == ""
    limits["trainer"] = 805
    assert prompts.too_long("y" * (800 - size)) == "a prompt of 800 tokens leaves no room for a completion"
    assert list(prompts._kept) == ["x" * (800 - size)]


def test_what_is_never_sampled_does_not_pile_up(prompts: CountingPrompts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts_module, "MAX_KEPT", 3)
    for number in range(10):
        prompts.too_long(str(number))
    assert list(prompts._kept) == ["7", "8", "9"]
