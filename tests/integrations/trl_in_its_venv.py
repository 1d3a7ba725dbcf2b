"""What TRL's real trainers do with rows; run by test_real_libraries.py, where trl and torch are installed.

The model is tiny and random, and what it would say is scripted: sums, most of them right, so that levels rise.
"""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from reasoning_gym_environment import RowRewards, Rows, new_store
from reasoning_gym_environment.commands import export
from reasoning_gym_environment.integrations.trl import dataset
from testing import level_student
from testing.curriculum_runs import trl as curriculum

ROOT = Path(__file__).resolve().parent.parent.parent
SUMS = "chain_sum,basic_arithmetic"


def arguments(folder: Path, **given: Any) -> GRPOConfig:
    settings = {
        **{"max_steps": 4, "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "num_generations": 4},
        **{"max_completion_length": 16, "logging_steps": 1, "save_strategy": "no"},
        **{"report_to": "none", "use_cpu": True, "disable_tqdm": True},
    }
    return GRPOConfig(output_dir=str(folder), **{**settings, **given})


def tiny_model() -> tuple[Qwen2ForCausalLM, Any]:
    """A random one, and its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "examples" / "demo" / "tiny_model")
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), **shape, **heads)), tokenizer


class Run:
    """A trainer over a store, and its prompts: `asked` has the row of each prompt, in order."""

    def __init__(self, store: Path, args: GRPOConfig, *, held_out: Rows | None = None) -> None:
        self.asked: list[int] = []
        args.reward_weights = [1.0, 0.0]
        model, tokenizer = tiny_model()
        self.trainer = GRPOTrainer(
            model,
            args=args,
            processing_class=tokenizer,
            train_dataset=dataset(Rows(store)),
            eval_dataset=None if held_out is None else dataset(held_out),
            reward_funcs=[RowRewards(), self.spy],
            rollout_func=scripted,
        )

    def spy(self, completions: list[Any], **columns: Any) -> list[float]:
        for row in columns.get("row", []):
            if row not in self.asked[-8:]:
                self.asked.append(row)
        return [0.0] * len(completions)

    def lines(self, name: str) -> list[tuple[int, float]]:
        return [(line["step"], line[name]) for line in self.trainer.state.log_history if name in line]


def scripted(prompts: list[Any], trainer: GRPOTrainer, *, alternates: bool = False) -> dict[str, Any]:
    tokenizer = trainer.processing_class
    turns: dict[str, int] = {}
    ids = []
    for prompt in prompts:
        question = prompt[-1]["content"]
        turns[question] = turns.get(question, -1) + 1
        said = reply(question, is_right=turns[question] % 2 == 0 or not alternates)
        ids.append([*tokenizer.encode(said), tokenizer.eos_token_id])
    rendered = [tokenizer.apply_chat_template(p, add_generation_prompt=True)["input_ids"] for p in prompts]
    return {"prompt_ids": rendered, "completion_ids": ids, "logprobs": [[0.0] * len(one) for one in ids]}


def reply(question: str, *, is_right: bool) -> str:
    expression = re.findall(r"[-+*/() \d]*\d[-+*/() \d]*", question)[-1]
    return f"<answer>{eval(expression) + (not is_right)}</answer>"


def test_a_dataset_and_a_reward_function_can_be_pickled(tmp_path: Path) -> None:
    store = new_store(tmp_path / "levels.sqlite", **level_student.STORE)
    copied, function = pickle.loads(pickle.dumps((dataset(Rows(store.path)), RowRewards())))
    row = copied[3]
    columns = {name: [value] for name, value in row.items()}
    assert function(completions=[f"<answer>{row['answer']}</answer>"], **columns) == [1.0]


@pytest.mark.parametrize("repeats", [{}, {"steps_per_generation": 2, "num_iterations": 2}])
def test_the_synchronous_trainer_follows_a_store_and_a_resumed_run_reads_the_same_rows(
    tmp_path: Path, repeats: dict[str, int]
) -> None:
    store = new_store(tmp_path / "levels.sqlite", group_size=4, include_tasks=SUMS, rows=1000)
    whole = Run(store.path, arguments(tmp_path, max_steps=16, save_strategy="steps", save_steps=8, **repeats))
    whole.trainer.train()
    summary = store.summary()
    rows = len(set(whole.asked))
    assert (summary.complete, summary.repeated, summary.unscored) == (rows, 0, 0)
    # Two prompts a step: the levels rise, and the trainer has read at most two batches ahead.
    assert max(task.level for task in summary.tasks) >= 1
    assert summary.rows - summary.complete <= 2 * 2 * repeats.get("steps_per_generation", 1)
    resumed = Run(store.path, arguments(tmp_path, max_steps=16, **repeats))
    resumed.trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert resumed.asked == whole.asked[-len(resumed.asked) :]
    assert store.summary().complete == rows, "a group counts once"


def test_the_held_out_questions_are_its_evaluation_set(tmp_path: Path) -> None:
    store = new_store(tmp_path / "levels.sqlite", group_size=4, include_tasks=SUMS, rows=1000)
    held_out = Rows.held_out(include_tasks=SUMS, num_eval_samples_per_task=4)
    args = arguments(tmp_path, max_steps=2, eval_on_start=True, eval_strategy="steps", eval_steps=2)
    run = Run(store.path, args, held_out=held_out)
    run.trainer.train()
    assert run.lines("eval_rewards/reasoning_gym/mean") == [(0, 1.0), (2, 1.0)]
    assert store.summary().complete == 4, "an evaluation teaches the curriculum nothing"


def test_the_trainer_reads_exported_rows_and_their_grades(tmp_path: Path) -> None:
    folder, cache = str(tmp_path / "rows"), str(tmp_path / "cache")
    assert export.main(["items", "--count", "16", "--tasks", "chain_sum", "--complexity", "none", "--to", folder]) == 0
    rows = load_dataset(folder, cache_dir=cache, split="train")
    model, tokenizer = tiny_model()
    trainer = GRPOTrainer(
        model,
        args=arguments(tmp_path / "out", max_steps=8),
        processing_class=tokenizer,
        train_dataset=rows,
        reward_funcs=RowRewards(),
        rollout_func=partial(scripted, alternates=True),
    )
    trainer.train()
    assert {line["reward"] for line in trainer.state.log_history if "reward" in line} == {0.5}


def test_the_levels_follow_the_rewards_in_the_asynchronous_trainer(tmp_path: Path) -> None:
    store = new_store(tmp_path / "levels.sqlite", **level_student.STORE)
    samples = curriculum.run(str(store.path), 24)
    rewards = [sample.metrics["rewards/reasoning_gym"] for sample in samples]
    assert 0.5 < sum(rewards) / len(rewards) < 1.0
    # A checkpoint has the number of the next row; the rows after it were read before, and stay as they are.
    before = store.summary()
    curriculum.run(str(store.path), 24, start=24)
    summary = store.summary()
    assert before.complete >= 24 and summary.complete >= 48
    assert max(task.level for task in summary.tasks) >= 1


SHARED = {"max_steps": 3, "seed": 3}


def in_one_of_two_processes(folder: Path) -> None:
    args = arguments(folder, per_device_train_batch_size=6, **SHARED)
    run = Run(folder / "levels.sqlite", args)
    run.trainer.train()
    (folder / f"process{args.process_index}.json").write_text(json.dumps(run.lines("rewards/reasoning_gym/mean")))


def test_two_processes_share_a_store(tmp_path: Path) -> None:
    # Three groups of four: the second is half in one process, half in the other.
    store = new_store(tmp_path / "levels.sqlite", group_size=4, include_tasks=SUMS, rows=1000)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    subprocess.run([*torchrun, "-m", "tests.integrations.trl_in_its_venv", str(tmp_path)], cwd=ROOT, check=True)
    first, second = (json.loads((tmp_path / f"process{rank}.json").read_text()) for rank in range(2))
    assert first == second == [[1, 1.0], [2, 1.0], [3, 1.0]]
    assert (store.summary().complete, store.summary().repeated) == (9, 0)


if __name__ == "__main__":
    in_one_of_two_processes(Path(sys.argv[1]))
