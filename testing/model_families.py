"""Tokenizers in the form of model families: their special tokens, the shape of their chat templates, their thinking.

    FAMILIES[name].tokenizer()          a byte-level tokenizer with the family's tokens and template
    FAMILIES[name].completion(t, a)     what such a model writes when it thinks t and replies a

Each template in model_families.json has what matters to a prompt: which messages it takes, and what it opens for the
model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing.byte_tokenizer import build_byte_tokenizer


@dataclass(frozen=True)
class Family:
    """A family of models. `opening` and `closing` stand around the thinking; without them the model thinks aloud."""

    template: str
    special: Sequence[str] = ()
    """Special tokens, which decoders remove."""
    added: Sequence[str] = ()
    """Tokens that are not special."""
    opening: str = ""
    closing: str = ""
    end: str = "<|im_end|>"
    """The token that ends a reply."""
    prompt_opens: bool = False
    """Whether the template opens the thinking."""

    def tokenizer(self) -> Any:
        """The tokenizer, made anew."""
        tokenizer = build_byte_tokenizer()
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *self.special]})
        tokenizer.add_tokens(list(self.added))
        tokenizer.eos_token = self.end
        tokenizer.chat_template = self.template
        return tokenizer

    def completion(self, thinking: str, reply: str | None) -> str:
        """The model's text with its tokens. With None as the reply, it was cut off while it thought."""
        opening = "" if self.prompt_opens else self.opening
        if reply is None:
            return f"{opening}{thinking}"
        if not self.opening:
            return f"{thinking}\n{reply}{self.end}"
        return f"{opening}{thinking}{self.closing}{reply}{self.end}"


FAMILIES = {
    name: Family(**values)
    for name, values in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")).items()
}
"""The families by name. Qwen 2.5, Llama 3, Gemma 2 and 3, and Mistral 7B think aloud."""
