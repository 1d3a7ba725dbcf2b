"""Flags, file and defaults become the settings of a run; each mistake becomes a line; no key is shown or kept."""

from __future__ import annotations

import logging
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from atroposlib.envs.base import APIServerConfig, ServerBaseline

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos import command_line
from reasoning_gym_environment.atropos.command_line import COMMANDS, HELP, settings
from reasoning_gym_environment.atropos.shutdown import ShutdownRequested
from reasoning_gym_environment.config import RETIRED
from reasoning_gym_environment.errors import EnvironmentSetupError


class Probe(ReasoningGymEnv):
    """Stands in for the environment: it notes what it is made with, and its commands raise `fault` or do nothing."""

    made: list[dict[str, Any]]
    fault: BaseException | None = None

    def __init__(self, **options: Any) -> None:
        self.made.append(options)

    async def env_manager(self, *settings: Any) -> None:
        self.made[-1]["ran"] = (*settings, *[getattr(self, name, None) for name in ("n_groups_to_process",)])
        if self.fault:
            raise self.fault

    process_manager = _run_evaluate = env_manager


Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Run]:
    """`run("process --env.seed 3")` -> what the environment was made with. Logging is as before at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(Probe, "made", [], raising=False)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    caplog.set_level(logging.INFO)
    loggers = [logging.getLogger(name) for name in (None, "httpx", "httpcore", "openai", "aiohttp.access")]
    levels = [one.level for one in loggers]

    def go(text: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["program", *shlex.split(text)])
        monkeypatch.setattr(sys, "orig_argv", ["python", *sys.argv])
        Probe.cli()
        return Probe.made[-1]

    yield go
    logging.captureWarnings(False)
    for one, level in zip(loggers, levels, strict=True):
        one.setLevel(level)


@pytest.fixture
def refused(run: Run, caplog: pytest.LogCaptureFixture) -> Run:
    """`refused("process ...")` -> the lines with which it ends."""

    def go(text: str) -> list[str]:
        caplog.clear()
        before = len(Probe.made)
        with pytest.raises(SystemExit) as stopped:
            run(text)
        assert stopped.value.code == 2 and len(Probe.made) == before
        lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert lines and not any("\n" in line or "pydantic" in line for line in lines), lines
        return lines

    return go


def test_flags_win_over_the_file_and_the_file_over_the_defaults(run: Run) -> None:
    Path("run.yaml").write_text(
        "env: {<<: &shared {seed: 3, eval_seed: 9}, eval_seed: 4, task_weights: {gcd: 2}}\n"
        "openai: {model_name: m, timeout: 5}\ntesting: true\n"
    )
    flags = "--env.eval_seed -5 --env.worker_timeout=-1 --openai.timeout 7 --env.dump_rollouts --env.run_id none"
    for command in COMMANDS:
        made = run(f"{command} --config run.yaml {flags}")
        config, [server] = made["config"], made["server_configs"]
        assert (config.seed, config.eval_seed, config.task_weights, config.worker_timeout) == (3, -5, {"gcd": 2.0}, -1)
        assert (config.dump_rollouts, config.run_id, config.group_size) == (True, None, 8)
        assert (server.model_name, server.timeout, server.base_url) == ("m", 7, "http://localhost:9004/v1")
        assert (made["slurm"], made["testing"]) == (False, True)
        assert (config.use_wandb, config.include_messages) == (True, command == "process")


def test_the_command_that_was_named_is_run(run: Run) -> None:
    assert run("serve")["ran"] == (None,)
    assert run("process --env.total_steps 7")["ran"] == (7,)
    (settings, _) = run("evaluate --env.seed 5")["ran"]
    assert "seed: 5" in settings
    short = run("evaluate --dry-run --limit-tokens 9")["config"]
    assert (short.dry_run, short.limit_tokens) == (True, 9)
    assert run("process")["config"].data_path_to_save_groups == "data/reasoning_gym.jsonl"


def test_several_servers_are_a_list_and_each_begins_with_the_defaults(run: Run, refused: Run) -> None:
    Path("two.yaml").write_text(
        "openai:\n- &s {base_url: 'http://a/v1', model_name: m}\n- {<<: *s, base_url: 'http://b'}\n"
    )
    servers = run("serve --config two.yaml")["server_configs"]
    assert [(one.base_url, one.model_name, one.server_type) for one in servers] == [
        ("http://a/v1", "m", "vllm"),
        ("http://b", "m", "vllm"),
    ]
    assert refused("serve --config two.yaml --openai.timeout 3")[0].startswith("With several servers in the file")


def test_a_class_may_begin_with_servers_that_atropos_finds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = ReasoningGymEnv.config_init()
    monkeypatch.setattr(Probe, "config_init", lambda: (config, ServerBaseline(server_type="vllm")))
    assert isinstance(run("serve")["server_configs"], ServerBaseline)
    assert isinstance(run("serve --openai.base_url http://x")["server_configs"][0], APIServerConfig)


@pytest.mark.parametrize(
    ("command", "given", "name"),
    [
        ("evaluate", "", "none"),
        ("process", "--env.tokenizer_name own", "own"),
        ("serve", "", "NousResearch/DeepHermes-3-Llama-3-8B-Preview"),
    ],
)
def test_an_openai_server_needs_no_tokenizer(command: str, given: str, name: str, run: Run) -> None:
    assert run(f"{command} --openai.server_type openai {given}")["config"].tokenizer_name == name


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_what_a_command_s_users_set_and_help_all_everything(
    command: str, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "10000")
    run(command)
    texts = []
    for flag in ("--help", "--help-all"):
        run(f"{command} {flag} --env.seed x")
        texts.append(capsys.readouterr().out)
    assert len(Probe.made) == 1, "nothing is run"
    assert "--env.max_eval_workers" not in texts[0] and len(texts[0]) < 0.6 * len(texts[1])
    for name in settings(Probe):
        assert f"--{name} " in texts[1]
    for line in HELP:
        title, commands, names = line.split(" | ")
        for name in names.split():
            assert (f"--{name if '.' in name else f'env.{name}'} " in texts[0]) >= (command in commands), (title, name)
    start = "curriculum" if "which items" in texts[0] else "7"
    assert f"(default: {start})" in texts[0].replace("(default: 8192)", "(default: 7)"), "the command's own defaults"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--openai.model_nam 3", "Unknown setting 'openai.model_nam'. Did you mean openai.model_name"),
        ("--env.group_siz=3", "unknown setting 'group_siz' (did you mean group_size"),
        ("--slrum", "Unknown setting 'slrum'. Did you mean slurm"),
        ("--env.seed", "--env.seed: expected one argument"),
        ("--env.seed 3 4", "Expected --NAME VALUE, got '4'"),
        ("--env.group_size -1", "env.group_size: must be at least 1, got -1"),
        ("--env.total_steps 0", "env.total_steps: must be at least 1, or -1"),
        ("--env.rollout_server_url foo", "env.rollout_server_url: expected an address such as http"),
        ("--openai.base_url foo", "openai.base_url: expected an address such as http://localhost:9004/v1"),
        ("--openai.timeout soon", "openai.timeout: Input should be a valid integer"),
        ("--slurm maybe", "slurm: Input should be a valid boolean"),
        ("--slurm", "slurm is on, but this is no SLURM job"),
        ("--env.dry_run", "env.dry_run and env.limit_tokens are for evaluate and process"),
        ("--config none.yaml", "Cannot read the config file none.yaml: No such file"),
        ("--resume folder", "Unknown setting 'resume'"),
        ("--env.old_name 3", "old_name was removed: new_name does the same."),
    ],
)
def test_a_mistake_in_the_flags_is_one_line(
    flags: str, said: str, refused: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RETIRED, "old_name", "new_name does the same.")
    [line] = refused(f"serve {flags}")
    assert line.startswith(said)


def test_each_invalid_setting_is_a_line_without_the_key(refused: Run) -> None:
    Path("run.yaml").write_text("env: {seed: x, group_size: 0}\nopenai: {api_key: 123456, timeout: soon}\nslurm: 7\n")
    lines = refused("serve --config run.yaml")
    names = {line.partition(":")[0] for line in lines}
    assert names == {"env.seed", "env.group_size", "openai.timeout", "openai.api_key", "slurm"}
    assert "123456" not in str(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("- a\n", "is a list"),
        ("env: [\n", "is not valid YAML"),
        ("env: !!python/object/apply:os.getcwd []\n", "is not valid YAML"),
        ("\x00", "is not valid YAML"),
        ("env: {seed: 1, [a]: 2,\n  seed: 1}\n", "the key 'seed' is given twice, the second time in line 2"),
        ("envv: {}\n", "Unknown section 'envv'. Did you mean env?"),
        ("1: {}\n", "Unknown section '1'"),
        ("env: [a]\n", "The section env of run.yaml must be a mapping"),
        ("env: {3: 4}\n", "The section env of run.yaml must be a mapping"),
        ("env: {dump_rollout: true}\n", "unknown setting 'dump_rollout' (did you mean dump_rollouts"),
        ("env: {include_tasks: {a: 1}}\n", "env.include_tasks: expected "),
        ("openai: [text]\n", "The section openai of run.yaml must be a mapping, or a list"),
        ("openai: {base_ulr: x}\n", "Unknown key 'openai.base_ulr'. Did you mean openai.base_url"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(text: str, said: str, refused: Run) -> None:
    Path("run.yaml").write_text(text)
    [line] = refused("serve --config run.yaml")
    assert said in line


def test_the_settings_of_an_evaluation_are_kept_and_resumed_without_the_key(
    run: Run, refused: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path("results")
    kept = folder / "evaluate_config.yaml"
    folder.mkdir()
    kept.write_text(run("evaluate --env.seed 5 --openai.api_key sk-secret")["ran"][0])
    assert "sk-secret" not in kept.read_text()
    config = run("evaluate --resume results --env.eval_seed 6")["config"]
    assert (config.seed, config.eval_seed, config.data_dir_to_save_evals) == (5, 6, "results")
    assert Probe.made[-1]["server_configs"][0].api_key == "x"
    for flags in ("--resume results --config x.yaml", "--resume none"):
        assert refused(f"evaluate {flags}")[0].startswith("--resume: expected a folder with evaluate_config.yaml")


@pytest.mark.parametrize(
    ("command", "setting", "value", "said"),
    [
        ("process", "data_path_to_save_groups", "file/x.jsonl", "The folder of env.data_path_to_save_groups"),
        ("process", "data_path_to_save_groups", "''", "env.data_path_to_save_groups: expected the name of a file"),
        ("process", "data_path_to_save_groups", "g.html", "g.html is used already and would be replaced"),
        ("process", "total_steps", "-1", "process needs at least 1, got -1"),
        ("evaluate", "data_dir_to_save_evals", "file", "env.data_dir_to_save_evals: expected the name of a folder"),
        ("evaluate", "data_dir_to_save_evals", "file/x", "env.data_dir_to_save_evals: cannot write"),
        ("serve", "data_dumps_dir", "file", "env.data_dumps_dir: expected the name of a folder"),
    ],
)
def test_a_place_that_cannot_be_written_is_reported_before_any_work(
    command: str, setting: str, value: str, said: str, refused: Run
) -> None:
    Path("file").touch()
    [line] = refused(f"{command} --env.{setting} {value} --env.dump_rollouts")
    assert said in line


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("{}", "--openai.api_key secret"),
        ("{}", "--openai.api_key=secret"),
        ("{}", "--openai.api_key_env MY_KEY"),
        ("openai: {api_key_env: MY_KEY}", ""),
        ("openai: {api_key: other}", "--openai.api_key_env MY_KEY"),
        ("openai: [{api_key_env: MY_KEY}, {api_key: two}]", ""),
    ],
)
def test_a_key_reaches_its_server_and_is_neither_logged_nor_left_in_the_arguments(
    text: str, flags: str, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Path("run.yaml").write_text(text)
    monkeypatch.setenv("MY_KEY", "secret")
    for verbose in ("", "--verbose"):
        made = run(f"evaluate --config run.yaml {flags} {verbose}")
        assert [one.api_key for one in made["server_configs"]] == ["secret", "two"][: len(made["server_configs"])]
        assert "secret" not in f"{sys.argv} {sys.orig_argv} {caplog.text} {made['ran']}"


def test_a_key_that_is_not_there_names_its_variable_and_nothing_that_may_be_a_key(refused: Run) -> None:
    for value, said in [
        (
            "--openai.api_key_env MY_KEY",
            "openai.api_key_env: the environment variable MY_KEY is not set, or it is empty.",
        ),
        ("--openai.api_key_env sk-secret", "openai.api_key_env: expected the name of an environment variable, such as"),
        (
            "--openai.api_key_env HOME --openai.api_key sk-secret",
            "openai.api_key and openai.api_key_env both give a key",
        ),
    ]:
        [line] = refused(f"evaluate {value}")
        assert line.startswith(said) and "sk-secret" not in line


def test_what_differs_from_the_defaults_is_one_line_and_verbose_logs_all(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run("serve --env.seed 7 --openai.model_name m")
    assert "Settings other than the defaults: env.seed 7, openai.model_name m. (" in caplog.text
    run("serve --verbose")
    assert "hold_out: content" in caplog.text


@pytest.mark.parametrize(
    ("fault", "code", "line"),
    [
        (EnvironmentSetupError("set this"), 2, "set this"),
        (ShutdownRequested(15), 143, "stopped by SIGTERM"),
        (ShutdownRequested(2), 130, "stopped by SIGINT"),
    ],
)
def test_what_a_person_can_change_ends_in_a_line_and_an_exit_code(
    fault: BaseException, code: int, line: str, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(Probe, "fault", fault)
    with pytest.raises(SystemExit) as stopped:
        run("serve")
    assert stopped.value.code == code and line in caplog.messages[-1] and "Traceback" not in caplog.text


def test_a_bug_keeps_its_traceback_and_no_command_is_a_line(
    run: Run, refused: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused("") == ["Expected a command, one of serve, process, evaluate, got ''."]
    monkeypatch.setattr(Probe, "fault", KeyError("bug"))
    with pytest.raises(KeyError):
        run("serve")


def test_log_lines_go_to_stderr_without_those_of_each_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    command_line.set_up_logging()
    logging.getLogger("reasoning_gym_environment").warning("a line")
    logging.getLogger("httpx").info("each request")
    assert "WARNING a line" in (text := capsys.readouterr().err) and "each request" not in text
