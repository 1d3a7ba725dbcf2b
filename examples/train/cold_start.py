"""Supervised fine-tuning on examples of the answer format, for a model that never uses it.

    python -m examples.train.cold_start MODEL EXAMPLES OUT

EXAMPLES is a JSONL file of `reasoning-gym-env export cold-start`. Each example is seen once.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from tqdm import tqdm

from .trainer import Optimizer, group_logprobs, load, save

BATCH = 32
"""Examples of one step."""

RATE = 5e-5


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune a model on the examples of a cold start.")
    parser.add_argument("model", help="folder or name of the model")
    parser.add_argument("examples", type=Path, help="JSONL file of `export cold-start`")
    parser.add_argument("out", type=Path, help="folder of the fine-tuned model")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch on the processor")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = load(options.model)
    optimizer = Optimizer(model, RATE)
    examples = [json.loads(line)["messages"] for line in options.examples.read_text(encoding="utf-8").splitlines()]
    batches = [examples[start : start + BATCH] for start in range(0, len(examples), BATCH)]
    with tqdm(batches, desc="cold start", unit="batch") as bar:
        for batch in bar:
            pairs = []
            for *prompt, reply in batch:
                text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
                prompt_ids = tokenizer(text, add_special_tokens=False).input_ids
                reply_ids = tokenizer(reply["content"], add_special_tokens=False).input_ids
                pairs.append((prompt_ids, [*reply_ids, tokenizer.eos_token_id]))
            num_tokens = sum(len(reply_ids) for _, reply_ids in pairs)
            total = 0.0
            for prompt_ids, reply_ids in pairs:
                loss = -group_logprobs(model, prompt_ids, [reply_ids]).sum() / num_tokens
                loss.backward()
                total += loss.item()
            optimizer.step()
            bar.set_postfix(loss=f"{total:.2f}")
    save(model, tokenizer, options.out)


if __name__ == "__main__":
    main()
