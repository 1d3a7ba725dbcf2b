"""GRPO with TRL: the demo's tiny model, a few steps on the CPU, no network. Give it a folder for checkpoints."""

import sys
from pathlib import Path

from trl import GRPOConfig, GRPOTrainer

from reasoning_gym_environment import RowRewards, Rows, new_store
from reasoning_gym_environment.integrations.trl import dataset

MODEL = Path(__file__).resolve().parents[1] / "demo" / "tiny_model"  # Yours is a name on the hub.
TASKS = "spell_backward,leg_counting,gcd"

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "trl_grpo")
args = GRPOConfig(
    output_dir=str(folder),
    max_steps=20,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=32,
    num_generations=8,
    num_generations_eval=1,
    max_completion_length=64,
    learning_rate=1e-3,
    eval_on_start=True,
    eval_strategy="steps",
    eval_steps=20,
    save_steps=10,
    logging_steps=5,
    report_to="none",
    use_cpu=True,
    bf16=False,
)

if __name__ == "__main__":
    store = folder / "levels.sqlite"
    if not store.exists():  # A run that continues uses the store that it began with.
        folder.mkdir(parents=True, exist_ok=True)
        new_store(store, group_size=args.num_generations, include_tasks=TASKS)
    held_out = Rows.held_out(include_tasks=TASKS, num_eval_samples_per_task=32, eval_complexity=0.0)
    trainer = GRPOTrainer(
        model=str(MODEL),
        args=args,
        train_dataset=dataset(Rows(store)),
        eval_dataset=dataset(held_out),
        reward_funcs=RowRewards(),
    )
    trainer.train()
    evaluations = [
        line["eval_rewards/reasoning_gym/mean"] for line in trainer.state.log_history if "eval_reward" in line
    ]
    print(f"before: {evaluations[0]:.1%}\nafter: {evaluations[-1]:.1%}")
