"""Marks show whether run-api is still the process that has registered this environment.

A restarted run-api numbers the environments from 0 again, in the order in which they register. So the number of an
earlier registration may now belong to another environment. Signing it off could take away that environment's share.

But run-api counts the environments of each name, and appends this count to the name. A mark is a unique name,
registered without weight and without a share of the batches. A process of run-api that has seen the mark answers
its next registration with `<mark>_1` or more, and any other process with `<mark>_0`. Marks are planted before the
environment registers. So if run-api knows a mark, no restart lies between this moment and the registration.

A look at a mark registers it once more, which has two consequences. After a look whose answer was lost, the mark proves
nothing. And a process that looks at its own mark needs another mark for the process that may succeed it.
"""

from __future__ import annotations

import secrets
from typing import Any

from .transport import Transport

NO_TRAINER = "wait for trainer to start"
"""The status in run-api's answer to a registration before a trainer has requested a batch."""

MARKS = 2
"""Marks that run-api sees before each registration: for this process and for its successor."""


def new_mark() -> str:
    """A name that no other environment has."""
    return f"mark-{secrets.token_hex(8)}"


def registration_of(mark: str) -> dict[str, Any]:
    """The body of a request that registers a mark."""
    return {
        "max_token_length": 1,
        "desired_name": mark,
        "weight": 0.0,
        "min_batch_allocation": None,
        "group_size": 1,
    }


async def is_known(transport: Transport, mark: str) -> bool:
    """Whether the process of run-api that answers has seen this mark before. Raises ApiError."""
    answer = await transport.request("POST", "/register-env", registration_of(mark))
    if answer.get("status") == NO_TRAINER:
        # Without a trainer, run-api has registered nothing.
        return False
    return not str(answer.get("wandb_name")).endswith("_0")
