"""A release has one version, wherever it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reasoning_gym_environment import __version__

from .test_pages import ROOT

HUB = ROOT / "examples" / "environments_hub" / "pyproject.toml"
SPACE = ROOT / "examples" / "openenv" / "pyproject.toml"


VERSIONS = [
    (ROOT / "pyproject.toml", f'version = "{__version__}"'),
    (HUB, f'version = "{__version__}"'),
    (HUB, f"reasoning-gym-environment[verifiers]=={__version__}"),
    (SPACE, f'version = "{__version__}"'),
    (SPACE, f"reasoning-gym-environment[openenv]=={__version__}"),
    (SPACE.with_name("openenv.yaml"), f"version: {__version__}"),
    (ROOT / "CITATION.cff", f"version: {__version__}"),
]
"""Files, and the text with the version that each must have."""


@pytest.mark.parametrize(("path", "text"), VERSIONS)
def test_a_file_has_the_version_of_the_package(path: Path, text: str) -> None:
    assert text in path.read_text(encoding="utf-8")


def test_the_changelog_has_a_section_of_this_version() -> None:
    headings = re.findall(r"^## \[?([\d.]+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == __version__
