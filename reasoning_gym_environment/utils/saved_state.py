"""Components whose state a checkpoint holds, and a restart loads.

{name: component} ── state_of ──> {name: plain JSON data} ── load_into ──> the components of the next process
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..errors import EnvironmentSetupError


class Stateful(Protocol):
    """A component that a restart resumes."""

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, in place of the present state. Any error means that it is malformed."""


def state_of(components: Mapping[str, Stateful]) -> dict[str, Any]:
    """The state of each component, by its name."""
    return {name: component.state_dict() for name, component in components.items()}


def load_into(components: Mapping[str, Stateful], state: Mapping[str, Any]) -> None:
    """Give each component its state.

    Raises EnvironmentSetupError if a state is missing or malformed. Some components have the new state then, so the
    caller must load another state or end.
    """
    for name, component in components.items():
        try:
            component.load_state_dict(state[name])
        except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise EnvironmentSetupError(f"the state of {name} is missing or malformed ({reason:.200})") from error
