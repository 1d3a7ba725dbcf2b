"""How models mark their thinking, and which text of a completion is outside of it.

    <think> thinking </think>   text   <think> thinking again </think>   text
                                └─────────── outside of the thinking ───┘└──┘

The markers of all families count in every completion, because no model writes the markers of another family for
another purpose. So a completion can be read without its tokenizer. A closing marker closes only what its own family
has opened. A model with other markers than these needs a row in MARKERS.

Chat templates may open the thinking in the prompt. Then a completion begins with thinking, and any closing marker
closes it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Markers:
    """The texts that open and close the thinking of a family of models."""

    opening: str
    closing: str


MARKERS = (
    # DeepSeek, Qwen, GLM, Olmo, Hunyuan, Nemotron, MiniMax, Phi 4, and most others.
    Markers("<think>", "</think>"),
    # Magistral and Ministral.
    Markers("[THINK]", "[/THINK]"),
    # Seed-OSS.
    Markers("<seed:think>", "</seed:think>"),
    # gpt-oss (harmony): of the channels, only the text of the last is meant for the user.
    Markers("<|channel|>analysis", "<|channel|>final<|message|>"),
    Markers("<|channel|>commentary", "<|channel|>final<|message|>"),
    # Gemma 4.
    Markers("<|channel>thought", "<channel|>"),
    # Command A Reasoning.
    Markers("<|START_THINKING|>", "<|END_THINKING|>"),
    # Apertus.
    Markers("<|inner_prefix|>", "<|inner_suffix|>"),
    # Kimi-VL.
    Markers("◁think▷", "◁/think▷"),
    # Sky-T1 and OpenThinker.
    Markers("<|begin_of_thought|>", "<|end_of_thought|>"),
    # EXAONE Deep, and models that were trained with such prompts.
    Markers("<thought>", "</thought>"),
    Markers("<thinking>", "</thinking>"),
    Markers("<reasoning>", "</reasoning>"),
)

MARKER_TEXTS = tuple(text for markers in MARKERS for text in (markers.opening, markers.closing))

_CLOSING_OF = {markers.opening.lower(): markers.closing.lower() for markers in MARKERS}


def _pattern(marker: str) -> str:
    """Blanks before the end of a tag belong to the tag."""
    if marker.endswith(">") and not marker.endswith("|>"):
        return re.escape(marker[:-1]) + r"\s*>"
    return re.escape(marker)


def _pattern_of_all(markers: Collection[str]) -> str:
    """One branch for each first character. It looks at the second character before it tries its markers.

    A model that has collapsed may write `<` a hundred thousand times.
    """
    branches = []
    for first in sorted({marker[0] for marker in markers}):
        rests = [marker[1:] for marker in markers if marker[0] == first]
        seconds = "".join(sorted({re.escape(rest[0]) for rest in rests}))
        branches.append(f"{re.escape(first)}(?=[{seconds}])(?:{'|'.join(map(_pattern, rests))})")
    return "|".join(branches)


_MARKER = re.compile(_pattern_of_all(MARKER_TEXTS), re.IGNORECASE | re.ASCII)
"""The only quantifier is about blanks, and each blank belongs to one marker at most: the search takes linear time."""


@dataclass(frozen=True)
class Outside:
    """The parts of a text that are outside of the thinking, and whether the thinking is still open at its end."""

    parts: tuple[str, ...]
    is_thinking: bool


def outside_of_thinking(text: str, *, thinking_opened: bool) -> Outside:
    """Split a completion at its thinking. Markers match in upper and lower case. Time is linear in the text."""
    parts = []
    begin = 0
    is_thinking = thinking_opened
    # With None, any closing marker closes the thinking.
    awaited: str | None = None
    for match in _MARKER.finditer(text):
        marker = _normal(match)
        if not is_thinking:
            # An answer does not extend over a marker.
            parts.append(text[begin : match.start()])
            begin = match.end()
        if marker in _CLOSING_OF:
            awaited = awaited if is_thinking else _CLOSING_OF[marker]
            is_thinking = True
        elif awaited in (None, marker):
            is_thinking = False
            begin = match.end()
    if not is_thinking:
        parts.append(text[begin:])
    return Outside(tuple(parts), is_thinking)


def first_marker_closes(text: str) -> bool:
    """Whether a completion closes thinking that it has not opened, as after a prompt that opens the thinking."""
    match = _MARKER.search(text)
    return match is not None and _normal(match) not in _CLOSING_OF


def opens_thinking(prompt: str) -> bool:
    """Whether a prompt ends with a marker that opens the thinking."""
    # The text of a channel of harmony begins after another token.
    end = prompt.rstrip().lower().removesuffix("<|message|>")
    return any(end.endswith(opening) for opening in _CLOSING_OF)


def end_of_thinking(text: str, before: int) -> int | None:
    """Where the last thinking that closes before a position ends; 0 if there is none, None if it stays open."""
    end = 0
    is_found = False
    for match in _MARKER.finditer(text):
        if match.end() > before:
            break
        is_found = True
        if _normal(match) not in _CLOSING_OF:
            end = match.end()
    return None if is_found and end == 0 else end


def strip_markers(thinking: str) -> str:
    """The text of the thinking without its markers."""
    return _MARKER.sub("", thinking).strip()


def _normal(match: re.Match[str]) -> str:
    return re.sub(r"\s+", "", match[0]).lower()
