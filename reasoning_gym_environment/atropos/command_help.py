"""The help of Atropos' commands: every setting with what it means and the value the command starts from."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from enum import Enum
from typing import Any

from pydantic.fields import FieldInfo

GROUPS = {
    "env.": "the environment (in YAML under env:)",
    "openai.": "the inference server (in YAML under openai:, a list of such for several)",
    "": "the command",
}


def help_text(command: str, fields: Mapping[str, FieldInfo], values: Mapping[str, Any]) -> str:
    """The help for flags `fields`. `values` has the defaults of this command where they differ from the fields' own."""
    parser = ArgumentParser(
        prog=f"reasoning-gym-env {command}",
        usage="%(prog)s [--config FILE] [--env.NAME VALUE ...] [--openai.NAME VALUE ...]",
        description="Flags win over the YAML file, and the file over the defaults below.",
        add_help=False,
    )
    groups = {prefix: parser.add_argument_group(title) for prefix, title in reversed(GROUPS.items())}
    groups[""].add_argument("-h", "--help", action="store_true", help="print this and exit")
    for name, field in fields.items():
        prefix = next(prefix for prefix in GROUPS if name.startswith(prefix))
        default = values.get(name, field.get_default(call_default_factory=True))
        meaning = (field.description or "").rstrip(".")
        text = f"{meaning} (default: {_shown(default)})".strip()
        groups[prefix].add_argument(f"--{name}", metavar="VALUE", help=text.replace("%", "%%"))
    return parser.format_help()


def _shown(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, (list, dict)) or value is None or value == "":
        return ",".join(map(str, value or ())) or "none"
    return str(value)
