"""What a seed gives: items, prompts, scores and groups of several hundred draws, against an answer function.

    RECORD_GOLDEN=1 pytest tests/golden -k recorded     writes it anew, and a checkpoint for each mode

Recorded once, so that a change of the structure can be told from a change of what a run does: the items of a seed, the
prompts, the scores and what the trainer gets are the environment's promise to a run that goes on after an update.
Digests are the first 12 hex digits of SHA-256 over canonical JSON. Tasks whose items take seconds, or hang on Python's
own hash function, are left out: they would tell a slow machine or another Python version from a fast one. So is
time_intervals, whose items hold the day on which they are made.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from reasoning_gym_environment.records import LIBRARY_QUESTION

DRAWS = 300
CHECKPOINT_AT = 200
"""The state after so many draws is kept as well: a run that goes on from it draws what this one does."""

GROUP_SIZE = 4
LEFT_OUT = (
    "jugs,sokoban,zebra_puzzles,bf,n_queens,number_sequence,futoshiki,knight_swap,intermediate_integration,"
    "polynomial_multiplication,ransom_note,isomorphic_strings,word_ladder,rubiks_cube,tsumego,mini_sudoku,sudoku,"
    "arc_agi,rearc,codeio,emoji_mystery,mahjong_puzzle,kakurasu,survo,time_intervals"
)

PAID_EXACTLY = {"partial_credit": "exact"}
MODES: dict[str, dict[str, Any]] = {
    "none": {"seed": 42},
    "random": {"seed": 1918, "complexity_mode": "random", **PAID_EXACTLY},
    "curriculum": {
        "seed": 7,
        "complexity_mode": "curriculum",
        **PAID_EXACTLY,
        # Few tasks, so that levels move.
        "include_tasks": "chain_sum,gcd,spell_backward,leg_counting,letter_counting,simple_equations,count_primes,"
        "products,base_conversion,number_sorting",
    },
}


def settings(mode: str) -> dict[str, Any]:
    """The fields of the config of one mode, but for the tokenizer and the folders."""
    return {
        "include_tasks": "",
        "exclude_tasks": LEFT_OUT,
        "group_size": GROUP_SIZE,
        "num_eval_samples_per_task": 1,
        "use_wandb": False,
        "include_messages": True,
        "max_token_length": 6000,
        "instance_id": "golden",
        **MODES[mode],
    }


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def digest_of_item(entry: Mapping[str, Any]) -> str:
    """The digest of what a model and a verifier read."""
    return digest({name: value for name, value in entry.items() if name != LIBRARY_QUESTION})


class Student:
    """Answers by the question and by how often it was asked: right, nearly right, wrong, without form, too long."""

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        self._asked: Counter[str] = Counter()

    def learn(self, question: str, answer: Any) -> None:
        self.answers[question] = "x" if answer is None else str(answer)
        self._asked[question] = 0

    def __call__(self, prompt: str) -> str:
        question = prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        number, self._asked[question] = self._asked[question], self._asked[question] + 1
        right = self.answers[question]
        replies = [
            *[f"<think>I know it.</think>\n<answer>{right}</answer>"] * 5,
            f"<think>Nearly.</think>\n<answer>{right} </answer> or so",
            f"<think>Hm.</think>\n<answer>{right[: len(right) // 2]}</answer>",
            "<think>A guess.</think>\n<answer>1</answer>",
            f"I say {right}.",
            f"<think>Two.</think><answer>{right}</answer><answer>0</answer>",
            f"<think>{'On and on. ' * 400}</think>\n<answer>{right}</answer>",
            "<think>" + "Never an end. " * 1000,
        ]
        return replies[int(digest([question, number]), 16) % len(replies)]


def draw_record(item: Any, group: Mapping[str, Any] | None) -> list[Any]:
    """One draw: its item, and what became of it. Scores are readable, so that a difference can be understood."""
    messages, entry, dataset = item
    problem = dataset.problem
    drawn = [problem.index, problem.task, problem.level, problem.seed, digest_of_item(entry)]
    prompt = digest([dict(message) for message in messages])
    if group is None:
        return [*drawn, prompt, None, None]
    return [*drawn, prompt, [round(score, 6) for score in group["scores"]], digest(dict(group))]


async def record(env: Any, student: Student, draws: int) -> list[list[Any]]:
    """Draw and score `draws` items, one after the other."""
    lines = []
    for _ in range(draws):
        item = await env.get_next_item()
        student.learn(item[1]["question"], item[1]["answer"])
        group, _ = await env.collect_trajectories(item)
        if group is not None:
            await env.handle_send_to_api(group, item, do_send_to_api=False, abort_on_any_max_length_exceeded=False)
        lines.append(draw_record(item, group))
    return lines
