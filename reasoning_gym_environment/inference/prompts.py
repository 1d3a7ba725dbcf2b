"""What the model is asked: a system message that sets the answer format, and the question as it is."""

from __future__ import annotations

from collections.abc import Iterable

Message = tuple[tuple[str, str], tuple[str, str]]
"""A chat message that can be hashed: `dict(message)` gives `{"role": ..., "content": ...}`."""

system_prompt = (
    "You are a careful problem solver. Reason about the problem step by step before you commit to a "
    "result: explore, check intermediate steps, and correct yourself where needed. Put all of this "
    "reasoning inside <think> </think> tags.\n\n"
    "When you are done reasoning, close the thinking section and give exactly one final answer inside "
    "<answer></answer> tags, for example <answer>42</answer>. The answer tags must hold only the answer "
    "itself, in the form that the problem asks for, with no explanation or extra text, and must appear "
    "once, after the thinking section."
)


def build_messages(question: str) -> tuple[Message, Message]:
    """The prompt of one problem: system message, then the question as the user message."""
    return (
        (("role", "system"), ("content", system_prompt)),
        (("role", "user"), ("content", question)),
    )


def as_dicts(messages: Iterable[Message]) -> list[dict[str, str]]:
    """Messages as chat APIs want them: `[{"role", "content"}, ...]`."""
    return [dict(message) for message in messages]
