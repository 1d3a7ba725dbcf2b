"""The public Python API: items, grades, the item source and held-out questions, without Atropos."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import Grade, HeldOut, ItemStream, PromptedProblem, Tasks, grade, problem_of
from reasoning_gym_environment.errors import EnvironmentSetupError, UnknownNameError
from reasoning_gym_environment.records import Outcome
from reasoning_gym_environment.sampling.seeds import is_held_out
from testing.in_process import in_process_workers
from testing.process_table import linux_only, parents
from testing.support import wait_for

ROOT = Path(__file__).resolve().parent.parent
NAMES = "chain_sum,gcd,leg_counting"


@pytest.fixture(scope="module")
def tasks() -> Iterator[Tasks]:
    with in_process_workers(), Tasks(NAMES, complexity_mode="curriculum") as made:
        yield made


def right(problem: PromptedProblem) -> str:
    return f"<think>so</think> <answer>{problem.entry['answer']}</answer>"


def drawn(stream: ItemStream, count: int, reward: float = 1.0) -> list[PromptedProblem]:
    problems = []
    for _ in range(count):
        problems.append(stream.next())
        stream.observe(problems[-1], [reward] * 8)
    return problems


def test_a_stream_gives_prompts_takes_rewards_and_its_levels_follow(tasks: Tasks) -> None:
    stream = ItemStream(tasks, seed=3)
    problems = drawn(stream, 40)
    assert {problem.task for problem in problems} == set(tasks.names)
    assert [dict(message)["role"] for message in problems[0].messages] == ["system", "user"]
    assert problems[0].messages[1]["content"] == problems[0].question == problems[0].entry["question"]
    assert problems[0].level == 0 < max(problem.level or 0 for problem in problems)
    assert stream.metrics()["curriculum/total_tasks_tracked"] == 3.0
    assert not any(is_held_out(problem.library_question) for problem in problems)


def test_the_same_seed_and_rewards_give_the_same_problems_and_so_does_a_resumed_stream(tasks: Tasks) -> None:
    uninterrupted = ItemStream(tasks, seed=5)
    other = ItemStream(tasks, seed=5)
    assert drawn(uninterrupted, 12) == drawn(other, 12)
    lost = other.next()
    state = json.loads(json.dumps(other.state_dict()))
    resumed = ItemStream(tasks, seed=5)
    resumed.load_state_dict(state)
    again = drawn(resumed, 6)
    # The stream repeats the pending problem first.
    assert again[0] == lost
    assert again == drawn(uninterrupted, 6)
    assert ItemStream(tasks, seed=5, instance_id="1").next() != ItemStream(tasks, seed=5).next()


def test_a_group_is_graded_and_unscored_is_not_wrong(tasks: Tasks) -> None:
    problem = ItemStream(tasks, seed=1).next()
    good, wrong, none = tasks.grade(problem, [right(problem), "<answer>x</answer>", "I do not know"])
    assert (good.reward, good.score.outcome) == (1.0, Outcome.CORRECT)
    assert wrong.reward == 0.0
    assert (none.reward, none.score.outcome) == (0.0, Outcome.NO_ANSWER)
    assert tasks.grade(problem, []) == []
    opened = tasks.grade(problem, ["thoughts without an end <answer>1</answer>"], thinking_opened=True)
    assert opened[0].score.outcome is Outcome.UNFINISHED_THINKING


ITEM = {"question": "1 + 1 =", "answer": "2", "metadata": {}}


def test_grade_needs_nothing_but_the_item() -> None:
    good, wrong = grade(problem_of("chain_sum", ITEM), ["<answer>2</answer>", "<answer>3</answer>"])
    assert isinstance(good, Grade) and (good.reward, wrong.reward) == (1.0, 0.0)
    [boxed] = grade(problem_of("chain_sum", ITEM, answer_format="boxed"), [r"\boxed{2}"])
    assert boxed.metrics == {"unscored": 0.0, "score": 1.0, "correct": 1.0, "format_failure": 0.0}
    with pytest.raises(UnknownNameError, match="Did you mean chain_sum"):
        problem_of("chain_sums", ITEM)


NO_ITEMS_OF_CHAIN_SUM: list[tuple[str, Any]] = [
    ("expected question, answer and metadata", "1 + 1 ="),
    ("expected question, answer and metadata", {}),
    ("expected question, answer and metadata", {"question": "1 + 1 =", "metadata": {}}),
    ("expected question, answer and metadata", {"question": "1 + 1 =", "answer": "2"}),
    ("expected question, answer and metadata", {**ITEM, "metadata": None}),
    ("expected an item of chain_sum, got an item of gcd", {**ITEM, "metadata": {"source_dataset": "gcd"}}),
]


@pytest.mark.parametrize(("said", "item"), NO_ITEMS_OF_CHAIN_SUM)
def test_an_item_that_is_not_one_of_the_task_is_an_error_and_not_wrong(said: str, item: Any) -> None:
    with pytest.raises(EnvironmentSetupError, match=said):
        problem_of("chain_sum", item)


def test_an_unknown_parameter_is_named() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean min_terms"):
        problem_of("chain_sum", ITEM, {"min_termz": 2})


def test_held_out_questions_are_no_training_questions_and_results_have_intervals(tasks: Tasks) -> None:
    held = HeldOut(tasks, num_eval_samples_per_task=4)
    assert len(held) == 12 and all(is_held_out(problem.library_question) for problem in held)
    assert held.manifest == HeldOut(tasks, eval_tasks=NAMES, num_eval_samples_per_task=4).manifest
    answers = [right(problem) for problem in held]
    found = held.results([*answers[:6], *["no answer"] * 6])
    assert found.overall.exact is not None and found.overall.exact.value == 0.5
    assert not {"completion_tokens", "truncated"} & found.overall.estimates.keys(), "of a text neither is known"
    several = held.results([[answer, "no answer"] for answer in answers])
    assert several.overall.estimates["pass@2"].value == 1.0


@pytest.mark.slow
def test_several_threads_and_loops_use_the_same_tasks() -> None:
    tasks = Tasks(NAMES)
    stream = ItemStream(tasks, seed=7)

    def next_and_reward(_: int) -> tuple[int, float | None]:
        problem = stream.next()
        return problem.index, tasks.grade(problem, [right(problem)])[0].reward

    async def another() -> float | None:
        problem = await asyncio.to_thread(stream.next)
        return (await asyncio.to_thread(tasks.grade, problem, [right(problem)]))[0].reward

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(next_and_reward, range(16))) == [(index, 1.0) for index in range(16)]
    assert asyncio.run(another()) == 1.0
    tasks.close()


def test_each_mistake_is_named(tasks: Tasks) -> None:
    stream, held = ItemStream(tasks), HeldOut(tasks, eval_tasks="chain_sum", num_eval_samples_per_task=2)
    problem, given, state = stream.next(), Any, stream.state_dict()
    wrong: Any = 5
    mistakes: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (EnvironmentSetupError, "Did you mean countdown", lambda: Tasks("countdwn")),
        (EnvironmentSetupError, "task_weights: .*valid dictionary", lambda: Tasks(task_weights=5)),
        (EnvironmentSetupError, "setting .weights.*Did you mean task_weights", lambda: Tasks(weights={})),
        (EnvironmentSetupError, "tasks: expected a Tasks", lambda: ItemStream(wrong)),
        (EnvironmentSetupError, "seed: ", lambda: ItemStream(tasks, seed=given)),
        (EnvironmentSetupError, "too_long: expected a function", lambda: ItemStream(tasks, too_long=wrong)),
        (ValueError, "rewards: expected numbers from 0 to 1", lambda: stream.observe(problem, [1.5])),
        (TypeError, "problem: expected a problem of the stream", lambda: stream.observe(given, [1.0])),
        (
            EnvironmentSetupError,
            "the state of item_stream is missing",
            lambda: stream.load_state_dict({"item_stream": {}}),
        ),
        (EnvironmentSetupError, "a state of seed=42, which", lambda: ItemStream(tasks, seed=43).load_state_dict(state)),
        (TypeError, "a list of texts", lambda: tasks.grade(problem, ["<answer>1</answer>", given])),
        (ValueError, "an entry for each of 2 questions, got 1", lambda: held.results(["<answer>1</answer>"])),
    ]
    for kind, said, mistake in mistakes:
        with pytest.raises(kind, match=said):
            mistake()


def test_each_problem_of_a_large_batch_is_pending_until_its_rewards_are_reported(tasks: Tasks) -> None:
    stream = ItemStream(tasks, seed=8)
    batch = [stream.next() for _ in range(600)]
    for problem in batch[:100]:
        stream.observe(problem, [1.0])
    resumed = ItemStream(tasks, seed=8)
    resumed.load_state_dict(stream.state_dict())
    assert [resumed.next().index for _ in range(501)] == list(range(100, 601))


def test_a_stream_refuses_a_problem_that_it_has_not_drawn(tasks: Tasks) -> None:
    stream, other = ItemStream(tasks, seed=1), ItemStream(tasks, seed=2)
    problem, pending = stream.next(), stream.state_dict()["item_stream"]["pending"]
    assert other.next().index == problem.index
    for foreign in (ItemStream(tasks, seed=1, instance_id="1").next(), tasks.draw("chain_sum", 3)):
        with pytest.raises(ValueError, match="expected a problem of this stream"):
            stream.observe(foreign, [1.0])
    with pytest.raises(ValueError, match=r"this stream \(seed 2, instance 0\), got"):
        other.observe(problem, [1.0])
    assert stream.state_dict()["item_stream"]["pending"] == pending
    # The rewards of its own problem still count, and count once, because the first report finishes the problem.
    stream.observe(problem, [1.0])
    stream.observe(problem, [0.0])
    assert len(stream.state_dict()["item_stream"]["pending"]) == len(pending) - 1
    assert stream.metrics()["curriculum/avg_recent_accuracy"] == 1.0


def test_a_dataset_that_only_this_process_knows_is_refused(in_process_workers: None, own_datasets: None) -> None:
    from reasoning_gym.arithmetic.chain_sum import ChainSumConfig, ChainSumDataset
    from reasoning_gym.factory import register_dataset

    register_dataset("my_sums", type("MySums", (ChainSumDataset,), {"__module__": "my_module"}), ChainSumConfig)
    with pytest.raises(EnvironmentSetupError, match=r"my_sums: the worker processes .*my_module.*task_modules=\.\.\."):
        Tasks("my_sums,gcd")
    with Tasks(exclude_tasks="my_sums", include_tasks="*_sums,gcd") as tasks:
        assert tasks.names == ["gcd"]


@pytest.mark.slow
def test_tasks_cannot_be_used_after_their_block() -> None:
    with Tasks("chain_sum") as tasks:
        stream = ItemStream(tasks)
        problem = stream.next()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: [stream.next() for _ in iter(int, 1)])
            tasks.close()
            with pytest.raises(EnvironmentSetupError, match="are closed"):
                waiting.result(60)
    with pytest.raises(EnvironmentSetupError, match="are closed"):
        tasks.grade(problem, ["<answer>1</answer>"])


@linux_only
@pytest.mark.slow
def test_grade_works_in_a_forked_process_too() -> None:
    code = f"""
import multiprocessing
from reasoning_gym_environment import grade, problem_of
def rewarded(answer):
    return grade(problem_of("chain_sum", {ITEM}), [f"<answer>{{answer}}</answer>"])[0].reward
print(rewarded(2), multiprocessing.get_context("fork").Pool(2).map(rewarded, [2, 3], chunksize=1), rewarded(2))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1.0 [1.0, 0.0] 1.0\n"), done.stderr


SCRIPT = """
import os, sys
from testing.process_table import workers_of
from reasoning_gym_environment import Tasks, ItemStream, HeldOut, grade
tasks = Tasks("chain_sum")
problem = ItemStream(tasks).next()
print(grade(problem, [f"<answer>{problem.entry['answer']}</answer>"])[0].reward)
print(HeldOut(tasks, num_eval_samples_per_task=1).results([""]).overall.completions)
print(sorted({"atroposlib", "openai", "wandb", "transformers", "aiohttp"} & set(sys.modules)))
print(*workers_of(os.getpid()))
"""


@linux_only
@pytest.mark.slow
def test_a_program_that_closes_nothing_ends_and_has_loaded_no_trainer() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout.split("\n")[:3], done.stderr) == (0, ["1.0", "1", "[]"], "")
    for worker in map(int, done.stdout.split("\n")[3].split()):
        wait_for(lambda worker=worker: worker not in parents(), "the end of a worker")
