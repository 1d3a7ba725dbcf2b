"""What is missing is one line at start."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from atroposlib.envs.base import APIServerConfig, ServerBaseline
from atroposlib.envs.server_handling.openai_server import OpenAIServer
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.envs.server_handling.sglang_server import SGLangServer
from atroposlib.envs.server_handling.vllm_server import VLLMServer
from openai import AsyncOpenAI

from reasoning_gym_environment.atropos import preflight
from reasoning_gym_environment.config import ReasoningGymEnvConfig
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.inference.trl import TrlTokenServer

UNREACHABLE = "http://127.0.0.1:9"  # the discard port: nothing listens there


def config(**fields: Any) -> ReasoningGymEnvConfig:
    return ReasoningGymEnvConfig(**{"use_wandb": False, "tokenizer_name": "my/tokenizer", **fields})


CLIENTS = {"vllm": VLLMServer, "sglang": SGLangServer, "trl": TrlTokenServer, "openai": OpenAIServer}


def manager(*servers: APIServerConfig) -> Any:
    """What holds a client of the right class for each of `servers`; the clients load and connect to nothing."""
    clients = [object.__new__(CLIENTS[server.server_type]) for server in servers]
    for client, settings in zip(clients, servers, strict=True):
        client.config = settings
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


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "RETRY_S", 0.01)


def test_servers_get_the_tokenizer_of_the_environment_unless_they_name_one() -> None:
    prepared = preflight.prepare_servers([server(), server(tokenizer_name="own")], "env/tokenizer")
    assert [one.tokenizer_name for one in prepared] == ["env/tokenizer", "own"]
    assert preflight.prepare_servers(ServerBaseline(), "env/tokenizer").tokenizer_name == "env/tokenizer"


def test_given_settings_are_not_changed() -> None:
    given = [server()]
    preflight.prepare_servers(given, "env/tokenizer")
    assert given[0].tokenizer_name == "none"


def test_mixed_server_types_are_refused_by_name() -> None:
    with pytest.raises(EnvironmentSetupError, match="one server_type, got openai, vllm"):
        preflight.prepare_servers([server("vllm"), server("openai")], "t")


def test_no_server_is_refused() -> None:
    with pytest.raises(EnvironmentSetupError, match="no server at all"):
        preflight.prepare_servers([], "t")


def test_only_trl_needs_a_client_of_ours() -> None:
    assert preflight.server_class([server("trl")]) is TrlTokenServer
    for kind in ("vllm", "sglang", "openai"):
        assert preflight.server_class([server(kind)]) is None


def test_tokenizers_that_load_pass(tokenizer_dir: Path) -> None:
    name = str(tokenizer_dir)
    preflight.check_tokenizers(config(tokenizer_name=name), preflight.prepare_servers([server()], name))
    preflight.check_tokenizers(config(tokenizer_name=name), preflight.prepare_servers(ServerBaseline(), name))


def test_a_tokenizer_that_does_not_load_gives_one_line_that_says_what_to_set(tokenizer_dir: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"'my/tokenizer': set env\.tokenizer_name to ") as caught:
        preflight.check_tokenizers(config(), preflight.prepare_servers([server()], "my/tokenizer"))
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    own = config(tokenizer_name=str(tokenizer_dir))
    with pytest.raises(EnvironmentSetupError, match=r"'its/own': set openai\.tokenizer_name to "):
        preflight.check_tokenizers(own, [server(tokenizer_name="its/own")])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("no such\nrepository"), r"\(no such\)"),
        (ValueError(), r"\(ValueError\)"),
        (TypeError("\n bad"), r"\(bad\)"),
        (KeyError("merges"), r"\('merges'\)"),
        (RuntimeError("x" * 1000), r"\(x{160}\)"),
    ],
)
def test_whatever_a_tokenizer_file_raises_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr(preflight.AutoTokenizer, "from_pretrained", fail)
    with pytest.raises(EnvironmentSetupError, match=f"{reason}\\.$") as caught:
        preflight.check_tokenizers(config(), [server(tokenizer_name="my/tokenizer")])
    assert caught.value.__cause__ is error


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


async def test_serve_refuses_the_openai_servers_of_a_server_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATROPOS_ALLOW_DUMMY_MANAGED_SERVER", raising=False)
    made = ServerManager(preflight.prepare_servers(ServerBaseline(), "t"))
    with pytest.raises(EnvironmentSetupError, match=r"set openai\.server_type"):
        await preflight.check_serve(config(), made)


@pytest.mark.parametrize(
    ("kind", "url", "probed"),
    [
        ("vllm", "http://h:1/v1", "http://h:1/health"),
        ("vllm", "http://h:1/v1/", "http://h:1/health"),
        ("sglang", "http://h:1/v1", "http://h:1/health"),
        ("trl", "http://h:1", "http://h:1/health/"),
        ("trl", "http://h:1/v1", "http://h:1/health/"),
        ("openai", "http://h:1/v1", "http://h:1/v1/models"),
    ],
)
def test_each_kind_of_server_is_asked_at_its_own_address(kind: str, url: str, probed: str) -> None:
    assert preflight._probe_urls(manager(server(kind, url))) == [probed]


def test_servers_without_an_address_are_not_asked() -> None:
    assert preflight._probe_urls(manager(server("openai", None), server("openai", ""))) == []


@pytest.mark.parametrize(("status", "reachable"), [(200, True), (401, True), (404, True), (500, False), (503, False)])
async def test_any_answer_below_500_is_an_answer(site: Any, status: int, reachable: bool) -> None:
    site.status = status
    problem = await preflight._probe(site.url)
    assert problem == (None if reachable else f"{site.url} answers {status}")


@pytest.mark.parametrize("url", [UNREACHABLE, "not a url", "http://127.0.0.1:99999"])
async def test_what_does_not_answer_is_a_line_with_its_address(url: str) -> None:
    problem = await preflight._probe(url)
    assert problem is not None
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
    await preflight.check_offline_use(config(), manager(server(), server("vllm", site.url)))
    with pytest.raises(EnvironmentSetupError, match=r"not reachable: http://127\.0\.0\.1:9.* openai\.base_url"):
        await preflight.check_offline_use(config(), manager(server(), server()))


@pytest.mark.parametrize(
    ("status", "remedy"),
    [(401, r"check openai\.api_key"), (403, r"check openai\.api_key and what"), (404, r"check openai\.base_url.*/v1")],
)
async def test_offline_use_says_at_once_what_an_openai_server_refuses(site: Any, status: int, remedy: str) -> None:
    site.status = status
    with pytest.raises(EnvironmentSetupError, match=rf"answers {status} to a request for 'm': {remedy}") as caught:
        await preflight.check_offline_use(config(), manager(server("openai", site.url, model_name="m")))
    assert "\n" not in str(caught.value)
    assert site.paths == ["/chat/completions"]


@pytest.mark.parametrize("status", [400, 429, 500])
async def test_what_may_pass_is_left_to_the_run(site: Any, status: int) -> None:
    site.status = status
    await preflight.check_offline_use(config(), manager(server("openai", site.url)))


async def test_one_openai_server_that_is_there_is_enough(site: Any) -> None:
    await preflight.check_offline_use(config(), manager(server("openai"), server("openai", site.url)))
    with pytest.raises(EnvironmentSetupError, match=r"not reachable: http://127\.0\.0\.1:9"):
        await preflight.check_offline_use(config(), manager(server("openai")))


def test_openai_servers_get_no_health_check() -> None:
    prepared = preflight.prepare_servers([server("openai")], "t")
    assert not prepared[0].health_check
    assert preflight.prepare_servers([server()], "t")[0].health_check


@pytest.mark.parametrize("name", ["num_max_requests_at_once", "num_requests_for_eval"])
def test_a_server_that_may_not_be_asked_is_refused(name: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=rf"openai\.{name} must be at least 1, got 0"):
        preflight.prepare_servers([server(**{name: 0})], "t")


async def test_serve_refuses_groups_of_one(site: Any) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"set env\.group_size to 2"):
        await preflight.check_serve(config(group_size=1), manager(server("vllm", site.url)))


@pytest.mark.parametrize("allowed", ["", "0", "no"])
async def test_serve_refuses_openai_and_says_what_to_set(monkeypatch: pytest.MonkeyPatch, allowed: str) -> None:
    monkeypatch.setenv("ATROPOS_ALLOW_DUMMY_MANAGED_SERVER", allowed)
    with pytest.raises(EnvironmentSetupError, match=r"set openai\.server_type to vllm, sglang or trl") as caught:
        await preflight.check_serve(config(), manager(server("openai")))
    assert "\n" not in str(caught.value)


async def test_serve_with_openai_can_be_forced(
    monkeypatch: pytest.MonkeyPatch, site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ATROPOS_ALLOW_DUMMY_MANAGED_SERVER", "1")
    await preflight.check_serve(config(rollout_server_url=site.url), manager(server("openai", f"{site.url}/v1")))
    assert site.paths == ["/", "/v1/models"]
    assert "no logprobs" in caplog.text


async def test_serve_waits_for_the_trajectory_api_and_says_so_once(
    site: Any, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
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


@pytest.fixture
def no_wandb_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.wandb, "api", SimpleNamespace(api_key=None))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


async def test_wandb_without_a_key_is_refused_with_three_remedies(no_wandb_key: None) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"wandb login.*WANDB_MODE=offline.*--env\.use_wandb False"):
        await preflight.check_offline_use(config(use_wandb=True), manager())


@pytest.mark.parametrize("mode", ["offline", "disabled", "OFFLINE"])
async def test_wandb_offline_needs_no_key(no_wandb_key: None, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    await preflight.check_offline_use(config(use_wandb=True), manager())


async def test_unused_wandb_needs_no_key(no_wandb_key: None) -> None:
    await preflight.check_offline_use(config(), manager())


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
