"""`from reasoning_gym_environment.verifiers import load_environment`; see integrations/verifiers.py."""

from . import (
    ReasoningGymTaskset,
    ReasoningGymVerifiersEnv,
    SingleReplyHarness,
    load_environment,
)

__all__ = [
    "ReasoningGymTaskset",
    "ReasoningGymVerifiersEnv",
    "SingleReplyHarness",
    "load_environment",
]
