"""Find the answer of a completion: exactly one `<answer>...</answer>` outside of the thinking.

    <think> thinking </think>   text   <answer> the answer </answer>   text   <think> thinking again </think>   text
    └──── never searched ────┘  └─────────────── searched ──────────┘  └──── never searched ──────────────┘  └───┘

An answer counts if the thinking is closed when the model gives it. Whatever follows does not take it back, except a
second answer.

    a second pair with text, also with the same text         multiple_answers
    an opening tag after the answer that is never closed     multiple_answers
    an empty pair, if there is a pair with text              ignored
    an opening tag before a pair, a closing tag without one  a mention of the tag, ignored

Chat templates may open `<think>` in the prompt. So if the first thinking tag of a completion is a `</think>`, the text
before it is thinking if an answer follows. Otherwise this `</think>` is a mention.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..records import FormatFailure

_TAG = re.compile(r"<(/?)(think|answer)\s*>", re.IGNORECASE | re.ASCII)
"""The only quantifier is about blanks, and each blank belongs to one tag at most. So the search takes linear time."""


@dataclass(frozen=True)
class Extraction:
    """The `answer` (stripped), or the `failure` that explains why there is none."""

    answer: str | None = None
    failure: FormatFailure | None = None


def extract_answer(text: str, *, thinking_opened: bool = False, may_be_empty: bool = False) -> Extraction:
    """Find the answer of a completion. Tags match in upper and lower case. Time is linear in the text.

    Set `thinking_opened` if the chat template has already opened `<think>` in the prompt. Then the completion begins
    with thinking. An empty answer counts as no answer, unless `may_be_empty` is set.
    """
    if not thinking_opened and _closes_thinking_of_prompt(text):
        pairs, is_thinking = _read(text, thinking_opened=True)
        if pairs.answers:
            return _extraction(pairs, is_thinking=is_thinking, may_be_empty=may_be_empty)
    pairs, is_thinking = _read(text, thinking_opened=thinking_opened)
    return _extraction(pairs, is_thinking=is_thinking, may_be_empty=may_be_empty)


def _closes_thinking_of_prompt(text: str) -> bool:
    """Whether the first thinking tag is a `</think>`."""
    for tag in _TAG.finditer(text):
        if _is_think(tag):
            return _is_closing(tag)
    return False


def _read(text: str, *, thinking_opened: bool) -> tuple[_Pairs, bool]:
    """The answers outside of the thinking, and whether the thinking is open at the end."""
    is_thinking = thinking_opened
    pairs = _Pairs()
    for tag in _TAG.finditer(text):
        if _is_think(tag):
            pairs.leave_open()
            is_thinking = not _is_closing(tag)
        elif is_thinking:
            continue
        elif _is_closing(tag):
            pairs.close(text, tag)
        else:
            pairs.open(tag)
    pairs.leave_open()
    return pairs, is_thinking


def _is_think(tag: re.Match[str]) -> bool:
    return tag[2].lower() == "think"


def _is_closing(tag: re.Match[str]) -> bool:
    return bool(tag[1])


@dataclass
class _Pairs:
    """The pairs of answer tags in a text that is no thinking."""

    answers: list[str] = field(default_factory=list)
    """The texts of the pairs, without empty texts."""
    has_empty_pair: bool = False
    has_unclosed_tag: bool = False
    """Whether an opening tag that follows an answer is never closed."""
    _opened_at: int | None = None
    """The end of the last opening tag, while it is not closed."""

    def open(self, tag: re.Match[str]) -> None:
        self.leave_open()
        self._opened_at = tag.end()

    def close(self, text: str, tag: re.Match[str]) -> None:
        if self._opened_at is None:
            return
        answer = text[self._opened_at : tag.start()].strip()
        self._opened_at = None
        if answer:
            self.answers.append(answer)
        else:
            self.has_empty_pair = True

    def leave_open(self) -> None:
        """Note that the last opening tag, if it is not closed yet, will not be closed."""
        if self._opened_at is not None and self.answers:
            self.has_unclosed_tag = True
        self._opened_at = None


def _extraction(pairs: _Pairs, *, is_thinking: bool, may_be_empty: bool) -> Extraction:
    if len(pairs.answers) > 1 or pairs.has_unclosed_tag:
        return Extraction(failure=FormatFailure.MULTIPLE_ANSWERS)
    if pairs.answers:
        return Extraction(answer=pairs.answers[0])
    if is_thinking:
        return Extraction(failure=FormatFailure.UNFINISHED_THINKING)
    if pairs.has_empty_pair:
        return Extraction(answer="") if may_be_empty else Extraction(failure=FormatFailure.EMPTY_ANSWER)
    return Extraction(failure=FormatFailure.NO_ANSWER)


def split_thinking(text: str) -> tuple[str, str]:
    """Split a completion into its thinking, with the tags, and the reply after it, to show them to a reader.

    The reply begins after the last `</think>` before the answer. It is empty if the thinking never ends.
    """
    tags = list(_TAG.finditer(text))
    think_tags = [tag for tag in tags if _is_think(tag)]
    last_answer_at = max((tag.start() for tag in tags if not _is_think(tag)), default=len(text))
    before_answer = [tag for tag in think_tags if tag.end() <= last_answer_at]
    reply_at = max((tag.end() for tag in before_answer if _is_closing(tag)), default=0)
    if before_answer and reply_at == 0:
        reply_at = len(text)
    return text[:reply_at], text[reply_at:]
