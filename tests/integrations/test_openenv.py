"""The OpenEnv environment. Its library has the virtual environment of TRL, .venv-trl (see Makefile)."""

from __future__ import annotations

import re

import pytest

from .test_trl import run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_real_client_asks_answers_and_leaves() -> None:
    told = run("-m", "pytest", "tests/integrations/openenv_in_its_venv.py", "-p", "no:cacheprovider")
    assert re.search(r"^\.{3,} ", told, re.MULTILINE), told
