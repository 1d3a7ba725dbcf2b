"""What is missing is one line at start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from atroposlib.envs.base import APIServerConfig, BaseEnv, ServerBaseline

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos import preflight
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.inference.chat_tokenizer import EstimatedTokens, Prompt
from reasoning_gym_environment.inference.server_types import ChatAdapter, SglangAdapter, VllmAdapter
from reasoning_gym_environment.settings.environment import ReasoningGymEnvConfig
from testing.env_support import RIGHT, WRONG, MakeEnv, ReadyEnv, rollout
from testing.process_table import until

UNREACHABLE = "http://127.0.0.1:9"  # the discard port: nothing listens there


def config(**fields: Any) -> ReasoningGymEnvConfig:
    return ReasoningGymEnvConfig(**{"use_wandb": False, "tokenizer_name": "my/tokenizer", **fields})


KINDS = {"vllm": VllmAdapter, "sglang": SglangAdapter, "openai": ChatAdapter}


class Plain(SimpleNamespace):
    """In place of one of Atropos' servers."""

    def _inject_reasoning_kwargs(self, request: Any) -> Any:
        return request


def clients(*servers: APIServerConfig) -> Any:
    """In place of an InferenceClient of these servers."""
    tokenizer = SimpleNamespace(bos_token=None, eos_token_id=2)
    adapters = [KINDS[one.server_type](Plain(config=one), tokenizer) for one in servers]
    return Mock(adapters=adapters, has_tokens=all(one.has_tokens for one in adapters))


async def check(*servers: APIServerConfig, **fields: Any) -> None:
    """What `process` checks with these servers."""
    prompt = Prompt([{"role": "user", "content": "hi"}], "hi", [1])
    prompts: Any = SimpleNamespace(of_question=lambda question: prompt, room_for_training=lambda size: 50)
    await preflight.check_offline_use(config(**fields), clients(*servers), prompts)


def server(kind: str = "vllm", url: str | None = UNREACHABLE, **fields: Any) -> APIServerConfig:
    return APIServerConfig(server_type=kind, base_url=url, **fields)


@pytest.fixture
async def site() -> AsyncIterator[Any]:
    """A web server with `status` and the paths it was asked for."""
    state = SimpleNamespace(status=200, paths=[], url="")

    async def answer(request: web.Request) -> web.Response:
        state.paths.append(request.path)
        return web.Response(status=state.status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        state.url = f"http://127.0.0.1:{server.port}"
        yield state


def test_servers_get_the_tokenizer_and_key_of_the_environment_unless_they_name_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = [server(), server(tokenizer_name="own")]
    assert [one.tokenizer_name for one in preflight.prepare_servers(given, "t")] == ["t", "own"]
    assert given[0].tokenizer_name == "none", "what was given is not changed"
    assert preflight.prepare_servers(ServerBaseline(), "t").tokenizer_name == "t"
    keys = [("openai", "x"), ("openai", ""), ("openai", "own"), ("vllm", "x")]
    for variable, expected in (("secret", ["secret", "secret", "own", "x"]), ("", ["x", "x", "own", "x"])):
        monkeypatch.setenv("OPENAI_API_KEY", variable)
        prepared = [preflight.prepare_servers([server(kind, api_key=key)], "t")[0] for kind, key in keys]
        assert [one.api_key for one in prepared] == expected


def test_servers_that_cannot_be_used_together_are_refused() -> None:
    with pytest.raises(EnvironmentSetupError, match="one server_type, got openai, vllm"):
        preflight.prepare_servers([server("vllm"), server("openai")], "t")


def test_the_type_of_old_trl_servers_is_refused_with_the_type_of_newer_ones() -> None:
    with pytest.raises(EnvironmentSetupError, match=r"TRL before 1\.11.*set openai\.server_type to vllm"):
        preflight.prepare_servers([server("trl")], "t")


def test_a_tokenizer_that_does_not_load_is_one_line_and_openai_servers_need_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preflight.AutoTokenizer, "from_pretrained", Mock(side_effect=OSError("no such\nrepository")))
    refusal = pytest.raises(EnvironmentSetupError, match=r"set env\.tokenizer_name .* \(no such\)\.$")
    with preflight.tokenizers_loaded_once([server()]), refusal:
        preflight.base.AutoTokenizer.from_pretrained("my/tokenizer")
    for name in ("my/tokenizer", "none"):
        with preflight.tokenizers_loaded_once([server("openai")]):
            assert isinstance(preflight.base.AutoTokenizer.from_pretrained(name), EstimatedTokens)
        assert "Tokens are estimated" in caplog.messages[-1]


def test_a_tokenizer_file_that_git_lfs_has_not_fetched_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n")
    refusal = pytest.raises(EnvironmentSetupError, match=r"tokenizer\.json is the pointer of Git LFS .*git lfs pull")
    name = str(tmp_path)
    with preflight.tokenizers_loaded_once([server()]), refusal:
        preflight.base.AutoTokenizer.from_pretrained(name)


# --- is it there, and does it take what will be asked?


async def test_a_start_waits_for_no_wandb_that_times_out(ready_env: ReadyEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    env = await ready_env(include_tasks="gcd")
    begin = AsyncMock(side_effect=[preflight.wandb.errors.CommError("Timed out while retrying: Post\nmore"), None])
    monkeypatch.setattr(BaseEnv, "setup_wandb", begin)
    monkeypatch.setattr(preflight.wandb, "setup", setup := Mock())
    await env.setup_wandb()
    assert (begin.await_count, setup.call_args.kwargs["settings"].mode) == (2, "offline")


@pytest.mark.parametrize("kind", ["vllm", "openai"])
async def test_process_and_evaluate_need_one_server_that_takes_their_requests(kind: str, site: Any) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"not reachable: http://127\.0\.0\.1:9.* openai\.base_url"):
        await check(server(kind), server(kind))
    site.status = 503
    with pytest.raises(EnvironmentSetupError, match=r"not reachable: http.* answers 503"):
        await check(server(kind, site.url))
    for site.status in (408, 429, 500):
        await check(server(kind), server(kind, site.url))
    for site.status, remedy in [(400, r"env\.max_token_length"), (401, r"openai\.api_key"), (404, "base_url.*/v1")]:
        with pytest.raises(
            EnvironmentSetupError, match=f"answers {site.status} to a request for 'm': .*Check .*{remedy}"
        ):
            await check(server(kind, site.url, model_name="m"))


class EnvWithTesting(ReasoningGymEnv):
    """Atropos replaces its servers by a test harness."""

    def __init__(self, config: Any, servers: Any) -> None:
        super().__init__(config, servers, testing=True)


async def test_an_environment_with_testing_scores_groups_and_requests_nothing(
    ready_env: ReadyEnv, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        aiohttp.ClientSession, "_request", connect := AsyncMock(side_effect=AssertionError("a request"))
    )
    env = await ready_env(kind=EnvWithTesting)
    item = await env.get_next_item()
    group = await env.score([rollout(item, RIGHT), rollout(item, WRONG)])
    assert group["scores"] == [1.0, 0.0]
    for needs_completions in (env.collect_trajectories(item), env.rollout_and_score_eval(item[1:])):
        with pytest.raises(EnvironmentSetupError, match=r"testing is on.* openai\.base_url"):
            await needs_completions
    assert await env.evaluate() == {} and "testing is on" in caplog.text
    connect.assert_not_called()


@pytest.mark.parametrize("command", ["env_manager", "process_manager", "_run_evaluate"])
async def test_a_command_with_testing_ends_before_any_request_and_file(
    command: str, make_env: MakeEnv, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        aiohttp.ClientSession, "_request", connect := AsyncMock(side_effect=AssertionError("a request"))
    )
    env = make_env(kind=EnvWithTesting, data_path_to_save_groups=str(tmp_path / "groups.jsonl"))
    with pytest.raises(EnvironmentSetupError, match="testing is on"):
        await getattr(env, command)()
    connect.assert_not_called()
    assert not (tmp_path / "groups.jsonl").exists()


async def test_serve_refuses_what_cannot_train(site: Any) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"set env\.group_size to 2"):
        await preflight.check_serve(config(group_size=1), clients(server("vllm", site.url)))
    with pytest.raises(EnvironmentSetupError, match=r"set openai\.server_type to vllm .* or sglang"):
        await preflight.check_serve(config(), clients(server("openai")))


async def test_serve_waits_for_an_inference_server_and_says_so_once(
    site: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preflight, "RETRY_S", 0.01)
    site.status = 503
    checking = asyncio.ensure_future(preflight.check_serve(config(), clients(server("vllm", site.url))))
    await until(lambda: len(site.paths) >= 3)
    assert not checking.done() and caplog.text.count("waiting; start it") == 1
    site.status = 200
    await checking
    assert caplog.text.count("The inference server is back") == 1


# --- wandb


async def test_wandb_without_a_key_is_turned_off_with_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preflight.wandb, "api", SimpleNamespace(api_key=None))
    for mode, is_on in (("online", False), ("offline", True), ("disabled", True), ("OFFLINE", True)):
        monkeypatch.setenv("WANDB_MODE", mode)
        caplog.clear()
        config: Any = SimpleNamespace(use_wandb=True)
        preflight._turn_wandb_off_without_login(config)
        assert config.use_wandb == is_on
        assert ("Run `wandb login`" in caplog.text) != is_on
