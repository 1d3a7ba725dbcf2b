"""Flags, file and defaults become the settings of a run; each mistake becomes a line; no key is shown or kept."""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from atroposlib.envs.base import APIServerConfig
from pydantic import Field

from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig
from reasoning_gym_environment.atropos.command_line import Initial, settings_of
from reasoning_gym_environment.atropos.flags import COMMANDS
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.trainer.run_state import RunState


class Probe(ReasoningGymEnv):
    """Stands in for the environment: it notes what it is made with, and its commands raise `fault` or do nothing."""

    made: list[dict[str, Any]]
    fault: BaseException | None = None

    def __init__(self, **options: Any) -> None:
        self.made.append(options)

    state = RunState(4, 16, 250)

    async def env_manager(self, *settings: Any) -> None:
        self.made[-1]["ran"] = settings
        if self.fault:
            raise self.fault

    process_manager = _run_evaluate = env_manager


class OwnConfig(ReasoningGymEnvConfig):
    bonus: float = Field(0.5, le=1.0, description="Reward of a short answer")
    labels: list[str] = Field(default_factory=lambda: ["short"])


class ReturnsOwnConfig(Probe):
    """A subclass as Atropos allows it: only `config_init` knows its class of config."""

    @classmethod
    def config_init(cls) -> Any:
        config, servers = super().config_init()
        return OwnConfig(**dict(config), bonus=0.25), servers


Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Run]:
    """`run("process --env.seed 3")` -> what the environment was made with. Logging is as before at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(Probe, "made", [], raising=False)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    caplog.set_level(logging.INFO)
    level = logging.getLogger().level

    def go(text: str, environment: type[Probe] = Probe) -> Any:
        monkeypatch.setattr(sys, "argv", ["program", *shlex.split(text)])
        monkeypatch.setattr(sys, "orig_argv", ["python", *sys.argv])
        environment.cli()
        return Probe.made[-1]

    yield go
    logging.captureWarnings(False)
    logging.getLogger().setLevel(level)


@pytest.fixture
def refused(run: Run, caplog: pytest.LogCaptureFixture) -> Run:
    """`refused("process ...")` -> the lines with which it ends."""

    def go(text: str, environment: type[Probe] = Probe) -> list[str]:
        caplog.clear()
        before = len(Probe.made)
        with pytest.raises(SystemExit) as stopped:
            run(text, environment)
        assert stopped.value.code == 2 and len(Probe.made) == before
        lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert lines and not any("\n" in line or "pydantic" in line for line in lines), lines
        return lines

    return go


def test_flags_win_over_the_file_and_the_file_over_the_defaults(run: Run) -> None:
    Path("run.yaml").write_text(
        "env: {<<: &shared {seed: 3, eval_seed: 9}, eval_seed: 4, task_weights: {gcd: 2}}\n"
        "openai: {model_name: m, timeout: 5}\n"
    )
    flags = "--env.eval_seed -5 --env.worker_timeout=-1 --openai.timeout 7 --env.dump_rollouts --env.run_id none"
    for command in COMMANDS:
        made = run(f"{command} --config run.yaml {flags}")
        config, [server] = made["config"], made["server_configs"]
        assert (config.seed, config.eval_seed, config.task_weights, config.worker_timeout) == (3, -5, {"gcd": 2.0}, -1)
        assert (config.dump_rollouts, config.run_id, config.group_size) == (True, None, 8)
        assert (server.model_name, server.timeout, server.base_url) == ("m", 7, "http://localhost:9004/v1")
        assert (made["slurm"], made["testing"]) == (False, False)
        assert (config.use_wandb, config.include_messages) == (True, command == "process")


def test_sampling_parameters_that_are_none_stay_none_in_the_flags_the_file_and_the_saved_settings(run: Run) -> None:
    names = ("train_temperature", "train_top_p", "eval_temperature")
    Path("run.yaml").write_text("env: {train_temperature: null, train_top_p: none, eval_temperature: ~}\n")
    flags = " ".join(f"--env.{name} none" for name in names)
    for given in ("--config run.yaml", flags):
        made = run(f"evaluate {given}")
        assert [getattr(made["config"], name) for name in names] == [None] * 3
        saved = yaml.safe_load(made["ran"][0])["env"]
        assert [saved[name] for name in names] == [None] * 3


def test_an_openai_server_needs_no_tokenizer_unless_it_serves(run: Run) -> None:
    for command, name in [
        ("evaluate", "none"),
        ("process --env.tokenizer_name own", "own"),
        ("serve", "NousResearch/DeepHermes-3-Llama-3-8B-Preview"),
    ]:
        assert run(f"{command} --openai.server_type openai")["config"].tokenizer_name == name


class NamesTokenizer(Probe):
    """A subclass whose model has its tokenizer in a folder."""

    calls = 0

    @classmethod
    def config_init(cls) -> Any:
        NamesTokenizer.calls += 1
        server = APIServerConfig(model_name="their/model", server_type="vllm")
        return ReasoningGymEnvConfig(tokenizer_name="/its/tokenizer"), [server]


class NamesModelOnly(Probe):
    @classmethod
    def config_init(cls) -> Any:
        return ReasoningGymEnvConfig(group_size=4), [APIServerConfig(model_name="their/model", server_type="vllm")]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_tokenizer_of_config_init_stays_and_only_its_absence_is_filled(command: str, run: Run) -> None:
    for environment, flags, name in [
        (NamesTokenizer, "", "/its/tokenizer"),
        (NamesTokenizer, "--openai.model_name my/model", "/its/tokenizer"),
        (NamesTokenizer, "--env.tokenizer_name own", "own"),
        (Probe, "--openai.model_name my/model", "my/model"),
        (Probe, "--openai.model_name my/model --env.tokenizer_name own", "own"),
        (NamesModelOnly, "", "their/model"),
        (NamesModelOnly, "--openai.model_name my/model", "my/model"),
    ]:
        before = NamesTokenizer.calls
        assert run(f"{command} {flags}", environment)["config"].tokenizer_name == name, (environment, flags)
        assert NamesTokenizer.calls - before == issubclass(environment, NamesTokenizer), "one call for each command"


def test_the_log_has_the_settings_that_are_not_the_defaults_with_their_values(run: Run, caplog: Any) -> None:
    run("serve --env.include_tasks gcd,lcm --env.task_weights '{\"gcd\":2}' --env.min_batch_allocation none")
    changed = "env.min_batch_allocation none, env.include_tasks gcd,lcm, env.task_weights {'gcd': 2.0}"
    [line] = [message for message in caplog.messages if message.startswith("Settings other than the defaults")]
    assert all(setting in line for setting in changed.split(", ")), line


def test_help_shows_ten_settings_and_help_all_every_setting_that_has_an_effect(
    run: Run, monkeypatch: Any, capsys: Any
) -> None:
    def settings_in_help(flag: str, columns: int) -> tuple[list[str], str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit, match="0"):
            run(f"process {flag} --env.seed x")
        assert not Probe.made, "nothing is run"
        shown = capsys.readouterr().out
        return re.findall(r"^  --((?:env|openai)\.\w+)[ ,]", shown, re.MULTILINE), shown

    first, shown = settings_in_help("--help", 80)
    assert len(first) == 10 and {"openai.base_url", "env.group_size"} < set(first)
    assert len(shown.splitlines()) < 50, "one screen"
    assert "Completions for each item (default: 8)" in shown
    every, shown = settings_in_help("--help-all", 10000)
    without_effect = {"env.max_eval_workers", "env.custom_thinking_prompt"}
    without_effect |= {"openai.rolling_buffer_length", "openai.health_check"}
    assert {*every, *without_effect, "slurm", "testing"} == {setting.name for setting in settings_of(Initial.of(Probe))}
    assert "(default: data/reasoning_gym.jsonl)" in shown


@pytest.mark.parametrize(
    ("command", "name", "means"),
    [
        ("serve", "tasks", ["include_tasks"]),
        ("evaluate", "tasks", ["eval_tasks"]),
        ("process", "exclude", ["exclude_tasks"]),
    ],
)
def test_tasks_and_exclude_have_the_short_names_of_the_other_commands(
    command: str, name: str, means: list[str], run: Run
) -> None:
    config = run(f"{command} --{name} gcd,lcm")["config"]
    assert [getattr(config, setting) for setting in means] == [["gcd", "lcm"]]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_config_that_only_config_init_names_has_flags_help_and_validation(
    command: str, run: Run, refused: Run, monkeypatch: Any, capsys: Any
) -> None:
    Path("run.yaml").write_text("env: {labels: [long]}\n")
    config = run(f"{command} --config run.yaml --env.bonus 0.75", ReturnsOwnConfig)["config"]
    assert (type(config), config.bonus, config.labels) == (OwnConfig, 0.75, ["long"])
    assert refused(f"{command} --env.bonus 7", ReturnsOwnConfig)[0].startswith("env.bonus: Input should be less than")
    monkeypatch.setenv("COLUMNS", "10000")
    with pytest.raises(SystemExit, match="0"):
        run(f"{command} --help-all", ReturnsOwnConfig)
    assert "Reward of a short answer (default: 0.25)" in capsys.readouterr().out


def test_an_error_that_a_person_can_mend_is_one_line_and_a_bug_keeps_its_traceback(
    run: Run, refused: Run, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    assert refused("") == ["Expected a command, one of serve, process, evaluate, got ''."]
    monkeypatch.setattr(Probe, "fault", EnvironmentSetupError("set this"))
    with pytest.raises(SystemExit, match="2"):
        run("serve")
    assert "set this" in caplog.messages[-1] and "Traceback" not in caplog.text
    monkeypatch.setattr(Probe, "fault", KeyError("bug"))
    with pytest.raises(KeyError):
        run("serve")
    monkeypatch.setattr(Probe, "fault", None)
    monkeypatch.setattr(Probe, "state", RunState(4, 16, 8, trainer_steps=9))
    with pytest.raises(SystemExit, match="1"):
        run("serve")


MISTAKES = Path(__file__).with_name("mistakes.jsonl").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("mistake", list(map(json.loads, MISTAKES)), ids=lambda mistake: mistake["says"][:40])
def test_a_mistake_is_one_line_before_any_work(mistake: dict[str, str], refused: Run) -> None:
    Path("run.yaml").write_text(mistake.get("file", "{}"))
    Path("a_file").touch()
    [line] = refused(mistake["run"])
    assert mistake["says"] in line


def test_an_error_of_the_file_names_the_line_and_does_not_quote_a_key_in_it(refused: Run) -> None:
    Path("run.yaml").write_text("openai:\n  api_key: sk-secret\n  model_name: a: b\nenv: {}\n")
    [line] = refused("serve --config run.yaml")
    assert "is not valid YAML" in line and "line 3" in line
    Path("run.yaml").write_text("openai:\n  api_key: sk-secret: x\n")
    [line] = refused("serve --config run.yaml")
    assert "line 2" in line and "secret" not in line


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("{}", "--openai.api_key secret"),
        ("{}", "--openai.api_key=secret"),
        ("openai: {api_key_env: MY_KEY}", ""),
        ("openai: [{api_key_env: MY_KEY}, {api_key: two}]", ""),
    ],
)
def test_a_key_reaches_its_server_and_is_neither_logged_nor_left_in_the_arguments(
    text: str, flags: str, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Path("run.yaml").write_text(text)
    monkeypatch.setenv("MY_KEY", "secret")
    made = run(f"evaluate --config run.yaml {flags} --verbose")
    assert [one.api_key for one in made["server_configs"]] == ["secret", "two"][: len(made["server_configs"])]
    assert "eval_seed: 123" in caplog.text, "it is verbose"
    assert "secret" not in f"{sys.argv} {sys.orig_argv} {caplog.text} {made['ran']}"


def test_the_password_of_an_address_and_headers_are_neither_logged_nor_left_in_the_arguments(
    run: Run, refused: Run, caplog: pytest.LogCaptureFixture
) -> None:
    flags = '--openai.base_url http://me:secret@h/v1?api-version=1 --openai.default_headers \'{"k": "secret"}\''
    made = run(f'evaluate {flags} --openai.default_query \'{{"q": "1"}}\' --verbose')
    [server] = made["server_configs"]
    assert (server.base_url, server.default_headers) == ("http://me:secret@h/v1?api-version=1", {"k": "secret"})
    assert server.default_query == {"q": "1"}
    saved = made["ran"][0]
    assert "base_url: http://***@h/v1?api-version=1" in caplog.text, "it is verbose"
    assert "secret" not in f"{sys.argv} {sys.orig_argv} {caplog.text} {saved}"
    Path("saved.yaml").write_text(saved)
    lines = refused("evaluate --config saved.yaml")
    assert [line.partition(":")[0] for line in lines] == ["openai.base_url", "openai.default_headers"]
    assert all("hidden in saved settings. Give the setting again, as a flag" in line for line in lines)
    assert run(f"evaluate --config saved.yaml {flags}")["server_configs"] == [server]


def test_all_unknown_names_of_flags_and_file_are_reported_at_once_before_the_values(refused: Run) -> None:
    Path("run.yaml").write_text(
        "envv: {}\n7: 8\nenv.seed: 5\nenv: {seeed: 1, group_size: 0, ensure_scores_not_the_same: true}\n"
        "openai: [{base_ulr: x, weight: 1.0}, {base_ulr: y, timeout: soon}]\n"
    )
    lines = refused(
        "serve --config run.yaml --slrum --env.bonus 1 --openai.api_kye sk-secret word --env x --openai.tag=3"
    )
    starts = [line.partition(". ")[0] for line in lines]
    assert starts == [
        "Unknown setting 'slrum'",
        "env: Unknown setting 'bonus'",
        "openai: Unknown setting 'api_kye'",
        "Unknown setting 'env'",
        "openai: Unknown setting 'tag'",
        "Unknown setting 'envv'",
        "Unknown setting '7'",
        "Expected seed in the section env of the file, got 'env.seed' outside of the sections.",
        "env: Unknown setting 'seeed'",
        "env: Unknown setting 'ensure_scores_not_the_same'",
        "openai: Unknown setting 'base_ulr'",
    ]
    suggestions = ("slurm?", "api_key or api_key_env?", "env?", "seed?", "ensure_scores_are_not_same?", "base_url?")
    assert all(f"Did you mean {suggestion}" in str(lines) for suggestion in suggestions)
    assert "secret" not in str(lines) and "weight" not in str(lines)


@pytest.mark.parametrize(
    "words", ["openai.api_key sk-secret", "-openai.api_key=sk-secret", "--x openai.api_key sk-secret"]
)
def test_a_word_that_may_be_a_key_is_not_repeated(words: str, refused: Run) -> None:
    [line] = refused(f"evaluate {words}")
    assert "secret" not in line


def test_a_key_that_is_not_there_names_its_variable_and_nothing_that_may_be_a_key(refused: Run) -> None:
    for value, said in [
        ("--openai.api_key_env MY_KEY", "the environment variable MY_KEY is not set, or it is empty"),
        ("--openai.api_key_env sk-secret", "expected the name of an environment variable, such as"),
        ("--openai.api_key_env HOME --openai.api_key sk-secret", "api_key and api_key_env both give a key"),
    ]:
        [line] = refused(f"evaluate {value}")
        assert said in line and "sk-secret" not in line


def test_several_servers_are_a_list(run: Run, refused: Run) -> None:
    text = "openai:\n- &s {base_url: 'http://a/v1', model_name: m}\n- {<<: *s, base_url: 'http://b'}\n"
    Path("two.yaml").write_text(text)
    servers = run("serve --config two.yaml")["server_configs"]
    assert [(one.base_url, one.model_name) for one in servers] == [("http://a/v1", "m"), ("http://b", "m")]
    assert {one.server_type for one in servers} == {"vllm"}
    assert refused("serve --config two.yaml --openai.timeout 3")[0].startswith("With several servers, their")


def test_all_servers_of_the_class_are_used_unless_the_file_names_servers(run: Run, refused: Run) -> None:
    class OwnServer(APIServerConfig):
        region: str = "here"

    class TwoServers(Probe):
        @classmethod
        def config_init(cls) -> Any:
            servers = [OwnServer(base_url=f"http://{name}/v1", timeout=7) for name in "ab"]
            return super().config_init()[0], servers

    for command in COMMANDS:
        servers = run(command, TwoServers)["server_configs"]
        assert [(server.base_url, server.timeout) for server in servers] == [("http://a/v1", 7), ("http://b/v1", 7)]
    Path("one.yaml").write_text("openai: {base_url: 'http://c/v1'}\n")
    [server] = run("serve --config one.yaml --openai.num_requests_for_eval 3", TwoServers)["server_configs"]
    assert (server.base_url, server.timeout, server.num_requests_for_eval) == ("http://c/v1", 7, 3)
    assert refused("serve --openai.timeout 3", TwoServers) == [
        "With several servers, their settings cannot be given as flags."
    ]
