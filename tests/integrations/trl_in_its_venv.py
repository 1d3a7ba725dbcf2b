"""What TRL's real trainer does with GRPOTasks; run by test_real_libraries.py, where trl and torch are installed.

The model is tiny and random, and what it would say is scripted: sums, most of them right, so that levels rise.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from reasoning_gym_environment import HeldOut, ItemStream, RowRewards, Tasks
from reasoning_gym_environment.commands import export
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.integrations.curriculum_rows import new_store
from reasoning_gym_environment.integrations.trl import GRPOTasks
from testing import level_student
from testing.curriculum_runs import trl as curriculum
from testing.hostile_answers import ATTACK_TASK
from tests.integrations.completions import SETTINGS, TASKS, all_groups

ROOT = Path(__file__).resolve().parent.parent.parent
SUMS = "chain_sum,basic_arithmetic"


def arguments(folder: Path, **given: Any) -> GRPOConfig:
    settings = {
        **{"max_steps": 4, "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "num_generations": 4},
        **{"max_completion_length": 16, "shuffle_dataset": False, "logging_steps": 1, "save_strategy": "no"},
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
    """A trainer, and what was asked and earned: `asked` has (split, row, question), `said` a question's completions."""

    def __init__(self, tasks: Tasks, args: GRPOConfig, *, held_out: HeldOut | None = None, **stream: Any) -> None:
        self.asked: list[tuple[str, int, str]] = []
        self.said: dict[str, list[str]] = {}
        args.reward_weights = [1.0, 0.0]
        self.held_out = held_out
        self.gym = GRPOTasks(tasks, args, ItemStream(tasks, **stream), held_out)
        model, tokenizer = tiny_model()
        self.trainer = GRPOTrainer(
            model,
            args=args,
            processing_class=tokenizer,
            train_dataset=self.gym.train_dataset,
            eval_dataset=self.gym.eval_dataset,
            reward_funcs=[*self.gym.reward_funcs, self.spy],
            callbacks=[self.gym.callback],
            rollout_func=self.scripted,
        )

    def spy(self, prompts: list[Any], completions: list[Any], row: list[int], **columns: Any) -> list[float]:
        for which, number, prompt, completion in zip(columns["split"], row, prompts, completions, strict=True):
            asked = (which, number, prompt[-1]["content"])
            if asked not in self.asked[-8:]:
                self.asked.append(asked)
            self.said.setdefault(asked[2], []).append(completion[0]["content"])
        return [0.0] * len(row)

    @staticmethod
    def scripted(prompts: list[Any], trainer: GRPOTrainer, *, alternates: bool = False) -> dict[str, Any]:
        tokenizer = trainer.processing_class
        turns: dict[str, int] = {}
        ids = []
        for prompt in prompts:
            question = prompt[-1]["content"]
            turns[question] = turns.get(question, -1) + 1
            may_be_wrong = alternates or len(question) % 4 == 0
            said = reply(question, is_right=turns[question] % 2 == 0 or not may_be_wrong)
            ids.append([*tokenizer.encode(said), tokenizer.eos_token_id])
        rendered = [tokenizer.apply_chat_template(p, add_generation_prompt=True)["input_ids"] for p in prompts]
        return {"prompt_ids": rendered, "completion_ids": ids, "logprobs": [[0.0] * len(one) for one in ids]}

    def saved(self, step: int) -> dict[str, Any]:
        """The stream's state of a checkpoint."""
        text = (Path(self.trainer.args.output_dir) / f"checkpoint-{step}" / "trainer_state.json").read_text()
        state: dict[str, Any] = json.loads(text)["stateful_callbacks"]["GRPOTasks"]["attributes"]["stream"]
        return state

    def lines(self, name: str) -> list[tuple[int, float]]:
        return [(line["step"], line[name]) for line in self.trainer.state.log_history if name in line]


def reply(question: str, *, is_right: bool) -> str:
    expression = re.findall(r"[-+*/() \d]*\d[-+*/() \d]*", question)[-1]
    return f"<answer>{eval(expression) + (not is_right)}</answer>"


@pytest.fixture(scope="module")
def tasks() -> Iterator[Tasks]:
    with Tasks(SUMS, complexity_mode="curriculum") as made:
        yield made


@pytest.mark.parametrize(("repeats", "saved_at"), [({}, 4), ({"steps_per_generation": 2, "num_iterations": 2}, 6)])
def test_a_resumed_run_draws_what_the_uninterrupted_one_drew(
    tasks: Tasks, tmp_path: Path, repeats: dict[str, int], saved_at: int
) -> None:
    def run(**given: Any) -> Run:
        return Run(tasks, arguments(tmp_path, max_steps=12, save_strategy="steps", **repeats, **given), seed=5)

    whole = run(save_steps=2)
    whole.trainer.train()
    at_the_end = whole.saved(12)
    resumed = run(save_steps=12)
    resumed.trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{saved_at}"))
    assert len(resumed.asked) >= 4
    assert resumed.asked == whole.asked[-len(resumed.asked) :]
    # In the middle of what a generation trains, its rows are generated again; they teach once.
    assert resumed.saved(12) == at_the_end and not at_the_end["observed"]["repeated"]
    # They did teach: the level rises.
    assert whole.lines("curriculum/avg_complexity")[-1][1] > 0


def test_the_held_out_questions_are_asked_before_during_and_after(tasks: Tasks, tmp_path: Path) -> None:
    held_out = HeldOut(tasks, num_eval_samples_per_task=3)
    run = Run(
        tasks, arguments(tmp_path, eval_strategy="steps", eval_steps=2, num_generations_eval=2), held_out=held_out
    )
    run.trainer.train()
    assert [step for step, _ in run.lines("eval_accuracy")] == [0, 2, 4]
    results = held_out.results([run.said[problem.question][:2] for problem in held_out])
    for name in ("percent_correct", "accuracy", "accuracy_low", "exact", "exact_high", "pass@2", "arithmetic/accuracy"):
        assert run.lines(f"eval_{name}")[-1][1] == pytest.approx(results.metrics()[f"eval/{name}"], abs=1e-6)
    assert 0 < run.lines("eval_accuracy")[-1][1] < 1
    assert all(0.5 <= share <= 1.0 for _, share in run.lines("percent_correct"))
    # An evaluation teaches the stream nothing.
    assert len(run.gym.state()["attributes"]["stream"]["observed"]["indices"]) == 8
    assert not {question for split, _, question in run.asked if split == "train"} & {one.question for one in held_out}


def test_a_completion_earns_here_what_it_earns_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "touched"
    with Tasks([*TASKS, ATTACK_TASK], **SETTINGS) as tasks:
        groups = all_groups(tasks, marker)
        problems = iter([group.problem for group in groups])
        monkeypatch.setattr(ItemStream, "next", lambda _: next(problems))
        # Each step has two rows.
        gym = Run(tasks, arguments(tmp_path, max_steps=len(groups))).gym
        rows: list[int] = []
        wanted: dict[tuple[int, str], float | None] = {}
        for number, group in enumerate(groups):
            assert gym.train_dataset[number]["prompt"][-1]["content"] == group.problem.question
            for text, reward in group.rewards.items():
                rows.append(number)
                wanted[number, text] = reward
        completions = [[{"role": "assistant", "content": text}] for _, text in wanted]
        told: dict[str, float] = {}
        columns = {"row": rows, "split": ["train"] * len(rows), "log_metric": told.__setitem__}
        rewards = gym.reward_funcs[0](completions=completions, **columns)
        assert rewards == list(wanted.values())
        # Not scored is not wrong.
        scored = [reward for reward in rewards if reward is not None]
        assert told["percent_correct"] == sum(scored) / len(scored)
        # Plain prompts have plain completions.
        log = {"row": [0], "split": ["train"], "log_metric": lambda *_: None}
        assert gym.reward_funcs[0](completions=groups[0].completions[:1], **log) == [1.0]
    assert not marker.exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"shuffle_dataset": True}, "shuffle_dataset: set it to False"),
        ({"dataloader_num_workers": 1}, "dataloader_num_workers: set it to 0"),
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches: set it to False"),
    ],
)
def test_arguments_that_cannot_work_are_refused_in_a_line(
    tasks: Tasks, tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(EnvironmentSetupError, match=said):
        GRPOTasks(tasks, arguments(tmp_path, **wrong), ItemStream(tasks))


def test_the_trainer_reads_exported_rows_and_their_grades(tmp_path: Path) -> None:
    folder, cache = str(tmp_path / "rows"), str(tmp_path / "cache")
    assert export.main(["items", "--count", "16", "--tasks", "chain_sum", "--complexity", "none", "--to", folder]) == 0
    dataset = load_dataset(folder, cache_dir=cache, split="train")
    model, tokenizer = tiny_model()

    def is_right(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        pairs = zip(prompts, completions, strict=True)
        return [float(said[0]["content"] == reply(asked[-1]["content"], is_right=True)) for asked, said in pairs]

    trainer = GRPOTrainer(
        model,
        args=arguments(tmp_path / "out", max_steps=8, reward_weights=[1.0, 0.0]),
        processing_class=tokenizer,
        train_dataset=dataset,
        reward_funcs=[RowRewards(), is_right],
        rollout_func=partial(Run.scripted, alternates=True),
    )
    trainer.train()
    steps = [line for line in trainer.state.log_history if "reward" in line]
    assert len(steps) == 8
    for line in steps:
        assert line["rewards/reasoning_gym/mean"] == line["rewards/is_right/mean"] == line["reward"]
    assert {line["reward"] for line in steps} == {0.5}


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


SHARED = {"max_steps": 3, "num_generations_eval": 1, "save_strategy": "steps", "save_steps": 3}


def in_one_of_two_processes(folder: Path) -> None:
    args = arguments(folder, per_device_train_batch_size=6, per_device_eval_batch_size=4, **SHARED)
    with Tasks(SUMS, complexity_mode="curriculum") as tasks:
        run = Run(tasks, args, held_out=HeldOut(tasks, num_eval_samples_per_task=3), seed=5)
        run.trainer.train()
    told = {name: run.lines(name) for name in ("rewards/reasoning_gym/mean", "eval_completions", "eval_accuracy")}
    (folder / f"process{args.process_index}.json").write_text(json.dumps({"asked": run.asked, **told}))


def test_two_processes_draw_and_learn_what_one_does(tasks: Tasks, tmp_path: Path) -> None:
    # Three groups of four: the second is half in one process, half in the other.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    subprocess.run([*torchrun, "-m", "tests.integrations.trl_in_its_venv", str(tmp_path)], cwd=ROOT, check=True)
    first, second = (json.loads((tmp_path / f"process{rank}.json").read_text()) for rank in range(2))
    args = arguments(tmp_path / "one", per_device_train_batch_size=12, **SHARED)
    one = Run(tasks, args, held_out=HeldOut(tasks, num_eval_samples_per_task=3), seed=5)
    one.trainer.train()

    def rows(asked: list[Any]) -> list[list[Any]]:
        return [list(row) for row in asked if row[0] == "train"]

    assert [row[1] for row in rows(first["asked"])] == [0, 1, 3, 4, 6, 7]
    assert [row[1] for row in rows(second["asked"])] == [1, 2, 4, 5, 7, 8]
    both = {tuple(row) for row in rows(first["asked"]) + rows(second["asked"])}
    assert sorted(both) == sorted(map(tuple, rows(one.asked)))
    two_saved = json.loads((tmp_path / "checkpoint-3" / "trainer_state.json").read_text())
    assert two_saved["stateful_callbacks"]["GRPOTasks"]["attributes"]["stream"] == one.saved(3)
    for name in ("rewards/reasoning_gym/mean", "eval_completions", "eval_accuracy"):
        assert first[name] == [list(line) for line in one.lines(name)]
    assert first["eval_completions"] == [[0, 6.0], [3, 6.0]]


if __name__ == "__main__":
    in_one_of_two_processes(Path(sys.argv[1]))
