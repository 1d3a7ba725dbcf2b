"""Names that users choose become names of files: different names never share a file."""

from __future__ import annotations

import os

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reasoning_gym_environment.storage.files import LONGEST, file_name

SAFE = st.text("abcXYZ019_-.", min_size=1, max_size=20).filter(lambda name: name[0] != ".")
ODD = st.one_of(
    SAFE,
    st.text(max_size=12),
    st.text("aA _./\\\u00e4a\u0308\ud83d\n\0+", max_size=6),
    st.builds(lambda name, count: name * count, st.text("a\u00e4.-", min_size=1, max_size=2), st.integers(120, 300)),
)
ENDINGS = st.sampled_from(["", ".json"])


@given(ODD, ODD, ENDINGS)
@settings(max_examples=200)
def test_different_names_have_different_files(name: str, other: str, ending: str) -> None:
    assume(name != other)
    made = file_name(name, ending)
    assert made != file_name(other, ending)
    # The name of a file may be the name of another run.
    assert made == name + ending or made.removesuffix(ending) != file_name(made.removesuffix(ending), ending)
    if made != name + ending:
        assert made.lower() != file_name(other, ending).lower(), "a file system may ignore the case"


@given(ODD, ENDINGS)
def test_a_name_is_valid_visible_and_stays_in_its_folder(name: str, ending: str) -> None:
    made = file_name(name, ending)
    assert 0 < len(os.fsencode(made)) <= LONGEST
    assert made.isascii() and made.isprintable() and not set(made) & set(' /\\:*?"<>|')
    assert not made.startswith(".") and made.endswith(ending)
