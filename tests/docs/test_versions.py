"""A release has one version, wherever it is written."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from reasoning_gym_environment import __version__

from .test_pages import ROOT

HUB = ROOT / "examples" / "environments_hub" / "pyproject.toml"
SPACE = ROOT / "examples" / "openenv" / "pyproject.toml"


def project(path: Path) -> dict[str, object]:
    found: dict[str, object] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return found


@pytest.mark.parametrize("path", [ROOT / "pyproject.toml", HUB, SPACE], ids=["package", "hub", "space"])
def test_a_pyproject_has_the_version_of_the_package(path: Path) -> None:
    assert project(path)["version"] == __version__


@pytest.mark.parametrize("path", [ROOT / "CITATION.cff", SPACE.with_name("openenv.yaml")], ids=["citation", "space"])
def test_a_description_has_the_version_of_the_package(path: Path) -> None:
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["version"] == __version__


@pytest.mark.parametrize(("path", "extra"), [(HUB, "verifiers"), (SPACE, "openenv")], ids=["hub", "space"])
def test_an_example_installs_this_version(path: Path, extra: str) -> None:
    assert f"reasoning-gym-environment[{extra}]=={__version__}" in str(project(path)["dependencies"])


def test_the_changelog_has_a_section_of_this_version() -> None:
    headings = re.findall(r"^## \[?([\d.]+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == __version__
