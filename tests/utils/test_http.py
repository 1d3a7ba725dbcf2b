"""The JSON of an answer is read by its schema, and what is not quite JSON is still read."""

from __future__ import annotations

from typing import Any

import msgspec

from reasoning_gym_environment.utils.http import HttpReply


class Row(msgspec.Struct):
    values: list[Any]
    name: Any = None


def reply(body: bytes) -> HttpReply:
    return HttpReply(200, body, {})


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert reply(b'{"values": ["a\xff"]}').parsed(Row).values == ["a\ufffd"]
    assert reply(b"\xff").text == "\ufffd"
