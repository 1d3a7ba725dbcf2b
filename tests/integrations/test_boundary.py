"""Attacks on a server behind the boundary: connections, hosts, tokens and bodies, before any request is served."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from reasoning_gym_environment.integrations import boundary
from reasoning_gym_environment.integrations.boundary import MOST_BYTES, Connection, Gate

PATIENCE_S = 30.0


async def counts_bytes(scope: Any, receive: Any, send: Any) -> None:
    """An application whose reply is the size of the body."""
    message = await receive()
    assert not message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
    await send({"type": "http.response.body", "body": f"{len(message['body']):8}".encode()})


@contextmanager
def serving(token: str = "") -> Iterator[int]:
    """The port of a server."""
    gate = Gate(counts_bytes, token=token, names={"grader.example"})
    config = uvicorn.Config(gate, http=Connection, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as port:
        yield port


def half_sent(port: int, text: str) -> socket.socket:
    """A connection over which this text was sent."""
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    connection.sendall(text.encode())
    return connection


def post(port: int, content: Any, **headers: str) -> httpx.Response:
    return httpx.post(f"http://127.0.0.1:{port}/", content=content, headers=headers, timeout=PATIENCE_S)


def test_a_wrong_token_and_a_long_body_are_refused_before_the_body_is_sent(port: int) -> None:
    with serving(token="secret") as guarded:
        head = "POST / HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 107000000\r\n"
        for token in ("", "Authorization: Bearer secre\r\n"):
            with half_sent(guarded, f"{head}{token}\r\n[") as connection:
                assert connection.recv(1000).split()[1] == b"401"
        with half_sent(guarded, f"{head}Authorization: Bearer secret\r\n\r\n[") as connection:
            assert connection.recv(1000).split()[1] == b"413"
        assert post(guarded, b"x" * 9, host="any.example", authorization="Bearer secret").text.strip() == "9"
    assert post(port, b"x" * MOST_BYTES).text.strip() == str(MOST_BYTES)
    refused = post(port, (b"x" * (1 << 20) for _ in range(65)))
    assert (refused.status_code, "at most 64 MiB" in refused.text) == (413, True), "a body in chunks has no length"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[", "a.b@c.d"])
def test_a_web_page_reaches_no_server_by_its_own_name_or_from_its_own_origin(port: int, host: str) -> None:
    if host != "[":
        assert post(port, b"", host=host).status_code == 403
    assert post(port, b"", origin=f"http://{host}").status_code == 403


def test_this_machine_is_reached_by_its_addresses_and_names(port: int) -> None:
    for host in ("localhost", "LOCALHOST:1", "10.1.2.3:80", "[::1]:80", "grader.example", "compose-service:8100"):
        assert post(port, b"", host=host).status_code == 200
        assert post(port, b"", host=host, origin=f"http://{host}").status_code == 200


def is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1)
    except ConnectionResetError:
        return True


def test_half_sent_requests_are_closed_and_leave_room_for_others(
    port: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    def close_later(connection: socket.socket) -> Callable[[], None]:
        return connection.close

    monkeypatch.setattr(boundary, "HEADER_S", 0.3)
    whole = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
    with half_sent(port, whole) as kept:
        assert kept.recv(1000).startswith(b"HTTP/1.1 200")
        halves = [half_sent(port, text) for text in ("", "GET", whole[:-2], "POST / HTTP/1.1\r\nHost")]
        for half in halves:
            request.addfinalizer(close_later(half))
        assert all(map(is_closed, halves))
        # The connection that waits between two requests is open.
        kept.sendall(whole.encode())
        assert kept.recv(1000).startswith(b"HTTP/1.1 200")
        kept.sendall(whole[:9].encode())
        assert is_closed(kept)
    monkeypatch.setattr(boundary, "HEADER_S", PATIENCE_S)
    monkeypatch.setattr(boundary, "MOST_CONNECTIONS", 2)
    first, second, third = [half_sent(port, "GET") for _ in range(3)]
    for connection in (first, second, third):
        request.addfinalizer(close_later(connection))
    assert is_closed(third)
    first.sendall(f"{whole[3:]}".encode())
    assert first.recv(1000).startswith(b"HTTP/1.1 200")
