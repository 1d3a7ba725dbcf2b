"""Find the tasks whose easiest questions and answers are short.

    python examples/train/tasks.py MODEL FILE     # writes their names, separated by commas

The model has 135 million parameters and 384 tokens for a prompt and its completion, so most tasks have no question at
their default config that it could answer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tqdm import tqdm
from transformers import AutoTokenizer

from reasoning_gym_environment import Tasks
from reasoning_gym_environment.errors import GenerationError
from reasoning_gym_environment.verification.entries import right_answer

LONGEST_PROMPT = 288
LONGEST_ANSWER = 48
"""Tokens."""

PROBES = 12
"""Items of each task that are looked at."""


def fits(tasks: Tasks, task: str, tokenizer: Any) -> bool:
    """Whether the items of the easiest level are short, and have a right answer that an example can show."""
    for seed in range(PROBES):
        try:
            problem = tasks.draw(task, seed)
        except GenerationError:
            return False
        answer = right_answer(task, problem.entry)
        if answer is None or len(tokenizer(answer).input_ids) > LONGEST_ANSWER:
            return False
        messages = [dict(message) for message in problem.messages]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        if len(tokenizer(prompt).input_ids) > LONGEST_PROMPT:
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the names of all tasks whose easiest items are short.")
    parser.add_argument("model", type=Path, help="folder with the tokenizer")
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    with Tasks(complexity_mode="curriculum") as tasks:
        names = [name for name in tqdm(tasks.names, unit="task") if fits(tasks, name, tokenizer)]
    options.file.parent.mkdir(parents=True, exist_ok=True)
    options.file.write_text(",".join(names) + "\n", encoding="utf-8")
    print(f"{len(names)} tasks are in {options.file}.")


if __name__ == "__main__":
    main()
