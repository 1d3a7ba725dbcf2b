"""The commands as a person runs them, one run of each: real processes, real HTTP, atroposlib's own run-api."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import cli
from testing.env_support import dumped
from testing.inference_server import ThreadedMockServer
from testing.process_table import parents, workers_of
from testing.support import (
    PATIENCE_S,
    child_environment,
    flags,
    next_batch,
    register_trainer,
    run,
    running,
    trajectory_api,
    wait_for,
)

LAUNCHER = [str(Path(__file__).resolve().parent.parent / "reasoning_gym_environment.py")]
CONSOLE_SCRIPT = [str(Path(sys.executable).with_name("reasoning-gym-env"))]


def test_serve_fills_batches_saves_checkpoints_and_closes_on_sigterm(
    tmp_path: Path, tokenizer_dir: Path, byte_tokenizer: Any, adding_server: ThreadedMockServer
) -> None:
    with trajectory_api(tmp_path) as api:
        settings = {"env__rollout_server_url": api, "env__batch_size": 8}
        settings |= {"env__dump_rollouts": True, "env__data_dumps_dir": "dumps"}
        arguments = flags(tokenizer_dir, adding_server.base_url, **settings)
        log = tmp_path / "serve.log"
        with running([*LAUNCHER, "serve", *arguments], log, tmp_path) as process:
            register_trainer(api, batch_size=8, max_token_len=2048, save_checkpoint_interval=2)
            batches = [next_batch(api) for _ in range(3)]
            checkpoints = (tmp_path / "checkpoints").rglob
            wait_for(lambda: next_batch(api) and list(checkpoints("step-*.json")), "a checkpoint")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=PATIENCE_S) == 128 + signal.SIGTERM
    assert "Traceback" not in log.read_text()
    for group in (group for batch in batches for group in batch):
        assert_group_is_fit_for_training(group, byte_tokenizer, max_token_len=2048)
    assert dumped(tmp_path / "dumps", "*_rollouts_*.jsonl")


def assert_group_is_fit_for_training(group: dict[str, Any], tokenizer: Any, *, max_token_len: int) -> None:
    assert len(group["tokens"]) == len(group["scores"]) == len(group["overrides"]) == 4
    assert len(set(group["scores"])) > 1
    assert group["generation_params"]["sampled_at_step"] >= 0 and group["generation_params"]["temperature"] == 1.0
    for tokens, mask, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
        assert len(tokens) == len(mask) == len(logprobs) < max_token_len
        prompt = sum(value == -100 for value in mask)
        assert mask[prompt:] == tokens[prompt:]
        assert logprobs[:prompt] == [1.0] * prompt
        assert all(value <= 0 for value in logprobs[prompt:])
        assert tokenizer.decode(tokens[prompt:]).endswith("</answer><|im_end|>")


EVALUATION = {"openai__server_type": "openai", "openai__num_requests_for_eval": 2, "openai__api_key": "sk-secret"}


def samples_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "samples.jsonl").open()]


def evaluate(arguments: list[str], folder: Path) -> str:
    """The log of `evaluate`, which ends without an error."""
    result = run([*CONSOLE_SCRIPT, "evaluate", *arguments], folder)
    assert result.returncode == 0, result.stderr
    return result.stderr


@pytest.mark.slow
def test_evaluate_writes_its_results_and_says_where_they_are(
    tmp_path: Path, tokenizer_dir: Path, adding_server: ThreadedMockServer
) -> None:
    folder = tmp_path / "evaluation"
    settings = {**EVALUATION, "env__data_dir_to_save_evals": folder}
    log = evaluate(flags(tokenizer_dir, adding_server.base_url, **settings), tmp_path)
    assert f"The results are in {folder}. Show them with: `reasoning-gym-env report {folder} " in log
    written = json.loads((folder / "metrics.json").read_text())
    assert written["config_general"]["generation_parameters"]["max_new_tokens"] == 4096, "what was used"
    metrics = written["results"]["all"]
    assert metrics["eval/percent_correct"] == pytest.approx(sum(row["score"] for row in samples_in(folder)) / 3)
    kept = (folder / "evaluate_config.yaml").read_text()
    assert "num_eval_samples_per_task: 3" in kept and "sk-secret" not in kept


NO_USER = """
import pwd

def no_entry(uid):
    raise KeyError(uid)

pwd.getpwuid = no_entry
"""
"""A sitecustomize module: the user of the process has no entry in the system's list."""


@pytest.mark.slow
def test_a_user_without_a_home_directory_can_run_the_commands(
    tmp_path: Path,
    tokenizer_dir: Path,
    adding_server: ThreadedMockServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_USER)
    monkeypatch.delenv("HOME")
    settings = {**EVALUATION, "env__use_wandb": True, "env__num_eval_samples_per_task": 1}
    evaluation = ["evaluate", *flags(tokenizer_dir, adding_server.base_url, **settings)]
    for command in (["--help"], ["tasks", "chain_sum"], evaluation):
        result = run([*CONSOLE_SCRIPT, *command], tmp_path, WANDB_MODE="offline", PYTHONPATH=str(tmp_path))
        assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr
        assert ("There is no home directory" in result.stderr) is (command is evaluation)


@pytest.mark.slow
def test_evaluate_plans_stops_at_its_limit_and_resumes(
    tmp_path: Path, tokenizer_dir: Path, adding_server: ThreadedMockServer
) -> None:
    folder = tmp_path / "evaluation"
    settings = {**EVALUATION, "env__num_eval_samples_per_task": 6, "env__data_dir_to_save_evals": folder}
    arguments = flags(tokenizer_dir, adding_server.base_url, **settings)
    limited = evaluate([*arguments, "--limit-tokens", "1"], tmp_path)
    assert "Planned: 6 requests" in limited and "limit_tokens is reached" in limited
    assert 0 < sum(sample["score"] is not None for sample in samples_in(folder)) < 6
    evaluate(arguments, tmp_path)
    assert all(sample["score"] is not None for sample in samples_in(folder))
    asked = len(adding_server.requests)
    assert "6 of 6 completions exist already." in evaluate(["--resume", str(folder)], tmp_path)
    assert len(adding_server.requests) == asked + 1, "one request finds out whether the server is there"


SLOW_TO_IMPORT = ("atroposlib", "transformers", "torch", "wandb", "reasoning_gym", "fastapi", "uvicorn")
TYPOS = (
    ("Did you mean seed?", ["serve", "--env.sed", "3"]),
    ("Did you mean group_size?", ["process", "--config", "run.yaml"]),
)
TASK_TYPOS = (
    ("Did you mean chain_sum", ["evaluate", "--env.eval_tasks", "chain_smu"]),
    ("Did you mean logic?", ["serve", "--env.exclude_tasks", "category:lgic"]),
    ("Unknown task '*_arithmetics'. Did you mean", ["serve", "--env.include_tasks", "*_arithmetics"]),
    ("Did you mean chain_sum", ["tasks", "chain_smu"]),
    ("Did you mean chain_sum", ["audit", "--tasks", "chain_smu"]),
    ("Did you mean chain_sum", ["export", "items", "--count", "1", "--to", "new", "--tasks", "chain_smu"]),
    ("Did you mean chain_sum", ["grade-server", "--tasks", "chain_smu"]),
)
RUN_EACH = f"""
import contextlib, io, json, logging, sys
from {cli.__name__} import main
for arguments in json.loads(sys.argv[1]):
    logging.getLogger().handlers.clear()
    said, code = io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, said.getvalue(), sorted({{*{SLOW_TO_IMPORT}}} & sys.modules.keys())]))
"""


def test_help_and_typos_take_no_slow_import(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("env: {group_siz: 4}\n")
    cases = [("usage: ", [command, "--help"]) for command in cli.COMMANDS]
    cases += [("--env.max_staleness_steps VALUE", ["serve", "--help-all"])]
    cases += TYPOS
    done = run(["-c", RUN_EACH, json.dumps([arguments for _, arguments in cases])], tmp_path)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    for (expected, arguments), (code, said, imported) in zip(cases, results, strict=True):
        assert expected in said and imported == [], (arguments, said, imported)
        assert code == (0 if {"--help", "--help-all"} & set(arguments) else 2), (arguments, said)


def test_a_misspelt_task_ends_a_command_before_anything_starts(tmp_path: Path) -> None:
    done = run(["-c", RUN_EACH, json.dumps([arguments for _, arguments in TASK_TYPOS])], tmp_path)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    for (expected, arguments), (code, said, _) in zip(TASK_TYPOS, results, strict=True):
        assert (expected in said, code) == (True, 2), (arguments, said)
    assert list(tmp_path.iterdir()) == []


def test_windows_is_refused_in_one_line(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit, match="2"):
        cli.main(["tasks"])
    [line] = capsys.readouterr().err.splitlines()
    assert "expected Linux or macOS" in line and "WSL" in line


def test_characters_that_the_terminal_cannot_print_are_escaped() -> None:
    program = f"""
import sys, {cli.__name__} as cli
def work(_):
    print(chr(0x1F600), chr(0xD800))
    print(chr(0x1F600), file=sys.stderr)
cli._run = work
cli.main([])"""
    done = run(["-c", program], Path(), PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == (0, r"\U0001f600 \ud800", r"\U0001f600")


FORKS = f"""
import multiprocessing, os, sys
from {cli.__name__} import keep_temporary_files_together
folder = keep_temporary_files_together()
print(folder, flush=True)
child = multiprocessing.get_context("fork").Process(target=os.listdir, args=(folder,))
child.start()
child.join()
print(child.exitcode, os.path.isdir(folder), flush=True)
if os.fork() == 0:
    sys.exit()
os.wait()
print(os.path.isdir(folder))
"""


def test_a_forked_process_leaves_the_temporary_files_to_its_parent(tmp_path: Path) -> None:
    folder, after_multiprocessing, after_fork = run(["-c", FORKS], tmp_path).stdout.splitlines()
    assert after_multiprocessing == "0 True"
    assert after_fork == "True"
    assert not Path(folder).exists()


@pytest.mark.slow
def test_results_are_complete_when_the_reader_of_the_table_has_gone(
    tmp_path: Path, tokenizer_dir: Path, adding_server: ThreadedMockServer
) -> None:
    settings = {"openai__server_type": "openai", "env__num_eval_samples_per_task": 1}
    arguments = flags(tokenizer_dir, adding_server.base_url, env__data_dir_to_save_evals=tmp_path, **settings)
    command = [*CONSOLE_SCRIPT, "evaluate", *arguments]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=child_environment())
    os.close(writer)
    assert done.returncode == 128 + signal.SIGPIPE and "Traceback" not in done.stderr
    assert (tmp_path / "samples.jsonl").is_file() and (tmp_path / "metrics.json").is_file()
    assert not (tmp_path / "answers.jsonl").exists()


def test_a_full_disk_is_reported_in_one_line(capsys: Any, monkeypatch: Any) -> None:
    def write(_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cli, "_run", write)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["export"])
    assert "cannot write: No space left on device. Make room and start again." in capsys.readouterr().err


def test_a_file_that_cannot_be_used_is_named_with_the_reason(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(cli, "_run", lambda arguments: Path("missing/file").write_text(""))
    with pytest.raises(SystemExit, match="2"):
        cli.main(["report"])
    text = "cannot use missing/file: No such file or directory. Check that it exists and"
    assert text in capsys.readouterr().err


def test_an_unknown_command_and_ctrl_c_end_in_one_line(capsys: Any, monkeypatch: Any) -> None:
    def ends(command: str, code: int, said: str) -> None:
        with pytest.raises(SystemExit) as end:
            cli.main([command])
        assert end.value.code == code and said in capsys.readouterr().err

    ends("train", 2, "'train': expected one of tasks, ")
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        monkeypatch.setattr(cli, "_run", lambda arguments, number=number: signal.raise_signal(number))
        ends("evaluate", code, "reasoning-gym-env: interrupted. The same command resumes where it stopped.\n")
        ends("audit", code, "reasoning-gym-env: interrupted. The same command starts again from the beginning.\n")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_says_so_in_one_line_and_leaves_neither_files_nor_processes(
    tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "export.log"
    target = tmp_path / "out"
    arguments = ["export", "cold-start", "--count", "1000000", "--tasks", "gcd", "--to", str(target)]
    # Without the first line, the command ignores SIGINT if the tests run in the background.
    program = f"""
import signal; signal.signal(signal.SIGINT, signal.default_int_handler)
from {cli.__name__} import main
main({arguments!r})"""
    with running(["-c", program], log, tmp_path) as process:
        rows = tmp_path / ".out.unfinished" / "data" / "train.jsonl"
        wait_for(lambda: rows.exists() and rows.stat().st_size, "rows")
        workers = workers_of(process.pid)
        process.send_signal(number)
        assert process.wait(timeout=PATIENCE_S) == 128 + number
    wait_for(lambda: not set(workers) & parents().keys(), "the end of the workers")
    assert workers and not target.exists()
    last_line = log.read_text().splitlines()[-1]
    assert last_line == "reasoning-gym-env: interrupted. The same command starts again from the beginning."
    assert "Traceback" not in log.read_text()
