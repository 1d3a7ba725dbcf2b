"""API keys stay out of what Atropos prints, logs and writes about the settings it starts with."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import yaml
from atroposlib.envs import base
from atroposlib.envs.base import APIServerConfig

HIDDEN = "***"


@contextmanager
def hidden_api_keys() -> Iterator[None]:
    """Within, Atropos shows HIDDEN in place of every key: on the terminal, and in the settings beside results."""
    rprint, module = base.rprint, base.yaml

    def dump(data: Any, *args: Any, **options: Any) -> Any:
        return yaml.dump(_without_keys(data), *args, **options)

    # Its debugging lines hold the flags and the file's settings as they are.
    logging.getLogger(base.__name__).setLevel(logging.INFO)
    base.rprint = lambda value: rprint(_without_keys(value))
    base.yaml = SimpleNamespace(**{**vars(yaml), "dump": dump})
    try:
        yield
    finally:
        base.rprint, base.yaml = rprint, module


def _without_keys(value: Any) -> Any:
    if isinstance(value, APIServerConfig):
        return value.model_copy(update={"api_key": HIDDEN})
    if isinstance(value, Mapping):
        return {name: HIDDEN if name == "api_key" else _without_keys(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_keys(one) for one in value]
    return value
