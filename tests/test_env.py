"""The environment in this process, against a mock inference server."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from reasoning_gym_environment import __version__
from reasoning_gym_environment.inference.prompts import system_prompt
from testing.env_support import RIGHT, SILENT, WRONG, MakeEnv, ReadyEnv, Student, dumped, rollout
from testing.inference_server import Generation, ThreadedMockServer


@pytest.fixture
def student() -> Student:
    return Student()


@pytest.fixture
def server(student: Student, byte_tokenizer: Any) -> Iterator[ThreadedMockServer]:
    with ThreadedMockServer(student, byte_tokenizer) as server:
        yield server


# --- set-up and items


async def test_set_up_finds_the_tasks_and_items_are_messages_an_entry_and_its_dataset(make_env: MakeEnv) -> None:
    env = make_env()
    await env.setup()
    assert env.task_names == ["chain_sum", "gcd"]
    assert [dataset.name for _, dataset in env.test_items_with_scorers] == ["chain_sum"] * 2 + ["gcd"] * 2
    items = [await env.get_next_item() for _ in range(12)]
    assert env.iter == len({messages for messages, _, _ in items}) == 12
    for messages, entry, dataset in items:
        assert [dict(message) for message in messages] == [
            {"role": "system", "content": system_prompt},
            {"role": "user", "content": entry["question"]},
        ]
        assert entry.keys() == {"question", "answer", "metadata"}
        assert dataset.score_answer(answer=entry["answer"], entry=entry) == 1.0


# --- groups


async def test_a_group_of_completions_is_scored_and_ready_for_the_trainer(
    ready_env: ReadyEnv, server: ThreadedMockServer, student: Student, byte_tokenizer: Any
) -> None:
    env = await ready_env(server.base_url, include_messages=True)
    item = await env.get_next_item()
    student.learn(item[1])
    group, backlog = await env.collect_trajectories(item)
    assert group is not None and backlog == []
    assert [score >= 0.5 for score in group["scores"]] == [True, False, True, False]
    assert group["overrides"] == [{}] * 4
    assert group["inference_logprobs"] is not None
    for tokens, masks, messages in zip(group["tokens"], group["masks"], group["messages"], strict=True):
        completion = byte_tokenizer.decode([m for m in masks if m != -100], skip_special_tokens=True)
        assert messages == [*(dict(message) for message in item[0]), {"role": "assistant", "content": completion}]
        assert len(tokens) == len(masks)
    assert [request.n for request in server.requests] == [4]
    assert env.percent_correct_buffer == [1.0, 0.0, 1.0, 0.0]


async def test_an_invalid_completion_is_sent_without_advantage_and_does_not_count(
    ready_env: ReadyEnv, server: ThreadedMockServer, student: Student
) -> None:
    def spoil(made: list[Generation]) -> list[Generation]:
        return [*made[:-1], dataclasses.replace(made[-1], logprobs=[math.nan] * len(made[-1].logprobs))]

    server.spoil = spoil
    env = await ready_env(server.base_url, include_tasks="chain_sum")
    item = await env.get_next_item()
    student.learn(item[1])
    student.follow(RIGHT, WRONG, RIGHT, RIGHT)
    group, _ = await env.collect_trajectories(item)
    assert env.percent_correct_buffer == [1.0, 0.0, 1.0]
    assert env.run.telemetry.drain()["train/masked_bad_logprobs"] == 0.25
    assert group is not None
    assert group["overrides"] == [{}, {}, {}, {"set_advantage_to_zero": True}]
    assert group["scores"] == pytest.approx([1.0, 0.0, 1.0, 2 / 3])
    assert all(map(math.isfinite, group["inference_logprobs"][-1]))
    other = await env.get_next_item()
    student.learn(other[1])
    student.follow(RIGHT)
    assert await env.collect_trajectories(other) == (None, []), "the other rewards are equal"


# --- score(), as other code calls it


async def test_equal_scores_are_none_and_are_dumped_when_all_are_zero(
    ready_env: ReadyEnv, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    env = await ready_env(dump_rollouts=True, dump_failed_rollouts=True)
    assert f"The dumps of rollouts are in {env.datadumps_dir}." in caplog.messages
    failed, solved = await env.get_next_item(), await env.get_next_item()
    assert await env.score([rollout(failed, SILENT)] * 3) is None
    assert await env.score([rollout(solved, RIGHT)] * 3) is None
    await env.close()
    [line] = dumped(env.datadumps_dir, f"reasoning_gym_environment_FAILED_rollouts_{env.run_uuid}_0000.jsonl")
    assert (line["item_id"], line["index"]) == (failed[2].name, 0)
    assert [one["score"] for one in line["rollouts"]] == [0.0] * 3
    assert [message["role"] for message in line["rollouts"][0]["conversation"]] == ["system", "user", "assistant"]
    [line] = dumped(env.datadumps_dir, f"reasoning_gym_environment_rollouts_{env.run_uuid}_0000.jsonl")
    assert (line["item_id"], line["index"]) == (solved[2].name, 1)


# --- evaluation


async def test_evaluation_asks_every_item_once_and_gives_the_mean_score(
    ready_env: ReadyEnv, server: ThreadedMockServer, student: Student
) -> None:
    env = await ready_env(server.base_url)
    student.learn(*(entry for entry, _ in env.test_items_with_scorers))
    student.follow(RIGHT)
    assert (await env.evaluate())["eval/percent_correct"] == 1.0
    assert len(server.requests) == 4
    assert all(request.n == 1 and 2048 < (request.max_tokens or 0) < 4096 for request in server.requests)
    assert dict(env.eval_metrics)["eval/percent_correct"] == 1.0
    assert await env.rollout_and_score_eval(env.test_items_with_scorers[0]) == 1.0
    student.follow(SILENT)
    metrics = await env.evaluate()
    assert (metrics["eval/percent_correct"], metrics["eval/format_failures"]) == (0.0, 1.0)
    assert env.iter == 0
    assert env.percent_correct_buffer == []


async def test_evaluations_of_one_training_run_are_kept_side_by_side(
    ready_env: ReadyEnv, server: ThreadedMockServer, tmp_path: Path
) -> None:
    env = await ready_env(server.base_url, data_dir_to_save_evals=str(tmp_path))
    for step in (25, 50):
        env.state.step = step
        await env.evaluate()
    assert all(Path(tmp_path, f"step-{step}", "samples.jsonl").exists() for step in (25, 50))  # noqa: ASYNC240
    assert env.config.data_dir_to_save_evals == str(tmp_path)
    assert env.run.evaluator.newest == "exact 0.0% at step 50"
    metrics = json.loads((tmp_path / "step-25" / "metrics.json").read_text())
    parameters = metrics["config_general"]["generation_parameters"]
    assert len(parameters["system_prompt"]) == 16
    assert parameters["reasoning_gym_environment_version"] == __version__
    assert (parameters["sampled_at_step"], parameters["sampled_until_step"]) == (25, 25)


async def test_an_evaluation_carries_the_steps_at_which_its_completions_were_sampled(
    ready_env: ReadyEnv, server: ThreadedMockServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    env = await ready_env(server.base_url, data_dir_to_save_evals=str(tmp_path))
    complete = env.inference.complete
    env.state.step = 3

    async def complete_while_the_trainer_steps(*arguments: Any, **options: Any) -> Any:
        env.state.step += 1
        return await complete(*arguments, **options)

    env.inference.complete = complete_while_the_trainer_steps  # type: ignore[method-assign]
    await env.evaluate()
    metrics = json.loads((tmp_path / "step-3" / "metrics.json").read_text())
    parameters = metrics["config_general"]["generation_parameters"]
    assert (parameters["sampled_at_step"], parameters["sampled_until_step"]) == (3, 7)
    assert [message for message in caplog.messages if message.startswith("Steps 3 to 7: ")]


async def test_results_are_replaced_only_by_whole_results(
    ready_env: ReadyEnv, server: ThreadedMockServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = await ready_env(server.base_url, data_dir_to_save_evals=str(tmp_path))
    await env.evaluate()
    folder = tmp_path / "step-0"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert before.keys() == {"metrics.json", "samples.jsonl"}
    # A process that is killed leaves a file that is not finished.
    (folder / ".metrics.json.tmp").write_text('{"half')
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError("no space")))
        await env.evaluate()
    assert {path.name: path.read_bytes() for path in folder.glob("[!.]*")} == before
    await env.evaluate()
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["metrics.json", "samples.jsonl"]


async def test_a_disk_that_refuses_an_evaluation_is_told_and_its_numbers_are_logged(
    ready_env: ReadyEnv, server: ThreadedMockServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    env = await ready_env(server.base_url, data_dir_to_save_evals=str(tmp_path / "file" / "results"))
    assert (await env.evaluate())["eval/percent_correct"] == dict(env.eval_metrics)["eval/percent_correct"]
    [error] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert error.startswith(f"Evaluation not written to {tmp_path}") and "Not a directory" in error
