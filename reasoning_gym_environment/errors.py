"""Errors that a user can act on. Each message says what was expected, what arrived and what to do.

The command line prints these as one line; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EnvironmentSetupError(Exception):
    """The environment cannot start or continue until the user changes something."""


class LibraryNotFoundError(EnvironmentSetupError):
    """reasoning-gym can be imported neither from the submodule nor from the installed package."""


class UnknownNameError(EnvironmentSetupError):
    """A task, category or key does not exist. The message suggests similar names."""


class NoTasksError(EnvironmentSetupError):
    """No task remains after include, exclude and validation."""


class GenerationError(Exception):
    """reasoning-gym failed to generate an item. The message names the task, the seed and the exception."""


class NoRightAnswerError(GenerationError):
    """No answer to the generated item is right."""


class GenerationTimeoutError(GenerationError):
    """An item was not finished within its deadline."""


class GenerationCrashedError(GenerationError):
    """Every worker that tried to make the item died."""


class UnscoredError(Exception):
    """A completion has no score, although its answer may be right. Trainers exclude the completion."""


class InferenceError(Exception):
    """The inference server did not return the requested completions. `status` is its HTTP status, or 0 without one.

    `was_sent` is whether a server accepted the request. Only such a request can be the cause of the failure.
    """

    status = 0
    was_sent = True


class BrokenOffError(InferenceError):
    """A provider answered, and broke off every completion, for example because of its content filter."""


class RequestTimeoutError(InferenceError):
    """The server has not answered a request within `worker_timeout` seconds."""


class UnavailableError(InferenceError):
    """All inference servers have been unavailable for longer than the caller waits."""

    was_sent = False


class UnreadableReplyError(InferenceError):
    """The reply has an unexpected shape: the address or the type of the server is probably wrong."""


class ServerBusyError(InferenceError):
    """The server is busy. It accepts this request in `pause_s` seconds, which is 0 if the server gives no time."""

    def __init__(self, message: str, pause_s: float, *, status: int = 0) -> None:
        super().__init__(message)
        self.pause_s = pause_s
        self.status = status


class RequestRefusedError(InferenceError):
    """The server refuses this request, and retries cannot help. `advice` tells the user what to check."""

    def __init__(self, message: str, *, advice: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.advice = advice or message
        self.status = status


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three names in `known` that resemble `name`: likely typos first, then names that contain it."""
    candidates = sorted(set(known) - {name})
    similar = difflib.get_close_matches(name, candidates, n=3, cutoff=0.6)
    containing = [candidate for candidate in candidates if name and name.lower() in candidate.lower()]
    return list(dict.fromkeys(similar + containing))[:3]


SETTINGS_ARE_LISTED = "`reasoning-gym-env serve --help-all` lists all settings."
"""The hint for an unknown setting."""


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> UnknownNameError:
    """Build the error for a name that is not among `known`."""
    close = nearest(name, known)
    message = f"Unknown {kind} {name!r}."
    if close:
        message += f" Did you mean {' or '.join(close)}?"
    if hint:
        message += f" {hint}"
    return UnknownNameError(message)


EXTRAS = {
    "accelerate": "trl",
    "aiohttp": "atropos",
    "atroposlib": "atropos",
    "fastapi": "atropos",
    "openai": "verifiers",
    "openenv": "openenv",
    "pyarrow": "export",
    "skyrl_gym": "skyrl",
    "verifiers": "verifiers",
    "wandb": "atropos",
}
"""The extra that brings a package, by the package that is imported first."""


def missing_extra(who: str, error: ModuleNotFoundError) -> str:
    """A sentence that names the extra that `who` needs. Raises `error` again if no extra installs the module."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        raise error
    return f'{who} needs {module}: `pip install ".[{EXTRAS[module]}]"` in the checkout brings it.'
