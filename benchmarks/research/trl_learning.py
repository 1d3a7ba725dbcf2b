"""Whether a real model learns through TRL: the demo's tiny model, GRPOTrainer, and the same with shuffled rewards.

    .venv-trl/bin/python benchmarks/research/trl_learning.py [--steps 120] [--seeds 1] > out.json

The script evaluates held-out questions before and after training, with 95% intervals. The control run shuffles the
rewards within each group. Any gain in the control is not learned from right answers.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from reasoning_gym_environment import HeldOut, ItemStream, Tasks
from reasoning_gym_environment.integrations.trl import GRPOTasks

MODEL = Path(__file__).resolve().parents[2] / "examples" / "demo" / "tiny_model"
TASKS = "spell_backward,leg_counting,gcd"
GROUP = 8


def settings(folder: str, steps: int, seed: int) -> GRPOConfig:
    return GRPOConfig(
        output_dir=folder,
        seed=seed,
        max_steps=steps,
        per_device_train_batch_size=8 * GROUP,
        per_device_eval_batch_size=100,
        num_generations=GROUP,
        num_generations_eval=1,
        max_completion_length=48,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        shuffle_dataset=False,
        save_strategy="no",
        logging_steps=10,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )


def learn(steps: int, seed: int, *, shuffled: bool) -> dict[str, Any]:
    """One run: exact answers to held-out questions before and after, and the reward on the way."""
    began = time.monotonic()
    with TemporaryDirectory() as folder, Tasks(TASKS, complexity_mode="curriculum") as tasks:
        args = settings(folder, steps, seed)
        gym = GRPOTasks(tasks, args, ItemStream(tasks, seed=seed), HeldOut(tasks, num_eval_samples_per_task=100))
        [grade] = gym.reward_funcs
        dealer = random.Random(seed)

        def dealt(completions: Any, row: list[int], split: list[str], **columns: Any) -> list[float | None]:
            rewards = grade(completions, row=row, split=split, **columns)
            if split[0] == "train":
                for at in range(0, len(rewards), GROUP):
                    group = rewards[at : at + GROUP]
                    rewards[at : at + GROUP] = dealer.sample(group, len(group))
            return rewards

        trainer = GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(MODEL),
            args=args,
            processing_class=AutoTokenizer.from_pretrained(MODEL),
            train_dataset=gym.train_dataset,
            eval_dataset=gym.eval_dataset,
            reward_funcs=[dealt] if shuffled else gym.reward_funcs,
            callbacks=[gym.callback],
        )
        trainer.train()
    told = trainer.state.log_history
    asked = [line for line in told if "eval_exact" in line]
    exact = [[round(line[f"eval_exact{end}"], 4) for end in ("", "_low", "_high")] for line in (asked[0], asked[-1])]
    return {
        "rewards": "shuffled" if shuffled else "earned",
        "seed": seed,
        "steps": steps,
        "groups": steps * 8,
        "held_out_exact_before": exact[0],
        "held_out_exact_after": exact[1],
        "train_reward": [round(line["reward"], 3) for line in told if "reward" in line],
        "seconds": round(time.monotonic() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each kind")
    options = parser.parse_args()
    runs = []
    for seed in range(1, options.seeds + 1):
        for shuffled in (False, True):
            runs.append(learn(options.steps, seed, shuffled=shuffled))
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"tasks": TASKS.split(","), "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
