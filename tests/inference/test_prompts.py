"""The prompt asks for what extraction looks for, and leaves room for a completion."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import reasoning_gym_environment
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.inference.chat_tokenizer import ChatTokenizer, Prompt
from reasoning_gym_environment.inference.prompts import (
    SYSTEM_PROMPTS,
    Prompts,
    as_dicts,
    build_messages,
    prompt_budget,
    system_prompt,
    unnamed_format,
)
from reasoning_gym_environment.records import AnswerFormat
from reasoning_gym_environment.settings.components import TasksSettings


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


@pytest.mark.parametrize("answer_format", AnswerFormat)
def test_each_answer_format_has_its_own_system_message_which_settings_replace_or_remove(
    answer_format: AnswerFormat, tmp_path: Path
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("From a file.\n")
    own = SYSTEM_PROMPTS[answer_format]
    for value, expected in {"default": own, "My own.": "My own.", str(file): "From a file.", "none": None}.items():
        made = prompts(answer_format=answer_format, system_prompt=value)
        contents = [dict(message)["content"] for message in made.messages("?")]
        assert contents == ([] if expected is None else [expected]) + ["?"]
    assert len(set(SYSTEM_PROMPTS.values())) == 3
    with pytest.raises(ValueError, match="there is no such file"):
        TasksSettings(system_prompt=str(tmp_path / "missing.txt"))


@pytest.mark.parametrize(
    ("fields", "mark"),
    [
        ({}, None),
        ({"answer_format": "boxed"}, None),
        ({"answer_format": "text", "system_prompt": "Reply with a number."}, None),
        ({"system_prompt": None}, None),
        ({"system_prompt": "Answer inside <answer></answer>."}, None),
        ({"system_prompt": "Answer the question."}, "<answer>"),
        ({"answer_format": "boxed", "system_prompt": "Answer inside <answer></answer>."}, "\\boxed"),
    ],
)
def test_a_system_prompt_that_never_names_the_format_of_answers_is_noticed(
    fields: dict[str, Any], mark: str | None
) -> None:
    warning = unnamed_format(TasksSettings(**fields))
    expected = f"env.system_prompt does not mention {mark}, and answers are read only there" if mark else ""
    assert warning.startswith(expected) and bool(warning) == bool(mark)


def test_a_run_does_not_resume_with_another_prompt() -> None:
    saved = prompts().state_dict()
    prompts().load_state_dict(saved)
    for settings in ({"answer_format": "boxed", "system_prompt": system_prompt}, {"system_prompt": "Another."}):
        changed = "answer_format" if "answer_format" in settings else "system_prompt"
        with pytest.raises(EnvironmentSetupError, match=f"another {changed}. Set this as before"):
            prompts(**settings).load_state_dict(saved)


# --- the room for a completion


class CharacterTokenizer(ChatTokenizer):
    """Each character of a question is a token of its prompt."""

    def __init__(self) -> None:
        self._options = {}
        self._template_kwargs = {}

    def render(self, messages: Any) -> Prompt:
        question = list(messages)[-1]["content"]
        return Prompt([], "", list(range(len(question))))


def prompts(*, trainer: int = -1, context_length: int | None = None, **settings: Any) -> Prompts:
    """Prompts for sequences of 1000 tokens."""
    return Prompts(
        CharacterTokenizer(),
        TasksSettings(**settings),
        max_token_length=1000,
        trainer=SimpleNamespace(max_token_len=trainer),
        servers=SimpleNamespace(context_length=context_length),
    )


@pytest.mark.parametrize(
    ("prompt", "trainer", "room"),
    [(100, 2000, 900), (100, 1000, 899), (100, 0, 900), (990, -1, 10), (991, -1, None), (990, 1000, None)],
)
def test_training_budget_stays_below_the_trainer_limit(prompt: int, trainer: int, room: int | None) -> None:
    assert prompts(trainer=trainer).room_for_training(prompt) == room


def test_evaluation_budget_is_twice_as_long_and_the_context_of_the_servers_bounds_both() -> None:
    small = prompts(trainer=500)
    assert [small.room_for_evaluation(prompt) for prompt in (100, 1990, 1991)] == [1900, 10, None]
    small = prompts(context_length=600)
    assert [small.room_for_training(100), small.room_for_evaluation(100)] == [500, 500]
    assert small.room_for_training(595) is None
    assert small.too_long("?" * 512) == ""
    assert small.too_long("?" * 513) == "a prompt has 513 tokens, and env.max_token_length allows 512 for a prompt"
    assert [prompt_budget(length) for length in (384, 768, 8192)] == [288, 512, 4096]
