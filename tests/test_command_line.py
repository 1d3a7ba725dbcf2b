"""What a person got wrong becomes a line that says what to write."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import atroposlib.envs.base as atropos_base
import pytest
from atroposlib.envs.base import APIServerConfig
from pydantic import ValidationError

from reasoning_gym_environment import command_line
from reasoning_gym_environment.command_line import AtroposCommandLine, check_yaml, explain
from reasoning_gym_environment.config import ReasoningGymEnvConfig
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.lifecycle import ShutdownRequested


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
        "openai:\n- {model_name: a}\n- {model_name: b}\n",
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
    assert line.startswith("Unknown setting 'dump_rollout'; did you mean dump_rollouts")
    assert "input" not in line


def test_choices_of_one_setting_are_not_repeated() -> None:
    lines = explained(include_tasks=5)
    assert len(lines) == len(set(lines))
    assert all(line.startswith("env.include_tasks: ") for line in lines)


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


def test_api_keys_are_not_printed_and_stay_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(atropos_base, "rprint", printed.append)
    original = atropos_base.rprint
    server = APIServerConfig(api_key="secret", model_name="m")
    with command_line._api_keys_hidden():
        atropos_base.rprint([server, server])
        atropos_base.rprint(server)
        atropos_base.rprint(ReasoningGymEnvConfig())
    assert atropos_base.rprint is original
    assert "secret" not in repr(printed)
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
