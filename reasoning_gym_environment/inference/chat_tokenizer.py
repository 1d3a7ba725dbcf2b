"""A tokenizer with its chat template: from messages to a prompt, and from the ids of a completion to its text.

    messages ── message form ──> messages that the template takes ── template ──> text ── encode ──> Prompt
    token ids of a completion ── decode ──> its text, with the markers of its thinking

Templates differ in which messages they take: some refuse or drop a system message, and templates of vision models want
a list of parts as the content. So the first prompt shows in which form both messages reach the model. Templates are
foreign code and raise any exception.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..errors import EnvironmentSetupError
from ..thinking import MARKER_TEXTS, opens_thinking

logger = logging.getLogger(__name__)

Chat = list[dict[str, Any]]
"""Messages in the form of chat APIs: `[{"role", "content"}, ...]`."""

REMEDY = (
    "Set env.tokenizer_name to the tokenizer of a chat model, or env.chat_template to a file with a template that "
    "takes them."
)

_SYSTEM = "Probe of the system message."
_USER = "Probe of the user message."

READ_TEXTS = (*MARKER_TEXTS, "<answer>", "</answer>")
"""The texts that extraction looks for. Decoding keeps a special token that is such a text or a part of one."""


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt: its messages, its text, and the token ids of the text.

    A server with its own chat template gets `messages` and `template_kwargs`.
    """

    messages: Chat
    text: str
    tokens: list[int]
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def thinking_opened(self) -> bool:
        """Whether the chat template already opened the thinking for the model."""
        return opens_thinking(self.text)


def arranged(chat: Chat, *, joins_system: bool, has_parts: bool) -> Chat:
    """The messages in the form that a chat template takes.

    With `joins_system`, the text of the system message goes in front of the question. With `has_parts`, each content is
    a list with one text, as templates of vision models want it.
    """
    if joins_system and len(chat) > 1 and chat[0]["role"] == "system":
        joined = f"{chat[0]['content']}\n\n{chat[1]['content']}"
        chat = [{**chat[1], "content": joined}, *chat[2:]]
    if has_parts:
        chat = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in chat]
    return chat


class ChatTokenizer:
    """Renders messages and decodes completions, with the tokenizer of this name.

    `template` replaces the tokenizer's chat template, and `template_kwargs` are its values. With `has_system`, the
    prompts have a system message. Raises EnvironmentSetupError if the tokenizer does not fit.
    """

    def __init__(
        self,
        tokenizer: Any,
        name: str,
        *,
        template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        has_system: bool = True,
    ) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._template_kwargs = dict(template_kwargs or {})
        self._is_of_mistral = type(tokenizer).__name__ == "MistralCommonBackend"
        self._options: dict[str, Any] = {} if template is None else {"chat_template": template}
        self._check_template(template)
        self._form = self._find_form(has_system=has_system)
        if self._form["joins_system"]:
            logger.info(
                "The chat template of %s takes no system message, so its text goes in front of the question.", name
            )

    @property
    def identity(self) -> dict[str, Any]:
        """The settings of the template, as JSON."""
        template = self._options.get("chat_template")
        digest = None if template is None else hashlib.sha256(template.encode()).hexdigest()[:16]
        return {"chat_template": digest, "chat_template_kwargs": self._template_kwargs}

    # --- prompts

    def render(self, messages: Iterable[Mapping[str, str]]) -> Prompt:
        """Apply the chat template and tokenize."""
        chat = arranged([dict(message) for message in messages], **self._form)
        text, tokens = self._rendered(chat)
        return Prompt(chat, text, tokens, self._template_kwargs)

    def _rendered(self, chat: Chat) -> tuple[str, list[int]]:
        """The text and the tokens of a prompt."""
        options = {"add_generation_prompt": True, **self._options, **self._template_kwargs}
        if self._is_of_mistral:
            # These tokenizers do not find the template's own tokens in a text, and some show blanks as a sign.
            tokens = self._tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False, **options)
            shown: str = self._tokenizer.decode(tokens, skip_special_tokens=False)
            return shown.replace("▁", " "), list(tokens)
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, **options)
        return text, self._encode(text)

    def _encode(self, text: str) -> list[int]:
        """The tokens of a prompt. The tokens that some tokenizers put around every text are not doubled, nor is the
        prompt ended.
        """
        tokenizer = self._tokenizer
        tokens = list(tokenizer.encode(text, add_special_tokens=True))
        if len(tokens) >= 2 and tokens[0] == tokens[1] == tokenizer.bos_token_id:
            tokens = tokens[1:]
        is_ended = bool(tokens) and tokens[-1] == tokenizer.eos_token_id
        if is_ended and not text.endswith(str(tokenizer.eos_token)):
            tokens = tokens[:-1]
        return tokens

    # --- completions

    def decode(self, ids: list[int]) -> str:
        """The text of a completion: without special tokens, but with the markers of its thinking."""
        dropped = self._dropped
        # Mostly, only the last token is to be dropped.
        kept = ids[:-1] if ids and ids[-1] in dropped else ids
        if not dropped.isdisjoint(kept):
            kept = [token for token in kept if token not in dropped]
        skip = not self._keeps_special_tokens
        if self._backend is not None:
            return str(self._backend.decode(kept, skip_special_tokens=skip))
        return str(self._tokenizer.decode(kept, skip_special_tokens=skip, clean_up_tokenization_spaces=False))

    @property
    def end_token(self) -> int:
        """The token that ends a sequence; 0 if there is none."""
        return self._tokenizer.eos_token_id or 0

    def known(self, ids: list[Any]) -> list[int]:
        """The ids that the vocabulary has, in order. A completion can have tens of thousands."""
        vocabulary = self._vocabulary
        if set(map(type, ids)) == {int} and vocabulary.issuperset(ids):
            return ids
        return [token for token in ids if type(token) is int and token in vocabulary]

    @cached_property
    def _vocabulary(self) -> frozenset[int]:
        return frozenset(self._tokenizer.get_vocab().values())

    @cached_property
    def _backend(self) -> Any:
        """The tokenizer that decodes for transformers, if that adds only a type check of each token; else None."""
        for name in ("decode", "_decode"):
            method = getattr(type(self._tokenizer), name, None)
            if not getattr(method, "__module__", "").startswith("transformers.tokenization_utils"):
                return None
        return getattr(self._tokenizer, "backend_tokenizer", None)

    @cached_property
    def _dropped(self) -> frozenset[int]:
        """The special tokens that extraction does not look for."""
        return frozenset(token for text, token in self._special_tokens().items() if not _is_read(text))

    @cached_property
    def _keeps_special_tokens(self) -> bool:
        return any(map(_is_read, self._special_tokens()))

    def _special_tokens(self) -> dict[str, int]:
        tokenizer = self._tokenizer
        ids = getattr(tokenizer, "all_special_ids", [])
        special = {self._tokenizer.decode([token], skip_special_tokens=False): token for token in ids}
        added = getattr(tokenizer, "added_tokens_decoder", {})
        # The tokenizers of mistral-common have no table of added tokens.
        if isinstance(added, Mapping):
            special |= {str(token): number for number, token in added.items() if token.special}
        return special

    # --- does the tokenizer fit?

    def _check_template(self, template: str | None) -> None:
        own = getattr(self._tokenizer, "chat_template", None)
        names = sorted(own) if isinstance(own, dict) else []
        if names and template is None and "default" not in names:
            raise EnvironmentSetupError(
                f"The tokenizer {self.name!r} has several chat templates and no default: set env.chat_template to the "
                f"name of one of them ({', '.join(names)})."
            )
        if not own and template is None and not self._is_of_mistral:
            raise EnvironmentSetupError(
                f"The tokenizer {self.name!r} has no chat template; set env.tokenizer_name to the tokenizer of a chat "
                "model, or env.chat_template to a file with a template."
            )

    def _find_form(self, *, has_system: bool) -> dict[str, bool]:
        """The first form in which all messages are found in the rendered prompt."""
        probe: Chat = [{"role": "user", "content": _USER}]
        if has_system:
            probe.insert(0, {"role": "system", "content": _SYSTEM})
        reasons = []
        for has_parts, joins_system in itertools.product((False, True), repeat=2):
            form = {"joins_system": joins_system, "has_parts": has_parts}
            try:
                text, _ = self._rendered(arranged(probe, **form))
            except Exception as error:  # noqa: BLE001
                reasons.append(f"{type(error).__name__}: {error}")
                continue
            missing = [message["content"] for message in probe if message["content"] not in text]
            if not missing:
                return form
            reasons.append(f"the prompt lacks the {'system' if _SYSTEM in missing else 'user'} message")
        template = "env.chat_template" if self._options else f"the tokenizer {self.name!r}"
        raise EnvironmentSetupError(
            f"The chat template of {template} does not take a system and a user message ({reasons[0]:.300}). {REMEDY}"
        )


def _is_read(token: str) -> bool:
    """Whether extraction looks for this special token, or for a text that contains it."""
    return any(token in text for text in READ_TEXTS)


class EstimatedTokens:
    """A substitute for a missing tokenizer. It splits text into pieces, somewhat more than a model's tokens.

    A piece is up to five letters with the space before them, or any other byte. The id of a piece holds its bytes, so
    decoding restores the text. No model knows these ids.
    """

    chat_template = "role and content of each message"
    bos_token = None
    bos_token_id = None
    eos_token = "<|end|>"
    eos_token_id = 0

    def apply_chat_template(self, chat: Sequence[dict[str, str]], **_: Any) -> str:
        turns = [f"<|{message['role']}|>\n{message['content']}{self.eos_token}\n" for message in chat]
        return "".join([*turns, "<|assistant|>\n"])

    def encode(self, text: str, **_: Any) -> list[int]:
        pieces = re.findall(rb"(?s) ?[A-Za-z]{1,5}|.", text.encode(errors="replace"))
        return [int.from_bytes(piece, "big") for piece in pieces]

    def decode(self, ids: Iterable[int], **_: Any) -> str:
        pieces = [piece.to_bytes(8, "big").lstrip(b"\0") for piece in ids]
        return b"".join(pieces).decode(errors="replace")
