"""GRPO with TRL: the demo's tiny model, a few steps on the CPU, no network. Give it a folder for checkpoints."""

import sys
from pathlib import Path

from trl import GRPOConfig, GRPOTrainer

from reasoning_gym_environment import HeldOut, ItemStream, Tasks
from reasoning_gym_environment.integrations.trl import GRPOTasks

MODEL = Path(__file__).resolve().parent / "demo" / "tiny_model"  # Yours is a name on the hub.

args = GRPOConfig(
    output_dir=sys.argv[1] if len(sys.argv) > 1 else "trl_grpo",
    max_steps=20,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=32,
    num_generations=8,
    num_generations_eval=1,
    max_completion_length=64,
    learning_rate=1e-3,
    shuffle_dataset=False,  # The stream decides what comes next.
    save_steps=10,
    logging_steps=5,
    report_to="none",
    use_cpu=True,
    bf16=False,
)

if __name__ == "__main__":
    with Tasks("spell_backward,leg_counting,gcd", complexity_mode="curriculum") as tasks:
        gym = GRPOTasks(
            tasks, args, ItemStream(tasks, seed=42), HeldOut(tasks, num_eval_samples_per_task=32, eval_complexity=0.0)
        )
        trainer = GRPOTrainer(
            model=str(MODEL),
            args=args,
            train_dataset=gym.train_dataset,
            eval_dataset=gym.eval_dataset,
            reward_funcs=gym.reward_funcs,
            callbacks=[gym.callback],
        )
        trainer.train()
    evaluations = [line for line in trainer.state.log_history if "eval_accuracy" in line]
    for when, line in (("before:", evaluations[0]), ("after:", evaluations[-1])):
        low, high = line["eval_accuracy_low"], line["eval_accuracy_high"]
        print(f"{when:8}{line['eval_accuracy']:.1%} [{low:.1%}, {high:.1%}]")
