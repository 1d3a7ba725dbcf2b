"""What a person got wrong becomes a line that says what to write."""

from __future__ import annotations

import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import atroposlib.envs.base as atropos_base
import pytest
from atroposlib.envs.base import APIServerConfig
from pydantic import ValidationError

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos import command_line
from reasoning_gym_environment.atropos.command_line import AtroposCommandLine, check_yaml, explain, hidden_api_keys
from reasoning_gym_environment.atropos.shutdown import ShutdownRequested
from reasoning_gym_environment.config import ReasoningGymEnvConfig
from reasoning_gym_environment.errors import EnvironmentSetupError


@pytest.fixture(autouse=True)
def logging_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command line sets up logging for its process; here the process is that of all tests."""
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    root, levels = logging.getLogger(), {}
    for name in ("httpx", "httpcore", "openai", "aiohttp.access"):
        levels[name] = logging.getLogger(name).level
    level = root.level
    yield
    logging.captureWarnings(False)
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "run.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


@pytest.mark.parametrize(
    "text",
    [
        "env: {seed: 3}\nopenai: {base_url: 'http://x/v1', server_type: vllm}\nslurm: false\ntesting: false\n",
        "openai:\n- {model_name: a}\n",
        "openai:\n- &s {model_name: a, base_url: 'http://x/v1', server_type: vllm}\n- *s\n",
        "env: {}\n",
        "{}\n",
    ],
)
def test_valid_files_pass(written: Any, text: str) -> None:
    check_yaml(written(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("- a\n", "is a list"),
        ("just text\n", "is a str"),
        ("env: [\n", "is not valid YAML"),
        (b"\xff\xfe\x00", "is not valid YAML"),
        ("envv: {}\n", "Unknown section 'envv'. Did you mean env?"),
        ("1: {}\n", "Unknown section '1'"),
        ("env: [a]\n", "section env .* must be a mapping"),
        ("openai: text\n", "section openai .* must be a mapping, or a list"),
        ("openai: [text]\n", "section openai .* must be a mapping, or a list"),
        ("openai: {base_ulr: x}\n", "Unknown key 'openai.base_ulr'. Did you mean openai.base_url?"),
        ("openai:\n- {model_name: a}\n- {modelname: b}\n", "openai.modelname"),
        ("openai:\n- {model_name: a, base_url: x}\n- {}\n", "Server 1 of 2 in .*run.yaml has no server_type: "),
        ("env: {3: 4}\n", "section env .* names a setting 3: expected text"),
    ],
)
def test_mistakes_are_named(written: Any, text: str | bytes, message: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=message):
        check_yaml(written(text))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"Cannot read the config file .*none\.yaml: No such file"):
        check_yaml(tmp_path / "none.yaml")
    with pytest.raises(EnvironmentSetupError, match="Is a directory"):
        check_yaml(tmp_path)


def test_yaml_tags_cannot_run_code(written: Any) -> None:
    with pytest.raises(EnvironmentSetupError, match="is not valid YAML"):
        check_yaml(written("env: !!python/object/apply:os.getcwd []\n"))


def explained(**values: Any) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        ReasoningGymEnvConfig(**values)
    return explain(caught.value)


def test_each_invalid_setting_is_one_line_with_its_flag() -> None:
    lines = explained(seed="x", group_size=0)
    assert len(lines) == 2
    assert "env.group_size: must be at least 1, got 0" in lines
    assert any(line.startswith("env.seed: Input should be a valid integer") and "got 'x'" in line for line in lines)
    assert not any("\n" in line or "pydantic" in line for line in lines)


def test_unknown_setting_is_explained_without_repeating_all_settings() -> None:
    [line] = explained(dump_rollout=True)
    assert line.startswith("Unknown setting 'dump_rollout' (did you mean dump_rollouts")
    assert "input" not in line


@pytest.mark.parametrize("value", [5, [5], {"a": 1}])
@pytest.mark.parametrize("name", ["include_tasks", "task_modules", "task_overrides"])
def test_a_setting_that_may_be_written_in_several_ways_is_one_line(name: str, value: Any) -> None:
    [line] = explained(**{name: value})
    assert line.startswith(f"env.{name}: expected ")
    assert "got " in line


def test_server_settings_are_explained_under_their_own_flags_without_the_api_key() -> None:
    with pytest.raises(ValidationError) as caught:
        APIServerConfig(api_key=123456, timeout="soon")
    key, timeout = sorted(explain(caught.value))
    assert key.startswith("openai.api_key: ")
    assert "123456" not in key
    assert timeout.startswith("openai.timeout: ")
    assert timeout.endswith("got 'soon'")


def test_an_invalid_server_setting_in_the_file_is_reported_without_its_section(written: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        check_yaml(written("openai: {api_key: secret, timeout: soon}\n"))
    [line] = explain(caught.value)
    assert line.startswith("openai.timeout: ")
    assert "secret" not in line


class Started(Exception):
    """The environment would be made now, with these settings."""

    def __init__(self, config: Any) -> None:
        self.config = config


class Probe(ReasoningGymEnv):
    """Stands in for the environment: its commands end where they would make one."""

    def __init__(self, config: Any, server_configs: Any, **options: Any) -> None:
        raise Started(config)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`command("process", "--env.seed", "3")` -> the settings it would run with."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["program", *arguments])
        with pytest.raises(Started) as started:
            Probe.cli()
        return started.value.config

    return run


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Any:
    """`refused("process", ...)` -> the one line with which it ends."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["program", *arguments])
        caplog.clear()
        with pytest.raises(SystemExit) as stopped:
            Probe.cli()
        assert stopped.value.code == 2
        lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(lines) == 1 and "\n" not in lines[0], lines
        return lines[0]

    return run


@pytest.mark.parametrize("name", ["serve", "process", "evaluate"])
def test_the_settings_that_are_checked_are_those_of_the_run(
    name: str, command: Any, written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(command_line, "check_settings", lambda _, config: checked.append(config))
    file = written("env: {seed: 3, eval_seed: 4, task_weights: {gcd: 2}}\n")
    config = command(name, "--config", str(file), "--env.eval_seed", "-5", "--env.worker_timeout", "-1")
    assert checked == [config]
    assert (config.seed, config.eval_seed, config.worker_timeout) == (3, -5, -1)


@pytest.mark.parametrize(
    ("flag", "near"),
    [
        ("--openai.model_nam", "openai.model_name"),
        ("--openai.timeou", "openai.timeout"),
        ("--env.grupo", "env.group_size"),
        ("--env.group_siz", "env.group_size"),
        ("--env-seed", "env.seed"),
        ("--slrum", "slurm"),
        ("--max_n_completions", ""),
    ],
)
def test_a_flag_that_does_not_exist_is_named_with_the_nearest(flag: str, near: str, refused: Any) -> None:
    line = refused("evaluate", flag, "3")
    assert line.startswith(f"Unknown setting '{flag[2:]}'. {'Did you mean ' if near else ''}{near}")
    assert "`reasoning-gym-env evaluate --help`" in line


@pytest.mark.parametrize("name", ["serve", "process", "evaluate"])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_the_help_has_every_setting_with_the_value_that_the_command_starts_from(
    name: str, flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "10000")
    monkeypatch.setattr(sys, "argv", ["program", name, flag])
    with pytest.raises(SystemExit) as stopped:
        Probe.cli()
    assert stopped.value.code == 0
    defaults = dict(re.findall(r"--([\w.]+) VALUE\s+.*\(default: (.*)\)", capsys.readouterr().out))
    for setting, value in command(name).model_dump().items():
        plain = value if value not in (None, [], {}) else "none"
        plain = ",".join(plain) if isinstance(plain, list) else getattr(plain, "value", plain)
        assert defaults[f"env.{setting}"].removesuffix(".0") == str(plain).removesuffix(".0"), setting
    assert {f"openai.{setting}" for setting in APIServerConfig.model_fields} <= defaults.keys()
    assert defaults["openai.server_type"] == "vllm"


def test_a_negative_value_out_of_range_is_refused(refused: Any) -> None:
    assert refused("evaluate", "--env.group_size", "-1") == "env.group_size: must be at least 1, got -1"
    assert "env.total_steps: must be at least 1, or -1" in refused("serve", "--env.total_steps", "0")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--openai.base_url", "foo"], "openai.base_url: expected an address such as http://localhost:9004/v1"),
        (["--env.rollout_server_url", "foo"], "env.rollout_server_url: expected an address such as http"),
        (["--slurm", "yes"], "slurm is on, but this is no SLURM job"),
        (["--slurm", "maybe"], "slurm: Input should be a valid boolean"),
        (["--config", "servers.yaml"], "openai.base_url: expected an address"),
        (["--config", "slurm.yaml"], "slurm: Input should be a valid boolean"),
    ],
)
def test_what_describes_no_server_is_said_at_once(
    arguments: list[str], said: str, refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    (tmp_path / "servers.yaml").write_text("openai: [{base_url: foo}]\n")
    (tmp_path / "slurm.yaml").write_text("slurm: maybe\n")
    assert refused("serve", *arguments).startswith(said)


def test_an_evaluation_that_replaces_an_earlier_one_says_so(
    command: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for told in (False, True):
        command("evaluate", "--env.data_dir_to_save_evals", "results")
        assert ("results holds the results of an earlier evaluation" in caplog.text) is told
        (tmp_path / "results" / "samples.jsonl").touch()


def test_process_needs_a_number_of_groups(refused: Any, command: Any) -> None:
    assert "at least 1, got -1" in refused("process", "--env.total_steps", "-1")
    assert command("serve", "--env.total_steps", "-1").total_steps == -1


@pytest.mark.parametrize(
    ("name", "setting", "value", "said"),
    [
        ("process", "data_path_to_save_groups", "file/x.jsonl", "The folder of env.data_path_to_save_groups"),
        ("process", "data_path_to_save_groups", "", "env.data_path_to_save_groups: expected the name of a file"),
        ("process", "data_path_to_save_groups", "g.html", "g.html is used already and would be replaced"),
        ("evaluate", "data_dir_to_save_evals", "file", "env.data_dir_to_save_evals: expected the name of a folder"),
        ("evaluate", "data_dir_to_save_evals", "file/x", "env.data_dir_to_save_evals: cannot write"),
        ("serve", "data_dumps_dir", "file", "env.data_dumps_dir: expected the name of a folder"),
    ],
)
def test_a_place_that_cannot_be_written_is_named_before_any_work(
    name: str, setting: str, value: str, said: str, refused: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    assert said in refused(name, f"--env.{setting}", value, "--env.dump_rollouts", "True")


def test_the_folder_that_process_writes_to_by_itself_is_checked_too(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    assert "The folder of env.data_path_to_save_groups" in refused("process")


def test_without_a_page_any_name_will_do(command: Any) -> None:
    command("process", "--env.data_path_to_save_groups", "g.html", "--env.include_messages", "False")


class Failing:
    """Stands in for BaseEnv: its command raises `error`."""

    error: BaseException

    @classmethod
    def cli(cls) -> None:
        raise cls.error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (EnvironmentSetupError("set this"), 2, "set this"),
        (ShutdownRequested(15), 143, "stopped by SIGTERM"),
        (ShutdownRequested(2), 130, "stopped by SIGINT"),
    ],
)
def test_what_a_person_can_fix_ends_in_one_line_and_an_exit_code(
    error: BaseException, code: int, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    command = type("Command", (AtroposCommandLine, Failing), {"error": error})
    with pytest.raises(SystemExit) as caught:
        command.cli()
    assert caught.value.code == code
    assert line in caplog.text
    assert "Traceback" not in caplog.text


def test_invalid_settings_end_in_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValidationError) as caught:
        ReasoningGymEnvConfig(seed="x", eval_seed="y")
    command = type("Command", (AtroposCommandLine, Failing), {"error": caught.value})
    with pytest.raises(SystemExit) as stopped:
        command.cli()
    assert stopped.value.code == 2
    assert len(caplog.messages) == 2


def test_a_bug_keeps_its_traceback() -> None:
    command = type("Command", (AtroposCommandLine, Failing), {"error": KeyError("bug")})
    with pytest.raises(KeyError):
        command.cli()


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


def test_log_lines_go_to_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    command_line.set_up_logging()
    logging.getLogger("reasoning_gym_environment").warning("a line")
    logging.getLogger("httpx").info("each request")
    assert "WARNING a line" in stream.getvalue()
    assert "each request" not in stream.getvalue()
