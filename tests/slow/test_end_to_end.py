"""The commands as a person runs them: real processes, real HTTP, atroposlib's own run-api and clients."""

from __future__ import annotations

import itertools
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from ..mock_dialects import ThreadedMockServer
from ..support import (
    AddingStudent,
    flags,
    get_json,
    next_batch,
    register_trainer,
    run,
    running,
    trajectory_api,
    wait_for,
)

COMMAND = ["-m", "reasoning_gym_environment"]


@pytest.fixture
def server(byte_tokenizer: Any) -> Iterator[ThreadedMockServer]:
    with ThreadedMockServer(AddingStudent(), byte_tokenizer) as server:
        yield server


def dump_lines(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob(pattern)) for line in path.open(encoding="utf-8")]


def assert_group_is_fit_for_training(group: dict[str, Any], tokenizer: Any, *, max_token_len: int) -> None:
    assert len(group["tokens"]) == len(group["scores"]) == len(group["overrides"]) == 4
    assert len(set(group["scores"])) > 1
    for tokens, mask, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
        assert len(tokens) == len(mask) == len(logprobs) < max_token_len
        prompt = sum(value == -100 for value in mask)
        assert mask[prompt:] == tokens[prompt:]
        assert logprobs[:prompt] == [1.0] * prompt
        assert all(value <= 0 for value in logprobs[prompt:])
        assert tokenizer.decode(tokens[prompt:]).endswith("</answer><|im_end|>")


def test_serve_fills_batches_saves_checkpoints_and_closes_on_sigterm(
    tmp_path: Path, tokenizer_dir: Path, byte_tokenizer: Any, server: ThreadedMockServer
) -> None:
    with trajectory_api(tmp_path) as api:
        arguments = flags(
            tokenizer_dir, server.base_url, env__rollout_server_url=api, env__batch_size=8, env__dump_rollouts=True
        )
        log = tmp_path / "serve.log"
        with running([*COMMAND, "serve", *arguments], log, tmp_path) as process:
            register_trainer(api, batch_size=8, max_token_len=2048)
            batches = [next_batch(api) for _ in range(3)]
            checkpoints = (tmp_path / "checkpoints").rglob
            wait_for(lambda: get_json(f"{api}/batch") and list(checkpoints("step-*.json")), "a checkpoint")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 128 + signal.SIGTERM
        text = log.read_text()
    assert "Traceback" not in text
    for group in (group for batch in batches for group in batch):
        assert_group_is_fit_for_training(group, byte_tokenizer, max_token_len=2048)
    assert not list((tmp_path / "data_dumps").glob("*.part"))
    assert_dumped_scores_are_the_verifier_s(dump_lines(tmp_path / "data_dumps", "*_rollouts_*.jsonl"))


def assert_dumped_scores_are_the_verifier_s(lines: list[dict[str, Any]]) -> None:
    assert lines
    for line in lines:
        dataset = reasoning_gym.create_dataset(line["task"], seed=line["seed"], size=1, **line["config"])
        for rollout in line["rollouts"]:
            system, user, assistant = rollout["conversation"]
            assert (system["role"], user["role"], assistant["role"]) == ("system", "user", "assistant")
            assert user["content"] == dataset[0]["question"]
            answer = assistant["content"].split("<answer>")[1].split("</answer>")[0]
            assert rollout["score"] == dataset.score_answer(answer, dataset[0])


def test_serve_started_again_goes_on_where_it_was(
    tmp_path: Path, tokenizer_dir: Path, server: ThreadedMockServer
) -> None:
    """Killed at no notice, beside an API that stays and gives it another number; and once more, by SIGTERM."""
    with trajectory_api(tmp_path) as api:
        arguments = flags(
            tokenizer_dir,
            server.base_url,
            env__rollout_server_url=api,
            env__batch_size=8,
            env__dump_rollouts=True,
            env__rollout_save_score_threshold=0.5,
        )
        drawn = []
        for number, end in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGTERM)):
            log = tmp_path / f"serve-{number}.log"
            with running([*COMMAND, "serve", *arguments], log, tmp_path) as process:
                if number == 0:
                    register_trainer(api, batch_size=8, max_token_len=2048)
                for _ in range(12):
                    next_batch(api)
                process.send_signal(end)
                process.wait(timeout=30)
            drawn.append([int(index) for index in re.findall(r"Drew item (\d+): chain_sum", log.read_text())])
    assert min(drawn[0]) == 0
    for before, after in itertools.pairwise(drawn):
        assert 0 < min(after) <= max(before) + 1, "it starts where the last checkpoint was, and leaves out nothing"
    assert "Continuing from" in log.read_text()
    lines = dump_lines(tmp_path / "data_dumps", "*.jsonl")
    assert not list((tmp_path / "data_dumps").glob("*.part"))
    assert {line["index"] for line in lines} <= {index for indices in drawn for index in indices}
    stems = {path.name[:-11] for path in (tmp_path / "data_dumps").glob("*.jsonl")}
    assert len(stems) == 1, "all in the files of one run"


def test_sft_data_from_atropos_own_client_is_the_true_conversation(
    tmp_path: Path, tokenizer_dir: Path, server: ThreadedMockServer
) -> None:
    output = tmp_path / "sft.jsonl"
    with trajectory_api(tmp_path) as api:
        arguments = flags(
            tokenizer_dir, server.base_url, env__rollout_server_url=api, env__batch_size=8, env__include_messages=True
        )
        client = [
            *("-m", "atroposlib.cli.sft", str(output), "--api-url", api, "--tokenizer", str(tokenizer_dir)),
            *("--save-messages", "--group-size", "4", "--tasks-per-step", "2", "--num-seqs-to-save", "6"),
        ]
        serve = running([*COMMAND, "serve", *arguments], tmp_path / "serve.log", tmp_path)
        with running(client, tmp_path / "sft.log", tmp_path) as sft, serve:
            assert sft.wait(timeout=90) == 0, (tmp_path / "sft.log").read_text()
    lines = [json.loads(line) for line in output.open()]
    assert len(lines) >= 6
    solve = AddingStudent(wrong_every=0)
    for line in lines:
        system, user, assistant = line["messages"]
        assert "<answer>" in system["content"]
        right = solve(f"user\n{user['content']}")
        assert (assistant["content"] == right) == (line["score"] == 1.0)


def test_serve_with_an_openai_server_stops_with_one_line(tmp_path: Path, tokenizer_dir: Path) -> None:
    arguments = flags(tokenizer_dir, "http://127.0.0.1:9/v1", openai__server_type="openai")
    result = run([*COMMAND, "serve", *arguments], tmp_path)
    assert result.returncode == 2
    assert "openai.server_type" in result.stderr
    assert "Traceback" not in result.stderr


def test_process_against_an_openai_server_writes_exactly_the_groups_asked_for(
    tmp_path: Path, tokenizer_dir: Path, byte_tokenizer: Any
) -> None:
    output = tmp_path / "out" / "groups.jsonl"
    with ThreadedMockServer(AddingStudent(wrong_every=0), byte_tokenizer) as server:
        arguments = flags(
            tokenizer_dir,
            server.base_url,
            openai__server_type="openai",
            openai__api_key="sk-very-secret",
            env__total_steps=5,
            env__data_path_to_save_groups=output,
        )
        result = run([*COMMAND, "process", *arguments], tmp_path)
    assert result.returncode == 0, result.stderr
    assert "sk-very-secret" not in result.stdout + result.stderr
    groups = [json.loads(line) for line in output.open()]
    assert len(groups) == 5
    assert output.with_suffix(".html").exists()
    for group in groups:
        assert group["scores"] == [1.0] * 4
        for tokens, mask, messages in zip(group["tokens"], group["masks"], group["messages"], strict=True):
            text = byte_tokenizer.decode([t for t, m in zip(tokens, mask, strict=True) if m != -100])
            assert text == messages[-1]["content"] + "<|im_end|>"
            assert byte_tokenizer.decode(tokens).startswith("<|im_start|>system\n" + messages[0]["content"])


def test_evaluate_writes_metrics_and_samples(tmp_path: Path, tokenizer_dir: Path, server: ThreadedMockServer) -> None:
    folder = tmp_path / "evaluation"
    arguments = flags(
        tokenizer_dir,
        server.base_url,
        openai__server_type="openai",
        env__num_eval_samples_per_task=6,
        env__data_dir_to_save_evals=folder,
    )
    result = run([*COMMAND, "evaluate", *arguments], tmp_path)
    assert result.returncode == 0, result.stderr
    samples = [json.loads(line) for line in (folder / "samples.jsonl").open()]
    assert len(samples) == 6
    metrics = json.loads((folder / "metrics.json").read_text())["results"]["all"]
    assert metrics["eval/percent_correct"] == pytest.approx(sum(s["score"] for s in samples) / 6)
    assert 0 < metrics["eval/percent_correct"] < 1
    assert f"mean score {metrics['eval/percent_correct']:.4f}" in result.stderr


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"openai__base_url": "http://127.0.0.1:9/v1"}, "inference server is not reachable"),
        ({"env__tokenizer_name": "no/such-tokenizer"}, "Cannot load the tokenizer"),
        ({"env__include_tasks": "chain_sun"}, "Did you mean chain_sum"),
        ({"env__grop_size": "4"}, "env.grop_size"),
        ({"env__group_size": "many"}, "env.group_size"),
        ({"config": "missing.yaml"}, "Cannot read the config file missing.yaml"),
    ],
)
def test_bad_input_gives_one_clear_line(
    tmp_path: Path, tokenizer_dir: Path, server: ThreadedMockServer, changed: dict[str, str], expected: str
) -> None:
    result = run([*COMMAND, "evaluate", *flags(tokenizer_dir, server.base_url, **changed)], tmp_path)
    assert result.returncode == 2, result.stderr
    assert expected in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_waiting_for_the_trajectory_api_ends_serve_cleanly(
    tmp_path: Path, tokenizer_dir: Path, server: ThreadedMockServer, number: signal.Signals
) -> None:
    arguments = flags(tokenizer_dir, server.base_url, env__rollout_server_url="http://127.0.0.1:9")
    log = tmp_path / "serve.log"
    with running([*COMMAND, "serve", *arguments], log, tmp_path) as process:
        wait_for(lambda: "trajectory API is not reachable" in log.read_text(), "serve to wait")
        process.send_signal(number)
        assert process.wait(timeout=30) == 128 + number
    assert "Traceback" not in log.read_text()
