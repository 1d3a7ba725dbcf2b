"""The differences from the original environment that are listed, each with a predicate that recognises it.

    what compare.py found unlike ── Observation ── first Difference that explains it ──> counted under its name
                                                └─ none ──> unlisted, and printed in full

A predicate is narrow: it checks the cause, and not only that both environments differ. `page` is the beginning of the
row in docs/differences_from_the_original.md, or None if the page has no such row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.original.rules import TOLERANCE, differs_only_where_masked


@dataclass(frozen=True)
class Observation:
    """Something that the two environments did unlike.

    `subject` is the kind of thing, such as "score". `where` says which one. `facts` holds what the predicates need.
    """

    subject: str
    where: str
    original: Any
    ours: Any
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """A listed difference."""

    name: str
    subject: str
    page: str | None
    explains: Callable[[Observation], bool]


# --- texts

_THINK = re.compile(r"<(/?)think>", re.IGNORECASE)
_PAIR = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)
_EXACT_PAIR = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_ANSWER_TAG = re.compile(r"<(/?)answer\s*>", re.IGNORECASE)


def outside_thinking(text: str) -> str:
    """The text without its thinking. Unfinished thinking reaches to the end, and thinking may lack its opening tag."""
    tags = list(_THINK.finditer(text))
    is_open = bool(tags) and bool(tags[0][1])
    kept: list[str] = []
    end = 0
    for tag in tags:
        if not is_open:
            kept.append(text[end : tag.start()])
        is_open = not tag[1]
        end = tag.end()
    if not is_open:
        kept.append(text[end:])
    return "".join(kept)


def text_after_answer(text: str) -> str:
    """What follows the last closing tag of an answer."""
    return re.split(r"</answer>", text, flags=re.IGNORECASE)[-1]


def thinking_before_answer_is_closed(text: str) -> bool:
    """Whether no thinking is open where the first answer begins."""
    before = re.split(r"<answer>", text, maxsplit=1, flags=re.IGNORECASE)[0]
    tags = _THINK.findall(before)
    return not tags or tags[-1] == "/"


# --- predicates of scores


def _has_answer_in_thinking_only(seen: Observation) -> bool:
    text = seen.facts["text"]
    is_inside = bool(_PAIR.search(text)) and not _ANSWER_TAG.search(outside_thinking(text))
    return is_inside and seen.original > 0 and _lacks_answer(seen, "no_answer", "unfinished_thinking")


def _lacks_answer(seen: Observation, *failures: str) -> bool:
    return seen.ours == 0 and seen.facts["failure"] in failures


def _has_thinking_without_opening_tag(seen: Observation) -> bool:
    """Without the opening tag, the original counts the answers inside the thinking as further answers."""
    first = _THINK.search(seen.facts["text"])
    if first is None or not first[1]:
        return False
    answers = _PAIR.findall(outside_thinking(seen.facts["text"]))
    return len(answers) == 1 and seen.original == 0 and seen.ours > 0


def _has_upper_case_tags(seen: Observation) -> bool:
    text = outside_thinking(seen.facts["text"])
    return len(_PAIR.findall(text)) == 1 and not _EXACT_PAIR.search(text) and seen.original == 0 and seen.ours > 0


def _has_spaces_in_tag(seen: Observation) -> bool:
    text = outside_thinking(seen.facts["text"])
    has_space = any(re.search(r"\s", tag.group()) for tag in _ANSWER_TAG.finditer(text))
    return has_space and not _PAIR.search(text) and seen.original == 0 and seen.ours > 0


def _has_empty_pair_only(seen: Observation) -> bool:
    answers = _PAIR.findall(outside_thinking(seen.facts["text"]))
    return [answer.strip() for answer in answers] == [""] and _lacks_answer(seen, "empty_answer")


def _has_empty_pair_besides_answer(seen: Observation) -> bool:
    answers = [answer.strip() for answer in _PAIR.findall(outside_thinking(seen.facts["text"]))]
    filled = [answer for answer in answers if answer]
    return len(filled) == 1 < len(answers) and seen.original == 0 and seen.ours > 0


def _mentions_tag_before_answer(seen: Observation) -> bool:
    """The original's answer begins at the mention."""
    answers = _PAIR.findall(outside_thinking(seen.facts["text"]))
    return len(answers) == 1 and "<answer>" in answers[0].lower() and seen.original < seen.ours


def _has_second_answer_never_closed(seen: Observation) -> bool:
    text = outside_thinking(seen.facts["text"])
    is_open = "<answer>" in text_after_answer(text).lower()
    return is_open and len(_PAIR.findall(text)) == 1 and seen.original > 0 and _lacks_answer(seen, "multiple_answers")


def _is_unscored(seen: Observation) -> bool:
    return seen.facts["outcome"] in ("timeout", "memory", "crashed")


EVALUATED_EXPRESSIONS = (
    "countdown",
    "intermediate_integration",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
)
"""Tasks whose verifiers evaluate the answer as an expression. In the workers, a guarded evaluation replaces it."""


def _is_text_that_guard_refuses(seen: Observation) -> bool:
    """The whole answer is a text literal, which Python evaluates to the text in it."""
    answers = _PAIR.findall(outside_thinking(seen.facts["text"]))
    is_literal = len(answers) == 1 and re.fullmatch(r"\s*([\"']).+\1\s*", answers[0], re.DOTALL) is not None
    is_evaluated = seen.facts["task"] in EVALUATED_EXPRESSIONS and seen.facts["grading"] == "native"
    return is_literal and is_evaluated and seen.facts["failure"] is None and seen.ours == 0 < seen.original


def _is_strict(seen: Observation) -> bool:
    """Both found the same answer, for which reasoning-gym pays what the original gives."""
    facts = seen.facts
    pays_alike = facts["native"] is not None and abs(facts["native"] - seen.original) < TOLERANCE
    return facts["grading"] == "strict" and facts["failure"] is None and not _is_unscored(seen) and pays_alike


def _is_accepted_by_strict(seen: Observation) -> bool:
    return _is_strict(seen) and seen.original < 1 and seen.ours == 1


def _is_refused_by_strict(seen: Observation) -> bool:
    return _is_strict(seen) and seen.original > 1 - TOLERANCE and seen.ours == 0


def _is_strict_in_evaluation(seen: Observation) -> bool:
    """An evaluation pays 1 or 0 where verification is strict, and the rewards of training have a separate setting."""
    return seen.facts["grading"] == "strict" and seen.facts["has one answer"] and seen.ours in (0, 1)


# --- predicates of groups and dumps


def _is_short(seen: Observation) -> bool:
    facts = seen.facts
    is_masked = facts["override"] in (None, {"set_advantage_to_zero": True})
    return bool(facts["completion_tokens"] < 10 and is_masked)


def _is_beyond_group_size(seen: Observation) -> bool:
    facts = seen.facts
    return bool(facts["completion_tokens"] >= 10 and facts["rollouts"] > facts["group_size"])


def _is_short_and_masked(seen: Observation) -> bool:
    return bool(
        seen.facts["completion_tokens"] < 10 and not seen.original and seen.ours == {"set_advantage_to_zero": True}
    )


def _differs_only_where_masked(seen: Observation) -> bool:
    facts = seen.facts
    return (
        seen.original == "sent"
        and seen.ours == "not sent"
        and any(facts["masked"])
        and differs_only_where_masked(facts["scores"], facts["masked"])
    )


def _is_all_right_and_dumped(seen: Observation) -> bool:
    facts = seen.facts
    has_equal_scores = len(set(facts["scores"])) == 1
    return (
        facts["kind"] == "rollouts"
        and seen.original == "no line"
        and seen.ours == "a line"
        and has_equal_scores
        and facts["scores"][0] > facts["threshold"]
    )


def _is_right_but_too_long(seen: Observation) -> bool:
    """All completions are right, and the length penalty takes everything from all of them."""
    facts = seen.facts
    return (
        facts["kind"] == "FAILED"
        and seen.original == "a line"
        and seen.ours == "no line"
        and min(facts["bases"]) > 0
        and not any(facts["scores"])
    )


def _failed_only_for_the_original(seen: Observation) -> bool:
    """The base scores differ for listed reasons, and are all 0 for one of the environments."""
    facts = seen.facts
    has_line = {"original": seen.original == "a line", "ours": seen.ours == "a line"}
    return bool(facts["kind"] == "FAILED" and facts["bases are unlike"] and has_line == facts["expected"])


def _dump_lacks_short_completions(seen: Observation) -> bool:
    facts = seen.facts
    return bool(facts["short"] and len(seen.original) == facts["rollouts"] - facts["short"] < len(seen.ours))


def _dump_has_more_than_group_size(seen: Observation) -> bool:
    facts = seen.facts
    return bool(facts["rollouts"] > facts["group_size"] == len(seen.original) and len(seen.ours) == facts["rollouts"])


# --- other predicates


def _has_messages_too(seen: Observation) -> bool:
    return bool(seen.where == "include_messages on, keys" and sorted([*seen.original, "messages"]) == sorted(seen.ours))


def _is_completion_length(seen: Observation) -> bool:
    """The original counts the characters of all sampled completions, and not the tokens of the sent completions."""
    names = ("", "_std", "_min", "_max", "_p95")
    is_length = seen.where in [f"train/completion_lengths{name}" for name in names]
    return is_length and isinstance(seen.ours, float) and seen.ours >= 0


def _is_complexity(seen: Observation) -> bool:
    names = ("avg", "min", "max")
    return seen.where in [f"curriculum/{name}_complexity" for name in names] and seen.facts["is a share"]


def _counts_observed_tasks(seen: Observation) -> bool:
    """The original counts all tasks from the start."""
    facts = seen.facts
    counts = [facts["tasks of the original"], facts["observed tasks"]]
    return seen.where == "curriculum/total_tasks_tracked" and [seen.original, seen.ours] == counts


# --- the list

IN_THINKING = "an answer inside the thinking does not count"
STRICT = "`verification: strict`: an answer is right by its value, or if a validator accepts it"
KEPT = "groups keep `group_size` sequences, and short completions get zero advantage"
LEVELS = "levels come from reasoning-gym's own curricula"
UNSCORED = "failed inference, and answers that we could not score, have names and counters, and are not scored 0"


def named(name: str) -> Callable[[Observation], bool]:
    """A predicate for an observation whose place has exactly this name."""
    return lambda seen: seen.where == name


def changed(name: str, original: Any, ours: Any) -> Callable[[Observation], bool]:
    """A predicate for a value that differs in exactly this way."""
    return lambda seen: (seen.where, seen.original, seen.ours) == (name, original, ours)


DIFFERENCES: Sequence[Difference] = (
    # What counts as an answer, and as a right answer.
    Difference("answer_in_thinking_only", "score", IN_THINKING, _has_answer_in_thinking_only),
    Difference("thinking_without_opening_tag", "score", IN_THINKING, _has_thinking_without_opening_tag),
    Difference("upper_case_tags", "score", "answer tags may be in upper case or hold blanks", _has_upper_case_tags),
    Difference("spaces_in_tags", "score", "answer tags may be in upper case or hold blanks", _has_spaces_in_tag),
    Difference("empty_answer_scores_zero", "score", "an empty pair of tags is no answer", _has_empty_pair_only),
    Difference("empty_pair_is_ignored", "score", "an empty pair of tags is no answer", _has_empty_pair_besides_answer),
    Difference(
        "mention_of_the_tag_before_the_answer",
        "score",
        "a mention of `<answer>` before the pair is ignored",
        _mentions_tag_before_answer,
    ),
    Difference(
        "second_answer_never_closed",
        "score",
        "an `<answer>` after the answer that is never closed makes two answers",
        _has_second_answer_never_closed,
    ),
    Difference("unscored_answers", "score", UNSCORED, _is_unscored),
    Difference("strict_verification_accepts", "score", STRICT, _is_accepted_by_strict),
    Difference("strict_verification_refuses", "score", STRICT, _is_refused_by_strict),
    Difference("strict_verification_in_evaluation", "evaluation score", STRICT, _is_strict_in_evaluation),
    Difference(
        "guards_refuse_text_literals", "score", "verifiers run in sandboxed workers", _is_text_that_guard_refuses
    ),
    # The contents of a group.
    Difference("short_completions_stay", "membership", KEPT, _is_short),
    Difference(
        "extra_rollouts_stay",
        "membership",
        "a group with more completions than `group_size` stays whole",
        _is_beyond_group_size,
    ),
    Difference("short_completions_stay", "override", KEPT, _is_short_and_masked),
    Difference(
        "masked_differences_are_not_sent",
        "group",
        "groups that differ only in completions without advantage are not sent",
        _differs_only_where_masked,
    ),
    # Dumps.
    Difference("all_right_groups_are_dumped", "dump", "groups that are all right are dumped", _is_all_right_and_dumped),
    Difference(
        "right_but_too_long_is_no_failure",
        "dump",
        "a group of right answers that are all too long is not in the dump",
        _is_right_but_too_long,
    ),
    Difference("dumps_follow_the_scores", "dump", STRICT, _failed_only_for_the_original),
    Difference("short_completions_stay", "dumped rollouts", KEPT, _dump_lacks_short_completions),
    Difference(
        "extra_rollouts_stay",
        "dumped rollouts",
        "a group with more completions than `group_size` stays whole",
        _dump_has_more_than_group_size,
    ),
    Difference(
        "dumps_are_written_at_once",
        "dump files before the end",
        "a dump is written as soon as its group is scored",
        lambda seen: seen.original == 0 < seen.ours,
    ),
    # Settings.
    Difference(
        "curriculum_by_default",
        "start value",
        "`complexity_mode`",
        changed("complexity_mode", "random", "curriculum"),
    ),
    Difference(
        "server_type_vllm",
        "server",
        "`config_init` sets `server_type: vllm`, and `serve` refuses `openai` servers",
        changed("server_type", "openai", "vllm"),
    ),
    Difference(
        "unknown_settings_are_errors",
        "refused",
        "unknown or misspelt settings are errors",
        changed("misspelt name", False, True),
    ),
    Difference(
        "evaluation_without_questions",
        "refused",
        "`num_eval_samples_per_task: 0` turns evaluations off",
        changed("num_eval_samples_per_task of 0", True, False),
    ),
    Difference(
        "max_staleness_steps",
        "further setting",
        "a group that is older than `max_staleness_steps`",
        changed("max_staleness_steps", None, 8),
    ),
    Difference(
        "no_slurm_by_default", "argument", "the class has `slurm=False` by default", changed("slurm", "True", "False")
    ),
    Difference(
        "equal_scores_are_sent_if_allowed",
        "variant",
        "`ensure_scores_are_not_same: False` sends groups with equal scores",
        changed("ensure_scores_are_not_same off, equal scores", "not sent", "sent"),
    ),
    Difference("messages_of_groups", "variant", "with `include_messages`, groups have the messages", _has_messages_too),
    # Metrics and evaluations.
    Difference(
        "completion_lengths_in_tokens", "metric", "`train/completion_lengths*` counts tokens", _is_completion_length
    ),
    Difference(
        "questions_that_do_not_fit_are_unscored",
        "evaluation",
        "an evaluation does not score a question whose prompt is too long",
        changed("prompt that does not fit", 0.0, None),
    ),
    # Prompts and tasks.
    Difference("system_prompt", "item", "the system prompt has a different wording", named("system")),
    Difference(
        "tasks_not_trained_on",
        "tasks of random",
        "in the modes with levels, training skips six tasks",
        lambda seen: (
            seen.ours == "not served"
            and seen.where
            in ("circuit_logic", "jugs", "propositional_logic", "shortest_path", "syllogism", "tower_of_hanoi")
        ),
    ),
    Difference("levels_of_reasoning_gym", "curriculum value", LEVELS, _is_complexity),
    Difference("levels_of_reasoning_gym", "curriculum value before the first group", LEVELS, _is_complexity),
    Difference(
        "curriculum_counts_observed_tasks",
        "curriculum value",
        "the curriculum reports tasks that it has observed",
        _counts_observed_tasks,
    ),
    Difference(
        "curriculum_counts_observed_tasks",
        "curriculum value before the first group",
        "the curriculum reports tasks that it has observed",
        _counts_observed_tasks,
    ),
    Difference(
        "curriculum_reports_all_accuracies",
        "curriculum value",
        "the curriculum reports tasks that it has observed",
        lambda seen: seen.where == "curriculum/avg_recent_accuracy" and seen.facts["is a share"],
    ),
    Difference(
        "curriculum_counts_moves",
        "curriculum value",
        "the curriculum reports tasks that it has observed",
        lambda seen: seen.where == "curriculum/tasks_with_adjustments" and seen.ours <= seen.facts["observed tasks"],
    ),
)
"""Tried in this order."""


def explain(seen: Observation) -> str | None:
    """The name of the listed difference that explains the observation, or None."""
    for difference in DIFFERENCES:
        if difference.subject == seen.subject and difference.explains(seen):
            return difference.name
    return None


def names_without_row(page: str) -> list[str]:
    """Names of the listed differences that have no row on the page."""
    return sorted({found.name for found in DIFFERENCES if found.page is None or not _has_row(page, found.page)})


def _has_row(page: str, beginning: str) -> bool:
    return any(line.startswith(f"| {beginning}") for line in page.splitlines())
