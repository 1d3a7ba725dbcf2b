"""Completions, and what each earns through every way in, from Python to SkyRL.

Not a test. Each way's own test draws an item as that way does, and asks for the rewards of this table.
"""

from __future__ import annotations

from pathlib import Path

from tests.hostile_answers import HOSTILE_ANSWERS, RIGHT

TASKS = ("chain_sum", "countdown")
REWARDS = {
    "<answer>{}</answer>": 1.0,
    "<think>so</think> <answer>**{}**</answer>": 1.0,
    "<answer>0</answer> no, <answer>{}</answer>": 0.0,
    "<answer>about {}, or 0</answer>": 0.0,
    "<answer>no idea</answer>": 0.0,
    "{}": 0.0,
    "": 0.0,
}
"""By the right answer's place, for each of `TASKS`."""


def expected(answer: str, marker: Path) -> dict[str, float | None]:
    """The completions of an item with this right answer, hostile ones among them, and their rewards."""
    hostile = [text.replace("<marker>", str(marker)).replace("<port>", "9") for text in HOSTILE_ANSWERS.values()]
    honest: dict[str, float | None] = {text.format(answer): reward for text, reward in REWARDS.items()}
    return {**honest, **{f"<answer>{text}</answer>": 0.0 for text in hostile}}


def expected_of_attacks(marker: Path) -> dict[str, float | None]:
    """The same for ATTACK_TASK, which executes its answers: what it could not score is None, and not 0."""
    answers = {
        RIGHT: 1.0,
        f"__import__('os').system('touch {marker}')": None,
        "while True: pass": None,
        "import os; os.kill(os.getppid(), 9)": None,
        "import os; os._exit(0)": None,
        "x" * 300_000: 0.0,
    }
    return {f"<answer>{answer}</answer>": reward for answer, reward in answers.items()}
