"""What goes between the environment and its workers arrives intact, or not at all."""

from __future__ import annotations

import math
import pickle
import select

import pytest

from reasoning_gym_environment.records import Status, Verdict
from reasoning_gym_environment.workers.protocol import (
    DETAIL_BYTES,
    HEADER_SIZE,
    MAX_FRAME_BYTES,
    RECORD_SIZE,
    ProtocolError,
    Record,
    RecordKind,
    RecordReader,
    frame_length,
    pack_frame,
    pack_record,
    unpack_record,
)

VERDICTS = [
    Verdict(1.0, bare=1.0),
    Verdict(0.25, bare=0.0, tagged=0.25, detail="ValueError: no"),
    Verdict(0.0, Status.TIMEOUT, detail="no verdict within 2 s"),
    Verdict(0.0, Status.VERIFIER_ERROR, bare=None, tagged=None, detail="é\n"),
]


def test_a_record_survives_packing_and_fits_one_atomic_pipe_write() -> None:
    for verdict in VERDICTS:
        record = Record(RecordKind.VERDICT, 7, verdict)
        assert unpack_record(pack_record(record)) == record
    assert len(pack_record(Record.note(RecordKind.READY, ""))) == RECORD_SIZE <= select.PIPE_BUF


def test_a_long_detail_is_cut_between_characters_and_lone_surrogates_are_replaced() -> None:
    def sent(detail: str) -> str:
        return unpack_record(pack_record(Record.note(RecordKind.FAILED, detail))).verdict.detail

    assert sent("é" * 500) == "é" * (DETAIL_BYTES // 2)
    assert sent("a" + "é" * 500)[-1] == "é"
    assert sent("\ud800x") == "?x"


def test_scores_outside_zero_to_one_and_fields_out_of_range_are_refused() -> None:
    bad = []
    for value in (math.nan, math.inf, -0.5, 1.5):
        for field in ("value", "bare", "tagged"):
            verdict = Verdict(**{"value": 0.0, field: value})
            bad.append(pack_record(Record(RecordKind.VERDICT, 0, verdict)))
    for offset, byte in ((0, 0), (0, 99), (1, 200), (2, 255), (33, 255)):
        data = bytearray(pack_record(Record(RecordKind.VERDICT, 0, VERDICTS[0])))
        data[offset] = byte
        bad.append(bytes(data))
    for data in bad:
        with pytest.raises(ProtocolError):
            raise AssertionError(unpack_record(bytes(data)))


def test_a_reader_puts_split_records_together() -> None:
    records = [Record(RecordKind.VERDICT, index, verdict) for index, verdict in enumerate(VERDICTS)]
    stream = b"".join(map(pack_record, records))
    reader = RecordReader()
    pieces = [stream[start : start + 100] for start in range(0, len(stream), 100)]
    assert [record for piece in pieces for record in reader.feed(piece)] == records


def test_a_frame_keeps_tuples_and_surrogates_and_an_absurd_length_is_refused() -> None:
    message = {"entry": {"metadata": (1, "a\ud800", {2: None})}}
    frame = pack_frame(message)
    assert frame_length(frame[:HEADER_SIZE]) == len(frame) - HEADER_SIZE
    assert pickle.loads(frame[HEADER_SIZE:]) == message
    with pytest.raises(ProtocolError):
        frame_length((MAX_FRAME_BYTES + 1).to_bytes(8, "little"))
