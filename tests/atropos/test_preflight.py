"""What is missing is one line at start."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import web
from atroposlib.envs.base import APIServerConfig, ServerBaseline
from atroposlib.envs.server_handling import vllm_server
from atroposlib.envs.server_handling.openai_server import OpenAIServer
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.envs.server_handling.sglang_server import SGLangServer
from atroposlib.envs.server_handling.vllm_server import VLLMServer
from openai import AsyncOpenAI

from reasoning_gym_environment.atropos import preflight
from reasoning_gym_environment.config import ReasoningGymEnvConfig
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.inference.dialects import TrlTokenServer
from reasoning_gym_environment.inference.prompts import Prompt, Sampling

from ..process_table import eventually

FIRST = (Prompt([{"role": "user", "content": "hi"}], "hi", [1, 2]), Sampling(2, 50, 1.0))
UNREACHABLE = "http://127.0.0.1:9"  # the discard port: nothing listens there


def config(**fields: Any) -> ReasoningGymEnvConfig:
    return ReasoningGymEnvConfig(**{"use_wandb": False, "tokenizer_name": "my/tokenizer", **fields})


CLIENTS = {"vllm": VLLMServer, "sglang": SGLangServer, "trl": TrlTokenServer, "openai": OpenAIServer}


def manager(*servers: APIServerConfig) -> Any:
    """What holds a client of the right class for each of `servers`; the clients load and connect to nothing."""
    clients = [object.__new__(CLIENTS[server.server_type]) for server in servers]
    for client, settings in zip(clients, servers, strict=True):
        client.config, client.reasoning_config = settings, None
        client.tokenizer = SimpleNamespace(bos_token_id=None, bos_token=None, eos_token_id=2)
        if isinstance(client, OpenAIServer):
            client.openai = AsyncOpenAI(api_key="x", base_url=settings.base_url)
    return SimpleNamespace(servers=clients)


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
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    state.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield state
    await runner.cleanup()


def test_servers_get_the_tokenizer_of_the_environment_unless_they_name_one() -> None:
    given = [server(), server(tokenizer_name="own")]
    prepared = preflight.prepare_servers(given, "env/tokenizer")
    assert [one.tokenizer_name for one in prepared] == ["env/tokenizer", "own"]
    assert given[0].tokenizer_name == "none", "what was given is not changed"
    assert preflight.prepare_servers(ServerBaseline(), "env/tokenizer").tokenizer_name == "env/tokenizer"


def test_an_openai_server_without_a_key_gets_the_one_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [("openai", "x"), ("openai", ""), ("openai", "own"), ("vllm", "x")]
    for variable, keys in (("secret", ["secret", "secret", "own", "x"]), ("", ["x", "x", "own", "x"])):
        monkeypatch.setenv("OPENAI_API_KEY", variable)
        prepared = [preflight.prepare_servers([server(kind, api_key=key)], "t")[0] for kind, key in given]
        assert [one.api_key for one in prepared] == keys


def test_servers_that_cannot_be_used_together_or_at_all_are_refused() -> None:
    for servers, message in [
        ([server("vllm"), server("openai")], "one server_type, got openai, vllm"),
        ([], "no server at all"),
        ([server(num_max_requests_at_once=0)], r"openai\.num_max_requests_at_once must be at least 1, got 0"),
        ([server(num_requests_for_eval=0)], r"openai\.num_requests_for_eval must be at least 1, got 0"),
    ]:
        with pytest.raises(EnvironmentSetupError, match=message):
            preflight.prepare_servers(servers, "t")


def test_only_trl_needs_a_client_of_ours_and_only_openai_goes_without_health_checks() -> None:
    for kind, client in (("trl", TrlTokenServer), ("vllm", None), ("sglang", None), ("openai", None)):
        [prepared] = preflight.prepare_servers([server(kind)], "t")
        assert preflight.server_class([prepared]) is client
        assert prepared.health_check is (kind != "openai")


def test_a_tokenizer_that_does_not_load_gives_one_line_that_says_what_to_set(tokenizer_dir: Path) -> None:
    own = config(tokenizer_name=str(tokenizer_dir))
    for servers in ([server()], ServerBaseline()):
        preflight.load_tokenizers(own, preflight.prepare_servers(servers, str(tokenizer_dir)))
    with pytest.raises(EnvironmentSetupError, match=r"'my/tokenizer': set env\.tokenizer_name to ") as caught:
        preflight.load_tokenizers(config(), preflight.prepare_servers([server()], "my/tokenizer"))
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(EnvironmentSetupError, match=r"'its/own': set openai\.tokenizer_name to "):
        preflight.load_tokenizers(own, [server(tokenizer_name="its/own")])


def test_whatever_a_tokenizer_file_raises_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, reason in [
        (OSError("no such\nrepository"), r"\(no such\)"),
        (ValueError(), r"\(ValueError\)"),
        (KeyError("merges"), r"\('merges'\)"),
        (RuntimeError("x" * 1000), r"\(x{160}\)"),
    ]:
        monkeypatch.setattr(preflight.AutoTokenizer, "from_pretrained", Mock(side_effect=error))
        with pytest.raises(EnvironmentSetupError, match=f"{reason}\\.$") as caught:
            preflight.load_tokenizers(config(), [server(tokenizer_name="my/tokenizer")])
        assert caught.value.__cause__ is error


def test_a_tokenizer_that_takes_long_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(preflight, "SLOW_LOAD_S", 0.0)
    told = "Still loading the tokenizer my/tokenizer: a hub"
    monkeypatch.setattr(
        preflight.AutoTokenizer, "from_pretrained", lambda name: eventually(lambda: told in caplog.text)
    )
    preflight.load_tokenizers(config(), [server(tokenizer_name="my/tokenizer")])
    assert told in caplog.text


def test_the_servers_get_the_tokenizers_that_are_loaded(tokenizer_dir: Path) -> None:
    name = str(tokenizer_dir)
    for kind in ("vllm", "sglang", "trl"):
        servers = preflight.prepare_servers([server(kind), server(kind, tokenizer_name=f"{name}/.")], name)
        loaded = preflight.load_tokenizers(config(tokenizer_name=name), servers)
        with preflight.given_tokenizers(loaded):
            made = ServerManager(servers, **({"server_class": TrlTokenServer} if kind == "trl" else {}))
        assert [one.tokenizer for one in made.servers] == [loaded[name], loaded[f"{name}/."]]
        assert loaded[name] is not loaded[f"{name}/."]
    assert vllm_server.AutoTokenizer is preflight.AutoTokenizer


def test_the_servers_of_a_server_baseline_are_known_by_what_they_are(tokenizer_dir: Path) -> None:
    name = str(tokenizer_dir)
    for kind, path in (("vllm", "health"), ("openai", "v1/models")):
        template = ServerBaseline(server_type=kind, model_name=name)
        made = ServerManager(preflight.prepare_servers(template, name))
        assert preflight._probe_urls(made) == [f"http://localhost:{port}/{path}" for port in range(9004, 9008)]


async def test_serve_takes_the_vllm_servers_of_a_server_baseline(
    monkeypatch: pytest.MonkeyPatch, tokenizer_dir: Path
) -> None:
    waited_for: list[str] = []

    async def wait(urls: list[str], who: str, remedy: str) -> None:
        waited_for.extend(urls)

    monkeypatch.setattr(preflight, "_wait_until_reachable", wait)
    template = ServerBaseline(server_type="vllm", model_name=str(tokenizer_dir))
    await preflight.check_serve(config(), ServerManager(preflight.prepare_servers(template, str(tokenizer_dir))))
    assert waited_for[:2] == ["http://localhost:8000/", "http://localhost:9004/health"]


def test_each_kind_of_server_is_asked_at_its_own_address() -> None:
    for kind, url, probed in [
        ("vllm", "http://h:1/v1", ["http://h:1/health"]),
        ("vllm", "http://h:1/v1/", ["http://h:1/health"]),
        ("sglang", "http://h:1/v1", ["http://h:1/health"]),
        ("trl", "http://h:1", ["http://h:1/health/"]),
        ("trl", "http://h:1/v1", ["http://h:1/health/"]),
        ("openai", "http://h:1/v1", ["http://h:1/v1/models"]),
        ("openai", None, []),
        ("openai", "", []),
    ]:
        assert preflight._probe_urls(manager(server(kind, url))) == probed


async def test_any_answer_below_500_is_an_answer(site: Any) -> None:
    for status, reachable in [(200, True), (401, True), (404, True), (500, False), (503, False)]:
        site.status = status
        assert await preflight._probe(site.url) == (None if reachable else f"{site.url} answers {status}")


async def test_what_does_not_answer_is_a_line_with_its_address() -> None:
    for url in (UNREACHABLE, "not a url", "http://127.0.0.1:99999"):
        problem = await preflight._probe(url) or ""
        assert problem.startswith(f"{url}: ")
        assert "\n" not in problem


async def test_a_server_that_is_silent_is_a_line_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "PROBE_TIMEOUT_S", 0.05)

    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(keep_silent, "127.0.0.1", 0)
    async with silent:
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        problem = await preflight._probe(url)
    assert problem is not None
    assert problem.startswith(f"{url}: ")
    assert len(problem) > len(f"{url}: ")


async def test_offline_use_needs_one_server_that_answers(site: Any) -> None:
    site.status = 429
    for kind in ("vllm", "openai"):
        await preflight.check_offline_use(config(), manager(server(kind), server(kind, site.url)), FIRST)
        with pytest.raises(EnvironmentSetupError, match=r"not reachable: http://127\.0\.0\.1:9.* openai\.base_url"):
            await preflight.check_offline_use(config(), manager(server(kind), server(kind)), FIRST)


async def test_offline_use_says_at_once_what_a_server_refuses_and_leaves_the_rest_to_the_run(site: Any) -> None:
    for kind, path in (("openai", "/chat/completions"), ("vllm", "/generate")):
        servers = manager(server(kind, site.url, model_name="m"))
        refused = [
            (400, r"check what the sections openai: and env: ask for \("),
            (401, r"check openai\.api_key \("),
            (403, r"check openai\.api_key and what"),
            (404, r"check openai\.base_url.*/v1"),
        ]
        for site.status, remedy in refused:
            told = rf"answers {site.status} to a request for 'm': {remedy}"
            with pytest.raises(EnvironmentSetupError, match=told) as caught:
                await preflight.check_offline_use(config(), servers, FIRST)
            assert "\n" not in str(caught.value)
        assert site.paths.pop() == path
        for site.status in (408, 429, 500) if kind == "openai" else (408, 429):
            await preflight.check_offline_use(config(), servers, FIRST)


async def test_serve_refuses_groups_of_one(site: Any) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"set env\.group_size to 2"):
        await preflight.check_serve(config(group_size=1), manager(server("vllm", site.url)))


async def test_serve_refuses_openai_and_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed in ("", "0", "no"):
        monkeypatch.setenv("ATROPOS_ALLOW_DUMMY_MANAGED_SERVER", allowed)
        for servers in (manager(server("openai")), ServerManager(preflight.prepare_servers(ServerBaseline(), "t"))):
            with pytest.raises(
                EnvironmentSetupError, match=r"set openai\.server_type to vllm, sglang or trl"
            ) as caught:
                await preflight.check_serve(config(), servers)
            assert "\n" not in str(caught.value)


async def test_serve_with_openai_can_be_forced(
    monkeypatch: pytest.MonkeyPatch, site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ATROPOS_ALLOW_DUMMY_MANAGED_SERVER", "1")
    await preflight.check_serve(config(rollout_server_url=site.url), manager(server("openai", f"{site.url}/v1")))
    assert site.paths == ["/", "/v1/models"]
    assert "no logprobs" in caplog.text


async def test_serve_waits_for_the_trajectory_api_and_says_so_once(
    site: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preflight, "RETRY_S", 0.01)
    caplog.set_level(logging.INFO)
    site.status = 500
    servers = manager(server("vllm", site.url))
    checking = asyncio.ensure_future(preflight.check_serve(config(rollout_server_url=site.url), servers))
    while len(site.paths) < 3:
        assert not checking.done()
        await asyncio.sleep(0.01)
    site.status = 200
    await checking
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "The trajectory API is not reachable" in warnings[0]
    assert "run-api" in warnings[0]
    assert "The trajectory API is there now" in caplog.text


async def test_wandb_without_a_key_is_refused_with_three_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.wandb, "api", SimpleNamespace(api_key=None))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    await preflight.check_offline_use(config(use_wandb=False), manager(), FIRST)
    with pytest.raises(EnvironmentSetupError, match=r"wandb login.*WANDB_MODE=offline.*--env\.use_wandb False"):
        await preflight.check_offline_use(config(use_wandb=True), manager(), FIRST)
    for mode in ("offline", "disabled", "OFFLINE"):
        monkeypatch.setenv("WANDB_MODE", mode)
        await preflight.check_offline_use(config(use_wandb=True), manager(), FIRST)


def test_wandb_run_is_named_after_the_config_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[dict[str, Any]] = []
    monkeypatch.setattr(preflight.wandb, "init", lambda **options: runs.append(options))
    for settings in (config(use_wandb=True, wandb_name="mine"), config(use_wandb=True), config()):
        with preflight.wandb_run(settings, "reasoning_gym"):
            pass
    assert len(runs) == 2
    assert re.match(r"mine-\d{4}-\d\d-\d\d-[a-z]{6}$", runs[0]["name"])
    assert runs[1]["name"].startswith("reasoning_gym-")
    assert runs[0]["config"]["seed"] == 42
