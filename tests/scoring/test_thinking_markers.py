"""The search for markers of thinking finds what a search for each marker finds."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from reasoning_gym_environment import thinking
from reasoning_gym_environment.thinking import MARKER_TEXTS

PIECES = (
    *MARKER_TEXTS,
    *(marker[:-1] for marker in MARKER_TEXTS),
    "<",
    ">",
    "[",
    "/",
    "|",
    " ",
    "\t",
    "İ",
    "ſ",
    "think",
)
ONE_BY_ONE = re.compile("|".join(map(thinking._pattern, MARKER_TEXTS)), re.IGNORECASE | re.ASCII)


@given(st.lists(st.sampled_from(PIECES).flatmap(lambda piece: st.sampled_from([piece, piece.upper(), piece[1:]]))))
def test_the_search_finds_what_a_search_for_each_marker_finds(pieces: list[str]) -> None:
    text = "".join(pieces)
    found = [match.span() for match in thinking._MARKER.finditer(text)]
    assert found == [match.span() for match in ONE_BY_ONE.finditer(text)]
