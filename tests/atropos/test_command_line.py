"""What a person got wrong becomes a line that says what to write; what is right is what Atropos reads."""

from __future__ import annotations

import io
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import atroposlib.envs.base as atropos_base
import pytest
from atroposlib.envs.base import APIServerConfig
from atroposlib.utils.cli import get_double_dash_flags

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos import command_line
from reasoning_gym_environment.atropos.command_line import COMMANDS, hidden_api_keys, is_optional, joined
from reasoning_gym_environment.atropos.shutdown import ShutdownRequested
from reasoning_gym_environment.config import ReasoningGymEnvConfig
from reasoning_gym_environment.errors import EnvironmentSetupError


@pytest.fixture(autouse=True)
def logging_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command line sets up logging for its process; here the process is that of all tests."""
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    loggers = [logging.getLogger(name) for name in (None, "httpx", "httpcore", "openai", "aiohttp.access")]
    levels = [one.level for one in loggers]
    yield
    logging.captureWarnings(False)
    for one, level in zip(loggers, levels, strict=True):
        one.setLevel(level)


class Started(Exception):
    """The environment would be made now, with these settings and servers."""


class Probe(ReasoningGymEnv):
    """Stands in for the environment: its commands end where they would make one, with `fault` if it is set."""

    fault: BaseException | None = None

    def __init__(self, config: Any, server_configs: Any, **options: Any) -> None:
        raise self.fault or Started(config, server_configs)


Command = Callable[..., Any]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """`command("process", "--env.seed", "3")` -> the settings it would run with."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["program", *arguments])
        with pytest.raises(Started) as started:
            Probe.cli()
        return started.value.args[0]

    return run


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Command:
    """`refused("process", ...)` -> the lines with which it ends."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["program", *arguments])
        caplog.clear()
        with pytest.raises(SystemExit) as stopped:
            Probe.cli()
        assert stopped.value.code == 2
        lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert lines and not any("\n" in line or "pydantic" in line for line in lines), lines
        return "\n".join(lines)

    return run


# --- the flags


def test_a_flag_takes_the_word_after_it_unless_that_is_a_flag() -> None:
    for given, expected in [
        (["--a", "1", "--b=2"], ["--a=1", "--b=2"]),
        (["--a", ""], ["--a="]),
        (["--a", "x=y", "z"], ["--a=x=y", "z"]),
        (["--a", "--b", "1"], ["--a", "--b=1"]),
        (["serve", "--a"], ["serve", "--a"]),
        (["--a", "-h"], ["--a", "-h"]),
        (["--help", "serve"], ["--help", "serve"]),
    ]:
        assert joined(given) == joined(expected) == expected


def test_a_negative_value_is_that_value_for_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ReasoningGymEnvConfig.model_fields:
        monkeypatch.setattr(sys, "argv", ["program", *joined(["serve", f"--env.{name}", "-1", "--config", "x.yaml"])])
        assert get_double_dash_flags() == {f"env.{name}": "-1", "config": "x.yaml"}


def test_none_unsets_every_setting_that_may_be_without_a_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("env: {max_prompt_tokens: 9, run_id: 'none'}\nopenai: {api_key: y}\n")
    kinds = {"env": ReasoningGymEnvConfig, "openai": APIServerConfig}
    names = {kind: [n for n, f in one.model_fields.items() if is_optional(f)] for kind, one in kinds.items()}
    assert {"min_batch_allocation", "wandb_name", "complexity_mode", "max_prompt_tokens"} <= {*names["env"]}
    assert names["openai"] == ["api_key", "base_url"]
    for spelling in ("none", "None", " NONE "):
        flags = [f"--{kind}.{name}" for kind in names for name in names[kind]]
        given = [word for flag in flags for word in (flag, spelling)]
        monkeypatch.setattr(sys, "argv", ["program", "serve", "--config", "run.yaml", *given])
        with pytest.raises(Started) as started:
            Probe.cli()
        config, [server] = started.value.args
        for kind, one in (("env", config), ("openai", server)):
            assert {name: getattr(one, name) for name in names[kind]} == dict.fromkeys(names[kind])


def test_none_is_text_for_what_must_have_a_value_and_in_yaml(command: Command, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("env: {run_id: none}\n")
    config = command("serve", "--config", "run.yaml", "--env.data_dumps_dir", "none")
    assert (config.run_id, config.data_dumps_dir) == ("none", "none")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_settings_that_are_checked_are_those_of_the_run(
    name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(command_line, "check_settings", lambda _, config: checked.append(config))
    (tmp_path / "run.yaml").write_text("env: {seed: 3, eval_seed: 4, task_weights: {gcd: 2}}\n")
    config = command(name, "--config", "run.yaml", "--env.eval_seed", "-5", "--env.worker_timeout", "-1")
    assert checked == [config]
    assert (config.seed, config.eval_seed, config.worker_timeout) == (3, -5, -1)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_has_every_setting_with_the_value_that_the_command_starts_from(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: Command
) -> None:
    monkeypatch.setenv("COLUMNS", "10000")
    for flag in ("-h", "--help"):
        monkeypatch.setattr(sys, "argv", ["program", name, flag])
        Probe.cli()
    text = capsys.readouterr().out
    defaults = dict(re.findall(r"--([\w.]+) VALUE\s+.*\(default: (.*)\)", text))
    assert text.count("--env.seed VALUE") == 2
    for setting, value in command(name).model_dump().items():
        plain = value if value not in (None, [], {}) else "none"
        plain = ",".join(plain) if isinstance(plain, list) else getattr(plain, "value", plain)
        assert defaults[f"env.{setting}"].removesuffix(".0") == str(plain).removesuffix(".0"), setting
    assert {f"openai.{setting}" for setting in APIServerConfig.model_fields} <= defaults.keys()
    assert {"config", "slurm", "testing"} <= defaults.keys()
    assert defaults["openai.server_type"] == "vllm"


def test_what_is_wrong_on_the_command_line_is_one_line(
    refused: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    server = "{model_name: a, base_url: 'http://x/v1', server_type: vllm}"
    (tmp_path / "two.yaml").write_text(f"openai: [{server}, {server}]\n")
    for arguments, said in [
        ("--openai.model_nam 3", "Unknown setting 'openai.model_nam'. Did you mean openai.model_name"),
        ("--env.grupo 3", "Unknown setting 'env.grupo'. Did you mean env.group_size"),
        ("--env.group_siz 3", "Unknown setting 'env.group_siz'. Did you mean env.group_size"),
        ("--env-seed=3", "Unknown setting 'env-seed'. Did you mean env.seed"),
        ("--slrum 3", "Unknown setting 'slrum'. Did you mean slurm? `reasoning-gym-env serve --help`"),
        ("--max_n_completions 3", "Unknown setting 'max_n_completions'. "),
        ("--env.seed", "env.seed: expected a value"),
        ("--env.seed 3 4", "Expected --NAME VALUE, got '4'"),
        ("--env.group_size -1", "env.group_size: must be at least 1, got -1"),
        ("--env.total_steps 0", "env.total_steps: must be at least 1, or -1"),
        ("--env.task_overrides 5", "env.task_overrides: expected a mapping, or JSON"),
        ("--env.rollout_server_url foo", "env.rollout_server_url: expected an address such as http"),
        ("--openai.base_url foo", "openai.base_url: expected an address such as http://localhost:9004/v1"),
        ("--openai.timeout soon", "openai.timeout: Input should be a valid integer"),
        ("--openai.timeout 3 --config two.yaml", "CLI overrides for OpenAI settings"),
        ("--slurm maybe", "slurm: Input should be a valid boolean"),
        ("--slurm yes", "slurm is on, but this is no SLURM job"),
    ]:
        line = refused("serve", *arguments.split())
        assert line.startswith(said)
        assert "\n" not in line


def test_no_command_is_answered_with_those_that_there_are(refused: Command) -> None:
    assert refused() == "Expected a command, one of serve, process, evaluate, got ''."


# --- the file


def test_valid_files_pass(command: Command, tmp_path: Path) -> None:
    server = "{model_name: a, base_url: 'http://x/v1', server_type: vllm}"
    for text in (
        "env: {seed: 3}\nopenai: {base_url: 'http://x/v1', server_type: vllm}\nslurm: false\ntesting: false\n",
        "openai:\n- {model_name: a}\n",
        f"openai:\n- &s {server}\n- *s\n",
        "env: {}\n",
        "env: {<<: &shared {seed: 1, group_size: 4}, seed: 2}\n",
        "{}\n",
    ):
        (tmp_path / "run.yaml").write_text(text)
        command("serve", "--config", "run.yaml")


def test_mistakes_in_a_file_are_named(tmp_path: Path, refused: Command) -> None:
    for text, message in [
        ("", "is empty"),
        ("- a\n", "is a list"),
        ("just text\n", "is a str"),
        ("env: [\n", "is not valid YAML"),
        ("env: !!python/object/apply:os.getcwd []\n", "is not valid YAML"),
        (b"\xff\xfe\x00", "is not valid YAML"),
        (
            "env: {seed: 1, [a]: 2,\n  seed: 1}\n",
            "run.yaml is not valid YAML: the key 'seed' is given twice, the second time in line 2",
        ),
        ("envv: {}\n", "Unknown section 'envv'. Did you mean env?"),
        ("1: {}\n", "Unknown section '1'"),
        ("env: [a]\n", "The section env of run.yaml must be a mapping"),
        ("env: {3: 4}\n", "The section env of run.yaml names a setting 3: expected text"),
        ("env: {dump_rollout: true}\n", "Unknown setting 'dump_rollout' (did you mean dump_rollouts"),
        ("openai: text\n", "The section openai of run.yaml must be a mapping, or a list"),
        ("openai: [text]\n", "The section openai of run.yaml must be a mapping, or a list"),
        ("openai: {base_ulr: x}\n", "Unknown key 'openai.base_ulr'. Did you mean openai.base_url"),
        ("openai:\n- {model_name: a}\n- {}\n", "Server 1 of 2 in run.yaml has no server_type and no base_url: "),
        ("openai: [{base_url: foo}]\n", "openai.base_url: expected an address"),
        ("openai: {api_key: secret, timeout: soon}\n", "openai.timeout: Input should be a valid integer"),
        ("slurm: maybe\n", "slurm: Input should be a valid boolean"),
    ]:
        (tmp_path / "run.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        line = refused("serve", "--config", "run.yaml")
        assert message in line
        assert "\n" not in line and "secret" not in line
    assert refused("serve", "--config", "none.yaml").startswith("Cannot read the config file none.yaml: No such file")
    assert "Is a directory" in refused("serve", "--config", str(tmp_path))


# --- the settings


def test_each_invalid_setting_is_one_line_with_its_flag(refused: Command) -> None:
    size, seed = refused("serve", "--env.seed", "x", "--env.group_size", "0").split("\n")
    assert size == "env.group_size: must be at least 1, got 0"
    assert seed.startswith("env.seed: Input should be a valid integer") and seed.endswith(", got 'x'")


def test_what_a_file_may_say_in_several_ways_is_one_line_too(refused: Command, tmp_path: Path) -> None:
    for name in ("include_tasks", "task_modules", "task_overrides"):
        for value in ("5", "[5]", "{a: 1}"):
            (tmp_path / "run.yaml").write_text(f"env: {{{name}: {value}}}\n")
            line = refused("serve", "--config", "run.yaml")
            assert line.startswith(f"env.{name}: expected ") and "got " in line and "\n" not in line


def test_an_invalid_api_key_is_not_repeated(refused: Command, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("openai: {api_key: 123456, timeout: soon}\n")
    lines = refused("serve", "--config", "run.yaml").split("\n")
    assert [line.partition(":")[0] for line in lines] == ["openai.timeout", "openai.api_key"]
    assert "123456" not in lines[1]


def test_an_evaluation_touches_no_settings_that_are_there_and_says_where_answers_could_be_kept(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kept = tmp_path / "results" / "evaluate_config.yaml"
    kept.parent.mkdir()
    kept.write_text("another's")
    command("evaluate", "--env.data_dir_to_save_evals", "results")
    assert kept.read_text() == "another's"
    assert "Answers will not be kept" not in caplog.text
    command("evaluate")
    assert "Answers will not be kept: env.data_dir_to_save_evals names a folder" in caplog.text


def test_only_a_folder_that_an_evaluation_has_begun_is_gone_on_with(refused: Command, tmp_path: Path) -> None:
    assert "is for evaluate, without --config" in refused("process", "--resume", "results")
    (tmp_path / "run.yaml").write_text("env: {}\n")
    assert "is for evaluate, without --config" in refused("evaluate", "--resume", "results", "--config", "run.yaml")
    assert "results has no evaluate_config.yaml: expected a folder" in refused("evaluate", "--resume", "results")


def test_process_needs_a_number_of_groups(refused: Command, command: Command) -> None:
    assert "at least 1, got -1" in refused("process", "--env.total_steps", "-1")
    assert command("serve", "--env.total_steps", "-1").total_steps == -1


def test_a_place_that_cannot_be_written_is_named_before_any_work(
    command: Command, refused: Command, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for name, setting, value, said in [
        ("process", "data_path_to_save_groups", "file/x.jsonl", "The folder of env.data_path_to_save_groups"),
        ("process", "data_path_to_save_groups", "", "env.data_path_to_save_groups: expected the name of a file"),
        ("process", "data_path_to_save_groups", "g.html", "g.html is used already and would be replaced"),
        ("evaluate", "data_dir_to_save_evals", "file", "env.data_dir_to_save_evals: expected the name of a folder"),
        ("evaluate", "data_dir_to_save_evals", "file/x", "env.data_dir_to_save_evals: cannot write"),
        ("serve", "data_dumps_dir", "file", "env.data_dumps_dir: expected the name of a folder"),
    ]:
        assert said in refused(name, f"--env.{setting}", value, "--env.dump_rollouts", "True")
    command("process", "--env.data_path_to_save_groups", "g.html", "--env.include_messages", "False")
    (tmp_path / "data").touch()
    assert "The folder of env.data_path_to_save_groups" in refused("process"), "where it writes by itself"


# --- the end


def test_what_a_person_can_fix_ends_in_one_line_and_an_exit_code_and_a_bug_in_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(sys, "argv", ["program", "serve"])
    for fault, code, line in [
        (EnvironmentSetupError("set this"), 2, "set this"),
        (ShutdownRequested(15), 143, "stopped by SIGTERM"),
        (ShutdownRequested(2), 130, "stopped by SIGINT"),
    ]:
        monkeypatch.setattr(Probe, "fault", fault)
        with pytest.raises(SystemExit) as caught:
            Probe.cli()
        assert caught.value.code == code
        assert line in caplog.messages[-1]
    assert "Traceback" not in caplog.text
    monkeypatch.setattr(Probe, "fault", KeyError("bug"))
    with pytest.raises(KeyError):
        Probe.cli()


def test_api_keys_are_not_shown_and_stay_in_the_settings(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(atropos_base, "rprint", printed.append)
    before = atropos_base.rprint, atropos_base.yaml
    server = APIServerConfig(api_key="secret", model_name="m")
    logging.getLogger(atropos_base.__name__).setLevel(logging.DEBUG)
    with hidden_api_keys(), caplog.at_level(logging.DEBUG, logger=""):
        atropos_base.rprint([server, server])
        atropos_base.rprint(server)
        atropos_base.rprint(ReasoningGymEnvConfig())
        written = atropos_base.yaml.dump({"env": {"seed": 1}, "openai": [server.model_dump(mode="json")]})
        atropos_base.logger.debug("flags: %s", {"openai.api_key": "secret"})
        assert atropos_base.yaml.safe_load("a: 1") == {"a": 1}
    assert (atropos_base.rprint, atropos_base.yaml) == before
    assert "secret" not in repr(printed) + written + caplog.text
    assert "model_name: m" in written
    assert len(printed) == 3
    assert len(printed[0]) == 2
    assert server.api_key == "secret"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", ["--openai.api_key", "secret"]),
        ("", ["--openai.api_key=secret"]),
        ("", ["--openai.api_key_env", "MY_KEY"]),
        ("openai: {api_key_env: MY_KEY}", []),
        ("openai: {api_key: other}", ["--openai.api_key_env", "MY_KEY"]),
        ("openai: {api_key_env: MY_KEY, model_name: m, base_url: 'http://h/v1', server_type: vllm}", []),
    ],
)
def test_a_key_reaches_the_servers_settings_and_stays_in_no_argument(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, arguments: list[str]
) -> None:
    (tmp_path / "run.yaml").write_text(text or "{}")
    given = ["process", "--config", str(tmp_path / "run.yaml"), *arguments, "--env.seed", "3"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_KEY", "secret")
    monkeypatch.setattr(sys, "argv", ["program", *given])
    monkeypatch.setattr(sys, "orig_argv", ["python", "program", *given])
    with pytest.raises(Started) as started:
        Probe.cli()
    config, [server] = started.value.args
    assert (config.seed, server.api_key) == (3, "secret")
    assert "secret" not in f"{sys.argv} {sys.orig_argv}"


def test_several_servers_may_each_name_their_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = "{server_type: vllm, base_url: 'http://h/v1', model_name: m, api_key_env: KEY_%d}"
    (tmp_path / "run.yaml").write_text(f"openai: [{one % 1}, {one % 2}]")
    for number in (1, 2):
        monkeypatch.setenv(f"KEY_{number}", f"secret {number}")
    monkeypatch.setattr(sys, "argv", ["program", "process", "--config", str(tmp_path / "run.yaml")])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Started) as started:
        Probe.cli()
    assert [server.api_key for server in started.value.args[1]] == ["secret 1", "secret 2"]


def test_a_key_that_is_not_there_or_named_twice_is_one_line_without_it(refused: Command) -> None:
    lines = refused("process", "--openai.api_key_env", "sk-secret")
    assert lines == "openai.api_key_env: expected the name of an environment variable that is set and not empty."
    assert "both name a key" in refused("process", "--openai.api_key_env", "HOME", "--openai.api_key", "sk-secret")


def test_settings_are_one_line_of_those_that_differ_unless_verbose_asks_for_all(
    command: Command, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    printed: list[Any] = []

    def show_and_stop(self: Any, config: Any, server_configs: Any, **options: Any) -> None:
        atropos_base.rprint(config)
        raise Started(config)

    monkeypatch.setattr(atropos_base, "rprint", printed.append)
    monkeypatch.setattr(Probe, "__init__", show_and_stop)
    caplog.set_level(logging.INFO)
    given = ["--env.seed", "7", "--openai.api_key", "sk-secret", "--openai.model_name", "m"]
    command("serve", *given)
    assert not printed
    [line] = [record.getMessage() for record in caplog.records if "other than the defaults" in record.getMessage()]
    assert line == "Settings other than the defaults: env.seed 7, openai.model_name m. (--verbose prints all.)"
    caplog.clear()
    command("serve", "--verbose", *given)
    assert [one.seed for one in printed] == [7]
    assert "other than the defaults" not in caplog.text


def test_log_lines_go_to_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    command_line.set_up_logging()
    logging.getLogger("reasoning_gym_environment").warning("a line")
    logging.getLogger("httpx").info("each request")
    assert "WARNING a line" in stream.getvalue()
    assert "each request" not in stream.getvalue()
