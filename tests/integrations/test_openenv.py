"""The OpenEnv environment. Its library has the virtual environment of TRL, .venv-trl (see Makefile)."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

from .test_trl import run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_real_client_asks_answers_and_leaves() -> None:
    told = run("-m", "pytest", "tests/integrations/openenv_in_its_venv.py", "-p", "no:cacheprovider")
    assert re.search(r"^\.{3,} ", told, re.MULTILINE), told


def test_without_openenv_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openenv", None)
    for name in ("openenv", "integrations.openenv"):
        monkeypatch.delitem(sys.modules, f"reasoning_gym_environment.{name}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install \"\.\[openenv\]\""):
        importlib.import_module("reasoning_gym_environment.openenv")
