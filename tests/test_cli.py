"""The commands as a person runs them, one run of each: real processes, real HTTP, atroposlib's own run-api."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from reasoning_gym_environment import cli

from .env_support import dumped
from .mock_dialects import ThreadedMockServer
from .support import (
    PATIENCE_S,
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

MODULE = ["-m", "reasoning_gym_environment"]
LAUNCHER = [str(Path(__file__).resolve().parent.parent / "reasoning_gym_environment.py")]
CONSOLE_SCRIPT = [str(Path(sys.executable).with_name("reasoning-gym-env"))]


def test_serve_fills_batches_saves_checkpoints_and_closes_on_sigterm(
    tmp_path: Path, tokenizer_dir: Path, byte_tokenizer: Any, adding_server: ThreadedMockServer
) -> None:
    with trajectory_api(tmp_path) as api:
        arguments = flags(
            tokenizer_dir,
            adding_server.base_url,
            env__rollout_server_url=api,
            env__batch_size=8,
            env__dump_rollouts=True,
        )
        log = tmp_path / "serve.log"
        with running([*LAUNCHER, "serve", *arguments], log, tmp_path) as process:
            register_trainer(api, batch_size=8, max_token_len=2048)
            batches = [next_batch(api) for _ in range(3)]
            checkpoints = (tmp_path / "checkpoints").rglob
            wait_for(lambda: get_json(f"{api}/batch") and list(checkpoints("step-*.json")), "a checkpoint")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=PATIENCE_S) == 128 + signal.SIGTERM
        text = log.read_text()
    assert "Traceback" not in text
    for group in (group for batch in batches for group in batch):
        assert_group_is_fit_for_training(group, byte_tokenizer, max_token_len=2048)
    assert not list((tmp_path / "data_dumps").glob("*.part"))
    assert_dumped_scores_are_the_verifier_s(dumped(tmp_path / "data_dumps", "*_rollouts_*.jsonl"))


def assert_group_is_fit_for_training(group: dict[str, Any], tokenizer: Any, *, max_token_len: int) -> None:
    assert len(group["tokens"]) == len(group["scores"]) == len(group["overrides"]) == 4
    assert len(set(group["scores"])) > 1
    assert group["generation_params"]["sampled_at_step"] >= 0
    for tokens, mask, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
        assert len(tokens) == len(mask) == len(logprobs) < max_token_len
        prompt = sum(value == -100 for value in mask)
        assert mask[prompt:] == tokens[prompt:]
        assert logprobs[:prompt] == [1.0] * prompt
        assert all(value <= 0 for value in logprobs[prompt:])
        assert tokenizer.decode(tokens[prompt:]).endswith("</answer><|im_end|>")


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
            env__process_format="prompt_completion",
        )
        result = run([*MODULE, "process", *arguments], tmp_path)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in (output.parent / "groups.prompt_completion/data/train.jsonl").open()]
    assert [len(row["completion"]) for row in rows] == [1] * 5 and {row["score"] for row in rows} == {1.0}
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


def test_evaluate_writes_metrics_and_samples(
    tmp_path: Path, tokenizer_dir: Path, adding_server: ThreadedMockServer
) -> None:
    folder = tmp_path / "evaluation"
    short = ["--dry-run", "--env.price_per_million", "0.3,1.2"]
    arguments = flags(
        tokenizer_dir,
        adding_server.base_url,
        openai__server_type="openai",
        openai__num_requests_for_eval=2,
        env__num_eval_samples_per_task=6,
        env__data_dir_to_save_evals=folder,
    )
    planned = run([*CONSOLE_SCRIPT, "evaluate", *arguments, *short], tmp_path)
    assert planned.returncode == 0 and not adding_server.requests and not list(folder.iterdir())
    assert re.search(
        r"To ask: 6 requests, [\d,]+ prompt tokens, at most [\d,]+ completion tokens \(at most", planned.stderr
    )

    # Ended by a limit, it goes on with what is missing.
    limited = run([*CONSOLE_SCRIPT, "evaluate", *arguments, "--limit-tokens", "1"], tmp_path)
    assert limited.returncode == 0 and "not asked: limit_tokens is reached" in limited.stderr, limited.stderr
    some = [json.loads(line) for line in (folder / "samples.jsonl").open()]
    assert 0 < sum(sample["score"] is not None for sample in some) < 6

    result = run([*CONSOLE_SCRIPT, "evaluate", *arguments], tmp_path)
    assert result.returncode == 0, result.stderr
    assert "To ask: " in result.stderr and "Spent: " in result.stderr and "Dumped" not in result.stderr
    samples = [json.loads(line) for line in (folder / "samples.jsonl").open()]
    assert len(samples) == 6
    metrics = json.loads((folder / "metrics.json").read_text())["results"]["all"]
    assert metrics["eval/percent_correct"] == pytest.approx(sum(s["score"] for s in samples) / 6)
    assert 0 < metrics["eval/percent_correct"] < 1
    assert f"mean score {metrics['eval/percent_correct']:.4f}" in result.stderr
    settings = folder / "evaluate_config.yaml"
    assert "num_eval_samples_per_task: 6" in settings.read_text() and "api_key: '***'" in settings.read_text()

    # The same again asks nothing; another model is refused, and what is there stays.
    asked, before = len(adding_server.requests), settings.read_text()
    again = run([*CONSOLE_SCRIPT, "evaluate", *arguments], tmp_path)
    assert again.returncode == 0 and "6 of 6 completions are there already." in again.stderr
    assert len(adding_server.requests) == asked + 1, "one request finds out whether the server is there"
    assert [json.loads(line) for line in (folder / "samples.jsonl").open()] == samples
    resumed = run([*CONSOLE_SCRIPT, "evaluate", "--resume", str(folder)], tmp_path)
    assert resumed.returncode == 0 and "6 of 6 completions are there already." in resumed.stderr, resumed.stderr
    other = run([*CONSOLE_SCRIPT, "evaluate", *arguments, "--openai.model_name", "other"], tmp_path)
    assert other.returncode == 2 and "holds answers of another evaluation: model_name" in other.stderr
    assert settings.read_text() == before


@pytest.mark.parametrize(
    ("command", "changed", "expected"),
    [
        ("evaluate", {"openai__base_url": "http://127.0.0.1:9/v1"}, "inference server is not reachable"),
        ("evaluate", {"env__tokenizer_name": "no/such-tokenizer"}, "Cannot load the tokenizer"),
        ("evaluate", {"env__include_tasks": "chain_sun"}, "Did you mean chain_sum"),
        ("evaluate", {"env__grop_size": "4"}, "env.grop_size"),
        ("evaluate", {"env__group_size": "many"}, "env.group_size"),
        ("evaluate", {"config": "missing.yaml"}, "Cannot read the config file missing.yaml"),
        ("serve", {"openai__server_type": "openai"}, "serve needs token ids"),
    ],
)
def test_bad_input_gives_one_clear_line(
    tmp_path: Path,
    tokenizer_dir: Path,
    adding_server: ThreadedMockServer,
    command: str,
    changed: dict[str, str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["reasoning-gym-env"])
    with pytest.raises(SystemExit) as end:
        cli.main([command, *flags(tokenizer_dir, adding_server.base_url, **changed)])
    told = capfd.readouterr().err + caplog.text
    assert end.value.code == 2, told
    assert expected in told
    assert "Traceback" not in told


def test_another_error_of_the_system_is_a_bug_and_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str]) -> None:
        raise FileNotFoundError(2, "a file of ours")

    monkeypatch.setattr(cli, "_run", fail)
    with pytest.raises(FileNotFoundError):
        cli.main(["tasks"])


@pytest.mark.parametrize(
    ("streams", "code"), [("2>&-", 0), (">&- 2>&-", 0), ("<&- >&- 2>&-", 0), ("2>/dev/full", 2), (">/dev/full", 2)]
)
def test_a_stream_that_is_closed_or_full_does_not_end_a_command_in_an_error_of_its_own(
    tmp_path: Path, streams: str, code: int
) -> None:
    code_of = f"""
import json, os, sys, {cli.__name__} as cli
def work(_):
    print(chr(0x1F600), chr(0xD800))
    print(chr(0x1F600), file=sys.stderr)
    open(sys.argv[1], "w").write(json.dumps([os.path.realpath(f"/proc/self/fd/{{one}}") for one in range(3)]))
cli._run = work
cli.main([])"""
    told = tmp_path / "told"
    command = f'"{sys.executable}" -c "$CODE" {told} {streams}'
    env = {**os.environ, "CODE": code_of, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, shell=True, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and done.stdout.strip() in ("", r"\U0001f600 \ud800")
    if code == 0:
        places = json.loads(told.read_text())
        closed = [number for number, name in enumerate(("<&-", ">&-", "2>&-")) if name in streams.split()]
        assert [places[number] for number in closed] == [os.devnull] * len(closed)


def test_a_log_line_has_no_character_that_a_terminal_obeys() -> None:
    error = ValueError("\x1b]0;title\x07\x9b2J\u00e9\n\tmore\r\x7f")
    values = (logging.ERROR, "file", 1, "refused: %s", (error,), (ValueError, error, None))
    shown = logging.Formatter().format(cli.ShownRecord("name", *values))
    text = "\\x1b]0;title\\x07\\x9b2J\u00e9\n\tmore\\x0d\\x7f"
    assert shown == f"refused: {text}\nValueError: {text}"


def test_an_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["train"])
    told = capsys.readouterr().err
    assert end.value.code == 2
    assert "'train'" in told and "serve" in told


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_the_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(arguments)
    told = capsys.readouterr().out
    commands = ("demo", "tasks", "preview", "audit", "serve", "process", "evaluate", "report", "dumps")
    assert all(f"\n  {command} " in told for command in commands)


def test_help_and_misspelt_names_are_answered_before_anything_slow_is_imported(tmp_path: Path) -> None:
    mistakes = {
        "Did you mean chain_sum": ["serve", "--env.include_tasks", "chain_sun"],
        "'chain_sun'": ["evaluate", "--env.eval_tasks", "chain_sun"],
        "Did you mean gcd": ["process", "--env.task_overrides", '{"gcdd": {}}'],
        "Did you mean max_terms": ["serve", "--env.task_overrides", '{"chain_sum": {"max_term": 3}}'],
        "Did you mean logic": ["serve", "--env.task_weights", "category:logik=2"],
        "env.complexity_mode": ["serve", "--env.complexity_mode", "randon"],
    }
    program = f"""
import sys
from reasoning_gym_environment import cli

cli.main(["serve", "--help"])
for arguments in {list(mistakes.values())}:
    try:
        cli.main(arguments)
    except SystemExit as stopped:
        assert stopped.code == 2, arguments
print([name for name in ("transformers", "wandb", "reasoning_gym", "sympy", "matplotlib") if name in sys.modules])
"""
    result = run(["-c", program], tmp_path)
    assert result.stdout.splitlines()[-1] == "[]", result.stderr
    errors = [line for line in result.stderr.splitlines() if "ERROR" in line]
    assert len(errors) == len(mistakes), result.stderr
    for said, line in zip(mistakes, errors, strict=True):
        assert said in line


def test_what_is_imported_on_use_is_loaded_when_something_of_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_thing.py").write_text("class Maker:\n    make = staticmethod(lambda: 'made')\n\nnumber = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with cli.imported_on_use({"slow_thing": ["Maker"], "json": ["loads"]}):
        import slow_thing  # type: ignore[import-not-found]
        from slow_thing import Maker

        assert sys.modules["json"] is json, "what is loaded stays as it is"
    assert "slow_thing" not in sys.modules
    assert Maker.make() == "made"
    assert slow_thing.number == sys.modules["slow_thing"].number == 7
    with pytest.raises(AttributeError):
        _ = slow_thing.nothing
    del sys.modules["slow_thing"]
    with cli.imported_on_use({"slow_thing": []}):
        from slow_thing import number
    assert number == 7, "a name that has no stand-in is had at once"
    del sys.modules["slow_thing"]
