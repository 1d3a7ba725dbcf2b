"""The README keeps up with the code."""

from __future__ import annotations

import re
from pathlib import Path

from atroposlib.envs.base import BaseEnvConfig

from reasoning_gym_environment.config import ReasoningGymEnvConfig, default_configs

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_setting_of_ours_is_in_the_table_with_its_description() -> None:
    for name, field in ReasoningGymEnvConfig.model_fields.items():
        if name not in BaseEnvConfig.model_fields:
            assert re.search(rf"^\| `{name}` \|.*\| {re.escape(str(field.description))} \|$", README, re.MULTILINE), (
                name
            )


def test_every_setting_of_atropos_is_in_the_table_too() -> None:
    for name in BaseEnvConfig.model_fields:
        assert re.search(rf"^\| `{name}` \|", README, re.MULTILINE), name


def test_every_default_that_the_commands_change_is_in_the_table() -> None:
    config, _ = default_configs()
    for name, field in ReasoningGymEnvConfig.model_fields.items():
        value = getattr(config, name)
        if value != field.get_default(call_default_factory=True):
            shown = getattr(value, "value", value)
            assert re.search(rf"^\| `{name}` \| [^|]* \| `{re.escape(str(shown))}` \|", README, re.MULTILINE), name


def test_the_table_names_no_setting_that_does_not_exist() -> None:
    table = README.split("<!-- settings")[1].split("\n\n")[0]
    for name in re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE):
        assert name in ReasoningGymEnvConfig.model_fields


def test_the_two_commands_and_ci_are_make_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in ("demo", "test", "lint"):
        assert re.search(rf"^{command}: ", makefile, re.MULTILINE)
    assert "make test" in README and "make demo" in README
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_links_inside_the_repository_exist() -> None:
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", README):
        assert (ROOT / target).exists(), target
