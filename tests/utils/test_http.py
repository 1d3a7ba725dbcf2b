"""Answers are read by their schema, what is not quite JSON is still read, and failures are named in one line."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from reasoning_gym_environment.utils.http import HttpReply, NoAnswerError, exchange


@asynccontextmanager
async def site(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """The address of a server that answers every request with this function."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/")).rstrip("/")


class Row(msgspec.Struct):
    values: list[Any]
    name: Any = None


def reply(body: bytes) -> HttpReply:
    return HttpReply(200, body, {})


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert reply(b'{"values": ["a\xff"]}').parsed(Row).values == ["a\ufffd"]
    assert reply(b"\xff").text == "\ufffd"


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert reply(b'\xef\xbb\xbf{"values": ["a"]}').parsed(Row).values == ["a"]
    assert reply(b"\xef\xbb\xbfa").text == "a"


@pytest.mark.parametrize(
    ("path", "words"),
    [("/loop", "TooManyRedirects"), ("/lie", "Can not decode content-encoding: gzip"), ("/cut", "not completed")],
)
async def test_an_answer_that_cannot_be_read_is_named_in_one_line_without_a_status_that_nobody_sent(
    path: str, words: str
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/loop":
            raise web.HTTPTemporaryRedirect("/loop")
        if request.path == "/lie":
            return web.Response(body=b"{}", headers={"Content-Encoding": "gzip"})
        cut = web.StreamResponse(headers={"Content-Length": "100"})
        await cut.prepare(request)
        await cut.write(b"{")
        assert request.transport
        request.transport.close()
        return cut

    async with site(answer) as url, ClientSession() as session:
        with pytest.raises(NoAnswerError, match=words) as caught:
            await exchange(session, "GET", f"{url}{path}")
    assert str(caught.value).isprintable()
    assert not {"400", "message", "url"} & set(re.split(r"\W+", str(caught.value)))


async def test_the_reply_says_where_a_redirection_led_to() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/old":
            raise web.HTTPMovedPermanently("/new?key=secret")
        return web.Response(status=404)

    async with site(answer) as url, ClientSession() as session:
        assert (await exchange(session, "POST", f"{url}/old")).redirected_to == f"{url}/new"
        assert (await exchange(session, "POST", f"{url}/new")).redirected_to == ""
