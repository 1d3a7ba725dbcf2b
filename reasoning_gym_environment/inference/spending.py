"""The requests and tokens of inference: a plan before the first request, and a count during the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Spending:
    """Counts requests and tokens, and reports when a limit is reached.

    An answered request counts its prompt and every token of its completions, because most providers charge for both.
    If the server reports more completion tokens than it returned, its number counts: some models think unseen. Tokens
    that a provider has cached count like all others.

    `is_over` becomes true once `limit_tokens` are spent, prompts included. Requests in flight count too, with the mean
    length of the completions so far for each completion. They are still finished.
    """

    def __init__(self, limit_tokens: int | None = None) -> None:
        self.requests = 0
        self.prompt_tokens = 0
        self.completions = 0
        self.completion_tokens = 0
        self._prompt_tokens_in_flight = 0
        self._completions_in_flight = 0
        self._limit = limit_tokens

    @property
    def is_over(self) -> bool:
        """Whether the limit is reached, requests in flight included."""
        if self._limit is None:
            return False
        mean_length = self.completion_tokens / max(1, self.completions)
        spent = self.prompt_tokens + self.completion_tokens
        in_flight = self._prompt_tokens_in_flight + self._completions_in_flight * mean_length
        return spent + in_flight >= self._limit

    @contextmanager
    def in_flight(self, prompt_tokens: int, completions: int) -> Iterator[None]:
        """Count these tokens and completions as requested, until the block ends."""
        self._prompt_tokens_in_flight += prompt_tokens
        self._completions_in_flight += completions
        try:
            yield
        finally:
            self._prompt_tokens_in_flight -= prompt_tokens
            self._completions_in_flight -= completions

    def note(self, prompt_tokens: int, completions: int, completion_tokens: int) -> None:
        """Count an answered request."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.completions += completions
        self.completion_tokens += completion_tokens

    def total(self) -> str:
        """The requests and tokens spent so far."""
        return (
            f"{self.requests:,} requests, {self.prompt_tokens:,} prompt tokens, "
            f"{self.completion_tokens:,} completion tokens"
        )


def plan(requests: int, prompt_tokens: int, most: int) -> str:
    """One sentence on the coming requests. `most` is the number of completion tokens if each uses its limit."""
    return f"Planned: {requests:,} requests, {prompt_tokens:,} prompt tokens, at most {most:,} completion tokens."
