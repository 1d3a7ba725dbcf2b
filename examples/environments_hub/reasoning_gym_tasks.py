"""The tasks of reasoning_gym_environment under a name of the Environments Hub, by which verifiers finds them."""

from reasoning_gym_environment.integrations.verifiers import (
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
