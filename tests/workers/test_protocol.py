"""A verdict that comes from a child arrives intact, or not at all."""

from __future__ import annotations

import math

import pytest

from reasoning_gym_environment.records import Verdict
from reasoning_gym_environment.workers.protocol import ProtocolError, pack_record, unpack_record


def test_scores_outside_zero_to_one_and_fields_out_of_range_are_refused() -> None:
    bad = []
    bad.append(pack_record(Verdict(math.nan)))
    for value in (math.inf, -0.5, 1.5):
        for field in ("value", "native"):
            bad.append(pack_record(Verdict(**{"value": 0.0, field: value})))
    bad.append(b"\xff" + pack_record(Verdict(1.0, native=1.0))[1:])
    for data in bad:
        with pytest.raises(ProtocolError):
            raise AssertionError(unpack_record(data))


def test_a_verdict_arrives_with_and_without_a_native_score() -> None:
    for verdict in (Verdict(1.0, native=0.25, detail="é"), Verdict(0.0)):
        assert unpack_record(pack_record(verdict)) == verdict
