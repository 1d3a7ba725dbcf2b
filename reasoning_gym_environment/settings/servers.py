"""The settings of an inference server."""

from __future__ import annotations

import os
import re

from atroposlib.envs.base import APIServerConfig
from pydantic import ConfigDict, Field, model_validator

PLACEHOLDER = "x"
"""The key of the default settings, which is none."""

STARS = "***"
"""Logs and files have this text in place of a key."""


class Server(APIServerConfig):
    """An inference server, whose key may be in an environment variable."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    api_key_env: str | None = None
    """Name of the environment variable that holds the API key."""
    base_url: str | None = Field("", pattern="^(https?://|$)")
    """Base URL for the server."""
    timeout: int = Field(1200, ge=1)
    """Requests that take longer than this number of seconds fail and are retried."""
    num_max_requests_at_once: int = Field(512, ge=1)
    """Maximum number of concurrent requests."""
    num_requests_for_eval: int = Field(64, ge=1)
    """Maximum number of concurrent requests for evaluation."""

    @model_validator(mode="after")
    def _has_its_key(self) -> Server:
        given: str | None = self.api_key
        self.api_key = PLACEHOLDER if given in (None, "", STARS) else given
        name = self.api_key_env
        if name is None:
            return self
        if self.api_key != PLACEHOLDER:
            raise ValueError("api_key and api_key_env both give a key: use one of them")
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            # The message does not repeat the value, because it may be the key itself.
            raise ValueError("api_key_env: expected the name of an environment variable, such as OPENAI_API_KEY")
        self.api_key = os.environ.get(name, "")
        if not self.api_key:
            raise ValueError(f"api_key_env: the environment variable {name} is not set, or it is empty")
        return self
