"""Components whose state a checkpoint holds, and a restart loads.

{name: component} ── state_of ──> {name: plain JSON data} ── load_into ──> the components of the next process
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from ..errors import EnvironmentSetupError


class Stateful(Protocol):
    """A component that a restart resumes."""

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. Raises EnvironmentSetupError if it is malformed."""


def state_of(components: Mapping[str, Stateful]) -> dict[str, Any]:
    """The state of each component, by its name."""
    return {name: component.state_dict() for name, component in components.items()}


def load_into(components: Mapping[str, Stateful], state: Mapping[str, Any]) -> None:
    """Give each component its state.

    Raises EnvironmentSetupError if a state is missing or malformed. Then every component keeps its own state, although
    an item stream that had loaded a new one repeats its own pending items.
    """
    saved = dict(state) if isinstance(state, Mapping) else {}
    missing = sorted(components.keys() - saved.keys())
    if missing:
        raise EnvironmentSetupError(f"it holds no state of {', '.join(missing)}")
    before = state_of(components)
    for name, component in components.items():
        try:
            component.load_state_dict(saved[name])
        except (
            AttributeError,
            KeyError,
            OverflowError,
            RecursionError,
            TypeError,
            ValueError,
            EnvironmentSetupError,
        ) as error:
            _keep(components, before)
            if isinstance(error, EnvironmentSetupError):
                raise
            raise EnvironmentSetupError(f"its state of {name} is malformed ({error!r})") from error


def _keep(components: Mapping[str, Stateful], states: Mapping[str, Any]) -> None:
    for name, component in components.items():
        if component.state_dict() != states[name]:
            component.load_state_dict(states[name])


@contextlib.contextmanager
def loading(what: str) -> Iterator[None]:
    """Turn the errors of a malformed state into an EnvironmentSetupError that names `what` was saved."""
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        raise EnvironmentSetupError(
            f"The saved {what} cannot be used: {error}. Start from another checkpoint."
        ) from error
