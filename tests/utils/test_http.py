"""The JSON of an answer is read by its schema, and what is not quite JSON is still read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from reasoning_gym_environment.utils.http import HttpReply


class Row(msgspec.Struct):
    values: list[Any]
    name: Any = None


def reply(body: bytes) -> HttpReply:
    return HttpReply(200, body, {})


def test_fields_that_the_schema_lacks_are_skipped() -> None:
    body = json.dumps({"values": [1, -0.5, "x", None], "name": "ä", "tokens": [{"a": -1.0}] * 9}).encode()
    assert reply(body).parsed(Row) == Row([1, -0.5, "x", None], "ä")
    assert reply(body).parsed() == json.loads(body)


@pytest.mark.parametrize("values", ["[-1.5, NaN, -Infinity]", "[1e400]", '["\\ud83d"]', "[1e-400]", f"[{10**30}]"])
def test_what_servers_in_python_write_is_read_as_python_reads_it(values: str) -> None:
    found = reply(f'{{"values": {values}}}'.encode()).parsed(Row).values
    # The texts are compared, because a NaN equals nothing.
    assert str(found) == str(json.loads(values))


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert reply(b'{"values": ["a\xff"]}').parsed(Row).values == ["a\ufffd"]
    assert reply(b"\xff").text == "\ufffd"


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"values": 5}', b'{"values": NaN}', b'{"name": "x"}', b"[" * 100_000]
)
def test_another_body_is_an_error_that_callers_expect(body: bytes) -> None:
    with pytest.raises((ValueError, TypeError, RecursionError)):
        reply(body).parsed(Row)
