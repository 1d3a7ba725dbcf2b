"""The commands `grade-server` and `openenv`: their defaults, and the addresses that they refuse."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from reasoning_gym_environment.commands import http_servers
from reasoning_gym_environment.errors import EnvironmentSetupError


@pytest.mark.parametrize(("command", "complexity_mode"), [("grade_server", None), ("openenv", "curriculum")])
def test_the_servers_start_with_the_defaults_of_their_help(
    command: str, complexity_mode: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[dict[str, Any]] = []

    def start(**settings: Any) -> None:
        started.append(settings)
        raise EnvironmentSetupError

    monkeypatch.setattr(http_servers, "Tasks", start)
    monkeypatch.setattr(http_servers, "new_store", lambda *_, **__: None)
    # The library is not installed here.
    monkeypatch.setitem(sys.modules, "reasoning_gym_environment.integrations.openenv", SimpleNamespace(build_app=start))
    with pytest.raises(EnvironmentSetupError):
        getattr(http_servers, command)(["--port", "0"])
    [settings] = started
    # None is the default that depends on the number of cores.
    assert settings["num_generation_workers"] is settings["num_scoring_workers"] is None
    assert (settings.get("complexity_mode"), settings["partial_credit"]) == (complexity_mode, "exact")
    assert settings["sandbox"] == "require"
    with pytest.raises(SystemExit):
        getattr(http_servers, command)(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "A right answer always earns 1 (default: exact)" in text
    assert ("while it does not (default: curriculum)" in text) == (complexity_mode is not None)


@pytest.mark.parametrize(
    ("options", "is_open"),
    [((), False), (("--host", "0.0.0.0"), True), (("--host", "0.0.0.0", "--token-env", "A_TOKEN"), False)],
)
def test_a_server_that_others_reach_without_a_token_warns(
    options: tuple[str, ...],
    is_open: bool,
    in_process_workers: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("A_TOKEN", "secret")
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    http_servers.grade_server(["--port", "0", "--tasks", "chain_sum", *options])
    assert ("can use this server. Add --token-env" in caplog.text) == is_open


def test_a_port_that_is_in_use_or_no_port_is_a_sentence() -> None:
    with http_servers._listen("127.0.0.1", 0) as bound:
        for host, port in (("127.0.0.1", bound.getsockname()[1]), ("127.0.0.1", 70_000), ("no host \udc00", 80)):
            with pytest.raises(EnvironmentSetupError, match="expected a free port of this machine"):
                http_servers._listen(host, port)
