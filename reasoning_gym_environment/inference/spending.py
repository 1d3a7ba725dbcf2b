"""What inference costs: said before it is spent, and counted while it is.

A request counts its prompt once and every token of its completions, as most providers charge, or as many as the server
says if those are more: some think unseen. What a provider caches is not known here. Money needs `price_per_million`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..records import Completion


class Spending:
    """Counts requests and tokens. `price` is that of a million prompt and of a million completion tokens.

    Once `limit_tokens` are spent, prompts included, `is_over` is true. What is under way counts too, each of its
    completions with the mean of those that have come: it is still finished.
    """

    def __init__(self, price: tuple[float, float] | None = None, limit_tokens: int | None = None) -> None:
        self.requests = self.prompt_tokens = self.completions = self.completion_tokens = 0
        self._prompt_tokens_under_way = self._completions_under_way = 0
        self._price = price
        self._limit = limit_tokens

    @property
    def is_over(self) -> bool:
        if self._limit is None:
            return False
        more = self._completions_under_way * self.completion_tokens / max(1, self.completions)
        return self.prompt_tokens + self._prompt_tokens_under_way + self.completion_tokens + more >= self._limit

    @contextmanager
    def under_way(self, prompt_tokens: int, completions: int) -> Iterator[None]:
        """While a request for so many completions is."""
        self._prompt_tokens_under_way += prompt_tokens
        self._completions_under_way += completions
        try:
            yield
        finally:
            self._prompt_tokens_under_way -= prompt_tokens
            self._completions_under_way -= completions

    def note(self, prompt_tokens: int, completions: Sequence[Completion]) -> None:
        """A request was answered."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.completions += len(completions)
        self.completion_tokens += sum(one.num_completion_tokens for one in completions)

    def note_unseen(self, used: int, completions: Sequence[Completion]) -> None:
        """The server says that these completions, of which `note` will hear, took so many tokens."""
        self.completion_tokens += max(0, used - sum(one.num_completion_tokens for one in completions))

    def plan(self, requests: int, prompt_tokens: int, most: int) -> str:
        """One sentence on what is to be asked; `most` completion tokens if every one takes all that it may."""
        return (
            f"To ask: {requests:,} requests, {prompt_tokens:,} prompt tokens, at most {most:,} completion tokens"
            f"{self._money(prompt_tokens, most, ' (at most {})')}."
        )

    def expected(self, completions: int) -> str:
        """Completion tokens so far, and of that many completions if the rest is like those that have come."""
        if not self.completions:
            return ""
        share = completions / self.completions
        prompts, tokens = round(self.prompt_tokens * share), round(self.completion_tokens * share)
        spent = self._money(self.prompt_tokens, self.completion_tokens, ", {}")
        return f"{_short(self.completion_tokens)} of ~{_short(tokens)} tokens{spent}" + self._money(
            prompts, tokens, " of ~{}"
        )

    def total(self) -> str:
        """One sentence on what was spent."""
        return (
            f"Spent: {self.requests:,} requests, {self.prompt_tokens:,} prompt and {self.completion_tokens:,} "
            f"completion tokens{self._money(self.prompt_tokens, self.completion_tokens, ' ({})')}."
        )

    def _money(self, prompt_tokens: int, completion_tokens: int, text: str) -> str:
        if self._price is None:
            return ""
        cost = (prompt_tokens * self._price[0] + completion_tokens * self._price[1]) / 1e6
        return text.format(f"{cost:,.2f}" if cost >= 0.01 else f"{cost:.4f}")


def _short(tokens: int) -> str:
    for size, unit in ((10**6, "M"), (10**3, "k")):
        if tokens >= size:
            return f"{tokens / size:.1f}{unit}"
    return str(tokens)
