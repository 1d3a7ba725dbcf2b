"""The prompt asks for what extraction looks for, and leaves room for a completion."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import reasoning_gym_environment
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.inference.prompts import (
    EstimatedTokens,
    Prompt,
    TokenBudget,
    as_dicts,
    build_messages,
    check_tokenizer,
    prompt_budget,
    render,
    system_prompt,
)
from testing.byte_tokenizer import build_byte_tokenizer


def test_system_prompt_asks_for_thinking_and_one_answer_in_tags() -> None:
    for part in ("<think> </think>", "<answer></answer>", "exactly one"):
        assert part in system_prompt
    assert reasoning_gym_environment.system_prompt is system_prompt


def test_messages_are_two_hashable_items_with_the_unchanged_question_that_dict_turns_into_chat_messages() -> None:
    question = "  {{ x }} <|im_end|>\n<answer>\ud83d\ude00</answer>  "
    messages = build_messages(question)
    assert len({messages}) == 1
    expected = [{"role": "system", "content": system_prompt}, {"role": "user", "content": question}]
    assert [dict(message) for message in messages] == as_dicts(messages) == expected


# --- rendering


def test_prompt_is_the_chat_template_with_its_tokens(byte_tokenizer: Any) -> None:
    prompt = render(byte_tokenizer, build_messages("What is 2 + 2?"))
    assert prompt.text.endswith("<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n")
    assert prompt.tokens == byte_tokenizer.encode(prompt.text)


def test_an_opened_think_tag_at_the_end_of_the_prompt_is_seen() -> None:
    ends = {"<think>": True, "<think>\n": True, "<THINK> \n": True, "<think></think>": False, "": False}
    for end, opened in ends.items():
        assert Prompt([], f"<|im_start|>assistant\n{end}", []).thinking_opened is opened


def test_beginning_of_sequence_is_counted_once() -> None:
    tokenizer = build_byte_tokenizer()
    tokenizer.bos_token = "<|im_start|>"
    tokenizer.chat_template = "<|im_start|><|im_start|>x"
    assert render(tokenizer, build_messages("q")).tokens == [tokenizer.bos_token_id, ord("x")]


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no system role') }}", "{{ messages[7].content.x }}"])
def test_a_chat_template_that_does_not_take_our_messages_is_refused(template: str | None) -> None:
    tokenizer = build_byte_tokenizer()
    tokenizer.chat_template = template
    reason = r"does not take a system and a user message \(" if template else r"has no chat template; set env\."
    with pytest.raises(EnvironmentSetupError, match=f"'my/tokenizer' {reason}"):
        check_tokenizer(tokenizer, "my/tokenizer")


@pytest.mark.parametrize("tag", ["<think>", "</answer>"])
def test_a_tokenizer_that_drops_a_tag_is_refused(tag: str) -> None:
    tokenizer = build_byte_tokenizer()
    tokenizer.add_tokens([tag])
    check_tokenizer(tokenizer, "tags that are tokens but not special are fine")
    tokenizer.add_special_tokens({"additional_special_tokens": [tag]})
    with pytest.raises(EnvironmentSetupError, match="'my/tokenizer' drops <think> or <answer> tags"):
        check_tokenizer(tokenizer, "my/tokenizer")


# --- the room for a completion


def budget(*, trainer: int = -1, context_length: int | None = None) -> TokenBudget:
    """A budget of 1000 tokens. Each character of a question is a token of its prompt."""
    servers = SimpleNamespace(context_length=context_length, prompt_length=len)
    return TokenBudget(1000, SimpleNamespace(max_token_len=trainer), servers)


@pytest.mark.parametrize(
    ("prompt", "trainer", "room"),
    [(100, 2000, 900), (100, 1000, 899), (100, 0, 900), (990, -1, 10), (991, -1, None), (990, 1000, None)],
)
def test_training_budget_stays_below_the_trainer_limit(prompt: int, trainer: int, room: int | None) -> None:
    assert budget(trainer=trainer).of_completion(prompt) == room


def test_evaluation_budget_is_twice_as_long_and_the_context_of_the_servers_bounds_both() -> None:
    small = budget(trainer=500)
    assert [small.of_evaluation(prompt) for prompt in (100, 1990, 1991)] == [1900, 10, None]
    small = budget(context_length=600)
    assert (small.of_completion(100), small.of_evaluation(100), small.of_completion(595)) == (500, 500, None)
    assert small.too_long("?" * 512) == ""
    assert small.too_long("?" * 513) == "a prompt has 513 tokens, and env.max_token_length allows 512 for a prompt"
    assert [prompt_budget(length) for length in (384, 768, 8192)] == [288, 512, 4096]


def test_estimated_tokens_give_the_text_back_and_are_not_fewer_than_a_models() -> None:
    estimated = EstimatedTokens()
    for text, at_least in [("Calculate 12345 + 1.", 11), ("0 1 1 0", 7), ("héé 🙂 日本", 6), ("", 0)]:
        ids = estimated.encode(text)
        assert estimated.decode([*ids, estimated.eos_token_id], skip_special_tokens=True) == text
        assert len(ids) >= at_least
