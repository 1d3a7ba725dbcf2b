"""The rows of the table `train/rollouts`."""

from __future__ import annotations

from typing import Any

import pytest

from reasoning_gym_environment.records import MASKED, Completion
from reasoning_gym_environment.telemetry.wandb_log import ALL, table_rows


@pytest.mark.parametrize(("keep", "decoded"), [(ALL, [7, 12]), (1, [7]), (0, [])])
def test_the_text_of_a_completion_is_not_decoded_again(keep: int, decoded: list[int]) -> None:
    prompt = list(b"prompt ")
    completions = []
    for text in ("yes", "no"):
        ids = list(text.encode())
        completions.append(Completion(text, prompt + ids, [MASKED] * len(prompt) + ids, None, "stop"))
    lengths = []

    def decode(tokens: list[int]) -> str:
        lengths.append(len(tokens))
        return bytes(tokens).decode()

    # A subclass has changed the last sequence.
    sequences = [*(completion.tokens for completion in completions), list(b"prompt maybe")]
    payload = {"tokens": sequences, "scores": [1.0, 0.0, 0.5]}
    rows: Any = table_rows(payload, decode=decode, completions=completions, keep=keep, expected_answer=4, task="t")
    expected = [("prompt yes", 1.0, "4", "t"), ("prompt no", 0.0, "4", "t"), ("prompt maybe", 0.5, "4", "t")]
    assert rows == (expected if keep == ALL else expected[:keep])
    assert lengths == decoded
