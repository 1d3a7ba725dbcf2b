r"""Find the answer of a completion: exactly one, outside of the thinking, in the form that the prompt asks for.

    completion ── outside_of_thinking (thinking.py) ──> parts of text ── of the answer format ──> exactly one answer

    answer format   the answer is
    tags            the text between <answer> and </answer>
    boxed           the text between the braces of \boxed{...}
    text            all text after the thinking

An answer counts if the thinking is closed when the model gives it. Whatever follows does not take it back, except a
second answer.

    a second pair of tags with text, also with the same text  multiple_answers
    a second box with another text                            multiple_answers
    an opening tag or box after the answer, never closed      multiple_answers
    an empty pair or box, if there is another with text       ignored
    an opening tag before a pair, a closing tag without one   a mention of the tag, ignored

Chat templates may open the thinking in the prompt. So if the first marker of a completion closes thinking, the text
before it is thinking if an answer follows. Otherwise this marker is a mention.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ..records import AnswerFormat, Outcome
from ..thinking import Outside, end_of_thinking, first_marker_closes, outside_of_thinking

_TAG = re.compile(r"<(/?)answer\s*>", re.IGNORECASE | re.ASCII)
"""The only quantifier is about blanks, and each blank belongs to one tag at most. So the search takes linear time."""

_BRACE = re.compile(r"\\boxed\s*\{|\\.|\{|\}", re.DOTALL)
"""The beginning of a box, a character that a backslash protects, and braces."""

_BRACES = re.compile(r"[{}]")

_PROTECTED = re.compile(r"\\([{}#$%&_])")
"""A character that LaTeX would otherwise read as markup."""


@dataclass(frozen=True)
class Extraction:
    """The `answer` (stripped), or the `failure` that explains why there is none."""

    answer: str | None = None
    failure: Outcome | None = None


def extract_answer(
    text: str,
    *,
    answer_format: AnswerFormat = AnswerFormat.TAGS,
    thinking_opened: bool = False,
    may_be_empty: bool = False,
) -> Extraction:
    """Find the answer of a completion. Tags match in upper and lower case. Time is linear in the text.

    Set `thinking_opened` if the chat template has already opened the thinking in the prompt. Then the completion begins
    with thinking. An empty answer counts as no answer, unless `may_be_empty` is set.
    """
    find = FINDERS[answer_format]
    if not thinking_opened and first_marker_closes(text):
        outside = outside_of_thinking(text, thinking_opened=True)
        found = find(outside)
        if found.answers:
            return _extraction(found, outside, may_be_empty=may_be_empty)
    outside = outside_of_thinking(text, thinking_opened=thinking_opened)
    return _extraction(find(outside), outside, may_be_empty=may_be_empty)


@dataclass
class _Found:
    """The answers in the text outside of the thinking."""

    answers: list[str] = field(default_factory=list)
    """The answers in order, without empty answers."""
    is_empty: bool = False
    """Whether there is an empty answer."""
    is_left_open: bool = False
    """Whether an answer begins after another answer and never ends."""

    def add(self, answer: str) -> None:
        if answer:
            self.answers.append(answer)
        else:
            self.is_empty = True


def _extraction(found: _Found, outside: Outside, *, may_be_empty: bool) -> Extraction:
    if len(found.answers) > 1 or found.is_left_open:
        return Extraction(failure=Outcome.MULTIPLE_ANSWERS)
    if found.answers:
        return Extraction(answer=found.answers[0])
    if outside.is_thinking:
        return Extraction(failure=Outcome.UNFINISHED_THINKING)
    if found.is_empty:
        return Extraction(answer="") if may_be_empty else Extraction(failure=Outcome.EMPTY_ANSWER)
    return Extraction(failure=Outcome.NO_ANSWER)


# --- tags


def _in_tags(outside: Outside) -> _Found:
    found = _Found()
    for part in outside.parts:
        _find_pairs(part, found)
    return found


def _find_pairs(text: str, found: _Found) -> None:
    opened_at: int | None = None
    for tag in _TAG.finditer(text):
        is_closing = bool(tag[1])
        if is_closing and opened_at is not None:
            found.add(text[opened_at : tag.start()].strip())
            opened_at = None
            if len(found.answers) > 1:
                # There are several answers, so the rest of the text does not matter.
                return
        elif not is_closing:
            found.is_left_open |= opened_at is not None and bool(found.answers)
            opened_at = tag.end()
    found.is_left_open |= opened_at is not None and bool(found.answers)


# --- boxes


def _in_boxes(outside: Outside) -> _Found:
    """The same answer in several boxes is one answer, because models repeat their box at the end."""
    found = _Found()
    for part in outside.parts:
        _find_boxes(part, found)
    found.answers = list(dict.fromkeys(found.answers))
    return found


def _find_boxes(text: str, found: _Found) -> None:
    """Find the outermost complete boxes."""
    boxes = _complete_boxes(text)
    end = 0
    for begin, box_end in sorted(boxes.spans):
        if begin >= end:
            found.add(_PROTECTED.sub(r"\1", text[begin:box_end]).strip())
            end = box_end
    found.is_left_open |= bool(found.answers) and boxes.opened_last > end


@dataclass
class _Boxes:
    spans: list[tuple[int, int]]
    """Where the text of each complete box begins and ends."""
    opened_last: int
    """Where the last box without an end begins; 0 if there is none."""


def _complete_boxes(text: str) -> _Boxes:
    spans = []
    # Where the text after each open brace begins, and whether it is the brace of a box.
    opened: list[tuple[int, bool]] = []
    for match in _BRACE.finditer(text):
        token = match[0]
        if token.endswith("{") and token != r"\{":
            opened.append((match.end(), len(token) > 1))
        elif token == "}" and opened:
            begin, is_box = opened.pop()
            if is_box:
                spans.append((begin, match.start()))
    left_open = [begin for begin, is_box in opened if is_box]
    return _Boxes(spans, max(left_open, default=0))


# --- text


def _in_text(outside: Outside) -> _Found:
    found = _Found()
    if not outside.is_thinking:
        found.add(outside.parts[-1].strip())
    return found


FINDERS: dict[AnswerFormat, Callable[[Outside], _Found]] = {
    AnswerFormat.TAGS: _in_tags,
    AnswerFormat.BOXED: _in_boxes,
    AnswerFormat.TEXT: _in_text,
}


# --- for a reader, and for examples


def write_answer(answer: str, answer_format: AnswerFormat) -> str:
    """An answer in the form in which `extract_answer` finds it."""
    if answer_format is AnswerFormat.TAGS:
        return f"<answer>{answer}</answer>"
    if answer_format is AnswerFormat.BOXED:
        # The answers of some tasks are brackets without their counterparts.
        box = f"\\boxed{{{answer}}}"
        if _complete_boxes(box).spans == [(box.index("{") + 1, len(box) - 1)]:
            return box
        protected = _BRACES.sub(r"\\\g<0>", answer)
        return f"\\boxed{{{protected}}}"
    return answer


def split_for_display(text: str) -> tuple[str, str]:
    """Split a completion into its thinking, with the markers, and the reply after it, to show them to a reader.

    The reply begins after the last marker that closes thinking before the answer. It is empty if the thinking never
    ends.
    """
    last_tag = max((tag.start() for tag in _TAG.finditer(text)), default=len(text))
    end = end_of_thinking(text, before=last_tag)
    reply_at = len(text) if end is None else end
    return text[:reply_at], text[reply_at:]
