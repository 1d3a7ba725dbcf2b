"""Prompts reach the model in the form of its template, and completions keep the markers of their thinking."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.inference.chat_tokenizer import ChatTokenizer, EstimatedTokens, Prompt
from reasoning_gym_environment.records import AnswerFormat, Outcome
from reasoning_gym_environment.scoring.extraction import Extraction, extract_answer
from testing.byte_tokenizer import build_byte_tokenizer
from testing.model_families import FAMILIES, Family


def messages(question: str, system: str = "") -> list[dict[str, str]]:
    chat = [{"role": "user", "content": question}]
    return [{"role": "system", "content": system}, *chat] if system else chat


# --- rendering


def test_prompt_is_the_chat_template_with_its_tokens(byte_tokenizer: Any) -> None:
    prompt = ChatTokenizer(byte_tokenizer, "bytes").render(messages("What is 2 + 2?"))
    assert prompt.text.endswith("<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n")
    assert prompt.tokens == byte_tokenizer.encode(prompt.text)


def test_an_opened_think_tag_at_the_end_of_the_prompt_is_seen() -> None:
    ends = {"<think>": True, "<think>\n": True, "<THINK> \n": True, "<think></think>": False, "": False}
    for end, opened in ends.items():
        assert Prompt([], f"<|im_start|>assistant\n{end}", []).thinking_opened is opened


def test_beginning_of_sequence_is_counted_once_and_a_prompt_is_not_ended() -> None:
    tokenizer = build_byte_tokenizer()
    begin, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    tokenizer.bos_token = "<|im_start|>"
    tokenizer.chat_template = "<|im_start|>{{ messages[0].content }}{{ messages[1].content }}"
    processor = TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", begin), ("<|im_end|>", end)]
    )
    tokenizer.backend_tokenizer.post_processor = processor
    assert tokenizer.encode("x") == [begin, ord("x"), end]
    assert ChatTokenizer(tokenizer, "t").render(messages("y", "x")).tokens == [begin, ord("x"), ord("y")]


@pytest.mark.parametrize("name", FAMILIES)
def test_both_messages_reach_every_family_of_models(name: str) -> None:
    family = FAMILIES[name]
    tokenizer = ChatTokenizer(family.tokenizer(), name)
    prompt = tokenizer.render(messages("Which question?", "Which rules?"))
    assert "Which rules?" in prompt.text
    assert prompt.text.index("Which rules?") < prompt.text.index("Which question?")
    assert prompt.thinking_opened == family.prompt_opens
    alone = ChatTokenizer(family.tokenizer(), name, has_system=False).render(messages("Which question?"))
    assert "Which question?" in alone.text


def test_the_log_says_when_the_system_message_stands_in_front_of_the_question(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    prompt = ChatTokenizer(FAMILIES["Gemma 2"].tokenizer(), "gemma").render(messages("q", "s"))
    assert prompt.messages == [{"role": "user", "content": "s\n\nq"}]
    assert "gemma takes no system message, so its text goes in front of the question" in caplog.text


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{{ messages[7].content.x }}", "nothing"])
def test_a_chat_template_that_does_not_take_our_messages_is_refused(template: str) -> None:
    tokenizer = build_byte_tokenizer()
    with pytest.raises(
        EnvironmentSetupError, match=r"template of env\.chat_template does not take a system and a user"
    ):
        ChatTokenizer(tokenizer, "my/tokenizer", template=template)
    tokenizer.chat_template = template
    with pytest.raises(EnvironmentSetupError, match="template of the tokenizer 'my/tokenizer' does not take a system"):
        ChatTokenizer(tokenizer, "my/tokenizer")


def test_a_template_is_the_tokenizers_or_one_of_its_named_templates_or_the_users() -> None:
    tokenizer = build_byte_tokenizer()
    own = tokenizer.chat_template
    tokenizer.chat_template = None
    with pytest.raises(EnvironmentSetupError, match=r"has no chat template; set .* or env\.chat_template"):
        ChatTokenizer(tokenizer, "t")
    assert "assistant" in ChatTokenizer(tokenizer, "t", template=own).render(messages("q")).text
    tokenizer.chat_template = {"tool_use": own, "rag": "x"}
    with pytest.raises(
        EnvironmentSetupError, match=r"set env.chat_template to the name of one of them \(rag, tool_use\)"
    ):
        ChatTokenizer(tokenizer, "t")
    assert "assistant" in ChatTokenizer(tokenizer, "t", template="tool_use").render(messages("q")).text


def test_values_reach_the_template() -> None:
    tokenizer = FAMILIES["Qwen 3"].tokenizer()
    prompt = ChatTokenizer(tokenizer, "t", template_kwargs={"enable_thinking": False}).render(messages("q"))
    assert prompt.text.endswith("<think>\n\n</think>\n\n") and not prompt.thinking_opened
    assert prompt.template_kwargs == {"enable_thinking": False}


# --- completions


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("answer_format", AnswerFormat)
def test_the_answer_of_every_family_is_found_outside_of_its_thinking(name: str, answer_format: AnswerFormat) -> None:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    chat = ChatTokenizer(tokenizer, name)
    right, other = {
        AnswerFormat.TAGS: ("<answer>5</answer>", "<answer>4</answer>"),
        AnswerFormat.BOXED: ("So \\boxed{5}.", "First \\boxed{4}"),
        AnswerFormat.TEXT: ("5", "4"),
    }[answer_format]
    thinking = f"Is it {other}?" if family.opening else ""
    found = read(chat, tokenizer, family.completion(thinking, right), answer_format, family)
    assert found == Extraction("5")
    if family.opening:
        cut_off = read(chat, tokenizer, family.completion(thinking, None), answer_format, family)
        assert cut_off.failure is Outcome.UNFINISHED_THINKING


def read(chat: ChatTokenizer, tokenizer: Any, text: str, answer_format: AnswerFormat, family: Family) -> Extraction:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return extract_answer(chat.decode(ids), answer_format=answer_format, thinking_opened=family.prompt_opens)


def test_decoding_drops_special_tokens_and_changes_no_blanks() -> None:
    tokenizer = build_byte_tokenizer()
    tokenizer.clean_up_tokenization_spaces = True
    text = "do n't , stop . <answer> a , b </answer>"
    ids = [*tokenizer.encode(text), tokenizer.eos_token_id]
    assert ChatTokenizer(tokenizer, "t").decode(ids) == text


@pytest.mark.parametrize("name", FAMILIES)
def test_decoding_is_that_of_transformers(name: str) -> None:
    tokenizer = FAMILIES[name].tokenizer()
    chat = ChatTokenizer(tokenizer, name)
    ids = tokenizer.encode(" Grüße, 日本 🙂 \n  x<think>2</think>", add_special_tokens=False)
    # The last character is cut in two, as a token limit does it.
    for kept in (ids, ids[:10], []):
        assert chat.decode(kept) == tokenizer.decode(kept, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("tag", ["<think>", "</answer>"])
def test_decoding_keeps_tags_that_are_special_tokens(tag: str) -> None:
    tokenizer = build_byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [tag]})
    text = "<think>a</think><answer>b</answer>"
    assert ChatTokenizer(tokenizer, "t").decode(tokenizer.encode(text)) == text


def test_estimated_tokens_give_the_text_back_and_are_not_fewer_than_a_models() -> None:
    estimated = EstimatedTokens()
    for text, at_least in [("Calculate 12345 + 1.", 11), ("0 1 1 0", 7), ("héé 🙂 日本", 6), ("", 0)]:
        ids = estimated.encode(text)
        assert estimated.decode([*ids, estimated.eos_token_id], skip_special_tokens=True) == text
        assert len(ids) >= at_least


class MistralCommonBackend:
    """A tokenizer that finds the template's tokens in messages only, and shows blanks as a sign."""

    all_special_ids = (1, 2)
    eos_token_id = 2

    def added_tokens_decoder(self) -> None:
        raise NotImplementedError

    def apply_chat_template(self, chat: Any, *, tokenize: bool, return_dict: bool, add_generation_prompt: bool) -> Any:
        assert tokenize and not return_dict and add_generation_prompt
        return [1, *(ord(character) for message in chat for character in message["content"])]

    def decode(self, ids: list[int], *, skip_special_tokens: bool, **_: Any) -> str:
        special = {1: "<s>", 2: "</s>"}
        known = [special.get(token, chr(token)) for token in ids if not (skip_special_tokens and token in special)]
        return "".join(known).replace(" ", " " if skip_special_tokens else "▁")


def test_a_tokenizer_of_mistral_common_makes_the_tokens_of_a_prompt_from_its_messages() -> None:
    tokenizer = ChatTokenizer(MistralCommonBackend(), "t")
    prompt = tokenizer.render(messages("A question", "Rules"))
    assert (prompt.text, prompt.tokens[0]) == ("<s>RulesA question", 1)
    assert tokenizer.decode([*map(ord, "a b"), 2]) == "a b"
