"""A group as a line, both ways."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.records import LIBRARY_QUESTION, Group, Outcome, Rollout, Score
from reasoning_gym_environment.sampling.seeds import is_held_out, question_digest
from reasoning_gym_environment.storage.append_log import BrokenLineError, line_of, read_object
from reasoning_gym_environment.storage.lines import described, dump_record, group_in


def test_a_record_has_every_key_of_the_format(make_problem: Any, make_completion: Any) -> None:
    completion = replace(make_completion("no tags", length=4), finish_reason="length")
    score = Score(0.0, Outcome.NO_ANSWER)
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    problem = make_problem(level=3, complexity=0.5, config={"min_terms": 2})
    group = Group(problem, prompt, [Rollout(completion, score, 0.0, "too_long")], sampled_at=3, scored_at=5)
    expected = json.loads(Path(__file__).with_name("dump_line.json").read_text())
    assert dump_record(group, "0.1.25") == expected
    assert dump_record(replace(group, scored_at=None), "v")["scored_at_step"] is None, "nobody trains"


def test_values_without_a_json_form_are_written_as_text_and_metadata_not_at_all(make_group: Any) -> None:
    day, infinities = datetime.date(2024, 2, 29), [float("inf"), float("-inf"), float("nan")]
    config = {"pair": (1, (2, 3)), "day": day, "none": None, "weights": {(1, 2): 3}, "limits": infinities}
    entry = {"question": "q", "answer": ("a", 1), "metadata": {(1, 2): {3}, "x": object()}}
    line = read_object(line_of(dump_record(make_group([1.0], config=config, entry=entry), "v")))
    written = {"pair": [1, [2, 3]], "day": "2024-02-29", "none": None, "weights": {"(1, 2)": 3}}
    assert line["config"] == {**written, "limits": ["inf", "-inf", "nan"]}
    assert line["expected_answer"] == ["a", 1] and "metadata" not in line


def test_odd_text_survives_on_one_line_and_is_read_again(make_group: Any) -> None:
    text = 'é\U0001f600 line\nbreak\r\n\u2028\u2029\x00"\\\ud800'
    line = line_of(dump_record(make_group([1.0, 0.5], task=text, seed=12), "v"))
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    found = group_in(read_object(line))
    assert (found.task, found.rewards) == (text, (1.0, 0.5))


def test_a_group_has_the_same_rollouts_in_a_dump_and_in_the_file_of_groups(make_group: Any) -> None:
    group = make_group([1.0, 0.5], index=7, level=2)
    dumped = dump_record(group, "v")
    conversations = [rollout["conversation"] for rollout in dumped["rollouts"]]
    tensors = {"scores": [1.0, 0.5], "messages": conversations}
    found = group_in(dumped)
    assert group_in({**tensors, **described(group, "v", {})}) == found
    assert (found.index, found.level, found.rollouts[0]["messages"]) == (7, 2, conversations[0])
    bare = group_in(tensors, 3)
    assert (bare.task, bare.index, bare.rewards) == ("unknown", 3, (1.0, 0.5))


def test_the_question_of_reasoning_gym_names_a_clarified_question_and_says_whether_it_is_held_out(
    make_group: Any,
) -> None:
    questions = [f"What is {number}?" for number in range(40)]
    for question in questions:
        entry = {"question": f"{question}\n\nThink of a number.", "answer": "5", LIBRARY_QUESTION: question}
        found = group_in(dump_record(make_group([1.0], entry=entry), "v"))
        assert found.is_held_out == is_held_out(question)
        assert found.rollouts[0]["question_digest"] == question_digest(question)
    assert any(map(is_held_out, questions))


CONVERSATION = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    "changed",
    [
        *({"rollouts": rollouts} for rollouts in ([], "text", ["text"])),
        *({"conversation": conversation} for conversation in (None, CONVERSATION[:1], ["q", "a"])),
        *({"score": score} for score in (None, [], float("nan"), 10**400)),
        *({"native_score": score} for score in ("1", float("inf"))),
    ],
    ids=str,
)
def test_a_line_that_holds_no_group_is_refused(changed: dict[str, Any]) -> None:
    rollout = {"conversation": CONVERSATION, "score": 1, **changed}
    record = {"item_id": "gcd", "rollouts": [rollout]}
    assert group_in({**record, "rollouts": [{**rollout, "conversation": CONVERSATION, "score": 1, "native_score": 1}]})
    with pytest.raises(BrokenLineError, match="no group"):
        group_in({**record, **changed} if "rollouts" in changed else record)
