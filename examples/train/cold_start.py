"""Teach the model the form <think>...</think><answer>...</answer>, from the examples of make_examples.py.

python examples/train/cold_start.py MODEL EXAMPLES OUT [--batches 32] [--rate 5e-5] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import policy
import torch

BATCH = 32
WARM_UP = 4
LAST_RATE = 0.2
"""The rate falls in a line to this share of its highest value."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Supervised fine-tuning on the examples of a cold start.")
    parser.add_argument("model", type=Path)
    parser.add_argument("examples", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batches", type=int, default=32, help=f"of {BATCH} examples")
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = policy.load(options.model)
    examples = [json.loads(line)["messages"] for line in options.examples.read_text(encoding="utf-8").splitlines()]
    optimizer = policy.Optimizer(model, options.rate, betas=(0.9, 0.99))
    began = time.monotonic()
    for number in range(options.batches):
        batch = [examples[(number * BATCH + place) % len(examples)] for place in range(BATCH)]
        pairs = []
        for *prompt, reply in batch:
            text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
            answer = tokenizer(reply["content"], add_special_tokens=False).input_ids
            pairs.append((tokenizer(text, add_special_tokens=False).input_ids, [*answer, tokenizer.eos_token_id]))
        learned, total = sum(len(answer) for _, answer in pairs), 0.0
        for prompt_ids, answer in pairs:
            loss = -policy.group_logprobs(model, prompt_ids, [answer]).sum() / learned
            loss.backward()
            total += loss.item()
        warm, done = min(1.0, (number + 1) / WARM_UP), number / options.batches
        optimizer.set_rate(options.rate * warm * (1 - (1 - LAST_RATE) * done))
        norm = optimizer.step()
        print(f"batch {number + 1}  loss {total:.3f}  norm {norm:.1f}  {time.monotonic() - began:.0f} s", flush=True)
    policy.save(model, tokenizer, options.out)
    print(f"The model after its cold start is in {options.out}.")


if __name__ == "__main__":
    main()
