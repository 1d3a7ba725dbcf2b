"""Errors a person can act on. Each message says what was expected, what arrived and what to do.

The command line prints these as one line; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EnvironmentSetupError(Exception):
    """The environment cannot start, or cannot go on, until a person changes something."""


class LibraryNotFoundError(EnvironmentSetupError):
    """reasoning-gym can be imported neither from the submodule nor from the installed package."""


class UnknownNameError(EnvironmentSetupError):
    """A task, category or key that does not exist; the message names the nearest ones that do."""


class NoTasksError(EnvironmentSetupError):
    """After include, exclude and validation no task is left."""


class GenerationError(Exception):
    """reasoning-gym failed to generate an item; the message names task, seed and its exception."""


class NoRightAnswerError(GenerationError):
    """The item was made, and no answer to it is right."""


class GenerationTimeoutError(GenerationError):
    """An item was not finished within its deadline."""


class GenerationCrashedError(GenerationError):
    """The workers that made an item died of it."""


class InferenceError(Exception):
    """The inference server did not return the completions asked for."""


class UnavailableError(InferenceError):
    """No inference server has answered for longer than is waited for."""


class UnreadableReplyError(InferenceError):
    """A reply of another shape: the address or the type of the server is probably wrong."""


class ServerBusyError(InferenceError):
    """The server takes this request `pause_s` seconds from now; 0 if it does not say when."""

    def __init__(self, message: str, pause_s: float) -> None:
        super().__init__(message)
        self.pause_s = pause_s


class RequestRefusedError(InferenceError):
    """The server does not take this request, however often it is made; `advice` says what to look at."""

    def __init__(self, message: str, *, advice: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.advice, self.status = advice or message, status


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three names in `known` most like `name`: first those a typo away, then those that contain it."""
    candidates = sorted(set(known))
    containing = [c for c in candidates if name and name.lower() in c.lower()][:3]
    similar = difflib.get_close_matches(name, candidates, n=3, cutoff=0.6)
    return list(dict.fromkeys(similar + containing))[:3]


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> UnknownNameError:
    """Build the error for a name that is not among `known`."""
    close = nearest(name, known)
    meant = f" Did you mean {' or '.join(close)}?" if close else ""
    return UnknownNameError(f"Unknown {kind} {name!r}.{meant}{' ' + hint if hint else ''}")


EXTRAS = {
    "atropos": (
        *("aiohttp", "atroposlib", "fastapi", "openai", "safetensors"),
        *("tenacity", "tokenizers", "transformers", "uvicorn", "wandb"),
    ),
    "openenv": ("openenv",),
    "trl": ("accelerate", "datasets", "torch", "trl"),
    "verifiers": ("async_lru", "verifiers"),
}
"""What each extra brings, by the names under which it is imported."""


def missing_extra(who: str, error: ModuleNotFoundError) -> str:
    """One sentence on the extra that `who` needs. A missing module that no extra brings is raised again."""
    module = (error.name or "").partition(".")[0]
    for extra, brought in EXTRAS.items():
        if module in brought:
            return f'{who} needs {module}: `pip install ".[{extra}]"` in the checkout brings it.'
    raise error
